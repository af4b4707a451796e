//! The scheduler pod for permit requests: the newest one that is ready and has an address. Source:
//! docs/compatibility/agent.md §1.1, §4.2.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_client::watch::{self as api_watch, Config, Event, Retry};
use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use protocol::object::Pod;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::metrics::AgentMetrics;
use super::state::{StateHandle, Synced};

/// Namespace of scheduler pods.
const NAMESPACE: &str = "kube-system";
/// Upper bound of kept pods. A scheduler has a few replicas; more pods with its label are ignored.
const MAX_PODS: usize = 256;

/// Name and address of the chosen pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SchedulerPod {
    pub name: String,
    pub ip: String,
}

/// Known scheduler pods by name.
#[derive(Debug, Default)]
struct Pods {
    known: BTreeMap<String, Pod>,
}

impl Pods {
    fn apply(&mut self, object: &DynamicObject) {
        let name = object.metadata.name.clone().unwrap_or_default();
        // A malformed pod is no candidate and does not affect the others.
        let pod = serde_json::to_value(object)
            .ok()
            .and_then(|v| serde_json::from_value(v).ok());
        match pod {
            Some(pod) if self.known.len() < MAX_PODS || self.known.contains_key(&name) => {
                self.known.insert(name, pod);
            }
            _ => {
                self.known.remove(&name);
            }
        }
    }

    fn current(&self) -> Option<SchedulerPod> {
        self.known
            .values()
            .filter(|pod| pod.is_ready() && !pod.status.pod_ip.is_empty())
            .max_by_key(|pod| (pod.metadata.creation_timestamp, pod.metadata.name.clone()))
            .map(|pod| SchedulerPod {
                name: pod.metadata.name.clone(),
                ip: pod.status.pod_ip.clone(),
            })
    }
}

/// The task that watches scheduler pods and publishes the chosen one.
pub(super) struct Schedulers {
    pub kube: kube::Client,
    pub scheduler_name: String,
    pub metrics: AgentMetrics,
    pub state: StateHandle,
    pub current: Arc<watch::Sender<Option<SchedulerPod>>>,
}

impl Schedulers {
    /// Runs until cancelled.
    pub(super) async fn run(self, cancel: CancellationToken) {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
        let api: Api<DynamicObject> = Api::namespaced_with(self.kube.clone(), NAMESPACE, &resource);
        let config = Config::default().labels(&format!("name={}", self.scheduler_name));
        let events = api_watch::objects(api, config, Retry::Steady);
        let counted = self.metrics.watches.count("Scheduler Pod", events);
        let mut events = counted.take_until(cancel.cancelled_owned()).boxed();
        let (mut pods, mut listed) = (Pods::default(), Pods::default());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.take(event, &mut pods, &mut listed),
                Err(error) => {
                    let error = daemon_kit::chain(&error);
                    tracing::warn!(error, "cannot follow the scheduler pods");
                }
            }
        }
    }

    fn take(&self, event: Event<DynamicObject>, pods: &mut Pods, listed: &mut Pods) {
        match event {
            Event::Init => {
                *listed = Pods::default();
                return;
            }
            Event::InitApply(object) => {
                listed.apply(&object);
                return;
            }
            Event::InitDone => {
                *pods = std::mem::take(listed);
                self.state.synced(Synced::Schedulers);
            }
            Event::Apply(object) => pods.apply(&object),
            Event::Delete(object) => {
                pods.known.remove(&object.metadata.name.unwrap_or_default());
            }
        }
        let current = pods.current();
        self.current.send_if_modified(|known| {
            let is_new = *known != current;
            if is_new {
                match &current {
                    Some(pod) => tracing::info!(pod = pod.name, ip = pod.ip, "scheduler found"),
                    None => tracing::warn!("no scheduler pod is ready"),
                }
                *known = current;
            }
            is_new
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, created: &str, ip: &str, ready: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "kube-system", "creationTimestamp": created},
            "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": ready}]},
        })
    }

    fn current(values: &[Value]) -> Option<String> {
        let mut pods = Pods::default();
        for value in values {
            pods.apply(&serde_json::from_value(value.clone()).expect("an object"));
        }
        pods.current().map(|pod| pod.name)
    }

    #[test]
    fn newest_ready_pod_with_an_address_is_chosen() {
        let old = pod("old", "2024-01-01T00:00:00Z", "10.0.0.1", "True");
        let new = pod("new", "2024-01-02T00:00:00Z", "10.0.0.2", "True");
        let unready = pod("unready", "2024-01-03T00:00:00Z", "10.0.0.3", "False");
        let no_ip = pod("no-ip", "2024-01-04T00:00:00Z", "", "True");
        assert_eq!(current(&[]), None);
        assert_eq!(current(&[unready.clone(), no_ip.clone()]), None);
        assert_eq!(
            current(&[new.clone(), old.clone(), unready, no_ip]).as_deref(),
            Some("new")
        );
        let now_unready = pod("new", "2024-01-02T00:00:00Z", "10.0.0.2", "False");
        assert_eq!(
            current(&[new, old.clone(), now_unready]).as_deref(),
            Some("old")
        );
        let bad = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"}, "status": {"podIP": 7}});
        assert_eq!(
            current(&[bad, old]).as_deref(),
            Some("old"),
            "a malformed pod does not affect the others"
        );
    }
}
