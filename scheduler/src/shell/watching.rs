//! Watches of nodes, pods and VMs. A list is handed to the core whole, so that what was deleted unseen is noticed; a
//! stream that ends or is told "gone" lists anew. One object that does not read is counted and left out.

use futures::StreamExt;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use protocol::permit::NamespacedName;
use protocol::time::Span;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::api::virtual_machines;
use super::metrics::Metrics;
use super::owner::Command;
use crate::core::event::Event;
use crate::core::view::{NodeProblem, NodeView, PodView, Unreadable, VmView};

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Nodes,
    Pods,
    VirtualMachines,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Nodes, Self::Pods, Self::VirtualMachines];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Nodes => "Nodes",
            Self::Pods => "Pods",
            Self::VirtualMachines => "VirtualMachines",
        }
    }

    fn resource(self) -> ApiResource {
        match self {
            Self::Nodes => ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&()),
            Self::Pods => ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&()),
            Self::VirtualMachines => virtual_machines(),
        }
    }
}

/// What a watch needs.
#[derive(Clone)]
pub(super) struct Watch {
    pub(super) client: Client,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) metrics: Metrics,
}

impl Watch {
    /// Watches everything anew for each term that is told, from lists taken after that, until `cancel` or until nobody
    /// listens; watches nothing while there is no term.
    pub(super) async fn run(
        self,
        wait: Span,
        mut terms: watch::Receiver<Option<u64>>,
        cancel: CancellationToken,
    ) {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(wait.to_duration()) => {}
        }
        loop {
            let term = *terms.borrow_and_update();
            let ended = async {
                match term {
                    Some(term) => self.term(term, &cancel).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Each ends only with `cancel` or with the owner.
                () = ended => return,
                told = terms.changed() => if told.is_err() { return },
            }
        }
    }

    /// One term. Dropping this future ends its watches.
    async fn term(&self, term: u64, cancel: &CancellationToken) {
        let end = cancel.child_token();
        let _end = end.clone().drop_guard();
        let watches =
            Kind::ALL.map(|kind| tokio::spawn(one(kind, term, self.clone(), end.clone())));
        // A crash of one is passed on as our own.
        let (first, ..) = futures::future::select_all(watches).await;
        if let Err(error) = first
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Watches one kind until `cancel`, or until nobody listens.
async fn one(kind: Kind, term: u64, watch: Watch, cancel: CancellationToken) {
    watch.metrics.watch_alive(kind.as_str(), true);
    tokio::select! {
        () = cancel.cancelled() => {}
        () = follow(kind, term, &watch) => {}
    }
    watch.metrics.watch_alive(kind.as_str(), false);
}

async fn follow(kind: Kind, term: u64, watch: &Watch) {
    let Watch {
        client,
        commands,
        metrics,
    } = watch;
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource());
    let stream = watcher(api, watcher::Config::default()).default_backoff();
    let mut stream = std::pin::pin!(stream);
    let mut listed = Listed::default();
    let mut lists = 0_u64;
    while let Some(event) = stream.next().await {
        metrics.watch_failing(kind.as_str(), event.is_err());
        let event = match event {
            Ok(watcher::Event::Init) => {
                listed = Listed::default();
                metrics.watch_listed(kind.as_str(), lists > 0);
                lists += 1;
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed.push(kind, &object, metrics);
                continue;
            }
            Ok(watcher::Event::InitDone) => {
                metrics.watch_event(kind.as_str(), "Listed");
                tracing::debug!(kind = kind.as_str(), "listed");
                Some(std::mem::take(&mut listed).into_event(kind))
            }
            Ok(watcher::Event::Apply(object)) => {
                metrics.watch_event(kind.as_str(), "Applied");
                applied(kind, &object, metrics)
            }
            Ok(watcher::Event::Delete(object)) => {
                metrics.watch_event(kind.as_str(), "Deleted");
                deleted(kind, &object)
            }
            Err(error) => {
                metrics.watch_error(kind.as_str(), source_of(&error));
                let error = telemetry::chain(&error);
                tracing::warn!(
                    kind = kind.as_str(),
                    error,
                    "watch failed; it is taken up again"
                );
                None
            }
        };
        let Some(event) = event else { continue };
        if commands.send(Command::Told(term, event)).await.is_err() {
            return;
        }
    }
}

fn source_of(error: &watcher::Error) -> &'static str {
    match error {
        watcher::Error::InitialListFailed(_) => "List",
        watcher::Error::WatchStartFailed(_) | watcher::Error::NoResourceVersion => "Watch",
        watcher::Error::WatchError(_) | watcher::Error::WatchFailed(_) => "Watch.Event",
    }
}

