//! Vectors 7.8 and the life of a request, on the whole core with its calls answered by hand.

use std::collections::BTreeMap;

use protocol::annotations::{ANNOTATION_APPROVED, ANNOTATION_REQUESTED, ANNOTATION_SCALING_UNIT};
use protocol::units::Resources;
use serde_json::{Value, json};

use super::*;
use crate::core::decide::Outcome;
use crate::core::event::Event;
use crate::core::view::{NodeView, PodView};
use crate::core::{Core, Settings};

const GIB: u64 = 1 << 30;
const MS: fn(u64) -> Timestamp = |ms| Timestamp(10_000_000 + ms * 1000);

fn size(milli: u32, gib: u64) -> Resources {
    Resources::new(milli, gib * GIB)
}

/// One node, one VM with its pod, one plain pod that takes the rest; the API is the test itself.
struct Rig {
    core: Core,
    version: u64,
    annotations: BTreeMap<String, String>,
    labels: Value,
    last_ticket: u64,
}

impl Rig {
    /// A node with `room` beside what the VM is counted at; the VM uses 500m / 2Gi.
    fn new(room: Resources, approved: Option<Resources>) -> Self {
        let config = crate::config::Config::default();
        let Settings { rules, timing, .. } = config.settings(false, true);
        let mut rig = Self {
            core: Core::new(Settings { rules, timing, places_pods: false }),
            version: 100,
            annotations: BTreeMap::new(),
            labels: json!({"autoscaling.neon.tech/enabled": "true"}),
            last_ticket: 0,
        };
        if let Some(approved) = approved {
            rig.annotations.insert(ANNOTATION_APPROVED.into(), annotation_text(approved));
        }
        let held = approved.unwrap_or(size(500, 2)).field_max(size(500, 2));
        let total = Resources::new(held.cpu.0 + room.cpu.0 + 1_000, held.mem.0 + room.mem.0 + GIB);
        let node = json!({"metadata": {"name": "n", "uid": "n"}, "status": {"allocatable":
            {"cpu": format!("{}m", total.cpu.0), "memory": total.mem.0.to_string()}}});
        rig.tell(Event::NodesListed(vec![NodeView::read(&node).expect("reads")]));
        let rest = json!({"metadata": {"name": "rest", "namespace": "d", "uid": "rest"}, "spec": {"nodeName": "n",
            "containers": [{"resources": {"requests": {"cpu": 1, "memory": "1Gi"}}}]}});
        let pods = vec![PodView::read(&rest).expect("reads"), rig.pod("n")];
        rig.tell(Event::PodsListed(pods));
        rig.tell(Event::VmsListed(vec![rig.vm()]));
        rig
    }

    fn vm(&self) -> VmView {
        let mut object = json!({"metadata": {"name": "pg", "namespace": "d", "uid": "v",
                "resourceVersion": self.version.to_string(), "labels": self.labels},
            "spec": {"guest": {"cpus": {"min": "250m", "max": 4, "use": "500m"},
                "memorySlots": {"min": 1, "max": 16, "use": 2}, "memorySlotSize": "1Gi"}}});
        if !self.annotations.is_empty() {
            object["metadata"]["annotations"] = json!(self.annotations);
        }
        VmView::read(&object).expect("reads")
    }

    fn pod(&self, node: &str) -> PodView {
        let resources = r#"{"cpus":{"min":"250m","max":4,"use":"500m"},"memorySlots":{"min":1,"max":16,"use":2},"memorySlotSize":"1Gi"}"#;
        let mut annotations = json!(self.annotations);
        annotations["vm.neon.tech/resources"] = json!(resources);
        let pod = json!({"metadata": {"name": "pg-1", "namespace": "d", "uid": "p", "labels": self.labels,
                "annotations": annotations, "ownerReferences": [
                    {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "pg", "uid": "v"}]},
            "spec": {"nodeName": node, "schedulerName": "autoscale-scheduler"}});
        PodView::read(&pod).expect("reads")
    }

    fn tell(&mut self, event: Event) {
        self.core.handle(MS(0), event);
    }

    fn ask(&mut self, at: u64, last_permit: Option<Resources>, resources: Resources) -> TicketId {
        let request = AgentRequest {
            proto_version: 7,
            pod: NamespacedName { namespace: "d".into(), name: "pg-1".into() },
            compute_unit: size(250, 1),
            resources,
            last_permit,
            metrics: None,
        };
        self.last_ticket += 1;
        self.core.handle(MS(at), Event::Permit(self.last_ticket, request));
        self.last_ticket
    }

