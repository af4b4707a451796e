//! Nodes, VMs and the whole core; the API and the VMs' controller are the test itself.

use std::collections::BTreeMap;

use protocol::core::Core as _;
use protocol::units::Resources;
use serde_json::{Value, json};

use super::*;
use crate::config::Config;
use crate::core::Core;
use crate::core::event::{CallOutcome, Event, PermitRequest, RemovalCause};
use crate::core::view::{NodeView, VmView};

pub(super) const GIB: u64 = 1 << 30;
/// Seconds since the test began.
pub(super) const S: fn(u64) -> Timestamp = |seconds| Timestamp(1_000_000_000 + seconds * 1_000_000);

pub(super) fn key(name: &str) -> NamespacedName {
    NamespacedName {
        namespace: "d".into(),
        name: name.into(),
    }
}

pub(super) fn whole(cpu: u32, gib: u64) -> Resources {
    Resources::new(cpu * 1000, gib * GIB)
}

pub(super) fn uncapped() -> MigrationRule {
    MigrationRule {
        max_per_node: 0,
        ..MigrationRule::default()
    }
}

/// What a pod is besides a VM's that may be migrated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Is {
    Free,
    NotOptedIn,
    Source,
    Target,
    Plain,
}

pub(super) fn node(name: &str, cpu: u32, gib: u64) -> Value {
    json!({"metadata": {"name": name, "uid": name},
        "status": {"allocatable": {"cpu": cpu, "memory": format!("{gib}Gi")}}})
}

/// A VM's pod; the letter that its name begins with says how old it is.
pub(super) fn pod(name: &str, size: Resources, is: Is, node: &str) -> Value {
    let vm = name.split('-').next().unwrap_or(name);
    let age = name.as_bytes()[0] - b'a';
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "d", "uid": format!("uid-{name}"),
            "creationTimestamp": format!("2026-01-01T00:00:{age:02}Z"), "labels": {}},
        "spec": {"schedulerName": "autoscale-scheduler", "nodeName": node, "containers": [{"name": "c"}]}});
    if is == Is::Plain {
        pod["spec"]["containers"][0]["resources"]["requests"] =
            json!({"cpu": format!("{}m", size.cpu.0), "memory": size.mem.0.to_string()});
        return pod;
    }
    let owner = |kind: &str, name: &str, controller: bool| json!({"apiVersion": "vm.neon.tech/v1", "kind": kind, "name": name, "uid": name, "controller": controller});
    let mut owners = vec![owner("VirtualMachine", vm, is != Is::Target)];
    if matches!(is, Is::Source | Is::Target) {
        owners.push(owner("VirtualMachineMigration", "m", is == Is::Target));
    }
    let label = if is == Is::NotOptedIn {
        "false"
    } else {
        "true"
    };
    pod["metadata"]["labels"] = json!({"autoscaling.neon.tech/enabled": "true",
        "autoscaling.neon.tech/auto-migration-enabled": label});
    pod["metadata"]["ownerReferences"] = json!(owners);
    pod["metadata"]["annotations"] = json!({"vm.neon.tech/resources": guest(size).to_string()});
    pod
}

fn guest(size: Resources) -> Value {
    json!({"cpus": {"min": "250m", "max": 64, "use": size.cpu}, "memorySlotSize": "1Gi",
        "memorySlots": {"min": 1, "max": 64, "use": size.mem.0 / GIB}})
}

/// See the module.
pub(super) struct Rig {
    pub(super) core: Core,
    vms: BTreeMap<String, (u64, Value)>,
    serial: u64,
    last_ticket: u64,
    /// Asked for beside the answer to a request.
    beside: Vec<Action>,
}

impl Rig {
    /// Watermark 0.8; `nodes` in CPUs and GiB.
    pub(super) fn new(rule: MigrationRule, nodes: &[(&str, u32, u64)]) -> Self {
        let config = Config {
            watermark: 0.8,
            migration: rule,
            ..Config::default()
        };
        let mut rig = Self {
            core: Core::new(config.settings(true, true)),
            vms: BTreeMap::new(),
            serial: 1,
            last_ticket: 0,
            beside: Vec::new(),
        };
        let nodes = nodes
            .iter()
            .map(|(name, cpu, gib)| NodeView::read(&node(name, *cpu, *gib)).expect("reads"));
        rig.tell(0, Event::NodesListed(nodes.collect()));
        rig.tell(0, Event::PodsListed(vec![]));
        rig.tell(0, Event::VmsListed(vec![]));
        rig.tell(0, Event::MigrationsListed(vec![]));
        rig
    }

    pub(super) fn tell(&mut self, at: u64, event: Event) {
        self.core.handle(S(at), event);
    }

    pub(super) fn node(&mut self, at: u64, node: &Value) {
        let view = NodeView::read(node).expect("reads");
        self.tell(at, Event::NodeApplied(view));
    }

    pub(super) fn pod(&mut self, at: u64, pod: &Value) {
        let view = PodView::read(pod).expect("reads");
        if let Some(vm) = view.vm.clone() {
            let size = view.size.clone().expect("is readable").reserved;
            self.vm(at, &vm, size);
        }
        self.tell(at, Event::PodApplied(view));
    }

