//! The form in which objects are written.

use protocol::fleet::{
    DeploymentSpec, EnvironmentSpec, FleetKind, GROUP, InstanceSpec, KEY_DIGEST, RevisionData,
    VERSION, revision_label, revision_name,
};
use serde_json::{Value, json};

use crate::revisions::digest;

/// The VM, node or `Deployment` that owns an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// What it is.
    pub kind: OwnerKind,
    /// Name of the object.
    pub name: String,
    /// Uid that the API gave it.
    pub uid: String,
}

/// Kind of an instance's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerKind {
    /// A VM, whose guest has the parts.
    Vm,
    /// A node, whose agent is the part.
    Node,
    /// A `Deployment` of the control plane.
    Deployment,
}

impl OwnerKind {
    const fn version_and_kind(self) -> (&'static str, &'static str) {
        match self {
            Self::Vm => ("vm.neon.tech/v1", "VirtualMachine"),
            Self::Node => ("v1", "Node"),
            Self::Deployment => ("apps/v1", "Deployment"),
        }
    }
}

fn object(kind: FleetKind, namespace: &str, name: &str, spec: &impl serde::Serialize) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": kind.as_str(),
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    })
}

/// A new environment.
#[must_use]
pub fn environment_object(namespace: &str, name: &str, spec: &EnvironmentSpec) -> Value {
    object(FleetKind::Environment, namespace, name, spec)
}

/// A new deployment.
#[must_use]
pub fn deployment_object(namespace: &str, name: &str, spec: &DeploymentSpec) -> Value {
    object(FleetKind::Deployment, namespace, name, spec)
}

/// A new instance. It goes when its owner goes.
pub(crate) fn instance_object(
    namespace: &str,
    name: &str,
    owner: &Owner,
    spec: &InstanceSpec,
) -> Value {
    let mut object = object(FleetKind::Instance, namespace, name, spec);
    let (version, kind) = owner.kind.version_and_kind();
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": version,
        "kind": kind,
        "name": owner.name,
        "uid": owner.uid,
    }]);
    object
}

/// Makes an environment the owner of a deployment, which goes when its environment goes.
pub fn own(deployment: &mut Value, environment: &Value) {
    if environment["metadata"]["uid"].is_string() {
        deployment["metadata"]["ownerReferences"] = owners(environment);
    }
}

fn owners(environment: &Value) -> Value {
    json!([{
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": FleetKind::Environment.as_str(),
        "name": environment["metadata"]["name"],
        "uid": environment["metadata"]["uid"],
    }])
}

/// The revision of a number. It goes when its environment goes.
#[must_use]
pub fn revision_object(environment: &Value, number: i64, data: &RevisionData) -> Value {
    let metadata = &environment["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    let mut object = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": revision_name(name, number),
            "namespace": metadata["namespace"],
            "labels": revision_label(name),
            "ownerReferences": owners(environment),
        },
        "data": data,
        "revision": number,
    });
    object["metadata"]["annotations"] = json!({KEY_DIGEST: digest(&object)});
    object
}

/// The newest of an environment's revisions, with its number and its data.
#[must_use]
pub fn newest_revision(revisions: &[Value]) -> Option<(i64, &Value)> {
    let numbered = revisions
        .iter()
        .filter_map(|one| Some((one["revision"].as_i64()?, &one["data"])));
    numbered.max_by_key(|(number, _)| *number)
}

/// Objects of a list do not name their kind.
pub(crate) fn typed(kind: FleetKind, mut object: Value) -> Value {
    object["apiVersion"] = format!("{}/{}", GROUP, VERSION).into();
    object["kind"] = kind.as_str().into();
    object
}
