//! The parts of Kubernetes objects the cores read: metadata, pods, nodes. Unknown members are
//! ignored when read and not kept: these views are never written back whole.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::annotations::{ANNOTATION_APPROVED, ANNOTATION_VM_USAGE, VmUsage};
use crate::quantity::Quantity;
use crate::time::WallTime;
use crate::units::{Bytes, MilliCpu, Resources};

/// Whether a text is a label of DNS, as names are: 1 to `most` bytes of `a` to `z`, `0` to `9` and
/// `-`, with a letter or digit first and last.
#[must_use]
pub fn is_label(text: &str, most: usize) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= most
        && bytes.iter().all(|byte| is_word(*byte) || *byte == b'-')
        && bytes.first().is_some_and(|byte| is_word(*byte))
        && bytes.last().is_some_and(|byte| is_word(*byte))
}

/// `metadata` of any Kubernetes object, as far as a component reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name, unique in the namespace and kind.
    pub name: String,
    /// Namespace; empty for cluster-scoped kinds.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Identifier that the API server assigns at creation. No two objects ever share one. Empty
    /// before.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Version of this state, assigned by the API server. Compare it for equality only.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Number of the newest spec, from 1. The API server raises it with each change of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Time of creation, in whole seconds. The API server sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<WallTime>,
    /// Time at which somebody asked for the deletion. `None`: the object is not being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<WallTime>,
    /// Label values by key. A watch can select objects by them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotation values by key. Their texts are free-form, and no watch selects by them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Names of the parties that must finish before the API server removes the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// Objects whose deletion also deletes this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
}

/// One owner of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// API group and version of the owner: `vm.neon.tech/v1`.
    pub api_version: String,
    /// Kind of the owner: `VirtualMachine`.
    pub kind: String,
    /// Name of the owner, in the namespace of the object that it owns.
    pub name: String,
    /// Uid of the owner. An owner of the same name with another uid is a different object.
    pub uid: String,
    /// Whether this owner manages the object. At most one owner has `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// Whether it blocks a foreground deletion of the owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

impl ObjectMeta {
    /// Key of the object in maps and log lines: `namespace/name`.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether a label has exactly the value `"true"`.
    #[must_use]
    pub fn label_is_true(&self, key: &str) -> bool {
        self.labels.get(key).is_some_and(|value| value == "true")
    }

    /// The first owner of this kind, if there is one.
    #[must_use]
    pub fn owner_of_kind(&self, kind: &str) -> Option<&OwnerReference> {
        self.owner_references
            .iter()
            .find(|owner| owner.kind == kind)
    }
}

/// The members of a Pod that the components read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, labels, annotations and owners of the pod.
    pub metadata: ObjectMeta,
    /// The desired state: node, containers and volumes.
    pub spec: PodSpec,
    /// The observed state, written by the kubelet.
    pub status: PodStatus,
}

/// The members of a Pod's spec that the components read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Name of the node that the pod is bound to. Empty before the binding.
    pub node_name: String,
    /// Name of the scheduler that binds the pod. Another scheduler ignores it.
    pub scheduler_name: String,
    /// Containers in the order of the manifest, without init containers.
    pub containers: Vec<Container>,
    /// Seconds between the request to stop and the kill. `None` means 30, the default of
    /// Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// Volumes that containers can mount, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
}

/// A volume of a pod. Only volumes of secrets and config maps have more than a name here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// Name of the volume, unique in the pod.
    pub name: String,
    /// Present if the volume holds keys of a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretVolume>,
    /// Present if the volume holds keys of a config map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapVolume>,
}

/// A volume with a file for each key of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretVolume {
    /// Name of the secret in the namespace of the pod.
    pub secret_name: String,
    /// Keys that become files. Empty means all keys, each under its own name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<KeyToPath>,
}

/// A volume with a file for each key of a config map.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigMapVolume {
    /// Name of the config map in the namespace of the pod.
    pub name: String,
    /// Keys that become files. Empty means all keys, each under its own name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<KeyToPath>,
}

/// A key of a secret or config map, and the file that holds its value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyToPath {
    /// Name of the key in the object.
    pub key: String,
    /// Path of the file, relative to the root of the volume.
    pub path: String,
}

/// Mount of a volume in a container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMount {
    /// Name of the volume in [`PodSpec::volumes`].
    pub name: String,
    /// Absolute path of the mount point in the container.
    pub mount_path: String,
}

/// The members of a container that the components read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name of the container, unique in the pod.
    pub name: String,
    /// Image reference, as written: `registry/name:tag` or with a digest.
    pub image: String,
    /// Arguments of the entry point, one entry each. Empty means those of the image.
    pub args: Vec<String>,
    /// Environment. A variable that takes its value from another object has an empty value here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<crate::vm::EnvVar>,
    /// CPU and memory that the container requests and may use.
    pub resources: ContainerResources,
    /// Volumes that the container mounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
}

/// Requests and limits of a container by resource name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerResources {
    /// Amounts that the scheduler reserves on the node.
    pub requests: BTreeMap<String, Quantity>,
    /// Upper bounds of use that the kubelet enforces.
    pub limits: BTreeMap<String, Quantity>,
}