    /// A VM and its pod of the same name.
    pub(super) fn put(&mut self, at: u64, name: &str, size: Resources, is: Is) {
        self.pod(at, &pod(name, size, is, "n"));
    }

    pub(super) fn vm(&mut self, at: u64, name: &str, size: Resources) {
        self.serial += 1;
        let object = json!({"metadata": {"name": name, "namespace": "d", "uid": name,
                "resourceVersion": self.serial.to_string(), "labels": {"autoscaling.neon.tech/enabled": "true"},
                "annotations": {}}, "spec": {"guest": guest(size)}});
        self.vms.insert(name.into(), (self.serial, object));
        self.show_vm(at, name);
    }

    fn view(&self, name: &str) -> VmView {
        VmView::read(&self.vms[name].1).expect("reads")
    }

    fn show_vm(&mut self, at: u64, name: &str) {
        let view = self.view(name);
        self.tell(at, Event::VmApplied(view));
    }

    pub(super) fn gone(&mut self, at: u64, pod: &str) {
        self.tell(at, Event::PodDeleted(format!("uid-{pod}")));
    }

    /// Everything the core asks for at that time; writes of VMs are carried out.
    pub(super) fn actions(&mut self, at: u64) -> Vec<Action> {
        let mut all = std::mem::take(&mut self.beside);
        while let Some(action) = self.core.poll_action(S(at)) {
            if let Action::WriteVm(write) = &action {
                self.serial += 1;
                let serial = self.serial;
                let (version, object) = self.vms.get_mut(&write.vm.name).expect("is there");
                *version = serial;
                object["metadata"]["resourceVersion"] = json!(serial.to_string());
                object["metadata"]["annotations"] = json!({
                    "autoscaling.neon.tech/scaling-unit": write.unit,
                    "internal.autoscaling.neon.tech/resources-requested": write.requested,
                    "internal.autoscaling.neon.tech/resources-approved": write.approved});
                let outcome = CallOutcome::Done(Box::new(self.view(&write.vm.name)));
                self.tell(at, Event::WriteDone(write.id, outcome));
            }
            all.push(action);
        }
        all
    }

    /// The pods whose migration is asked for at that time; the API makes each.
    pub(super) fn picked(&mut self, at: u64) -> Vec<String> {
        let mut picked = Vec::new();
        for action in self.actions(at) {
            if let Action::CreateMigration { id, migration } = action {
                let pod = migration.key.name.strip_prefix("schedplugin-");
                picked.push(pod.expect("is named after its pod").to_owned());
                self.tell(at, Event::MigrationDone(id, MigrationOutcome::Done));
            }
        }
        picked
    }

    /// A migration of a pod's VM as the watch shows it.
    pub(super) fn migration(&mut self, at: u64, pod: &str, phase: &str) -> MigrationView {
        self.migration_with(at, pod, json!({"phase": phase}))
    }

    pub(super) fn migration_with(&mut self, at: u64, pod: &str, status: Value) -> MigrationView {
        let view = migration(pod, "u1", true, status);
        self.tell(at, Event::MigrationApplied(view.clone()));
        view
    }

    /// An agent asks for its VM; what it is permitted.
    pub(super) fn ask(
        &mut self,
        at: u64,
        pod: &str,
        has: Resources,
        wants: Resources,
    ) -> Resources {
        self.last_ticket += 1;
        let request = PermitRequest {
            proto_version: 7,
            pod: key(pod),
            compute_unit: whole(1, 1),
            resources: wants,
            last_permit: Some(has),
            metrics: None,
        };
        self.tell(at, Event::PermitRequest(self.last_ticket, request));
        let mut permit = None;
        for action in self.actions(at) {
            match action {
                Action::RespondPermit(answer) => permit = answer.result.ok(),
                other => self.beside.push(other),
            }
        }
        permit.expect("is answered").permit
    }

    /// CPU of a kind of pressure on `n`, thousandths: logical, capacity, accounted.
    pub(super) fn pressure(&self) -> [u128; 3] {
        let Pressure {
            logical,
            capacity,
            accounted,
        } = self.core.pressure("n");
        [logical.cpu, capacity.cpu, accounted.cpu]
    }
}

pub(super) fn migration(pod: &str, uid: &str, ours: bool, status: Value) -> MigrationView {
    let labels = if ours {
        json!({"autoscaling.neon.tech/created-by-scheduler": "true"})
    } else {
        json!({})
    };
    let vm = pod.split('-').next().unwrap_or(pod);
    MigrationView::read(
        &json!({"metadata": {"name": format!("schedplugin-{pod}"), "namespace": "d", "uid": uid,
        "labels": labels}, "spec": {"vmName": vm}, "status": status}),
    )
    .expect("reads")
}

/// Deletions among actions: which, and why; and the calls.
pub(super) fn deletions(actions: &[Action]) -> Vec<(String, RemovalCause, CallId)> {
    let deletions = actions.iter().filter_map(|action| match action {
        Action::DeleteMigration {
            id,
            migration,
            cause,
            ..
        } => Some((migration.name.clone(), *cause, *id)),
        _ => None,
    });
    deletions.collect()
}
