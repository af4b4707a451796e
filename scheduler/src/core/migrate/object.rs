//! VirtualMachineMigration objects: the view of observed ones, and the ones that the scheduler
//! creates. Source: docs/compatibility/scheduler.md §3.

use std::collections::BTreeMap;

use protocol::annotations::LABEL_CREATED_BY_SCHEDULER;
use protocol::object::ObjectMeta;
use protocol::permit::NamespacedName;
use protocol::quantity::Quantity;
use protocol::time::Span;
use protocol::vm::{API_VERSION, MigrationSpec, VirtualMachineMigration};
use serde::Serialize;
use serde_json::{Value, json};

use crate::core::object::{Unreadable, key_of, metadata};

/// `spec.completionTimeout` if the object has none: the default of its schema.
const DEFAULT_TIMEOUT_SECONDS: u64 = 3600;

/// The phase of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MigrationPhase {
    /// The controller has not begun it, or it waits for its target pod.
    Pending,
    /// Memory is being sent. Includes phases that this version does not have.
    Running,
    /// The VM runs on the target.
    Succeeded,
    /// The VM runs on the source as before.
    Failed,
}

impl MigrationPhase {
    /// Whether this is a final phase.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The members of a migration that the scheduler uses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct MigrationView {
    /// The migration's name.
    pub key: NamespacedName,
    /// The migration's uid.
    pub uid: String,
    /// The VM to move.
    pub vm: NamespacedName,
    /// Whether it has the label of migrations that a scheduler creates.
    pub ours: bool,
    /// The phase in its status.
    pub phase: MigrationPhase,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// Bytes of memory sent, if the status has them.
    pub sent_bytes: Option<u64>,
    /// Longest duration, from `spec.completionTimeout`.
    pub timeout: Span,
}

impl MigrationView {
    /// Reads a VirtualMachineMigration.
    ///
    /// # Errors
    /// [`Unreadable`] when it has no name or names no VM.
    pub fn read(object: &Value) -> Result<Self, Unreadable> {
        let meta = metadata(object)?;
        let text = |path| object.pointer(path).and_then(Value::as_str);
        let vm = text("/spec/vmName").filter(|name| !name.is_empty());
        let vm = vm.ok_or_else(|| Unreadable("no spec.vmName".into()))?;
        let phase = match text("/status/phase").unwrap_or_default() {
            "" | "Pending" => MigrationPhase::Pending,
            "Succeeded" => MigrationPhase::Succeeded,
            "Failed" => MigrationPhase::Failed,
            _ => MigrationPhase::Running,
        };
        let number = |path| object.pointer(path).and_then(Value::as_u64);
        let seconds = number("/spec/completionTimeout").unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        Ok(Self {
            key: key_of(&meta),
            vm: NamespacedName {
                namespace: meta.namespace.clone(),
                name: vm.to_owned(),
            },
            ours: meta.labels.contains_key(LABEL_CREATED_BY_SCHEDULER),
            phase,
            deleting: meta.deletion_timestamp.is_some(),
            sent_bytes: number("/status/info/ram/transferred"),
            timeout: Span::from_secs(seconds.min(u64::from(u32::MAX))),
            uid: meta.uid,
        })
    }

    /// Whether it is not over.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        !self.phase.is_over()
    }
}

/// A migration to create.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct NewMigration {
    /// The migration's name.
    pub key: NamespacedName,
    /// Name of the VM to move, in the same namespace.
    pub vm: String,
}

impl NewMigration {
    /// The migration of the VM that runs in a pod. Its name contains the pod's name, so that the
    /// migration of a later pod has another name.
    #[must_use]
    pub fn of(pod: &NamespacedName, vm: &NamespacedName) -> Self {
        Self {
            key: NamespacedName {
                namespace: pod.namespace.clone(),
                name: format!("schedplugin-{}", pod.name),
            },
            vm: vm.name.clone(),
        }
    }

    /// The `VirtualMachineMigration` as JSON.
    #[must_use]
    pub fn object(&self) -> Value {
        let migration = VirtualMachineMigration {
            api_version: API_VERSION.into(),
            kind: "VirtualMachineMigration".into(),
            metadata: ObjectMeta {
                name: self.key.name.clone(),
                namespace: self.key.namespace.clone(),
                labels: BTreeMap::from([(LABEL_CREATED_BY_SCHEDULER.into(), "true".into())]),
                ..ObjectMeta::default()
            },
            spec: MigrationSpec {
                vm_name: self.vm.clone(),
                prevent_migration_to_same_host: true,
                completion_timeout: 3600,
                incremental: true,
                allow_post_copy: false,
                auto_converge: true,
                max_bandwidth: Quantity::from_bytes(1 << 30),
                ..MigrationSpec::default()
            },
            status: None,
        };
        json!(migration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(namespace: &str, name: &str) -> NamespacedName {
        NamespacedName {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    #[test]
    fn the_object_is_the_deployed_one() {
        let made = NewMigration::of(&name("default", "pg-x7k2p"), &name("default", "pg")).object();
        let mut expected = json!({
            "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration",
            "metadata": {"name": "schedplugin-pg-x7k2p", "namespace": "default",
                "labels": {"autoscaling.neon.tech/created-by-scheduler": "true"}},
            "spec": {"vmName": "pg", "preventMigrationToSameHost": true, "completionTimeout": 3600,
                "incremental": true, "autoConverge": true, "allowPostCopy": false, "maxBandwidth": "1Gi"}});
        assert_eq!(made["spec"], expected["spec"]);
        assert_eq!(made["metadata"]["labels"], expected["metadata"]["labels"]);
        expected["metadata"]["uid"] = json!("u");
        let mut made = made;
        made["metadata"]["uid"] = json!("u");
        assert_eq!(MigrationView::read(&made), MigrationView::read(&expected));
    }

    #[test]
    fn a_migration_is_read_whatever_it_holds() {
        let object = |status: Value| {
            json!({"metadata": {"name": "m", "namespace": "d", "uid": "u"},
                "spec": {"vmName": "pg", "completionTimeout": 60}, "status": status})
        };
        let view = MigrationView::read(&object(json!({"phase": "Running",
            "info": {"ram": {"transferred": 4096}}})))
        .expect("reads");
        assert_eq!(
            (view.phase, view.sent_bytes),
            (MigrationPhase::Running, Some(4096))
        );
        assert_eq!((view.vm, view.ours), (name("d", "pg"), false));
        assert_eq!(view.timeout, Span::from_secs(60));
        for (phase, is_live) in [
            (json!(null), true),
            (json!(""), true),
            (json!(7), true),
            (json!("Pending"), true),
            (json!("Paused"), true),
            (json!("Succeeded"), false),
            (json!("Failed"), false),
        ] {
            let view = MigrationView::read(&object(json!({"phase": phase}))).expect("reads");
            assert_eq!(view.is_live(), is_live, "{phase}");
        }
        let mut nameless = object(json!({}));
        nameless["spec"]["vmName"] = json!("");
        assert!(MigrationView::read(&nameless).is_err());
    }
}