    fn actions(&mut self, at: u64) -> Vec<Action> {
        std::iter::from_fn(|| self.core.poll_action(MS(at))).collect()
    }

    /// Carries a write out on the object, as the API does.
    fn apply(&mut self, write: &VmWrite) -> CallOutcome {
        if write.base != self.version {
            return CallOutcome::Conflict;
        }
        self.version += 1;
        for (key, value) in [
            (ANNOTATION_SCALING_UNIT, &write.unit),
            (ANNOTATION_REQUESTED, &write.requested),
            (ANNOTATION_APPROVED, &write.approved),
        ] {
            self.annotations.insert(key.into(), value.clone());
        }
        CallOutcome::Done(Box::new(self.vm()))
    }

    fn done(&mut self, at: u64, write: &VmWrite) {
        let outcome = self.apply(write);
        self.core.handle(MS(at), Event::WriteDone(write.id, outcome));
    }

    /// Answers calls until none is asked for, and gives the answers to requests in order.
    fn settle(&mut self, at: u64) -> Vec<Answer> {
        let mut answers = Vec::new();
        loop {
            let actions = self.actions(at);
            if actions.is_empty() {
                return answers;
            }
            for action in actions {
                match action {
                    Action::Answer(answer) => answers.push(answer),
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

    fn approved(&self) -> Option<Resources> {
        self.annotations.get(ANNOTATION_APPROVED).and_then(|text| serde_json::from_str(text).ok())
    }

    fn reserved(&self) -> Resources {
        let load = self.core.ledger().load("n").reserved;
        let milli = u32::try_from(load.cpu - 1_000).expect("fits");
        Resources::new(milli, u64::try_from(load.mem).expect("fits") - GIB)
    }
}

fn permit_of(answer: &Answer) -> Result<Resources, PermitRefusal> {
    answer.result.clone().map(|response| response.permit)
}

fn writes(actions: &[Action]) -> Vec<VmWrite> {
    let writes = actions.iter().filter_map(|action| match action {
        Action::WriteVm(write) => Some(write.clone()),
        _ => None,
    });
    writes.collect()
}

fn answers(actions: &[Action]) -> Vec<Answer> {
    let answers = actions.iter().filter_map(|action| match action {
        Action::Answer(answer) => Some(answer.clone()),
        _ => None,
    });
    answers.collect()
}

#[test]
fn vectors_of_the_permit_server() {
    let plenty = size(8_000, 32);
    let held = size(500, 2);
    for (last_permit, resources, room, expected) in [
        (Some(held), held, plenty, held),
        (Some(size(1_000, 4)), held, plenty, held),
        (Some(held), size(1_000, 4), size(500, 2), size(1_000, 4)),
        (Some(held), size(1_000, 4), size(300, 5), size(750, 4)),
        (Some(held), size(1_000, 4), size(0, 0), held),
        (Some(size(1_000, 2)), size(500, 4), plenty, size(500, 4)),
    ] {
        let mut rig = Rig::new(room, Some(held));
        rig.ask(0, last_permit, resources);
        let got = rig.settle(0);
        assert_eq!(got.len(), 1);
        assert_eq!(permit_of(&got[0]), Ok(expected), "{last_permit:?} {resources} {room}");
        assert_eq!(rig.approved(), Some(expected), "what is answered is written");
        assert_eq!(rig.reserved(), expected.field_max(held), "what is written is counted, its use at least");
    }
}

#[test]
fn n09_first_contact_is_permitted_exactly_what_the_vm_has() {
    // Whatever room there is, and even when less was approved than it uses.
    for (room, approved) in [(size(0, 0), None), (size(4_000, 8), None), (size(0, 0), Some(size(250, 1)))] {
        let mut rig = Rig::new(room, approved);
        rig.ask(0, None, size(500, 2));
        let actions = rig.actions(0);
        assert!(answers(&actions).is_empty(), "nothing is said before it is written");
        let writes = writes(&actions);
        assert_eq!(writes.len(), 1);
        rig.done(5, &writes[0]);
        assert_eq!(permit_of(&rig.settle(5)[0]), Ok(size(500, 2)));
        assert_eq!(rig.approved(), Some(size(500, 2)));
    }
    // More than it has is an increase like any other.
    let mut rig = Rig::new(size(0, 0), None);
    rig.ask(0, None, size(1_000, 2));
    assert_eq!(permit_of(&rig.settle(0)[0]), Ok(size(500, 2)));
}

#[test]
fn nothing_is_written_twice_and_equal_requests_are_answered_at_once() {
    let mut rig = Rig::new(size(0, 0), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), size(500, 2));
    let actions = rig.actions(0);
    assert_eq!((answers(&actions).len(), writes(&actions).len()), (1, 1), "the wish is recorded behind the answer");
    rig.done(1, &writes(&actions)[0]);
    rig.ask(2, Some(size(500, 2)), size(500, 2));
    let actions = rig.actions(2);
    assert_eq!((answers(&actions).len(), writes(&actions).len()), (1, 0));
}

#[test]
fn a_refusal_is_answered_at_once_and_told_once() {
    let mut rig = Rig::new(size(0, 0), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), size(1_000, 4));
    let actions = rig.actions(0);
    let answer = &answers(&actions)[0];
    assert_eq!(permit_of(answer), Ok(size(500, 2)));
    let decision = answer.decision.as_ref().expect("was decided");
    assert_eq!(decision.verdicts.cpu.outcome, Outcome::Denied(Limit::NoRoom));
    assert_eq!((decision.verdicts.cpu.asked, decision.verdicts.cpu.held), (1_000, 500));
    let told = |actions: &[Action]| actions.iter().filter(|a| matches!(a, Action::ScaleUpDenied { .. })).count();
    assert_eq!((told(&actions), answer.news), (1, true));
    rig.done(1, &writes(&actions)[0]);
    for (at, expected) in [(2_000, 0), (59_000, 0), (61_000, 1), (63_000, 0)] {
        rig.ask(at, Some(size(500, 2)), size(1_000, 4));
        assert_eq!(told(&rig.actions(at)), expected, "after {at} ms");
    }
}

#[test]
fn durable_before_said_for_increases_and_decreases() {
    for resources in [size(1_000, 4), size(250, 1)] {
        let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
        rig.ask(0, Some(size(500, 2)), resources);
        let actions = rig.actions(0);
        assert!(answers(&actions).is_empty());
        // The room is held from the moment it is promised, and not freed before the write is seen.
        assert_eq!(rig.reserved(), resources.field_max(size(500, 2)));
        rig.done(3, &writes(&actions)[0]);
        assert_eq!(permit_of(&rig.settle(3)[0]), Ok(resources));
    }
}

#[test]
fn a_conflict_is_decided_anew_on_what_is_there_now() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), size(1_000, 4));
    let first = writes(&rig.actions(0));
    rig.version += 7;
    assert_eq!(rig.apply(&first[0]), CallOutcome::Conflict);
    rig.core.handle(MS(1), Event::WriteDone(first[0].id, CallOutcome::Conflict));
    assert_eq!(rig.reserved(), size(500, 2), "it did not and will not happen");
    assert_eq!(permit_of(&rig.settle(2)[0]), Ok(size(1_000, 4)));
    // With an object that never stands still it gives up in a bounded number of tries.
    rig.ask(10, Some(size(1_000, 4)), size(2_000, 8));
    let mut tries = 0;
    let answer = loop {
        let actions = rig.actions(10);
        if let Some(answer) = answers(&actions).first() {
            break answer.clone();
        }
        for action in actions {
            match action {
                Action::WriteVm(write) => {
                    tries += 1;
                    rig.version += 1;
                    rig.core.handle(MS(10), Event::WriteDone(write.id, CallOutcome::Conflict));
                }
                Action::ReadVm { id, .. } => {
                    let outcome = CallOutcome::Done(Box::new(rig.vm()));
                    rig.core.handle(MS(10), Event::ReadDone(id, outcome));
                }
                _ => {}
            }
        }
    };
    assert_eq!(permit_of(&answer), Err(PermitRefusal::PatchFailed));
    assert_eq!(tries, MAX_CONFLICTS + 1);
}

