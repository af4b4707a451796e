//! The controller's shell: watches, workers, the runner links, metrics.
//!
//! ```text
//! VMs ────────watch─┐        ┌─ worker of VM a ─┬─► API server (patches, pods, secrets)
//! Pods ───────watch─┼─► hub ─┤   mailbox, core  └─► runner of a (PUT /v1/size)
//! migrations ─watch─┘        │                       ▲ GET /v1/state?after=… kept open
//!                            ├─ worker of VM b
//!                            └─ mover of VM b: its migrations ─► API server, runners of source and target
//! ```

mod admin;
mod api;
mod api_settings;
mod certificate;
mod decode;
mod events;
mod field_managers;
mod hub;
mod link;
mod mailbox;
mod metrics;
mod monitor_key;
mod mover;
mod moves;
mod overlay;
mod runner_key;
mod runner_link;
mod secret;
mod state;
#[cfg(test)]
mod testing;
mod webhook;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use protocol::annotations::LABEL_VM_NAME;
use protocol::time::Timestamp;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use admin::{Waits, serve_admin};
pub use api::ApiError;
pub use api_settings::{SettingsError, settings};
pub use certificate::CertificateError;
pub use decode::DecodeError;
pub use link::{LinkError, RunnerAddress, RunnerLink};
pub use metrics::Metrics;
use monitor_key::MonitorKey;
pub use overlay::OverlayError;
pub use secret::KeyError;
pub use state::StateHandle;
pub use webhook::{Names as WebhookNames, Webhook};

use crate::core::{Moment, Settings};

/// Name of the VM controller in metrics and dumps.
const CONTROLLER: &str = "virtualmachine";
/// Name of the migration controller in metrics and dumps.
const CONTROLLER_OF_MOVES: &str = "virtualmachinemigration";
/// First and longest pause before a broken watch is restarted.
const WATCH_RETRY_FIRST: Duration = Duration::from_millis(50);
const WATCH_RETRY_CAP: Duration = Duration::from_secs(5);

/// Parameters of [`run`].
#[derive(Clone)]
pub struct Params {
    /// Client of the API server.
    pub client: Client,
    /// Holds `vms/<namespace>_<pod>/control.sock` of each runner.
    pub state_dir: PathBuf,
    /// Settings of the controller.
    pub settings: Settings,
    /// The clock of this process.
    pub clock: Clock,
    /// Log of the stages of resizes.
    pub stages: StageLog,
    /// Metrics, registered by the caller.
    pub metrics: Metrics,
    /// Published state. The caller keeps another clone to read it.
    pub state: StateHandle,
}

/// The controller ended without a cancel.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A watch ended for good, which it never should: a defect.
    #[error("the watch of {0} ended")]
    WatchEnded(&'static str),
}

/// Runs the controller until `cancel`. While the API server is unreachable, the controller retries.
///
/// # Errors
/// [`RunError`] only through a defect.
pub async fn run(params: Params, cancel: CancellationToken) -> Result<(), RunError> {
    let objects = |resource: ApiResource| -> Api<DynamicObject> {
        Api::all_with(params.client.clone(), &resource)
    };
    let vm_objects = objects(resource(
        "vm.neon.tech",
        "VirtualMachine",
        "virtualmachines",
    ));
    let pod_objects = objects(resource("", "Pod", "pods"));
    let migration_objects = objects(resource(
        "vm.neon.tech",
        "VirtualMachineMigration",
        "virtualmachinemigrations",
    ));
    let mut api = api::KubeApi::new(params.client.clone());
    let pools = params.settings.overlay.clone().map(|overlay| {
        let metrics = params.metrics.ipam.clone();
        Arc::new(overlay::Pools::new(overlay, metrics, params.clock))
    });
    api.pools.clone_from(&pools);
    api.keep_field_owners = params.settings.keep_field_owners;
    api.monitor_key = params.settings.monitor_key.clone().map(MonitorKey::new);
    let api = Arc::new(api);
    let sweeper = pools.map(|pools| {
        let sweep = pools.sweep(Arc::clone(&api), params.state.clone());
        tokio::spawn(sweep)
    });
    let (events, writer) = events::start(Arc::clone(&api), cancel.clone());
    let writer = tokio::spawn(writer);
    let common = worker::Common {
        api,
        events,
        metrics: params.metrics,
        stages: params.stages,
        state: params.state,
        state_dir: params.state_dir,
        clock: params.clock,
    };
    let hub = hub::Hub::new(common, params.settings);
    let all = watcher::Config::default();
    let pods_of_vms = watcher::Config::default().labels(LABEL_VM_NAME);
    let vms = watcher(vm_objects, all.clone()).backoff(WatchRetry::default());
    let pods = watcher(pod_objects, pods_of_vms).backoff(WatchRetry::default());
    let migrations = watcher(migration_objects, all).backoff(WatchRetry::default());
    // Beside the tasks that it wakes and that wake it, not on the thread that waits for the end.
    let hub = AbortOnDropHandle::new(tokio::spawn(hub.run(vms, pods, migrations, cancel)));
    let ended = match hub.await {
        Ok(ended) => ended,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and this with it.
            Err(_) => Ok(()),
        },
    };
    writer.abort();
    if let Some(sweeper) = sweeper {
        sweeper.abort();
    }
    ended
}

fn resource(group: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural)
}

/// The current time on both clocks.
fn moment(clock: &Clock) -> Moment {
    Moment {
        now: clock.now(),
        wall: clock.wall(),
    }
}

async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Waits until a point in time; without one, for ever.
async fn pause_until(clock: &Clock, at: Option<Timestamp>) {
    match at {
        Some(at) => tokio::time::sleep_until(clock.instant_of(at).into()).await,
        None => std::future::pending().await,
    }
}

/// Doubling pauses between attempts to watch.
#[derive(Debug)]
struct WatchRetry(Duration);

impl Default for WatchRetry {
    fn default() -> Self {
        Self(WATCH_RETRY_FIRST)
    }
}

impl Iterator for WatchRetry {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.0;
        self.0 = (self.0 * 2).min(WATCH_RETRY_CAP);
        Some(pause)
    }
}

impl Backoff for WatchRetry {
    fn reset(&mut self) {
        *self = Self::default();
    }
}
