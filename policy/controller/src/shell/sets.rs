//! The shell of policies of sets: reads the objects every 10 s, asks the versions in a worker for
//! each role, and changes sets, wishes and reports.

mod pages;
mod wishes;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use daemon_kit::clock::Clock;
use daemon_kit::journal::Journal;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
};
use policy_contract::tally::VersionReport;
use policy_contract::{Digest, Role};
use protocol::core::Core as _;
use protocol::journal::Record;
use protocol::policy::{
    GROUP, KEY_POLICY, KIND, PLURAL, REVISION_NAMESPACE, SET_KIND, SET_PLURAL, VERSION, WISH_KIND,
    WISH_PLURAL,
};
use protocol::units::Resources;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::wishes::Wishes;
use self::worker::Worker;
use crate::core::sets::{
    Action, End, Event, Objects, Question, SetPatch, SetReport, SetsCore, World,
};

/// Reports of versions of sets, for the gate.
pub(super) type SetReports = Arc<Mutex<Vec<VersionReport>>>;

/// Parameters of policies of sets.
#[derive(Debug, Clone)]
pub struct SetParams {
    /// The program `bellows-policy`. `None`: it is missing, and each version's report says so.
    pub program: Option<PathBuf>,
    /// The compute unit.
    pub unit: Resources,
    /// Ports that feeds may be read from.
    pub feed_ports: Vec<u16>,
    /// File that the wishes for nodes are written to.
    pub wish_file: Option<PathBuf>,
    /// Journal that answers are written to. `None`: the policy's status alone has the last ones.
    pub journal: Option<Journal>,
}

/// Asks policies of sets until `cancel`.
pub(super) async fn run(
    params: SetParams,
    client: kube::Client,
    clock: Clock,
    reports: SetReports,
    cancel: CancellationToken,
) {
    let mut shell = Shell::new(&params, client, clock);
    let mut core = SetsCore::new(clock.now(), params.unit, params.feed_ports);
    loop {
        let work = async {
            while let Some(action) = core.poll_action(clock.now()) {
                if let Some(event) = shell.act(action).await {
                    core.handle(clock.now(), event);
                }
            }
            *reports.lock().unwrap_or_else(PoisonError::into_inner) = core.version_reports();
            daemon_kit::driver::sleep_until(clock, core.poll_deadline()).await;
        };
        if cancel.run_until_cancelled(work).await.is_none() {
            return;
        }
    }
}

struct Shell {
    clock: Clock,
    policies: Api<DynamicObject>,
    revisions: Api<DynamicObject>,
    sets: Api<DynamicObject>,
    set_resource: ApiResource,
    client: kube::Client,
    wishes: Wishes,
    journal: Option<Journal>,
    workers: BTreeMap<Role, Worker>,
    /// What could not be read last.
    problem: Option<String>,
}