#[test]
fn refused_writes_end_their_hold_and_leave_no_permit() {
    for outcome in [CallOutcome::Refused("forbidden".into()), CallOutcome::NotFound] {
        let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
        rig.ask(0, Some(size(500, 2)), size(1_000, 4));
        let write = writes(&rig.actions(0))[0].clone();
        rig.core.handle(MS(1), Event::WriteDone(write.id, outcome));
        let actions = rig.actions(1);
        assert_eq!(permit_of(&answers(&actions)[0]), Err(PermitRefusal::PatchFailed));
        assert_eq!(rig.reserved(), size(500, 2));
        // The next event computes anew.
        rig.ask(3_000, Some(size(500, 2)), size(1_000, 4));
        assert_eq!(permit_of(&rig.settle(3_000)[0]), Ok(size(1_000, 4)));
    }
}

#[test]
fn an_unclear_write_stays_held_and_is_settled_by_sending_it_again() {
    for happened in [true, false] {
        let mut rig = Rig::new(size(500, 2), Some(size(500, 2)));
        rig.ask(0, Some(size(500, 2)), size(1_000, 4));
        let write = writes(&rig.actions(0))[0].clone();
        if happened {
            rig.apply(&write);
        }
        rig.core.handle(MS(1_000), Event::WriteDone(write.id, CallOutcome::Unclear("time-out".into())));
        let actions = rig.actions(1_000);
        assert_eq!(permit_of(&answers(&actions)[0]), Err(PermitRefusal::PatchFailed));
        assert_eq!(rig.reserved(), size(1_000, 4), "it may have happened");
        assert!(rig.core.poll_deadline().is_some_and(|at| at <= MS(1_600)));
        assert!(rig.settle(1_700).is_empty());
        assert_eq!(rig.approved(), Some(size(1_000, 4)), "exactly once, in either case");
        assert_eq!(rig.version, 101);
        assert_eq!(rig.core.oddities().unclear_writes, 1);
        rig.ask(3_000, Some(size(500, 2)), size(1_000, 4));
        assert_eq!(permit_of(&rig.settle(3_000)[0]), Ok(size(1_000, 4)), "held, so no room is needed");
    }
}