/// Reads an object with `read`; tells of problems once per state of the object.
fn view<T>(
    kind: Kind,
    object: &DynamicObject,
    metrics: &Metrics,
    read: fn(&Value) -> Result<T, Unreadable>,
    problem: fn(&T) -> Option<String>,
) -> Option<T> {
    let value = serde_json::to_value(object).unwrap_or_default();
    let name = || {
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        format!(
            "{namespace}/{}",
            object.metadata.name.clone().unwrap_or_default()
        )
    };
    match read(&value) {
        Ok(view) => {
            if let Some(problem) = problem(&view) {
                metrics.unreadable(kind.as_str());
                let object = name();
                tracing::warn!(
                    kind = kind.as_str(),
                    object,
                    problem,
                    "counted at the most it can be"
                );
            }
            Some(view)
        }
        Err(error) => {
            metrics.unreadable(kind.as_str());
            let (object, error) = (name(), error.to_string());
            tracing::warn!(kind = kind.as_str(), object, error, "object left out");
            None
        }
    }
}

fn node(object: &DynamicObject, metrics: &Metrics) -> Option<NodeView> {
    // A node that has not reported yet is no fault of anybody's; nothing is placed on it meanwhile.
    let problem = |view: &NodeView| match &view.problem {
        None | Some(NodeProblem::NotReported) => None,
        Some(problem) => Some(problem.to_string()),
    };
    view(Kind::Nodes, object, metrics, NodeView::read, problem)
}

fn pod(object: &DynamicObject, metrics: &Metrics) -> Option<PodView> {
    let problem = |view: &PodView| view.size.as_ref().err().map(ToString::to_string);
    view(Kind::Pods, object, metrics, PodView::read, problem)
}

fn vm(object: &DynamicObject, metrics: &Metrics) -> Option<VmView> {
    let problem = |view: &VmView| view.problem.as_ref().map(ToString::to_string);
    view(
        Kind::VirtualMachines,
        object,
        metrics,
        VmView::read,
        problem,
    )
}

/// A list while it comes. Only what the core needs is kept of each object: of a large cluster the objects themselves would
/// take gigabytes.
#[derive(Default)]
struct Listed {
    nodes: Vec<NodeView>,
    pods: Vec<PodView>,
    vms: Vec<VmView>,
}

impl Listed {
    fn push(&mut self, kind: Kind, object: &DynamicObject, metrics: &Metrics) {
        match kind {
            Kind::Nodes => self.nodes.extend(node(object, metrics)),
            Kind::Pods => self.pods.extend(pod(object, metrics)),
            Kind::VirtualMachines => self.vms.extend(vm(object, metrics)),
        }
    }

    fn into_event(self, kind: Kind) -> Event {
        match kind {
            Kind::Nodes => Event::NodesListed(self.nodes),
            Kind::Pods => Event::PodsListed(self.pods),
            Kind::VirtualMachines => Event::VmsListed(self.vms),
        }
    }
}

fn applied(kind: Kind, object: &DynamicObject, metrics: &Metrics) -> Option<Event> {
    match kind {
        Kind::Nodes => node(object, metrics).map(Event::NodeApplied),
        Kind::Pods => pod(object, metrics).map(Event::PodApplied),
        Kind::VirtualMachines => vm(object, metrics).map(Event::VmApplied),
    }
}

fn deleted(kind: Kind, object: &DynamicObject) -> Option<Event> {
    let meta = &object.metadata;
    let (name, uid) = (meta.name.clone()?, meta.uid.clone()?);
    Some(match kind {
        Kind::Nodes => Event::NodeDeleted(name),
        Kind::Pods => Event::PodDeleted(uid),
        Kind::VirtualMachines => {
            let namespace = meta.namespace.clone().unwrap_or_default();
            Event::VmDeleted(NamespacedName { namespace, name }, uid)
        }
    })
}
