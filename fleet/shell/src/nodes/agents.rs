//! Access to the agents of a namespace: their `DaemonSet`, its pods and their schedules.

use std::collections::BTreeMap;

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use protocol::fleet::{AgentSchedule, KEY_SCHEDULE};

use super::daemon_set::{Access, DaemonSet};
use super::objects::{AGENT, AgentPod, schedule};
use crate::workload::{Unread, listed};

/// Access to the agents of a namespace.
#[derive(Clone)]
pub(crate) struct Agents {
    pub(super) set: Access,
    pub(super) pod_api: Api<DynamicObject>,
    maps: Api<DynamicObject>,
}

/// The agents of a namespace as they were read.
pub(super) struct Read {
    pub(super) set: DaemonSet,
    pub(super) pods: Vec<AgentPod>,
    /// By the name of the map.
    pub(super) schedules: BTreeMap<String, Result<AgentSchedule, String>>,
}

impl Agents {
    pub(crate) fn new(client: &kube::Client, namespace: &str) -> Self {
        let of = |kind| {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind));
            Api::namespaced_with(client.clone(), namespace, &resource)
        };
        Self {
            set: Access::new(client.clone(), namespace),
            pod_api: of("Pod"),
            maps: of("ConfigMap"),
        }
    }

    pub(super) async fn pods(&self) -> Result<Vec<AgentPod>, String> {
        let pods = listed(&self.pod_api, &format!("name={AGENT}")).await?;
        Ok(pods.iter().filter_map(AgentPod::read).collect())
    }

    pub(super) async fn pod_of(&self, node: &str) -> Result<Option<AgentPod>, String> {
        let pods = self.pods().await?;
        Ok(newest_of(node, &pods).cloned())
    }

    pub(super) async fn read(&self) -> Result<Read, Unread> {
        let set = self.set.read().await?;
        if let Some(problem) = set.problem() {
            return Err(Unread::Absent(problem));
        }
        let label = format!("{KEY_SCHEDULE}=agent");
        let (pods, maps) =
            tokio::try_join!(self.pods(), listed(&self.maps, &label)).map_err(Unread::Failed)?;
        Ok(Read {
            set,
            pods,
            schedules: maps.iter().filter_map(schedule).collect(),
        })
    }
}

/// The pod of a node. One that ends is only meant if there is no other.
pub(super) fn newest_of<'a>(node: &str, pods: &'a [AgentPod]) -> Option<&'a AgentPod> {
    let of_node = pods.iter().filter(|pod| pod.node == node);
    of_node.max_by_key(|pod| (pod.ends_at.is_none(), pod.created))
}