#[test]
fn a_late_unclear_write_can_not_land_after_the_room_was_given_back() {
    let mut rig = Rig::new(size(500, 2), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), size(1_000, 4));
    let late = writes(&rig.actions(0))[0].clone();
    rig.core.handle(MS(1_000), Event::WriteDone(late.id, CallOutcome::Unclear("time-out".into())));
    rig.actions(1_000);
    // The agent gives up its wish; that write goes through.
    rig.ask(1_100, Some(size(500, 2)), size(500, 2));
    rig.settle(1_100);
    assert_eq!(rig.reserved(), size(500, 2), "a later version was seen, so the fate is known");
    assert_eq!(rig.apply(&late), CallOutcome::Conflict);
}

#[test]
fn a_call_without_any_outcome_is_taken_as_unclear() {
    let mut rig = Rig::new(size(500, 2), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), size(1_000, 4));
    let write = writes(&rig.actions(0))[0].clone();
    let got = answers(&rig.actions(1_000));
    assert_eq!(permit_of(&got[0]), Err(PermitRefusal::PatchFailed), "the request has one second");
    rig.actions(3_100);
    assert_eq!(rig.core.oddities().unclear_writes, 1);
    let outcome = rig.apply(&write);
    rig.core.handle(MS(3_200), Event::WriteDone(write.id, outcome));
    assert_eq!(rig.core.oddities().late_outcomes, 1);
    assert_eq!(rig.reserved(), size(1_000, 4), "late, but true");
    assert!(rig.settle(9_000).is_empty());
}

#[test]
fn claims_beyond_what_is_approved_are_counted_but_not_added_to() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    rig.ask(0, Some(size(1_000, 2)), size(2_000, 4));
    let got = rig.settle(0);
    let decision = got[0].decision.clone().expect("was decided");
    assert!(decision.overclaimed);
    assert_eq!(decision.verdicts.cpu.outcome, Outcome::Denied(Limit::Claim));
    assert_eq!(permit_of(&got[0]), Ok(size(1_000, 4)), "memory is another matter");
    assert_eq!(rig.core.oddities().overclaims, 1);
    assert_eq!(rig.approved(), Some(size(1_000, 4)), "accepted as a fact");
    // Even on a full node, and even when the write fails.
    let mut rig = Rig::new(size(0, 0), Some(size(500, 2)));
    rig.ask(0, Some(size(1_000, 2)), size(1_000, 2));
    let write = writes(&rig.actions(0))[0].clone();
    rig.core.handle(MS(1), Event::WriteDone(write.id, CallOutcome::Refused("no".into())));
    rig.actions(1);
    assert_eq!(rig.reserved(), size(1_000, 2));
}

