//! The objects as the API keeps them, and as they are read from it.

use protocol::permit::NamespacedName;
use protocol::units::Resources;
use scheduler::core::amount::Both;
use scheduler::core::view::{NodeView, PodRole, PodView, VmView};
use serde_json::{Value, json};

use super::UNIT;

#[derive(Debug, Clone)]
pub(crate) struct VmObject {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: u64,
    pub(crate) in_use: Resources,
    pub(crate) unit: Option<String>,
    pub(crate) requested: Option<String>,
    pub(crate) approved: Option<String>,
    /// Counts the sizes its agents wanted.
    pub(crate) revision: u64,
    pub(crate) report: Option<Report>,
    /// An agent that is gone set the size, and the present one was not permitted it.
    pub(crate) stray: bool,
    shape: Shape,
}

/// What stays as it is while a VM lives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) overcommit_milli: u32,
    pub(crate) largest: Resources,
    pub(crate) requests: Requests,
}

/// What the runner of a VM's pod requests of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requests {
    /// Nothing: the pod's annotation says what its guest may have.
    Nothing,
    /// What its guest may have, less by the over-commit factor.
    Guest,
    /// What the VM's author wrote, whatever its guest has.
    Fixed(Resources),
}

/// What the status of a VM says of its guest.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Report {
    pub(crate) pod: String,
    pub(crate) size: Resources,
    /// The revision whose size the guest reached last.
    pub(crate) revision: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct PodObject {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) node: Option<String>,
    /// The name and the uid of the VM that owns it.
    pub(crate) owner: Option<(String, String)>,
    pub(crate) overcommit_milli: u32,
    /// What it says its guest may have, in its requests or else in its annotation.
    pub(crate) told: Resources,
    /// Its part in a migration.
    pub(crate) role: PodRole,
    /// Its deletion was asked.
    pub(crate) deleting: bool,
    requests: Requests,
    /// The VM's annotations and use as they were copied last.
    copied: Option<VmObject>,
}

pub(crate) fn node(name: &str, total: Both<u64>) -> NodeView {
    let object = json!({"metadata": {"name": name, "uid": name},
        "status": {"allocatable": {"cpu": format!("{}m", total.cpu), "memory": total.mem.to_string()}}});
    NodeView::read(&object).expect("reads")
}

/// CPU bounds and memory slots of a mebibyte each, so that any size can be written.
fn guest(in_use: Resources, largest: Resources) -> Value {
    json!({"cpus": {"min": "250m", "max": largest.cpu, "use": in_use.cpu},
        "memorySlots": {"min": 1, "max": largest.mem.0 >> 20, "use": in_use.mem.0 >> 20},
        "memorySlotSize": "1Mi"})
}

impl VmObject {
    pub(crate) fn new(name: String, serial: u64, shape: Shape) -> Self {
        Self {
            name,
            uid: format!("vm-uid-{serial}"),
            version: 0,
            in_use: UNIT,
            unit: None,
            requested: None,
            approved: None,
            revision: 0,
            report: None,
            stray: false,
            shape,
        }
    }

    pub(crate) fn key(&self) -> NamespacedName {
        NamespacedName {
            namespace: "d".into(),
            name: self.name.clone(),
        }
    }

    pub(crate) fn approved_resources(&self) -> Option<Resources> {
        self.approved
            .as_ref()
            .map(|text| serde_json::from_str(text).expect("is readable"))
    }

    fn annotations(&self) -> Value {
        let mut annotations = json!({});
        for (key, value) in [
            ("autoscaling.neon.tech/scaling-unit", &self.unit),
            (
                "internal.autoscaling.neon.tech/resources-requested",
                &self.requested,
            ),
            (
                "internal.autoscaling.neon.tech/resources-approved",
                &self.approved,
            ),
        ] {
            if let Some(value) = value {
                annotations[key] = json!(value);
            }
        }
        annotations
    }

    fn status(&self) -> Value {
        self.report.as_ref().map_or_else(
            || json!({}),
            |report| {
                json!({"podName": report.pod, "cpus": report.size.cpu,
                    "memorySize": report.size.mem, "currentRevision": {"revision": report.revision}})
            },
        )
    }

