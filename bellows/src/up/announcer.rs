//! Keeps the scheduler's Pod in its wanted state. Agents find the permit server by it.
//!
//! The announcer is level-triggered: each turn reads the object and repairs differences. The Pod is
//! Ready exactly while the permit server is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use daemon_kit::clock::Clock;
use hyper::http::{Method, Request};
use kube::Client;
use protocol::time::{Span, Timestamp};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::base::Base;
use super::objects;
use super::part_registry::PartRegistry;
use super::supervisor::{Stage, Supervisor};
use crate::instance::Instance;

/// Longest time until a changed object is repaired.
const POLL_INTERVAL: Span = Span::from_secs(10);
/// Interval at which readiness is read until the first time. Agents wait for it at their start.
const GLANCE: Duration = Duration::from_millis(100);
/// Interval after the first time.
const SLOW_GLANCE: Duration = Duration::from_secs(1);
/// Time that the permit server has to become ready before its Pod is marked unready.
const FIRST_READY: Span = Span::from_secs(5);
/// Content type of a merge patch.
const MERGE: &str = "application/merge-patch+json";

/// Name in the status.
const NAME: &str = "announcer";

/// Starts the announcer.
pub(crate) fn start(base: &Base, supervisor: &mut Supervisor, client: &Client) {
    let announcer = Announcer {
        client: client.clone(),
        instance: base.instance.clone(),
        parts: base.parts.clone(),
        clock: base.clock,
        announced: Arc::default(),
    };
    let announced = Arc::clone(&announcer.announced);
    let ready = move || {
        if announced.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err("the scheduler is not announced yet".to_owned())
        }
    };
    base.parts.register(NAME, None, Box::new(ready), None);
    supervisor.run(
        NAME,
        Stage::Deciders,
        announcer.run(supervisor.token(Stage::Deciders)),
    );
}

struct Announcer {
    client: Client,
    instance: Instance,
    parts: PartRegistry,
    clock: Clock,
    /// Whether the Pod is marked Ready.
    announced: Arc<AtomicBool>,
}

impl Announcer {
    /// Repairs the object until `cancel` is cancelled.
    async fn run(self, cancel: CancellationToken) -> Result<(), String> {
        let patient_until = self.clock.now() + FIRST_READY;
        let mut announced: Option<(bool, Timestamp)> = None;
        loop {
            let pause = if announced.is_some_and(|(ready, _)| ready) {
                SLOW_GLANCE
            } else {
                GLANCE
            };
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
            let now = self.clock.now();
            let is_ready = self.parts.is_ready(super::scheduler::NAME);
            // After a restart the Pod is still marked Ready, and the permit server will be ready
            // soon. Clearing the mark would make agents drop the scheduler for nothing.
            let is_starting =
                !is_ready && !self.announced.load(Ordering::Acquire) && now < patient_until;
            let is_known = announced
                .is_some_and(|(ready, at)| ready == is_ready && now.since(at) < POLL_INTERVAL);
            if is_starting || is_known {
                continue;
            }
            match self.turn(is_ready).await {
                Ok(()) => {
                    announced = Some((is_ready, now));
                    self.announced.store(is_ready, Ordering::Release);
                }
                Err(error) => {
                    tracing::warn!(
                        error = daemon_kit::chain(&error),
                        "the scheduler is not announced"
                    );
                }
            }
        }
    }

    async fn turn(&self, is_ready: bool) -> Result<(), kube::Error> {
        let pods = format!("/api/v1/namespaces/{}/pods", objects::SYSTEM_NAMESPACE);
        let status = objects::scheduler_pod_status(self.instance.address(2), is_ready, &self.now());
        let name = objects::scheduler_pod_name(&self.instance);
        self.ensure(&pods, &name, objects::scheduler_pod(&self.instance), status)
            .await
    }

    fn now(&self) -> String {
        self.clock.wall().to_string()
    }

    /// Creates or repairs an object with these labels and this status. Writes only differences.
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
            // The object is being deleted. The next turn creates it.
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

/// Whether `found` contains everything in `wanted`.
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

/// Times change at every turn and are not compared.
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
    fn object_with_additional_members_is_not_repaired() {
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
