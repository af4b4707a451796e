//! One node, one VM and the whole core; the API is the test itself.

use std::collections::BTreeMap;

use protocol::annotations::{ANNOTATION_APPROVED, ANNOTATION_REQUESTED, ANNOTATION_SCALING_UNIT};
use protocol::core::Core as _;
use protocol::units::Resources;
use serde_json::{Value, json};

use super::*;
use crate::core::event::{Event, VmWrite, annotation_text};
use crate::core::view::{NodeView, PodView, VmView};
use crate::core::{Core, Settings};

pub(super) const GIB: u64 = 1 << 30;
pub(super) const MS: fn(u64) -> Timestamp = |ms| Timestamp(10_000_000 + ms * 1000);

pub(super) fn size(milli: u32, gib: u64) -> Resources {
    Resources::new(milli, gib * GIB)
}

/// One node, one VM with its pod, one plain pod that takes the rest; the API is the test itself.
pub(super) struct Rig {
    pub(super) core: Core,
    pub(super) version: u64,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) labels: Value,
    pub(super) in_use: Resources,
    pub(super) last_request: u64,
}

impl Rig {
    /// A node with `room` beside what the VM is counted at; the VM uses 500m / 2Gi.
    pub(super) fn new(room: Resources, approved: Option<Resources>) -> Self {
        let settings = crate::config::Config::default().settings(false, true);
        Self::with(settings, room, approved)
    }

    pub(super) fn with(settings: Settings, room: Resources, approved: Option<Resources>) -> Self {
        let mut rig = Self {
            core: Core::new(settings),
            version: 100,
            annotations: BTreeMap::new(),
            labels: json!({"autoscaling.neon.tech/enabled": "true"}),
            in_use: size(500, 2),
            last_request: 0,
        };
        if let Some(approved) = approved {
            rig.annotations
                .insert(ANNOTATION_APPROVED.into(), annotation_text(approved));
        }
        let held = approved.unwrap_or(size(500, 2)).field_max(size(500, 2));
        let total = Resources::new(
            held.cpu.0 + room.cpu.0 + 1_000,
            held.mem.0 + room.mem.0 + GIB,
        );
        let node = json!({"metadata": {"name": "n", "uid": "n"}, "status": {"allocatable":
            {"cpu": format!("{}m", total.cpu.0), "memory": total.mem.0.to_string()}}});
        rig.tell(Event::NodesListed(vec![
            NodeView::read(&node).expect("reads"),
        ]));
        let rest = json!({"metadata": {"name": "rest", "namespace": "d", "uid": "rest"}, "spec": {"nodeName": "n",
            "containers": [{"resources": {"requests": {"cpu": 1, "memory": "1Gi"}}}]}});
        let pods = vec![PodView::read(&rest).expect("reads"), rig.pod("n")];
        rig.tell(Event::PodsListed(pods));
        rig.tell(Event::VmsListed(vec![rig.vm()]));
        rig
    }

    pub(super) fn vm(&self) -> VmView {
        let mut object = json!({"metadata": {"name": "pg", "namespace": "d", "uid": "v",
                "resourceVersion": self.version.to_string(), "labels": self.labels},
            "spec": {"guest": {"cpus": {"min": "250m", "max": 4, "use": format!("{}m", self.in_use.cpu.0)},
                "memorySlots": {"min": 1, "max": 16, "use": self.in_use.mem.0 / GIB}, "memorySlotSize": "1Gi"}}});
        if !self.annotations.is_empty() {
            object["metadata"]["annotations"] = json!(self.annotations);
        }
        VmView::read(&object).expect("reads")
    }

