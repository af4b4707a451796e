//! The parts of Kubernetes objects the cores read: metadata, pods, nodes. Unknown members are
//! ignored when read and not kept: these views are never written back whole.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;
use crate::time::WallTime;

/// `metadata` of any object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name, unique in the namespace and kind.
    pub name: String,
    /// Namespace; empty for cluster-scoped kinds.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Unique in time and space.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Opaque version of this state.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Counts changes of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// When it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<WallTime>,
    /// When its deletion was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<WallTime>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Who must be done before it may go.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// Who owns it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
}

/// One owner of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Whether it is the one controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// Whether it blocks a foreground deletion of the owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

impl ObjectMeta {
    /// `namespace/name`.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether a label has exactly the value `"true"`.
    #[must_use]
    pub fn label_is_true(&self, key: &str) -> bool {
        self.labels.get(key).is_some_and(|value| value == "true")
    }

    /// The owner of a kind, if any.
    #[must_use]
    pub fn owner_of_kind(&self, kind: &str) -> Option<&OwnerReference> {
        self.owner_references
            .iter()
            .find(|owner| owner.kind == kind)
    }
}

/// What is read from a Pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: PodSpec,
    /// Status.
    pub status: PodStatus,
}

/// What is read from a Pod's spec.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The node it is bound to; empty before.
    pub node_name: String,
    /// Who places it.
    pub scheduler_name: String,
    /// Its containers.
    pub containers: Vec<Container>,
    /// Seconds it has to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// Its volumes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
}

/// What is read from a volume: those of secrets and config maps.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// Name.
    pub name: String,
    /// Made of a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretVolume>,
    /// Made of a config map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapVolume>,
}

/// A volume made of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretVolume {
    /// The secret.
    pub secret_name: String,
    /// Which keys; all if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<KeyToPath>,
}

/// A volume made of a config map.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigMapVolume {
    /// The config map.
    pub name: String,
    /// Which keys; all if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<KeyToPath>,
}

/// A key of an object and the file it becomes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyToPath {
    /// The key.
    pub key: String,
    /// The file's path in the volume.
    pub path: String,
}

/// Where a container has a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMount {
    /// The volume.
    pub name: String,
    /// The directory.
    pub mount_path: String,
}

/// What is read from a container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name.
    pub name: String,
    /// Image.
    pub image: String,
    /// Arguments.
    pub args: Vec<String>,
    /// Environment; variables that take their value from elsewhere have none here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<crate::vm::EnvVar>,
    /// Requests and limits.
    pub resources: ContainerResources,
    /// Volumes it has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
}

/// Requests and limits of a container by resource name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerResources {
    /// What is set aside.
    pub requests: BTreeMap<String, Quantity>,
    /// What may be used at most.
    pub limits: BTreeMap<String, Quantity>,
}

/// What is read from a Pod's status.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// Pending, Running, Succeeded, Failed, or empty.
    pub phase: String,
    /// Its address.
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    /// Conditions.
    pub conditions: Vec<PodCondition>,
    /// One entry per container.
    pub container_statuses: Vec<ContainerStatus>,
    /// One entry per init container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// A word for why it is in this phase (`Evicted`, …); empty if there is nothing to say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// One condition of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PodCondition {
    /// Ready, PodScheduled, ….
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False, Unknown.
    pub status: String,
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Status of one container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Name.
    pub name: String,
    /// Whether its readiness probe holds.
    pub ready: bool,
    /// What its image was resolved to; empty until that is done.
    #[serde(rename = "imageID", skip_serializing_if = "String::is_empty")]
    pub image_id: String,
    /// What it does now.
    #[serde(skip_serializing_if = "ContainerState::is_empty")]
    pub state: ContainerState,
}

/// What is read from a container's `state`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Why it does not run yet, if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// How it ended, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminated: Option<Terminated>,
}

impl ContainerState {
    fn is_empty(&self) -> bool {
        self.terminated.is_none() && self.waiting.is_none()
    }
}

/// Why a container does not run yet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// One word: `ContainerCreating`, `ImagePullBackOff`, ….
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    /// Exit status; 0 is success.
    pub exit_code: i32,
    /// `Completed`, `Error`, or a word of the runner's own.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Pod {
    /// Whether condition Ready is True.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.status
            .conditions
            .iter()
            .any(|c| c.kind == "Ready" && c.status == "True")
    }

    /// Whether it has ended (Succeeded or Failed).
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }
}

/// The same JSON without any object member that is `null`: to Kubernetes a null member is an absent
/// one, and its Go clients write `null` for empty lists and maps. Nulls inside arrays stay.
#[must_use]
pub fn without_nulls(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Object(members) => members
            .into_iter()
            .filter(|(_, member)| !member.is_null())
            .map(|(name, member)| (name, without_nulls(member)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// What is read from a Node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Status.
    pub status: NodeStatus,
}

/// What is read from a Node's status.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// What pods may use, by resource name (`cpu`, `memory`).
    pub allocatable: BTreeMap<String, Quantity>,
}
