//! Publishes whether this agent may be restarted, in a `ConfigMap` that its node owns. A program
//! that replaces agents reads it.
//!
//! Writing is only tried again later: an agent never ends because of it.

use std::time::Duration;

use agent_events::Unsent;
use daemon_kit::clock::Clock;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use protocol::fleet::{AgentSchedule, KEY_SCHEDULE, SCHEDULE_MEMBER, schedule_map_name};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::state::StateHandle;
use crate::core::restart::Published;

/// Between two looks at what a restart would disturb.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Longest call of the API.
const CALL_LIMIT: Duration = Duration::from_secs(10);
const WRITER: &str = "autoscaler-agent";

/// The task that publishes the schedule.
pub(super) struct Exporter {
    pub kube: kube::Client,
    pub clock: Clock,
    pub state: StateHandle,
    pub unsent: Unsent,
    pub node_name: String,
    /// Namespace of the map.
    pub namespace: String,
}

fn api(kube: &kube::Client, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(kube.clone(), namespace, &resource),
        None => Api::all_with(kube.clone(), &resource),
    }
}

impl Exporter {
    /// Runs until cancelled.
    pub(super) async fn run(self, cancel: CancellationToken) {
        let _ = cancel.run_until_cancelled(self.export()).await;
    }

    async fn export(self) {
        let mut published = Published::default();
        let mut uid = None;
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let now = self.clock.now();
            let reason = self.reason();
            let Some(schedule) = published.due(now, reason.as_deref()) else {
                continue;
            };
            match timeout(CALL_LIMIT, self.publish(&mut uid, &schedule)).await {
                Ok(Ok(())) => published.done(now, schedule),
                Ok(Err(error)) => {
                    let error = daemon_kit::chain(&error);
                    tracing::warn!(error, "cannot publish the schedule of this agent");
                }
                Err(_) => tracing::warn!("the API did not take the schedule of this agent in time"),
            }
        }
    }

    /// What a restart would disturb.
    fn reason(&self) -> Option<String> {
        if let Some(vm) = self.state.shrinking() {
            return Some(format!("a shrink of {vm} is under way"));
        }
        let unsent = self.unsent.total();
        (unsent > 0).then(|| format!("{unsent} events are not sent"))
    }

    async fn publish(
        &self,
        uid: &mut Option<String>,
        schedule: &AgentSchedule,
    ) -> kube::Result<()> {
        if uid.is_none() {
            let node = api(&self.kube, "Node", None).get(&self.node_name).await?;
            *uid = node.metadata.uid;
        }
        let name = schedule_map_name(&self.node_name);
        let text = serde_json::to_string(schedule).map_err(kube::Error::SerdeError)?;
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": {KEY_SCHEDULE: "agent"},
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Node", "name": self.node_name, "uid": uid,
                }],
            },
            "data": {SCHEDULE_MEMBER: text},
        });
        let maps = api(&self.kube, "ConfigMap", Some(&self.namespace));
        let params = PatchParams::apply(WRITER).force();
        maps.patch(&name, &params, &Patch::Apply(map)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use test_api::TestApi;

    use super::*;

    /// Requirement: R24
    #[tokio::test]
    async fn agent_publishes_its_schedule_in_a_map_that_its_node_owns() {
        let api = TestApi::start().await;
        api.put(
            "nodes",
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u"}}),
        );
        let exporter = Exporter {
            kube: api.client(),
            clock: Clock::new(),
            state: StateHandle::new(),
            unsent: Unsent::default(),
            node_name: "n".to_owned(),
            namespace: "kube-system".to_owned(),
        };
        let cancel = CancellationToken::new();
        tokio::spawn(exporter.run(cancel.clone()));
        let _end = cancel.drop_guard();
        let map: Value = api
            .wait("the map", |api| {
                api.get("configmaps", "kube-system", "autoscaler-agent-schedule-n")
            })
            .await;
        let owner = &map["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["kind"], &owner["uid"]),
            (&json!("Node"), &json!("u"))
        );
        assert_eq!(map["metadata"]["labels"][KEY_SCHEDULE], "agent");
        let text = map["data"][SCHEDULE_MEMBER].as_str().expect("a text");
        assert_eq!(AgentSchedule::parse(text), Ok(AgentSchedule::of(None)));
    }
}