    pub(super) fn pod(&self, node: &str) -> PodView {
        let resources = r#"{"cpus":{"min":"250m","max":4,"use":"500m"},"memorySlots":{"min":1,"max":16,"use":2},"memorySlotSize":"1Gi"}"#;
        let mut annotations = json!(self.annotations);
        annotations["vm.neon.tech/resources"] = json!(resources);
        let pod = json!({"metadata": {"name": "pg-1", "namespace": "d", "uid": "p", "labels": self.labels,
                "annotations": annotations, "ownerReferences": [
                    {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "pg", "uid": "v"}]},
            "spec": {"nodeName": node, "schedulerName": "autoscale-scheduler"}});
        PodView::read(&pod).expect("reads")
    }

    pub(super) fn tell(&mut self, event: Event) {
        self.core.handle(MS(0), event);
    }

    pub(super) fn ask(
        &mut self,
        at: u64,
        last_permit: Option<Resources>,
        resources: Resources,
    ) -> RequestId {
        let request = PermitRequest {
            proto_version: 7,
            pod: NamespacedName {
                namespace: "d".into(),
                name: "pg-1".into(),
            },
            compute_unit: size(250, 1),
            resources,
            last_permit,
            metrics: None,
        };
        self.last_request += 1;
        self.core
            .handle(MS(at), Event::PermitRequest(self.last_request, request));
        self.last_request
    }

    pub(super) fn actions(&mut self, at: u64) -> Vec<Action> {
        std::iter::from_fn(|| self.core.poll_action(MS(at))).collect()
    }

    /// Carries a write out on the object, as the API does: one that changes nothing makes no new
    /// version.
    pub(super) fn apply(&mut self, write: &VmWrite) -> CallOutcome {
        if write.base != self.version {
            return CallOutcome::Conflict;
        }
        let before = self.annotations.clone();
        for (key, value) in [
            (ANNOTATION_SCALING_UNIT, &write.unit),
            (ANNOTATION_REQUESTED, &write.requested),
            (ANNOTATION_APPROVED, &write.approved),
        ] {
            self.annotations.insert(key.into(), value.clone());
        }
        if self.annotations != before {
            self.version += 1;
        }
        CallOutcome::Done(Box::new(self.vm()))
    }

    pub(super) fn done(&mut self, at: u64, write: &VmWrite) {
        let outcome = self.apply(write);
        self.core
            .handle(MS(at), Event::WriteDone(write.id, outcome));
    }

    /// Answers calls until none is asked for, and gives the answers to requests in order.
    pub(super) fn settle(&mut self, at: u64) -> Vec<PermitResponse> {
        let mut answers = Vec::new();
        loop {
            let actions = self.actions(at);
            if actions.is_empty() {
                return answers;
            }
            for action in actions {
                match action {
                    Action::RespondPermit(answer) => answers.push(answer),
                    Action::WriteVm(write) => self.done(at, &write),
                    Action::ReadVm { id, .. } => {
                        let outcome = CallOutcome::Done(Box::new(self.vm()));
                        self.core.handle(MS(at), Event::ReadDone(id, outcome));
                    }
                    _ => {}
                }
            }
        }
    }

    pub(super) fn approved(&self) -> Option<Resources> {
        self.annotations
            .get(ANNOTATION_APPROVED)
            .and_then(|text| serde_json::from_str(text).ok())
    }

    pub(super) fn reserved(&self) -> Resources {
        let load = self.core.ledger().load("n").reserved;
        let milli = u32::try_from(load.cpu - 1_000).expect("fits");
        Resources::new(milli, u64::try_from(load.mem).expect("fits") - GIB)
    }
}

pub(super) fn permit_of(answer: &PermitResponse) -> Result<Resources, PermitRefusal> {
    answer.result.clone().map(|response| response.permit)
}

pub(super) fn writes(actions: &[Action]) -> Vec<VmWrite> {
    let writes = actions.iter().filter_map(|action| match action {
        Action::WriteVm(write) => Some(write.clone()),
        _ => None,
    });
    writes.collect()
}

pub(super) fn answers(actions: &[Action]) -> Vec<PermitResponse> {
    let answers = actions.iter().filter_map(|action| match action {
        Action::RespondPermit(answer) => Some(answer.clone()),
        _ => None,
    });
    answers.collect()
}
