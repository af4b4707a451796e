//! The driver: watches nodes, observes the kernel, executes the core's steps.

mod kernel;
mod metrics;
mod state;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use api_client::watch::{self as api_watch, Config, Event, Retry};
use daemon_kit::chain;
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

pub use kernel::{Kernel, KernelError};
pub use metrics::Metrics;
pub use state::StateHandle;

use crate::core::nodes::{NodeUpdate, Nodes};
use crate::core::{Cidr, Foreign, Seen, Wanted, removal, steps};

/// Longest time between two looks at the kernel: another program may have removed something.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Pause after the first failure, doubled with each further one up to [`LOOK_EVERY`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Type of the address by which nodes reach each other.
const INTERNAL: &str = "InternalIP";

/// Dependencies of the driver: API client, kernel, metrics and state.
pub struct Context {
    /// Client of the API whose nodes are watched.
    pub client: kube::Client,
    /// Access to the links and iptables rules of this network namespace.
    pub kernel: Kernel,
    /// IPv4 address of this node, the tunnel's source.
    pub local: Ipv4Addr,
    /// Addresses of the overlay, if rules are to be managed for them.
    pub exempt: Option<Cidr>,
    /// Counters of steps and failures, and gauges of nodes and targets.
    pub metrics: Metrics,
    /// State for the admin server.
    pub state: StateHandle,
}

/// Errors of setting up or removing the overlay.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// A link of our name belongs to another program.
    #[error(transparent)]
    Foreign(#[from] Foreign),
    /// The state of links or rules could not be read.
    #[error("cannot read the kernel's links and rules")]
    Look(#[source] KernelError),
    /// The kernel or iptables refused the step of this name.
    #[error("could not {0}")]
    Step(&'static str, #[source] KernelError),
    /// The watch ended, which must not happen.
    #[error("the watch of nodes has ended")]
    Watch,
}

/// Removes everything that the program ever made; rules only if the kernel was opened with
/// iptables.
///
/// # Errors
/// [`WorkError`]; another call continues.
pub async fn remove(kernel: &Kernel) -> Result<(), WorkError> {
    let seen = kernel.look().await.map_err(WorkError::Look)?;
    for step in removal(&seen) {
        let done = kernel.act(&step).await;
        done.map_err(|error| WorkError::Step(step.label(), error))?;
        info!(step = step.label(), "removed");
    }
    Ok(())
}

/// Keeps this node a part of the overlay until cancelled. Links, entries and rules stay then, as
/// guests run on.
///
/// # Errors
/// [`WorkError::Watch`].
pub async fn run(context: Context, cancel: CancellationToken) -> Result<(), WorkError> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let mut watch = api_watch::objects(nodes, Config::default(), Retry::Patient);
    let mut nodes = Nodes::default();
    let mut pause = FIRST_PAUSE;
    let mut next = Instant::now();
    loop {
        let event = tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            event = watch.next() => Some(event.ok_or(WorkError::Watch)?),
            () = tokio::time::sleep_until(next) => None,
        };
        let mut is_due = event.is_none();
        let mut received = event;
        // Events that arrive together cause one look.
        while let Some(event) = received {
            is_due |= apply_event(&mut nodes, event, &context.metrics);
            received = watch.next().now_or_never().flatten();
        }
        if !is_due {
            continue;
        }
        let worked = context.work(&nodes).await;
        next = Instant::now() + if worked.is_ok() { LOOK_EVERY } else { pause };
        match worked {
            Ok(()) => pause = FIRST_PAUSE,
            Err(problem) => {
                context.metrics.failures.inc();
                error!(
                    error = chain(&problem),
                    pause_s = pause.as_secs(),
                    "failed to set the overlay up"
                );
                context.state.failed(chain(&problem));
                pause = LOOK_EVERY.min(pause * 2);
            }
        }
    }
}

/// Applies a watch event. Returns whether the nodes changed.
fn apply_event(
    nodes: &mut Nodes,
    event: Result<Event<Node>, api_watch::Error>,
    metrics: &Metrics,
) -> bool {
    let update = match event {
        Ok(Event::Init) => NodeUpdate::ListBegins,
        Ok(Event::InitApply(node)) => NodeUpdate::Listed(node.name_any(), addresses(&node)),
        Ok(Event::InitDone) => NodeUpdate::ListComplete,
        Ok(Event::Apply(node)) => NodeUpdate::Applied(node.name_any(), addresses(&node)),
        Ok(Event::Delete(node)) => NodeUpdate::Deleted(node.name_any()),
        Err(problem) => {
            metrics.watch_failures.inc();
            warn!(
                error = chain(&problem),
                "watch of nodes failed; the last known nodes stay"
            );
            return false;
        }
    };
    let is_news = nodes.apply(update);
    metrics
        .nodes
        .set(nodes.counts().0.try_into().unwrap_or(i64::MAX));
    is_news
}

fn addresses(node: &Node) -> BTreeSet<Ipv4Addr> {
    let status = node.status.as_ref();
    let all = status.and_then(|status| status.addresses.as_deref());
    let internal = all
        .unwrap_or_default()
        .iter()
        .filter(|address| address.type_ == INTERNAL);
    internal
        .filter_map(|address| address.address.parse().ok())
        .collect()
}

impl Context {
    /// Looks at the kernel and executes all steps, once.
    async fn work(&self, nodes: &Nodes) -> Result<(), WorkError> {
        let wanted = Wanted {
            local: self.local,
            peers: nodes.peers(self.local),
            exempt: self.exempt,
        };
        let seen = self.look().await?;
        let steps = steps(&seen, &wanted)?;
        for step in &steps {
            let done = self.kernel.act(step).await;
            done.map_err(|error| WorkError::Step(step.label(), error))?;
            let of = metrics::StepLabel { step: step.label() };
            self.metrics.steps.get_or_create(&of).inc();
            info!(step = ?step, "done");
        }
        let seen = if steps.is_empty() {
            seen
        } else {
            self.look().await?
        };
        let targets = seen.tunnel.as_ref().and_then(|link| link.is.as_ref());
        let targets = targets.map_or(0, |is| is.targets.len());
        self.metrics
            .targets
            .set(targets.try_into().unwrap_or(i64::MAX));
        self.state.done(wanted, seen, nodes.counts());
        Ok(())
    }

    async fn look(&self) -> Result<Seen, WorkError> {
        self.kernel.look().await.map_err(WorkError::Look)
    }
}