/// The members of a Pod's status that the components read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// Pending, Running, Succeeded, Failed, or empty.
    pub phase: String,
    /// IP address of the pod in the cluster network. Empty before the node assigns one.
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    /// Conditions by type, in no fixed order.
    pub conditions: Vec<PodCondition>,
    /// One entry per container, in no fixed order. Empty before the kubelet starts the pod.
    pub container_statuses: Vec<ContainerStatus>,
    /// One entry per init container, in no fixed order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// Machine-readable cause of the phase (`Evicted`, …). Often empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable form of `reason`. Often empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// One condition of a pod, as the kubelet or a scheduler reports it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PodCondition {
    /// Type of the condition: `Ready`, `PodScheduled`, ….
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Human-readable cause of the status. Often empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Observed state of one container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Name of the container in [`PodSpec::containers`].
    pub name: String,
    /// Whether the readiness probe of the container succeeds.
    pub ready: bool,
    /// Image with its digest, as the kubelet resolved it. Empty before the pull.
    #[serde(rename = "imageID", skip_serializing_if = "String::is_empty")]
    pub image_id: String,
    /// Whether the container waits or has ended. Neither is set while it runs.
    #[serde(skip_serializing_if = "ContainerState::is_empty")]
    pub state: ContainerState,
}

/// The members of a container's `state` that the components read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Cause of the wait. `None`: the container has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// End of the container. `None`: it has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminated: Option<Terminated>,
}

impl ContainerState {
    fn is_empty(&self) -> bool {
        self.terminated.is_none() && self.waiting.is_none()
    }
}

/// Cause of a container's wait.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// Machine-readable cause: `ContainerCreating`, `ImagePullBackOff`, ….
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable cause. Often empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Exit status and cause of a container's end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    /// Exit status of the main process. 0 is success.
    pub exit_code: i32,
    /// Machine-readable cause: `Completed`, `Error`, or a reason of the runner's own.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable cause. Often empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Pod {
    /// Whether the condition `Ready` has the status `True`.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.status
            .conditions
            .iter()
            .any(|c| c.kind == "Ready" && c.status == "True")
    }

    /// Whether the pod has ended, with success or failure.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Size reserved for the pod's VM: the scheduler's grant, or the size in use if a client set a
    /// larger one. `None` for a pod without either.
    #[must_use]
    pub fn granted(&self) -> Option<Resources> {
        if self.is_terminal() {
            return None;
        }
        let annotation = |key: &str| self.metadata.annotations.get(key);
        let approved: Option<Resources> =
            annotation(ANNOTATION_APPROVED).and_then(|text| serde_json::from_str(text).ok());
        let usage: Option<VmUsage> =
            annotation(ANNOTATION_VM_USAGE).and_then(|text| serde_json::from_str(text).ok());
        let used = usage.map(|usage| Resources {
            cpu: MilliCpu(u32::try_from(usage.cpu.milli_value()).unwrap_or(0)),
            mem: Bytes(usage.memory.as_u64().unwrap_or(0)),
        });
        // A pod without a node reserves nothing.
        let used = used.filter(|_| !self.spec.node_name.is_empty());
        match (approved, used) {
            (Some(approved), Some(used)) => Some(approved.field_max(used)),
            (approved, used) => approved.or(used),
        }
    }

    /// Sum of what the containers request, without init containers.
    #[must_use]
    pub fn requested(&self) -> Resources {
        let mut sum = Resources::default();
        for requests in self
            .spec
            .containers
            .iter()
            .map(|one| &one.resources.requests)
        {
            let cpu = requests.get("cpu").map_or(0, Quantity::milli_value);
            let memory = requests.get("memory").and_then(Quantity::as_u64);
            let cpu = u32::try_from(cpu).unwrap_or(u32::MAX);
            sum.cpu.0 = sum.cpu.0.saturating_add(cpu);
            sum.mem.0 = sum.mem.0.saturating_add(memory.unwrap_or(0));
        }
        sum
    }
}

/// Removes each object member that is `null`, at every depth. Kubernetes treats a null member as an
/// absent one, and its Go clients write `null` for empty lists and maps. Nulls inside arrays stay.
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

/// The members of a Node that the components read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name, labels and annotations of the node.
    pub metadata: ObjectMeta,
    /// The observed state, written by the kubelet.
    pub status: NodeStatus,
}

/// The members of a Node's status that the components read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Amounts that pods may use, by resource name (`cpu`, `memory`).
    pub allocatable: BTreeMap<String, Quantity>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_a_container_is_written_unless_it_runs() {
        let waiting = ContainerState {
            waiting: Some(Waiting::default()),
            ..ContainerState::default()
        };
        let ended = ContainerState {
            terminated: Some(Terminated::default()),
            ..ContainerState::default()
        };
        for (state, is_written) in [
            (ContainerState::default(), false),
            (waiting, true),
            (ended, true),
        ] {
            let status = ContainerStatus {
                state,
                ..ContainerStatus::default()
            };
            let text = serde_json::to_value(&status).expect("encodes");
            assert_eq!(text.get("state").is_some(), is_written, "{text}");
        }
    }

    #[test]
    fn metadata_is_read_by_key_label_and_kind_of_owner() {
        let owner = |kind: &str| OwnerReference {
            kind: kind.to_owned(),
            ..OwnerReference::default()
        };
        let metadata = ObjectMeta {
            namespace: "default".into(),
            name: "pg".into(),
            labels: [("a", "true"), ("b", "True")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            owner_references: vec![owner("Node"), owner("VirtualMachine")],
            ..ObjectMeta::default()
        };
        assert_eq!(metadata.key(), "default/pg");
        let is_true = ["a", "b", "c"].map(|key| metadata.label_is_true(key));
        assert_eq!(is_true, [true, false, false]);
        let found = metadata.owner_of_kind("VirtualMachine");
        assert_eq!(found, metadata.owner_references.get(1));
        assert_eq!(metadata.owner_of_kind("Pod"), None);
    }

    #[test]
    fn pod_has_ended_in_two_phases() {
        for (phase, has_ended) in [
            ("Pending", false),
            ("Running", false),
            ("Succeeded", true),
            ("Failed", true),
        ] {
            let mut pod = Pod::default();
            pod.status.phase = phase.into();
            assert_eq!(pod.is_terminal(), has_ended, "{phase}");
        }
    }
}
