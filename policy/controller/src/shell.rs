//! The controller's shell: every minute it reads the policies and the agents' reports, and writes
//! each status that a look has changed.
//!
//! A status is replaced by one request that holds the version of the object that was read. A
//! person or another replica that wrote since wins; the next round looks at what they wrote.

mod agents;
mod sets;

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use api_client::events::Warning;
use daemon_kit::clock::Clock;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams,
};
use protocol::policy::{
    GROUP, KEY_POLICY, KIND, PLURAL, REVISION_NAMESPACE, ScalingPolicyStatus, VERSION,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub use agents::{AgentPods, Agents, ReadReports};
pub use sets::SetParams;
use sets::SetReports;

use crate::core::reconcile::{NodeReport, Notice, look, spec_of};
use crate::core::revisions::{is_kept, revision_of, superfluous};

/// Between two looks.
pub const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Between two looks after one that changed or failed to change a status.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
const COMPONENT: &str = "policy-controller";
const CONFLICT: u16 = 409;

/// Parameters of [`run`].
#[derive(Clone)]
pub struct Params {
    /// Client of the API server.
    pub client: kube::Client,
    /// Clock of the process.
    pub clock: Clock,
    /// The agents that report.
    pub agents: Agents,
    /// Time between two looks, [`LOOK_EVERY`].
    pub every: Duration,
    /// How policies of sets are asked. `None`: they are not.
    pub sets: Option<SetParams>,
}

/// Looks at all policies until `cancel`. While the API server is unreachable it tries again.
pub async fn run(params: Params, cancel: CancellationToken) {
    let reports = SetReports::default();
    let asked = async {
        if let Some(sets) = params.sets.clone() {
            let (client, reports) = (params.client.clone(), reports.clone());
            sets::run(sets, client, params.clock, reports, cancel.clone()).await;
        }
    };
    tokio::join!(asked, look_at_all(params.clone(), reports.clone(), &cancel));
}

async fn look_at_all(params: Params, reports: SetReports, cancel: &CancellationToken) {
    let controller = Controller::new(params, reports);
    let again = LOOK_AGAIN.min(controller.params.every);
    let mut problem: Option<String> = None;
    loop {
        let round = cancel.run_until_cancelled(controller.round()).await;
        let wait = match round {
            None => return,
            Some(Ok(false)) => controller.params.every,
            Some(Ok(true)) => again,
            Some(Err(error)) => {
                let error = daemon_kit::chain(&error);
                if problem.as_ref() != Some(&error) {
                    tracing::warn!(error, "policies are not looked at");
                }
                problem = Some(error);
                tokio::select! {
                    () = tokio::time::sleep(again) => continue,
                    () = cancel.cancelled() => return,
                }
            }
        };
        problem = None;
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = cancel.cancelled() => return,
        }
    }
}

struct Controller {
    params: Params,
    policies: Api<DynamicObject>,
    revisions: Api<DynamicObject>,
    /// Reports of versions of sets.
    of_sets: SetReports,
}