#[test]
fn annotations_that_do_not_parse_are_repaired() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    rig.annotations.insert(ANNOTATION_APPROVED.into(), "{broken".into());
    rig.version += 1;
    let (pod, vm) = (rig.pod("n"), rig.vm());
    rig.tell(Event::PodApplied(pod));
    rig.tell(Event::VmApplied(vm));
    assert_eq!(rig.reserved(), size(4_000, 16), "it may be anything up to its largest");
    rig.ask(0, Some(size(500, 2)), size(1_000, 4));
    assert_eq!(permit_of(&rig.settle(0)[0]), Err(PermitRefusal::BadPod));
    // A request that asks for nothing more is answered, and repairs the annotation.
    rig.ask(1, Some(size(500, 2)), size(500, 2));
    assert_eq!(permit_of(&rig.settle(1)[0]), Ok(size(500, 2)));
    assert_eq!(rig.approved(), Some(size(500, 2)));
    let pod = rig.pod("n");
    rig.tell(Event::PodApplied(pod));
    rig.ask(2, Some(size(500, 2)), size(1_000, 4));
    assert_eq!(permit_of(&rig.settle(2)[0]), Ok(size(1_000, 4)));
}

#[test]
fn an_approved_annotation_broken_on_the_vm_alone_is_repaired_by_an_increase_too() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    rig.annotations.insert(ANNOTATION_APPROVED.into(), "7".into());
    rig.version += 1;
    let vm = rig.vm();
    rig.tell(Event::VmApplied(vm));
    rig.ask(0, Some(size(500, 2)), size(1_000, 4));
    assert_eq!(permit_of(&rig.settle(0)[0]), Err(PermitRefusal::BadPod));
    assert_eq!(rig.approved(), Some(size(500, 2)));
    rig.ask(1, Some(size(500, 2)), size(1_000, 4));
    assert_eq!(permit_of(&rig.settle(1)[0]), Ok(size(1_000, 4)));
}

#[test]
fn reasons_that_forbid_any_grant() {
    let deny = |change: &dyn Fn(&mut Rig)| {
        let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
        change(&mut rig);
        rig.ask(0, Some(size(500, 2)), size(1_000, 4));
        let answer = rig.settle(0).remove(0);
        assert_eq!(permit_of(&answer), Ok(size(500, 2)));
        answer.decision.expect("was decided").verdicts.mem.outcome
    };
    let with_pod = |change: &'static dyn Fn(&mut PodView)| {
        move |rig: &mut Rig| {
            let mut pod = rig.pod("n");
            change(&mut pod);
            rig.tell(Event::PodApplied(pod));
        }
    };
    use crate::core::view::PodRole;
    let denied = |limit| Outcome::Denied(limit);
    assert_eq!(deny(&with_pod(&|pod| pod.role = PodRole::Source)), denied(Limit::Migrating));
    assert_eq!(deny(&with_pod(&|pod| pod.role = PodRole::Target)), denied(Limit::Migrating));
    let second = |rig: &mut Rig| {
        let mut pod = rig.pod("n");
        pod.uid = "p2".into();
        pod.key.name = "pg-2".into();
        rig.tell(Event::PodApplied(pod));
    };
    assert_eq!(deny(&second), denied(Limit::Migrating));
    assert_eq!(deny(&with_pod(&|pod| pod.terminal = true)), denied(Limit::Ended));
    assert_eq!(deny(&with_pod(&|pod| pod.scheduler_name = "x".into())), denied(Limit::ForeignScheduler));
    assert_eq!(deny(&|rig| rig.tell(Event::NodeDeleted("n".into()))), denied(Limit::NodeMissing));
    let unscaled = |rig: &mut Rig| {
        rig.labels = json!({});
        rig.version += 1;
        let vm = rig.vm();
        rig.tell(Event::VmApplied(vm));
    };
    assert_eq!(deny(&unscaled), denied(Limit::NotAutoscaled));
}

