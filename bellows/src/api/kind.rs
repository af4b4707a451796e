//! Kinds of objects that the commands work with, and where the API serves them.

use protocol::fleet::FleetKind;

/// Path of the VirtualMachine kind.
const VM_ROOT: &str = "/apis/vm.neon.tech/v1";

/// Owner of the API server. The fix that an error suggests depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiOwner {
    /// The server of `bellows up` on this machine.
    Up,
    Cluster,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Vm,
    Migration,
    Pod,
    /// Has no namespace.
    Node,
    Secret,
    ConfigMap,
    /// Has no namespace.
    Policy,
    /// A kept version of a policy.
    Revision,
    VmSet,
    /// A kind of `fleet.bellows.dev`.
    Fleet(FleetKind),
}

impl Kind {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Vm => "VM",
            Self::Migration => "migration",
            Self::Pod => "pod",
            Self::Node => "node",
            Self::Secret => "secret",
            Self::ConfigMap => "config map",
            Self::Policy => "policy",
            Self::Revision => "revision",
            Self::VmSet => "VM set",
            Self::Fleet(FleetKind::Environment) => "fleet environment",
            Self::Fleet(FleetKind::Deployment) => "fleet deployment",
            Self::Fleet(FleetKind::Instance) => "fleet instance",
            Self::Fleet(FleetKind::Channel) => "fleet channel",
        }
    }

    /// Path of the collection in a namespace. `None` selects all namespaces.
    pub(super) fn collection(self, namespace: Option<&str>) -> String {
        let (root, plural) = match self {
            Self::Vm => (VM_ROOT, "virtualmachines"),
            Self::Migration => (VM_ROOT, "virtualmachinemigrations"),
            Self::Pod => ("/api/v1", "pods"),
            Self::Secret => ("/api/v1", "secrets"),
            Self::ConfigMap => ("/api/v1", "configmaps"),
            Self::Revision => ("/apis/apps/v1", "controllerrevisions"),
            Self::VmSet => ("/apis/policy.bellows.dev/v1alpha1", "virtualmachinesets"),
            Self::Fleet(kind) => (fleet_store::ROOT, kind.plural()),
            Self::Node => return "/api/v1/nodes".into(),
            Self::Policy => return "/apis/policy.bellows.dev/v1alpha1/scalingpolicies".into(),
        };
        match namespace {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
            None => format!("{root}/{plural}"),
        }
    }
}

/// Name of an object in messages.
pub(super) fn shown_name(kind: Kind, namespace: &str, name: &str) -> String {
    if matches!(kind, Kind::Node | Kind::Policy) {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_kubernetes() {
        assert_eq!(
            Kind::Vm.collection(Some("a")),
            "/apis/vm.neon.tech/v1/namespaces/a/virtualmachines"
        );
        assert_eq!(Kind::Pod.collection(None), "/api/v1/pods");
        assert_eq!(
            Kind::VmSet.collection(Some("a")),
            "/apis/policy.bellows.dev/v1alpha1/namespaces/a/virtualmachinesets"
        );
        assert_eq!(Kind::Node.collection(Some("a")), "/api/v1/nodes");
    }
}
