//! The objects that questions about sets are made of.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy_contract::{Digest, Spec};
use protocol::annotations::{ANNOTATION_APPROVED, ANNOTATION_REQUESTED, LABEL_VM_NAME};
use protocol::object::{Node, Pod};
use protocol::policy::{
    CapacityWish, CapacityWishSpec, KEY_POLICY, LABEL_SET, Limits, ScalingPolicySpec,
    ScalingPolicyStatus, Scope, VmSet, revision_name,
};
use protocol::time::WallTime;
use protocol::units::{Bytes, MilliCpu, Resources};
use serde::Deserialize;
use serde_json::Value;

/// Objects as the API server returns them.
#[derive(Debug, Default)]
pub struct Objects {
    /// Policies of all scopes.
    pub policies: Vec<Value>,
    /// Kept versions of policies.
    pub revisions: Vec<Value>,
    /// Sets of all namespaces.
    pub sets: Vec<Value>,
    /// Nodes, those that take no VM included.
    pub nodes: Vec<Value>,
    /// Pods of all namespaces.
    pub pods: Vec<Value>,
    /// Wishes for nodes.
    pub wishes: Vec<Value>,
}

/// The objects, read. An unreadable one is left out.
#[derive(Debug, Default)]
pub struct World {
    /// Policies of sets.
    pub policies: Vec<SetPolicy>,
    /// Sets that are not being deleted.
    pub sets: Vec<VmSet>,
    /// What pods may use of each node that takes VMs.
    pub nodes: BTreeMap<String, Resources>,
    /// Pods that have a node and have not ended.
    pub pods: Vec<PodSeen>,
    /// Wishes by name.
    pub wishes: BTreeMap<String, CapacityWishSpec>,
    /// Time of the reading.
    pub wall: WallTime,
}

/// A policy of sets.
#[derive(Debug, Clone)]
pub struct SetPolicy {
    /// Name of the policy.
    pub name: String,
    /// Version that decides.
    pub live: Option<Version>,
    /// Newest version, unless it decides.
    pub candidate: Option<Version>,
    /// Limits on its answers.
    pub limits: Limits,
    /// What the object allows to whom.
    pub spec: ScalingPolicySpec,
}

/// A version of a policy.
#[derive(Debug, Clone)]
pub struct Version {
    /// Digest of `spec`.
    pub digest: Digest,
    /// The version's part of the contract.
    pub spec: Arc<Spec>,
}

/// What a pod has of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSeen {
    /// Namespace of the pod.
    pub namespace: String,
    /// Node of the pod.
    pub node: String,
    /// Address of the pod; empty before it has one.
    pub address: String,
    /// Whether it runs a VM.
    pub is_vm: bool,
    /// Set of the VM.
    pub set: Option<String>,
    /// Size that is reserved.
    pub size: Resources,
    /// Whether its VM asked for more than it was permitted.
    pub is_denied: bool,
}

impl World {
    /// Reads the objects.
    #[must_use]
    pub fn read(objects: &Objects, wall: WallTime) -> Self {
        let revisions = &objects.revisions;
        let sets = objects.sets.iter();
        let sets = sets.filter_map(|object| VmSet::deserialize(object).ok());
        Self {
            policies: objects
                .policies
                .iter()
                .filter_map(|object| SetPolicy::read(object, revisions))
                .collect(),
            sets: sets
                .filter(|set| set.metadata.deletion_timestamp.is_none())
                .collect(),
            nodes: objects.nodes.iter().filter_map(node).collect(),
            pods: objects.pods.iter().filter_map(PodSeen::read).collect(),
            wishes: objects.wishes.iter().filter_map(wish).collect(),
            wall,
        }
    }

    /// Sets that chose a policy, of the namespaces that it serves.
    pub(super) fn sets_of<'a>(
        &'a self,
        policy: &'a SetPolicy,
    ) -> impl Iterator<Item = &'a VmSet> + 'a {
        self.sets.iter().filter(|set| {
            let chosen = set.metadata.annotations.get(KEY_POLICY);
            chosen == Some(&policy.name) && policy.spec.serves(&set.metadata.namespace)
        })
    }
}

impl SetPolicy {
    /// A policy of sets. `None` for one of VMs, and for a malformed one, which its condition names.
    fn read(object: &Value, revisions: &[Value]) -> Option<Self> {
        let name = object["metadata"]["name"].as_str()?.to_owned();
        let own = ScalingPolicySpec::of_object(object).ok()?;
        if own.scope != Scope::Set || own.check().is_err() {
            return None;
        }
        let status = ScalingPolicyStatus::of_object(object).ok()?;
        let newest = Spec::from(own.clone());
        let newest = Version {
            digest: newest.digest(),
            spec: Arc::new(newest),
        };
        let decides = status.deciding().and_then(Digest::of);
        let live = decides.and_then(|digest| {
            if digest == newest.digest {
                return Some(newest.clone());
            }
            kept(&name, digest, revisions)
        });
        let candidate = (decides != Some(newest.digest)).then_some(newest);
        Some(Self {
            name,
            live,
            candidate,
            limits: own.limits,
            spec: own,
        })
    }
}

/// The kept version with this digest.
fn kept(policy: &str, digest: Digest, revisions: &[Value]) -> Option<Version> {
    let name = revision_name(policy, &digest.to_string());
    let mut named = revisions.iter();
    let revision = named.find(|one| one["metadata"]["name"] == *name)?;
    let spec = Spec::deserialize(&revision["data"]).ok()?;
    (spec.digest() == digest).then(|| Version {
        digest,
        spec: Arc::new(spec),
    })
}

/// What pods may use of a node. `None` for one that takes no VM.
fn node(object: &Value) -> Option<(String, Resources)> {
    let mut conditions = object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let is_ready = conditions.any(|one| one["type"] == "Ready" && one["status"] == "True");
    if !is_ready || object["spec"]["unschedulable"] == true {
        return None;
    }
    let node = Node::deserialize(object).ok()?;
    let amount = |name: &str| node.status.allocatable.get(name);
    let cpu = amount("cpu")?.milli_value();
    let size = Resources {
        cpu: MilliCpu(u32::try_from(cpu).unwrap_or(u32::MAX)),
        mem: Bytes(amount("memory")?.as_u64()?),
    };
    Some((node.metadata.name, size))
}

fn wish(object: &Value) -> Option<(String, CapacityWishSpec)> {
    let wish = CapacityWish::deserialize(object).ok()?;
    Some((wish.metadata.name, wish.spec))
}

impl PodSeen {
    fn read(object: &Value) -> Option<Self> {
        let pod = Pod::deserialize(object).ok()?;
        if pod.is_terminal() || pod.spec.node_name.is_empty() {
            return None;
        }
        let annotated = |key: &str| -> Option<Resources> {
            serde_json::from_str(pod.metadata.annotations.get(key)?).ok()
        };
        let approved = annotated(ANNOTATION_APPROVED);
        let requested = annotated(ANNOTATION_REQUESTED);
        let is_denied = requested
            .zip(approved)
            .is_some_and(|(requested, approved)| requested.has_field_above(approved));
        Some(Self {
            size: pod.granted().unwrap_or_else(|| pod.requested()),
            is_vm: pod.metadata.labels.contains_key(LABEL_VM_NAME),
            set: pod.metadata.labels.get(LABEL_SET).cloned(),
            namespace: pod.metadata.namespace,
            node: pod.spec.node_name,
            address: pod.status.pod_ip,
            is_denied,
        })
    }
}