impl Shell {
    fn new(params: &SetParams, client: kube::Client, clock: Clock) -> Self {
        let resource = |kind, plural| {
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind), plural)
        };
        let set_resource = resource(SET_KIND, SET_PLURAL);
        let revision = GroupVersionKind::gvk("apps", "v1", "ControllerRevision");
        let wishes = Api::all_with(client.clone(), &resource(WISH_KIND, WISH_PLURAL));
        let worker = || Worker::new(params.program.clone());
        Self {
            clock,
            policies: Api::all_with(client.clone(), &resource(KIND, PLURAL)),
            revisions: Api::namespaced_with(
                client.clone(),
                REVISION_NAMESPACE,
                &ApiResource::from_gvk(&revision),
            ),
            sets: Api::all_with(client.clone(), &set_resource),
            set_resource,
            client,
            wishes: Wishes::new(wishes, params.wish_file.clone()),
            journal: params.journal.clone(),
            workers: [(Role::Live, worker()), (Role::Shadow, worker())].into(),
            problem: None,
        }
    }

    async fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Read => Some(self.read().await),
            Action::ReadPages(pages) => Some(Event::Fed(pages::read(pages).await)),
            Action::Ask(question) => Some(self.ask(&question).await),
            Action::Record(line) => {
                if let Some(journal) = &self.journal {
                    // The journal counts a line that it loses.
                    drop(journal.append(&Record::SetsAnswered(line), false));
                }
                None
            }
            Action::ChangeSet(patch) => {
                self.change(&patch).await;
                None
            }
            Action::ChangeWishes(changes) => {
                self.wishes.change(changes).await;
                None
            }
            Action::Report { policy, reports } => {
                self.report(&policy, &reports).await;
                None
            }
        }
    }

    async fn read(&mut self) -> Event {
        match self.objects().await {
            Ok(objects) => {
                self.problem = None;
                let world = World::read(&objects, self.clock.wall());
                self.wishes.keep(&world.wishes);
                Event::Read(Box::new(world))
            }
            Err(error) => {
                let error = daemon_kit::chain(&error);
                if self.problem.as_ref() != Some(&error) {
                    tracing::warn!(error, "policies of sets are not asked");
                }
                self.problem = Some(error);
                Event::NotRead
            }
        }
    }

    async fn objects(&self) -> kube::Result<Objects> {
        let all = ListParams::default();
        let mut objects = Objects {
            policies: values(&self.policies.list(&all).await?.items)?,
            sets: values(&self.sets.list(&all).await?.items)?,
            wishes: values(&self.wishes.list().await?)?,
            ..Objects::default()
        };
        let labelled = ListParams::default().labels(KEY_POLICY);
        let is_of_sets = |policy: &Value| policy["spec"]["scope"] == "set";
        if objects.policies.iter().any(is_of_sets) {
            objects.revisions = values(&self.revisions.list(&labelled).await?.items)?;
        }
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(self.client.clone());
        objects.nodes = values(&nodes.list(&all).await?.items)?;
        let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::all(self.client.clone());
        objects.pods = values(&pods.list(&all).await?.items)?;
        Ok(objects)
    }

    async fn ask(&mut self, question: &Question) -> Event {
        let n = question.n;
        let end = match self.workers.get_mut(&question.role) {
            Some(worker) => worker.ask(question).await,
            None => End::NotAsked("there is no worker for its role".to_owned()),
        };
        Event::Ended { n, end }
    }

    /// A set that changed since it was read is changed in the next round.
    async fn change(&self, change: &SetPatch) {
        let (namespace, name) = (&change.namespace, &change.name);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &self.set_resource);
        let patch = serde_json::from_value(change.operations.clone());
        let patch = match patch {
            Ok(patch) => Patch::<Value>::Json(patch),
            Err(error) => {
                tracing::error!(error = error.to_string(), "malformed change of a set");
                return;
            }
        };
        let policy = &change.policy;
        match api.patch(name, &PatchParams::default(), &patch).await {
            Ok(_) => {
                let operations = change.operations.to_string();
                tracing::info!(
                    policy,
                    namespace,
                    name,
                    operations,
                    "a policy changed a set"
                );
            }
            Err(error) => {
                let error = daemon_kit::chain(&error);
                tracing::warn!(policy, namespace, name, error, "failed to change a set");
            }
        }
    }

    async fn report(&self, policy: &str, reports: &BTreeMap<&'static str, SetReport>) {
        let missing = ["live", "shadow"].into_iter();
        let missing = missing.filter(|role| !reports.contains_key(role));
        let mut sets = json!(reports);
        for role in missing {
            // A merge patch removes it by a null.
            sets[role] = Value::Null;
        }
        let patch = Patch::Merge(json!({"status": {"sets": sets}}));
        let params = PatchParams::default();
        if let Err(error) = self.policies.patch_status(policy, &params, &patch).await {
            let error = daemon_kit::chain(&error);
            tracing::warn!(policy, error, "failed to write the report of a policy");
        }
    }
}

fn values<T: serde::Serialize>(objects: &[T]) -> kube::Result<Vec<Value>> {
    let values = objects.iter().map(serde_json::to_value);
    values
        .collect::<Result<_, _>>()
        .map_err(kube::Error::SerdeError)
}

/// Number of a version in a worker.
type Loaded = BTreeMap<Digest, u32>;