    pub(crate) fn view(&self) -> VmView {
        let object = json!({"metadata": {"name": self.name, "namespace": "d", "uid": self.uid,
                "resourceVersion": self.version.to_string(), "annotations": self.annotations(),
                "labels": {"autoscaling.neon.tech/enabled": "true"}},
            "spec": {"guest": guest(self.in_use, self.shape.largest), "targetRevision": {"revision": self.revision}},
            "status": self.status()});
        VmView::read(&object).expect("reads")
    }
}

impl PodObject {
    pub(crate) fn plain(serial: u64, milli_cpu: u32) -> Self {
        let requests = Resources::new(milli_cpu, u64::from(milli_cpu) << 21);
        Self {
            name: format!("plain{serial}"),
            uid: format!("pod-uid-{serial}"),
            node: None,
            owner: None,
            overcommit_milli: 1000,
            told: Resources::default(),
            role: PodRole::Settled,
            deleting: false,
            requests: Requests::Fixed(requests),
            copied: None,
        }
    }

    pub(crate) fn of(vm: &VmObject) -> Self {
        Self {
            name: format!("{}-pod", vm.uid),
            uid: format!("{}-pod-uid", vm.uid),
            node: None,
            owner: Some((vm.name.clone(), vm.uid.clone())),
            overcommit_milli: vm.shape.overcommit_milli,
            told: vm.in_use,
            role: PodRole::Settled,
            deleting: false,
            requests: vm.shape.requests,
            copied: Some(vm.clone()),
        }
    }

    pub(crate) fn is_of(&self, vm: &str) -> bool {
        self.owner.as_ref().is_some_and(|(name, _)| name == vm)
    }

    /// What its node sets aside for it whatever its guest has.
    pub(crate) fn set_aside(&self) -> Resources {
        match self.requests {
            Requests::Fixed(requests) => requests,
            Requests::Nothing | Requests::Guest => Resources::default(),
        }
    }

    fn requested(&self) -> Resources {
        if self.requests != Requests::Guest {
            return self.set_aside();
        }
        let part = |whole: u64| (whole * 1000).div_ceil(u64::from(self.overcommit_milli));
        let cpu = part(u64::from(self.told.cpu.0));
        Resources::new(
            u32::try_from(cpu).unwrap_or(u32::MAX),
            part(self.told.mem.0),
        )
    }

    /// The controller copies what the VM says now.
    pub(crate) fn sync(&mut self, vm: &VmObject) {
        self.copied = Some(vm.clone());
    }

    pub(crate) fn view(&self) -> PodView {
        let requests = self.requested();
        let mut object = json!({"metadata": {"name": self.name, "namespace": "d", "uid": self.uid},
            "spec": {"schedulerName": "autoscale-scheduler", "nodeName": self.node.clone().unwrap_or_default(),
                "containers": [{"name": "neonvm-runner", "resources": {"requests":
                    {"cpu": requests.cpu, "memory": requests.mem}}}]}});
        if let Some(vm) = &self.copied {
            let mut annotations = vm.annotations();
            let in_use = if self.requests == Requests::Guest {
                vm.in_use
            } else {
                self.told
            };
            let resources = guest(in_use, vm.shape.largest);
            annotations["vm.neon.tech/resources"] = json!(resources.to_string());
            let factor = format!("{}m", self.overcommit_milli);
            annotations["vm.neon.tech/overcommit"] =
                json!(json!({"cpu": factor, "memory": factor}).to_string());
            object["metadata"]["annotations"] = annotations;
            object["metadata"]["labels"] = json!({"autoscaling.neon.tech/enabled": "true"});
            let mut owners = vec![json!({"apiVersion": "vm.neon.tech/v1",
                "kind": "VirtualMachine", "name": vm.name, "uid": vm.uid})];
            if self.role != PodRole::Settled {
                owners.push(json!({"apiVersion": "vm.neon.tech/v1",
                    "kind": "VirtualMachineMigration", "name": "m", "uid": "m",
                    "controller": self.role == PodRole::Target}));
            }
            object["metadata"]["ownerReferences"] = json!(owners);
        }
        if self.deleting {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        PodView::read(&object).expect("reads")
    }
}
