//! Watches of nodes, pods, VMs and migrations.
//!
//! The core gets each list as a whole, so that it notices deletions that no watch event showed. A
//! stream that ends or gets "gone" lists again. An object that cannot be read is counted in a
//! metric and left out.
//!
//! Each update carries the progress of its watch. `kube` does not pass on a list's own version, and
//! deleted objects have none. Before a standby replica lists, it therefore reads the current
//! version. The list is at least as new.

use std::time::Duration;

use api_client::watch::{self as api_watch, Config, Event as ObjectEvent, Retry};
use futures::StreamExt;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use protocol::permit::NamespacedName;
use protocol::time::Span;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::api::{virtual_machine_migrations, virtual_machines};
use super::driver::{Input, WatchUpdate};
use super::metrics::Metrics;
use crate::core::event::{Event, ObjectKind, WatchProgress};
use crate::core::migrate::MigrationView;
use crate::core::view::{NodeProblem, NodeView, PodView, Unreadable, VmView};

/// A kind as a metric label and log field.
pub(super) const fn label(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Nodes => "Nodes",
        ObjectKind::Pods => "Pods",
        ObjectKind::VirtualMachines => "VirtualMachines",
        ObjectKind::Migrations => "VirtualMachineMigrations",
    }
}

fn resource(kind: ObjectKind) -> ApiResource {
    match kind {
        ObjectKind::Nodes => ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&()),
        ObjectKind::Pods => ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&()),
        ObjectKind::VirtualMachines => virtual_machines(),
        ObjectKind::Migrations => virtual_machine_migrations(),
    }
}

/// Lists and watches every kind, once per epoch.
#[derive(Clone)]
pub(super) struct Watch {
    pub(super) client: Client,
    pub(super) inputs: mpsc::Sender<Input>,
    pub(super) metrics: Metrics,
    /// Time-out of the read of the current version before a list. `None`: no such read.
    pub(super) version_timeout: Option<Duration>,
}

