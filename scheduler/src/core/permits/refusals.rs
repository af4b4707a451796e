//! Refusals, reasons that forbid a grant, and the order of requests.

use protocol::annotations::ANNOTATION_APPROVED;
use protocol::core::Core as _;

use super::rig::{MS, Rig, answers, permit_of, size};
use super::*;
use crate::core::Core;
use crate::core::decision::{Limit, Outcome};
use crate::core::event::Event;
use crate::core::view::{PodRole, PodView};

#[test]
fn annotations_that_do_not_parse_are_repaired() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    rig.annotations
        .insert(ANNOTATION_APPROVED.into(), "{broken".into());
    rig.version += 1;
    let (pod, vm) = (rig.pod("n"), rig.vm());
    rig.tell(Event::PodApplied(pod));
    rig.tell(Event::VmApplied(vm));
    assert_eq!(
        rig.reserved(),
        size(4_000, 11),
        "it may be anything up to its largest, on a node of 11 GiB"
    );
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
    rig.annotations
        .insert(ANNOTATION_APPROVED.into(), "7".into());
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
    let denied = |limit| Outcome::Denied(limit);
    assert_eq!(
        deny(&with_pod(&|pod| pod.role = PodRole::Source)),
        denied(Limit::Migrating)
    );
    assert_eq!(
        deny(&with_pod(&|pod| pod.role = PodRole::Target)),
        denied(Limit::Migrating)
    );
    let second = |rig: &mut Rig| {
        let mut pod = rig.pod("n");
        pod.uid = "p2".into();
        pod.key.name = "pg-2".into();
        rig.tell(Event::PodApplied(pod));
    };
    assert_eq!(deny(&second), denied(Limit::Migrating));
    assert_eq!(
        deny(&with_pod(&|pod| pod.terminal = true)),
        denied(Limit::Ended)
    );
    assert_eq!(
        deny(&with_pod(&|pod| pod.scheduler_name = "x".into())),
        denied(Limit::ForeignScheduler)
    );
    assert_eq!(
        deny(&|rig| rig.tell(Event::NodeDeleted("n".into()))),
        denied(Limit::NodeMissing)
    );
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
    let mut request = |change: fn(&mut PermitRequest), rig: &mut Rig| {
        let mut request = PermitRequest {
            proto_version: 7,
            pod: NamespacedName {
                namespace: "d".into(),
                name: "pg-1".into(),
            },
            compute_unit: size(250, 1),
            resources: size(500, 2),
            last_permit: None,
            metrics: None,
        };
        change(&mut request);
        rig.last_request += 1;
        rig.core
            .handle(MS(0), Event::PermitRequest(rig.last_request, request));
        permit_of(&rig.settle(0)[0]).expect_err("is refused")
    };
    let ask = &mut request;
    assert_eq!(
        ask(|r| r.proto_version = 0, &mut rig),
        PermitRefusal::InvalidVersion
    );
    assert_eq!(
        ask(|r| r.proto_version = 6, &mut rig),
        PermitRefusal::VersionMismatch(6)
    );
    assert_eq!(
        ask(|r| r.compute_unit.mem.0 = 0, &mut rig),
        PermitRefusal::ZeroComputeUnit("mem")
    );
    assert_eq!(
        ask(|r| r.pod.name = "x".into(), &mut rig),
        PermitRefusal::PodNotFound
    );
    assert_eq!(
        ask(|r| r.pod.name = "rest".into(), &mut rig),
        PermitRefusal::NotAVm
    );
    let unbound = PodView {
        node: None,
        ..rig.pod("n")
    };
    rig.tell(Event::PodApplied(unbound));
    assert_eq!(ask(|_| {}, &mut rig), PermitRefusal::NodeUnknown);
    let bound = rig.pod("n");
    rig.tell(Event::PodApplied(bound));
    rig.tell(Event::VmDeleted(
        NamespacedName {
            namespace: "d".into(),
            name: "pg".into(),
        },
        "v".into(),
    ));
    rig.core.handle(MS(0), {
        let request = PermitRequest {
            proto_version: 7,
            pod: NamespacedName {
                namespace: "d".into(),
                name: "pg-1".into(),
            },
            compute_unit: size(250, 1),
            resources: size(500, 2),
            last_permit: None,
            metrics: None,
        };
        Event::PermitRequest(1_000, request)
    });
    let Some(Action::ReadVm { id, .. }) = rig.core.poll_action(MS(0)) else {
        panic!("looks it up")
    };
    rig.core
        .handle(MS(0), Event::ReadDone(id, CallOutcome::NotFound));
    let got = rig.settle(0);
    assert_eq!(
        permit_of(&got[0]),
        Err(PermitRefusal::PatchFailed),
        "no VM object to write"
    );
}

#[test]
fn a_vm_that_the_watch_has_not_brought_yet_is_looked_up() {
    let mut rig = Rig::new(size(4_000, 8), None);
    rig.tell(Event::VmDeleted(
        NamespacedName {
            namespace: "d".into(),
            name: "pg".into(),
        },
        "v".into(),
    ));
    rig.ask(0, None, size(500, 2));
    assert_eq!(permit_of(&rig.settle(0)[0]), Ok(size(500, 2)));
    assert_eq!(rig.approved(), Some(size(500, 2)));
}

#[test]
fn before_the_lists_are_there_permits_are_refused() {
    let config = crate::config::Config::default();
    let mut core = Core::new(config.settings(false, true));
    let mut rig = Rig::new(size(0, 0), None);
    std::mem::swap(&mut rig.core, &mut core);
    rig.ask(0, None, size(500, 2));
    assert_eq!(
        permit_of(&answers(&rig.actions(0))[0]),
        Err(PermitRefusal::NotReady)
    );
    assert_eq!(rig.core.waiting_for(), ["nodes", "pods", "virtualmachines"]);
    rig.tell(Event::VmsListed(vec![]));
    rig.tell(Event::NodesListed(vec![]));
    assert_eq!(rig.core.waiting_for(), ["pods"]);
}

#[test]
fn every_request_is_answered_once() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    let asked: Vec<RequestId> = (0..12)
        .map(|i| rig.ask(0, Some(size(500, 2)), size(500 + 250 * (i % 3), 2)))
        .collect();
    let mut got: Vec<PermitResponse> = answers(&rig.actions(0));
    let refused = got
        .iter()
        .filter(|a| permit_of(a) == Err(PermitRefusal::TimedOut))
        .count();
    // The first was answered at once and put its note in flight; eight wait; the rest are too many.
    assert_eq!((got.len(), refused), (4, 3));
    got.extend(answers(&rig.actions(1_001)));
    let mut requests: Vec<RequestId> = got.iter().map(|answer| answer.request_id).collect();
    requests.sort_unstable();
    assert_eq!(requests, asked);
    assert!(rig.settle(4_000).is_empty());
}

/// A VM was deleted and made again; the agent of the first one asks for the pod that still runs.
#[test]
fn request_for_the_pod_of_an_earlier_vm_of_that_name_is_refused() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(1_000, 4)));
    let first = rig.vm();
    rig.tell(Event::VmDeleted(first.key, first.uid));
    rig.version += 1;
    let mut second = rig.vm();
    second.uid = "v2".into();
    rig.tell(Event::VmApplied(second));
    rig.ask(0, Some(size(1_000, 4)), size(500, 2));
    let answer = rig.settle(0).remove(0);
    assert_eq!(permit_of(&answer), Err(PermitRefusal::PodNotFound));
    let approved = rig.approved();
    assert_eq!(
        approved,
        Some(size(1_000, 4)),
        "nothing is taken from the second VM"
    );
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