#[test]
fn refusals_before_any_decision() {
    let mut rig = Rig::new(size(0, 0), None);
    let mut request = |change: fn(&mut AgentRequest), rig: &mut Rig| {
        let mut request = AgentRequest {
            proto_version: 7,
            pod: NamespacedName { namespace: "d".into(), name: "pg-1".into() },
            compute_unit: size(250, 1),
            resources: size(500, 2),
            last_permit: None,
            metrics: None,
        };
        change(&mut request);
        rig.last_ticket += 1;
        rig.core.handle(MS(0), Event::Permit(rig.last_ticket, request));
        permit_of(&rig.settle(0)[0]).expect_err("is refused")
    };
    let ask = &mut request;
    assert_eq!(ask(|r| r.proto_version = 0, &mut rig), PermitRefusal::InvalidVersion);
    assert_eq!(ask(|r| r.proto_version = 6, &mut rig), PermitRefusal::VersionMismatch(6));
    assert_eq!(ask(|r| r.compute_unit.mem.0 = 0, &mut rig), PermitRefusal::ZeroComputeUnit("mem"));
    assert_eq!(ask(|r| r.pod.name = "x".into(), &mut rig), PermitRefusal::PodNotFound);
    assert_eq!(ask(|r| r.pod.name = "rest".into(), &mut rig), PermitRefusal::NotAVm);
    let unbound = PodView { node: None, ..rig.pod("n") };
    rig.tell(Event::PodApplied(unbound));
    assert_eq!(ask(|_| {}, &mut rig), PermitRefusal::NodeUnknown);
    let bound = rig.pod("n");
    rig.tell(Event::PodApplied(bound));
    rig.tell(Event::VmDeleted(NamespacedName { namespace: "d".into(), name: "pg".into() }, "v".into()));
    assert_eq!(ask(|_| {}, &mut rig), PermitRefusal::PatchFailed, "no VM object to write");
}

#[test]
fn before_the_lists_are_there_permits_are_refused() {
    let config = crate::config::Config::default();
    let mut core = Core::new(config.settings(false, true));
    let mut rig = Rig::new(size(0, 0), None);
    std::mem::swap(&mut rig.core, &mut core);
    rig.ask(0, None, size(500, 2));
    assert_eq!(permit_of(&answers(&rig.actions(0))[0]), Err(PermitRefusal::NotReady));
    assert_eq!(rig.core.waiting_for(), ["nodes", "pods", "virtualmachines"]);
    rig.tell(Event::VmsListed(vec![]));
    rig.tell(Event::NodesListed(vec![]));
    assert_eq!(rig.core.waiting_for(), ["pods"]);
}

#[test]
fn every_request_is_answered_once() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    let asked: Vec<TicketId> =
        (0..12).map(|i| rig.ask(0, Some(size(500, 2)), size(500 + 250 * (i % 3), 2))).collect();
    let mut got: Vec<Answer> = answers(&rig.actions(0));
    let refused = got.iter().filter(|a| permit_of(a) == Err(PermitRefusal::TimedOut)).count();
    // The first was answered at once and put its note in flight; eight wait; the rest are too many.
    assert_eq!((got.len(), refused), (4, 3));
    got.extend(answers(&rig.actions(1_001)));
    let mut tickets: Vec<TicketId> = got.iter().map(|answer| answer.ticket).collect();
    tickets.sort_unstable();
    assert_eq!(tickets, asked);
    assert!(rig.settle(4_000).is_empty());
}

#[test]
fn requests_for_one_vm_are_served_in_order() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), size(1_000, 2));
    rig.ask(0, Some(size(500, 2)), size(750, 2));
    let got = rig.settle(0);
    let permits: Vec<_> = got.iter().map(permit_of).collect();
    assert_eq!(permits, [Ok(size(1_000, 2)), Ok(size(750, 2))]);
    assert_eq!(rig.approved(), Some(size(750, 2)));
}

#[test]
fn the_dump_shows_what_is_under_way() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), size(1_000, 2));
    rig.actions(0);
    let dump = serde_json::to_value(rig.core.snapshot(MS(1))).expect("encodes");
    assert_eq!(dump["permits"]["waiting"], 1);
    assert!(dump["permits"]["desks"]["d/pg"]["flight"]["Write"].is_array());
    assert_eq!(dump["vms"]["d/pg"]["holds"][0]["base"], 100);
    assert_eq!(dump["nodes"]["n"]["reserved"]["cpu"], 2_000);
    assert_eq!(dump["pods"]["d/pg-1"]["counted"]["vCPUs"], 1);
}
