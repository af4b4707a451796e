//! Watches of nodes, pods, VMs and migrations. A list is handed to the core whole, so that what was
//! deleted unseen is noticed; a stream that ends or is told "gone" lists anew. One object that does
//! not read is counted and left out.
//!
//! How far a watch has come is told beside what it tells. A list's own version is not passed on by
//! `kube`, and what is gone since has none: so before a list that a replica in waiting takes, the
//! version of then is asked for; the list is no older.

use std::time::Duration;

use futures::StreamExt;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use protocol::permit::NamespacedName;
use protocol::time::Span;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::api::{virtual_machine_migrations, virtual_machines};
use super::metrics::Metrics;
use super::owner::Command;
use crate::core::event::Event;
use crate::core::migrate::MigrationView;
use crate::core::view::{NodeProblem, NodeView, PodView, Unreadable, VmView};
pub(super) use crate::core::warm::Kind;
use crate::core::warm::Reach;

/// The word for a kind in metrics and logs.
pub(super) const fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Nodes => "Nodes",
        Kind::Pods => "Pods",
        Kind::VirtualMachines => "VirtualMachines",
        Kind::Migrations => "VirtualMachineMigrations",
    }
}

fn resource(kind: Kind) -> ApiResource {
    match kind {
        Kind::Nodes => ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&()),
        Kind::Pods => ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&()),
        Kind::VirtualMachines => virtual_machines(),
        Kind::Migrations => virtual_machine_migrations(),
    }
}

/// What a watch needs.
#[derive(Clone)]
pub(super) struct Watch {
    pub(super) client: Client,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) metrics: Metrics,
    /// Time-out of asking how new a list will be at least, if that is wanted.
    pub(super) asks_version: Option<Duration>,
}

impl Watch {
    /// Watches everything anew for each round that is told, from lists taken after that, until
    /// `cancel` or until nobody listens; watches nothing while there is none.
    pub(super) async fn run(
        self,
        wait: Span,
        mut rounds: watch::Receiver<Option<u64>>,
        cancel: CancellationToken,
    ) {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(wait.to_duration()) => {}
        }
        loop {
            let round = *rounds.borrow_and_update();
            let ended = async {
                match round {
                    Some(round) => self.round(round, &cancel).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Each ends only with `cancel` or with the owner.
                () = ended => return,
                told = rounds.changed() => if told.is_err() { return },
            }
        }
    }