impl Controller {
    fn new(params: Params, of_sets: SetReports) -> Self {
        let client = || params.client.clone();
        let kind = GroupVersionKind::gvk(GROUP, VERSION, KIND);
        let resource = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        let policies = Api::all_with(client(), &resource);
        let resource =
            ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "ControllerRevision"));
        Self {
            policies,
            revisions: Api::namespaced_with(client(), REVISION_NAMESPACE, &resource),
            params,
            of_sets,
        }
    }

    /// One look at everything. Returns whether a status has changed.
    async fn round(&self) -> kube::Result<bool> {
        // Before the policies, so that no revision of a policy made since is taken for superfluous.
        let labelled = ListParams::default().labels(KEY_POLICY);
        let mut revisions = values(self.revisions.list(&labelled).await?.items);
        let policies = self.policies.list(&ListParams::default()).await?.items;
        let mut statuses = BTreeMap::new();
        let mut is_changed = false;
        if !policies.is_empty() {
            let mut nodes = self.params.agents.reports(&self.params.client).await?;
            nodes.push(self.of_sets());
            for policy in policies {
                let name = policy.metadata.name.clone().unwrap_or_default();
                let (status, changed) = self.one(policy, &nodes, &mut revisions).await?;
                is_changed |= changed;
                statuses.insert(name, status);
            }
        }
        for name in superfluous(&revisions, &statuses) {
            let deleted = self.revisions.delete(&name, &DeleteParams::default()).await;
            if let Err(error) = deleted {
                let error = daemon_kit::chain(&error);
                tracing::warn!(name, error, "failed to delete a revision");
            }
        }
        Ok(is_changed)
    }

    /// What is reported of policies of sets.
    fn of_sets(&self) -> NodeReport {
        let reports = self.of_sets.lock().unwrap_or_else(PoisonError::into_inner);
        NodeReport {
            node: COMPONENT.to_owned(),
            versions: Some(reports.clone()),
        }
    }

    /// Looks at one policy. Returns its status by now, and whether it has changed.
    async fn one(
        &self,
        policy: DynamicObject,
        nodes: &[NodeReport],
        revisions: &mut Vec<Value>,
    ) -> kube::Result<(ScalingPolicyStatus, bool)> {
        let name = policy.metadata.name.clone().unwrap_or_default();
        let mut object = serde_json::to_value(&policy).map_err(kube::Error::SerdeError)?;
        // Objects of a list do not say it.
        object["apiVersion"] = format!("{GROUP}/{VERSION}").into();
        object["kind"] = KIND.into();
        let before = ScalingPolicyStatus::of_object(&object).unwrap_or_default();
        // The source is kept before a status names it.
        if let Ok(spec) = spec_of(&object)
            && !is_kept(&name, &spec, revisions)
        {
            let revision = revision_of(&name, &spec, revisions);
            self.keep(&revision).await?;
            revisions.push(revision);
        }
        let outcome = match look(&object, nodes, self.params.clock.wall()) {
            Ok(outcome) => outcome,
            Err(problem) => {
                tracing::warn!(policy = name, problem, "the status cannot be read");
                return Ok((before, false));
            }
        };
        let Some(status) = outcome.status else {
            return Ok((before, false));
        };
        object["status"] = serde_json::to_value(&status).map_err(kube::Error::SerdeError)?;
        let next: DynamicObject =
            serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        let written = self
            .policies
            .replace_status(&name, &PostParams::default(), &next)
            .await;
        match written {
            Ok(_) => {}
            Err(kube::Error::Api(refusal)) if refusal.code == CONFLICT => {
                return Ok((before, true));
            }
            Err(error) => return Err(error),
        }
        let is_other = (&before.live, &before.candidate) != (&status.live, &status.candidate);
        if is_other {
            let digest = |one: &Option<protocol::policy::PolicyVersion>| {
                one.as_ref().map(|version| version.digest.clone())
            };
            let (live, candidate) = (digest(&status.live), digest(&status.candidate));
            tracing::info!(
                policy = name,
                live,
                candidate,
                "the versions of a policy change"
            );
        }
        for notice in outcome.notices {
            self.tell(&next, notice).await;
        }
        Ok((status, is_other))
    }

    async fn keep(&self, revision: &Value) -> kube::Result<()> {
        let object: DynamicObject =
            serde_json::from_value(revision.clone()).map_err(kube::Error::SerdeError)?;
        match self.revisions.create(&PostParams::default(), &object).await {
            Ok(_) => Ok(()),
            // A person has just promoted it.
            Err(kube::Error::Api(refusal)) if refusal.code == CONFLICT => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Creates an event. A failure is logged only: the condition has the same content.
    async fn tell(&self, policy: &DynamicObject, notice: Notice) {
        tracing::warn!(message = notice.message, "{}", notice.reason);
        let warning = Warning {
            about: ObjectReference {
                api_version: Some(format!("{GROUP}/{VERSION}")),
                kind: Some(KIND.to_owned()),
                name: policy.metadata.name.clone(),
                uid: policy.metadata.uid.clone(),
                ..ObjectReference::default()
            },
            component: COMPONENT.to_owned(),
            reason: notice.reason.to_owned(),
            message: notice.message,
            unix_us: self.params.clock.wall().0,
        };
        let client = self.params.client.clone();
        let events: Api<Event> = Api::namespaced(client, warning.namespace());
        let event = warning.into_event();
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            let error = daemon_kit::chain(&error);
            tracing::warn!(error, "the event about the policy was not created");
        }
    }
}

fn values(objects: Vec<DynamicObject>) -> Vec<Value> {
    let values = objects.into_iter().map(serde_json::to_value);
    values.filter_map(Result::ok).collect()
}