impl Watch {
    /// Lists and watches every kind for each epoch, until `cancel` or until the driver ends.
    /// Between epochs there is no watch.
    pub(super) async fn run(
        self,
        wait: Span,
        mut epochs: watch::Receiver<Option<u64>>,
        cancel: CancellationToken,
    ) {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(wait.to_duration()) => {}
        }
        loop {
            let epoch = *epochs.borrow_and_update();
            let ended = async {
                match epoch {
                    Some(epoch) => self.run_epoch(epoch, &cancel).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Each ends only with `cancel` or with the owner.
                () = ended => return,
                changed = epochs.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Runs one epoch. Dropping this future ends its watches.
    async fn run_epoch(&self, epoch: u64, cancel: &CancellationToken) {
        let end = cancel.child_token();
        let _end = end.clone().drop_guard();
        let watches = ObjectKind::ALL
            .map(|kind| tokio::spawn(watch_kind(kind, epoch, self.clone(), end.clone())));
        // A panic of one watch is a panic of this task.
        let (first, ..) = futures::future::select_all(watches).await;
        if let Err(error) = first
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Watches one kind until `cancel`, or until the driver ends.
async fn watch_kind(kind: ObjectKind, epoch: u64, watch: Watch, cancel: CancellationToken) {
    tokio::select! {
        () = cancel.cancelled() => {}
        () = follow(kind, epoch, &watch) => {}
    }
}

async fn follow(kind: ObjectKind, epoch: u64, watch: &Watch) {
    let (inputs, metrics) = (&watch.inputs, &watch.metrics);
    let api: Api<DynamicObject> = Api::all_with(watch.client.clone(), &resource(kind));
    let events = api_watch::objects(api.clone(), Config::default(), Retry::Patient);
    let mut events = metrics.watches.count(label(kind), events);
    let mut listed = Listed::default();
    while let Some(event) = events.next().await {
        let (event, progress) = match event {
            Ok(ObjectEvent::Init) => {
                // `kube` sends the list request at the next poll of the stream.
                listed = Listed {
                    least: watch.version(&api).await,
                    ..Listed::default()
                };
                continue;
            }
            Ok(ObjectEvent::InitApply(object)) => {
                listed.push(kind, &object, metrics);
                continue;
            }
            Ok(ObjectEvent::InitDone) => {
                tracing::debug!(kind = label(kind), "listed");
                let progress = listed.progress();
                (Some(std::mem::take(&mut listed).into_event(kind)), progress)
            }
            Ok(ObjectEvent::Apply(object)) => {
                let progress = version_of(&object).map(|version| WatchProgress {
                    observed: version,
                    newest: version,
                });
                (applied(kind, &object, metrics), progress)
            }
            Ok(ObjectEvent::Delete(object)) => {
                let progress = version_of(&object).map(|version| WatchProgress {
                    observed: version,
                    newest: 0,
                });
                (deleted(kind, &object), progress)
            }
            Err(error) => {
                let error = daemon_kit::chain(&error);
                tracing::warn!(
                    kind = label(kind),
                    error,
                    "watch failed; it is taken up again"
                );
                continue;
            }
        };
        let update = Input::WatchUpdate(WatchUpdate {
            epoch,
            event,
            kind,
            progress,
        });
        if inputs.send(update).await.is_err() {
            return;
        }
    }
}

impl Watch {
    /// The current version. A list after this is at least as new. 0 if it is unknown.
    async fn version(&self, api: &Api<DynamicObject>) -> u64 {
        let Some(timeout) = self.version_timeout else {
            return 0;
        };
        let least = ListParams::default().limit(1);
        let found = tokio::time::timeout(timeout, api.list(&least)).await;
        let found = found.ok().and_then(Result::ok);
        let version = found.and_then(|list| list.metadata.resource_version);
        version.and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

fn version_of(object: &DynamicObject) -> Option<u64> {
    let version = object.metadata.resource_version.as_ref()?;
    version.parse().ok().filter(|version| *version > 0)
}

/// Reads an object with `read`. Logs its problem, once per state of the object.
fn view<T>(
    kind: ObjectKind,
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
                metrics.unreadable(label(kind));
                let object = name();
                tracing::warn!(
                    kind = label(kind),
                    object,
                    problem,
                    "counted at the most it can be"
                );
            }
            Some(view)
        }
        Err(error) => {
            metrics.unreadable(label(kind));
            let (object, error) = (name(), error.to_string());
            tracing::warn!(kind = label(kind), object, error, "object left out");
            None
        }
    }
}

fn node(object: &DynamicObject, metrics: &Metrics) -> Option<NodeView> {
    // A new node that has not reported is no problem to log. No pod is placed on it.
    let problem = |view: &NodeView| match &view.problem {
        None | Some(NodeProblem::NotReported) => None,
        Some(problem) => Some(problem.to_string()),
    };
    view(ObjectKind::Nodes, object, metrics, NodeView::read, problem)
}

fn pod(object: &DynamicObject, metrics: &Metrics) -> Option<PodView> {
    let problem = |view: &PodView| view.size.as_ref().err().map(ToString::to_string);
    view(ObjectKind::Pods, object, metrics, PodView::read, problem)
}

fn vm(object: &DynamicObject, metrics: &Metrics) -> Option<VmView> {
    let problem = |view: &VmView| view.problem.as_ref().map(ToString::to_string);
    view(
        ObjectKind::VirtualMachines,
        object,
        metrics,
        VmView::read,
        problem,
    )
}

fn migration(object: &DynamicObject, metrics: &Metrics) -> Option<MigrationView> {
    view(
        ObjectKind::Migrations,
        object,
        metrics,
        MigrationView::read,
        |_| None,
    )
}

/// The objects of a list that is arriving. It keeps only views: the objects of a large cluster
/// would take gigabytes.
#[derive(Default)]
struct Listed {
    nodes: Vec<NodeView>,
    pods: Vec<PodView>,
    vms: Vec<VmView>,
    migrations: Vec<MigrationView>,
    /// Lower bound of the list's version.
    least: u64,
    /// Newest version among the objects.
    newest: u64,
    /// Whether the version of an object is no number.
    is_blind: bool,
}

impl Listed {
    fn progress(&self) -> Option<WatchProgress> {
        (!self.is_blind).then_some(WatchProgress {
            observed: self.least.max(self.newest),
            newest: self.newest,
        })
    }

    fn push(&mut self, kind: ObjectKind, object: &DynamicObject, metrics: &Metrics) {
        match version_of(object) {
            Some(version) => self.newest = self.newest.max(version),
            None => self.is_blind = true,
        }
        match kind {
            ObjectKind::Nodes => self.nodes.extend(node(object, metrics)),
            ObjectKind::Pods => self.pods.extend(pod(object, metrics)),
            ObjectKind::VirtualMachines => self.vms.extend(vm(object, metrics)),
            ObjectKind::Migrations => self.migrations.extend(migration(object, metrics)),
        }
    }

    fn into_event(self, kind: ObjectKind) -> Event {
        match kind {
            ObjectKind::Nodes => Event::NodesListed(self.nodes),
            ObjectKind::Pods => Event::PodsListed(self.pods),
            ObjectKind::VirtualMachines => Event::VmsListed(self.vms),
            ObjectKind::Migrations => Event::MigrationsListed(self.migrations),
        }
    }
}

fn applied(kind: ObjectKind, object: &DynamicObject, metrics: &Metrics) -> Option<Event> {
    match kind {
        ObjectKind::Nodes => node(object, metrics).map(Event::NodeApplied),
        ObjectKind::Pods => pod(object, metrics).map(Event::PodApplied),
        ObjectKind::VirtualMachines => vm(object, metrics).map(Event::VmApplied),
        ObjectKind::Migrations => migration(object, metrics).map(Event::MigrationApplied),
    }
}

fn deleted(kind: ObjectKind, object: &DynamicObject) -> Option<Event> {
    let meta = &object.metadata;
    let (name, uid) = (meta.name.clone()?, meta.uid.clone()?);
    Some(match kind {
        ObjectKind::Nodes => Event::NodeDeleted(name),
        ObjectKind::Pods => Event::PodDeleted(uid),
        ObjectKind::VirtualMachines | ObjectKind::Migrations => {
            let namespace = meta.namespace.clone().unwrap_or_default();
            let key = NamespacedName { namespace, name };
            if kind == ObjectKind::Migrations {
                Event::MigrationDeleted(key, uid)
            } else {
                Event::VmDeleted(key, uid)
            }
        }
    })
}