    /// One round. Dropping this future ends its watches.
    async fn round(&self, round: u64, cancel: &CancellationToken) {
        let end = cancel.child_token();
        let _end = end.clone().drop_guard();
        let watches =
            Kind::ALL.map(|kind| tokio::spawn(one(kind, round, self.clone(), end.clone())));
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
async fn one(kind: Kind, round: u64, watch: Watch, cancel: CancellationToken) {
    watch.metrics.watch_alive(word(kind), true);
    tokio::select! {
        () = cancel.cancelled() => {}
        () = follow(kind, round, &watch) => {}
    }
    watch.metrics.watch_alive(word(kind), false);
}

async fn follow(kind: Kind, round: u64, watch: &Watch) {
    let (commands, metrics) = (&watch.commands, &watch.metrics);
    let api: Api<DynamicObject> = Api::all_with(watch.client.clone(), &resource(kind));
    let stream = watcher(api.clone(), watcher::Config::default()).default_backoff();
    let mut stream = std::pin::pin!(stream);
    let mut listed = Listed::default();
    let mut lists = 0_u64;
    while let Some(event) = stream.next().await {
        metrics.watch_failing(word(kind), event.is_err());
        let (event, reach) = match event {
            Ok(watcher::Event::Init) => {
                metrics.watch_listed(word(kind), lists > 0);
                lists += 1;
                // The list is asked for only when the stream is polled again.
                listed = Listed {
                    least: watch.version(&api).await,
                    ..Listed::default()
                };
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed.push(kind, &object, metrics);
                continue;
            }
            Ok(watcher::Event::InitDone) => {
                metrics.watch_event(word(kind), "Listed");
                tracing::debug!(kind = word(kind), "listed");
                let reach = listed.reach();
                (Some(std::mem::take(&mut listed).into_event(kind)), reach)
            }
            Ok(watcher::Event::Apply(object)) => {
                metrics.watch_event(word(kind), "Applied");
                let reach = version_of(&object).map(|told| Reach { told, newest: told });
                (applied(kind, &object, metrics), reach)
            }
            Ok(watcher::Event::Delete(object)) => {
                metrics.watch_event(word(kind), "Deleted");
                let reach = version_of(&object).map(|told| Reach { told, newest: 0 });
                (deleted(kind, &object), reach)
            }
            Err(error) => {
                metrics.watch_error(word(kind), source_of(&error));
                let error = daemon_kit::chain(&error);
                tracing::warn!(
                    kind = word(kind),
                    error,
                    "watch failed; it is taken up again"
                );
                continue;
            }
        };
        let told = Command::Told(round, event, (kind, reach));
        if commands.send(told).await.is_err() {
            return;
        }
    }
}

impl Watch {
    /// The version of now, if it is wanted and told; what is listed after this is no older.
    async fn version(&self, api: &Api<DynamicObject>) -> u64 {
        let Some(patience) = self.asks_version else {
            return 0;
        };
        let least = ListParams::default().limit(1);
        let found = tokio::time::timeout(patience, api.list(&least)).await;
        let found = found.ok().and_then(Result::ok);
        let version = found.and_then(|list| list.metadata.resource_version);
        version.and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

fn version_of(object: &DynamicObject) -> Option<u64> {
    let version = object.metadata.resource_version.as_ref()?;
    version.parse().ok().filter(|version| *version > 0)
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
                metrics.unreadable(word(kind));
                let object = name();
                tracing::warn!(
                    kind = word(kind),
                    object,
                    problem,
                    "counted at the most it can be"
                );
            }
            Some(view)
        }
        Err(error) => {
            metrics.unreadable(word(kind));
            let (object, error) = (name(), error.to_string());
            tracing::warn!(kind = word(kind), object, error, "object left out");
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

fn migration(object: &DynamicObject, metrics: &Metrics) -> Option<MigrationView> {
    view(
        Kind::Migrations,
        object,
        metrics,
        MigrationView::read,
        |_| None,
    )
}

/// A list while it comes. Only what the core needs is kept of each object: of a large cluster the
/// objects themselves would take gigabytes.
#[derive(Default)]
struct Listed {
    nodes: Vec<NodeView>,
    pods: Vec<PodView>,
    vms: Vec<VmView>,
    migrations: Vec<MigrationView>,
    /// Its version is no less.
    least: u64,
    /// The newest state in it.
    newest: u64,
    /// Something in it has no version that reads.
    is_blind: bool,
}

impl Listed {
    fn reach(&self) -> Option<Reach> {
        (!self.is_blind).then_some(Reach {
            told: self.least.max(self.newest),
            newest: self.newest,
        })
    }

    fn push(&mut self, kind: Kind, object: &DynamicObject, metrics: &Metrics) {
        match version_of(object) {
            Some(version) => self.newest = self.newest.max(version),
            None => self.is_blind = true,
        }
        match kind {
            Kind::Nodes => self.nodes.extend(node(object, metrics)),
            Kind::Pods => self.pods.extend(pod(object, metrics)),
            Kind::VirtualMachines => self.vms.extend(vm(object, metrics)),
            Kind::Migrations => self.migrations.extend(migration(object, metrics)),
        }
    }

    fn into_event(self, kind: Kind) -> Event {
        match kind {
            Kind::Nodes => Event::NodesListed(self.nodes),
            Kind::Pods => Event::PodsListed(self.pods),
            Kind::VirtualMachines => Event::VmsListed(self.vms),
            Kind::Migrations => Event::MigrationsListed(self.migrations),
        }
    }
}

fn applied(kind: Kind, object: &DynamicObject, metrics: &Metrics) -> Option<Event> {
    match kind {
        Kind::Nodes => node(object, metrics).map(Event::NodeApplied),
        Kind::Pods => pod(object, metrics).map(Event::PodApplied),
        Kind::VirtualMachines => vm(object, metrics).map(Event::VmApplied),
        Kind::Migrations => migration(object, metrics).map(Event::MigrationApplied),
    }
}

fn deleted(kind: Kind, object: &DynamicObject) -> Option<Event> {
    let meta = &object.metadata;
    let (name, uid) = (meta.name.clone()?, meta.uid.clone()?);
    Some(match kind {
        Kind::Nodes => Event::NodeDeleted(name),
        Kind::Pods => Event::PodDeleted(uid),
        Kind::VirtualMachines | Kind::Migrations => {
            let namespace = meta.namespace.clone().unwrap_or_default();
            let key = NamespacedName { namespace, name };
            if kind == Kind::Migrations {
                Event::MigrationDeleted(key, uid)
            } else {
                Event::VmDeleted(key, uid)
            }
        }
    })
}
