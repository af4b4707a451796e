//! Keeps the Node and the scheduler's Pod as they must be, whatever anybody does to them.
//!
//! Level-triggered: at every turn both are read and mended where they differ. The Pod is Ready exactly while the permit
//! server is.

use std::time::Duration;

use hyper::http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};
use telemetry::clock::Clock;
use tokio_util::sync::CancellationToken;

use super::board::Board;
use super::objects::{self, Machine};
use crate::instance::Instance;

/// Longest time that a damaged object stays so.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How often readiness is looked at: agents wait for it at start.
const LOOK_AT_READINESS: Duration = Duration::from_millis(100);
/// Content type of a merge patch.
const MERGE: &str = "application/merge-patch+json";

/// What the registrar needs.
pub(crate) struct Registrar {
    pub(crate) client: Client,
    pub(crate) instance: Instance,
    pub(crate) machine: Machine,
    pub(crate) board: Board,
    pub(crate) clock: Clock,
    /// Name of the scheduler on the board.
    pub(crate) scheduler: &'static str,
}

impl Registrar {
    /// Makes the Node exist, once, before anything that needs it starts.
    pub(crate) async fn register_node(&self) -> Result<(), kube::Error> {
        let status = objects::node_status(&self.instance, &self.machine, &self.now());
        self.ensure(
            "/api/v1/nodes",
            self.instance.node(),
            objects::node(&self.instance),
            status,
        )
        .await
    }

    /// Mends both objects until `cancel`.
    pub(crate) async fn run(self, cancel: CancellationToken) -> Result<(), String> {
        let mut turns = tokio::time::interval(LOOK_AGAIN);
        let mut glances = tokio::time::interval(LOOK_AT_READINESS);
        glances.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut announced = None;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                _ = turns.tick() => announced = None,
                _ = glances.tick() => {}
            }
            let is_ready = self.board.is_ready(self.scheduler);
            if announced == Some(is_ready) {
                continue;
            }
            match self.turn(is_ready).await {
                Ok(()) => announced = Some(is_ready),
                Err(error) => tracing::warn!(
                    error = telemetry::chain(&error),
                    "node and scheduler pod are not announced"
                ),
            }
        }
    }

    async fn turn(&self, is_ready: bool) -> Result<(), kube::Error> {
        self.register_node().await?;
        let pods = format!("/api/v1/namespaces/{}/pods", objects::SYSTEM_NAMESPACE);
        let status = objects::scheduler_pod_status(self.instance.address(2), is_ready, &self.now());
        let name = objects::scheduler_pod_name(&self.instance);
        self.ensure(&pods, &name, objects::scheduler_pod(&self.instance), status)
            .await
    }

    fn now(&self) -> String {
        self.clock.wall().to_string()
    }

    /// Makes an object exist with these labels and this status; writes only what differs.
    async fn ensure(
        &self,
        collection: &str,
        name: &str,
        object: Value,
        status: Value,
    ) -> Result<(), kube::Error> {
        let path = format!("{collection}/{name}");
        let found = match self
            .send(Method::GET, &path, "application/json", None)
            .await
        {
            Ok(found) => found,
            Err(kube::Error::Api(refusal)) if refusal.code == 404 => {
                self.send(Method::POST, collection, "application/json", Some(&object))
                    .await?
            }
            Err(error) => return Err(error),
        };
        if found["metadata"]["deletionTimestamp"].is_string() {
            // Somebody deletes it: let it go, the next turn makes it again.
            return Ok(());
        }
        let labels = &object["metadata"]["labels"];
        if !covers(&found["metadata"]["labels"], labels) {
            let patch = json!({"metadata": {"labels": labels}});
            self.send(Method::PATCH, &path, MERGE, Some(&patch)).await?;
        }
        if !covers(
            &without_times(found["status"].clone()),
            &without_times(status.clone()),
        ) {
            let patch = json!({"status": status});
            self.send(
                Method::PATCH,
                &format!("{path}/status"),
                MERGE,
                Some(&patch),
            )
            .await?;
        }
        Ok(())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Option<&Value>,
    ) -> Result<Value, kube::Error> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .body(body.map(Value::to_string).unwrap_or_default().into_bytes())
            .map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }
}

/// Whether `found` has everything that `wanted` has; more is fine.
fn covers(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, value)| found.get(key).is_some_and(|found| covers(found, value))),
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len()
                && found
                    .iter()
                    .zip(wanted)
                    .all(|(found, wanted)| covers(found, wanted))
        }
        _ => found == wanted,
    }
}

/// Times change at every turn and mean nothing here.
fn without_times(mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => {
            members.retain(|key, _| !(key.ends_with("Time") || key == "startedAt"));
            for member in members.values_mut() {
                *member = without_times(member.take());
            }
        }
        Value::Array(items) => {
            for item in items {
                *item = without_times(item.take());
            }
        }
        _ => {}
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wanted_must_be_there() {
        let wanted = json!({"a": 1, "list": [{"type": "Ready", "status": "True"}]});
        assert!(covers(
            &json!({"a": 1, "b": 2, "list": [{"type": "Ready", "status": "True", "x": 0}]}),
            &wanted
        ));
        assert!(!covers(
            &json!({"a": 1, "list": [{"type": "Ready", "status": "False"}]}),
            &wanted
        ));
        assert!(!covers(&json!({"a": 1, "list": []}), &wanted));
        assert!(!covers(&Value::Null, &wanted));
    }

    #[test]
    fn times_do_not_count() {
        let at = |time: &str| {
            without_times(
                json!({"conditions": [{"status": "True", "lastTransitionTime": time}], "running": {"startedAt": time}}),
            )
        };
        assert_eq!(at("a"), at("b"));
        assert_eq!(at("a")["conditions"][0]["status"], "True");
    }
}
