use protocol::object::Pod;
use protocol::quantity::Quantity;
use protocol::revision::{Revision, RevisionWithTime};
use protocol::runner::{ResizeProblem, StageStamp};
use protocol::time::{Span, WallTime};
use protocol::trace::Stage;
use protocol::units::{Bytes, MilliCpu};
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::json;

use super::phases;
use super::world::World;
use crate::core::problem::Problem;
use crate::core::refusal::Refusal;
use crate::core::testing::sample_vm;
use crate::core::vm::Event;
use crate::core::vm_event::VmEvent;
use crate::core::{Action, Kind, Settings};

fn running() -> (World, String) {
    phases::running(&sample_vm())
}

pub(super) fn ask(vm: &mut VirtualMachine, milli: u32, slots: i32, value: i64, flags: u64) {
    vm.spec.guest.cpus.r#use = MilliCpu(milli);
    vm.spec.guest.memory_slots.r#use = slots;
    vm.spec.target_revision = Some(RevisionWithTime {
        revision: Revision { value, flags },
        updated_at: WallTime(1_700_000_000_000_000),
    });
}

fn current(world: &World) -> Option<Revision> {
    world
        .status()
        .current_revision
        .map(|current| current.revision)
}

/// Requirement: N14. Whole change in one order, and the pod says so before the guest grows.
#[test]
fn growth_is_one_order_after_pod_annotations() {
    let (mut world, pod) = running();
    world.edit(|vm| ask(vm, 2000, 4, 7, 1));
    let kinds = world.settle();
    assert_eq!(
        kinds[0], "PatchPodMetadata",
        "the scheduler's sums come first"
    );
    assert!(kinds.contains(&"SetSize".to_owned()));
    assert_eq!(kinds.iter().filter(|kind| *kind == "SetSize").count(), 1);
    let order = world.runners[&pod].resize.clone().expect("an order").order;
    assert_eq!((order.cpu, order.memory), (MilliCpu(2000), Bytes::gib(4)));
    assert_eq!(
        (order.trace.vm.as_str(), order.trace.revision),
        ("default/example", 7)
    );
    assert_eq!(world.phase(), VmPhase::Scaling);
    assert_eq!(current(&world), None, "not before it is done");
    let usage = world.pod(&pod).metadata.annotations["vm.neon.tech/usage"].clone();
    assert_eq!(usage, r#"{"cpu":"2","memory":"4Gi"}"#);

    world.finish_resize(&pod);
    assert_eq!(world.settle(), ["WriteStatus"]);
    let status = world.status();
    assert_eq!(status.phase, VmPhase::Running);
    assert_eq!(status.cpus, Some(MilliCpu(2000)));
    assert_eq!(status.memory_size, Some(Quantity::from_bytes(4 << 30)));
    assert_eq!(current(&world), Some(Revision { value: 7, flags: 1 }));
    let scaled = std::iter::from_fn(|| world.core.poll_note()).last();
    let Some(VmEvent::Scaled {
        from,
        to,
        revision: 7,
    }) = scaled
    else {
        panic!("{scaled:?}")
    };
    assert_eq!((from.cpu.0, to.cpu.0, to.mem.0), (250, 2000, 4 << 30));
}

#[test]
fn growth_waits_for_pod_annotations() {
    let (mut world, _) = running();
    world.edit(|vm| ask(vm, 500, 2, 1, 1));
    let first = world.core.poll_action(world.at).expect("something to do");
    assert_eq!(first.kind(), Kind::PatchPodMetadata);
    assert_eq!(world.core.poll_action(world.at), None, "nothing beside it");
    let refused = Err(Refusal::Failed {
        message: "no".into(),
        permanent: false,
    });
    let done = Event::Done {
        kind: first.kind(),
        began: world.at,
        result: refused,
    };
    world.core.handle(world.at, done);
    while let Some(action) = world.core.poll_action(world.at) {
        assert_ne!(action.kind(), Kind::SetSize, "the pod does not say it yet");
        let result = Err(Refusal::Failed {
            message: "no".into(),
            permanent: false,
        });
        world.core.handle(
            world.at,
            Event::Done {
                kind: action.kind(),
                began: world.at,
                result,
            },
        );
    }
    world.pass(Span::from_secs(1));
    assert!(
        world.settle().contains(&"SetSize".to_owned()),
        "it is tried again"
    );
}

#[test]
fn shrink_is_ordered_at_once_beside_pod_annotations() {
    let (mut world, pod) = running();
    world.edit(|vm| ask(vm, 2000, 4, 1, 1));
    world.settle();
    world.finish_resize(&pod);
    world.settle();
    world.edit(|vm| ask(vm, 250, 1, 2, 2));
    let first = world.core.poll_action(world.at).map(|action| action.kind());
    let second = world.core.poll_action(world.at).map(|action| action.kind());
    assert_eq!(
        (first, second),
        (Some(Kind::SetSize), Some(Kind::PatchPodMetadata))
    );
}

#[test]
fn newer_size_replaces_order_under_way() {
    let (mut world, pod) = running();
    world.edit(|vm| ask(vm, 1000, 2, 1, 1));
    world.settle();
    world.edit(|vm| ask(vm, 2000, 4, 2, 1));
    world.settle();
    let order = world.runners[&pod].resize.clone().expect("an order").order;
    assert_eq!((order.cpu, order.trace.revision), (MilliCpu(2000), 2));
    world.finish_resize(&pod);
    world.settle();
    assert_eq!(current(&world), Some(Revision { value: 2, flags: 1 }));
}

#[test]
fn changed_annotation_of_vm_reaches_pod_at_once() {
    let (mut world, pod) = running();
    let key = "internal.autoscaling.neon.tech/resources-approved";
    world.edit(|vm| {
        vm.metadata
            .annotations
            .insert(key.into(), r#"{"vCPUs":1,"mem":"4Gi"}"#.into());
        vm.metadata.labels.insert("team".into(), "db".into());
    });
    assert_eq!(world.settle(), ["PatchPodMetadata"]);
    let metadata = world.pod(&pod).metadata;
    assert_eq!(metadata.annotations[key], r#"{"vCPUs":1,"mem":"4Gi"}"#);
    assert_eq!(metadata.labels["team"], "db");
    world.edit(|vm| {
        vm.metadata.annotations.remove(key);
        vm.metadata.labels.remove("team");
    });
    world.settle();
    assert!(!world.pod(&pod).metadata.annotations.contains_key(key));
}

/// The e2e case autoscaling.revisions, steps 0 and 1.
#[test]
fn revisions_are_copied_backwards_too() {
    let mut vm = sample_vm();
    ask(&mut vm, 250, 1, 123, 456);
    let mut world = World::new(&vm);
    world.settle();
    let pod = world.status().pod_name;
    world.start(&pod);
    world.settle();
    assert_eq!(
        current(&world),
        Some(Revision {
            value: 123,
            flags: 456
        })
    );
    world.edit(|vm| ask(vm, 250, 1, 1, 123));
    assert_eq!(world.settle(), ["WriteStatus"]);
    assert_eq!(
        current(&world),
        Some(Revision {
            value: 1,
            flags: 123
        })
    );
    let at = world.status().current_revision.expect("one").updated_at;
    assert_eq!(at.0 % 1_000_000, 0, "whole seconds, as the wire keeps them");
    world.edit(|vm| vm.spec.target_revision = None);
    assert!(world.settle().is_empty());
}

#[test]
fn progress_is_written_at_most_four_times_per_second() {
    let (mut world, pod) = running();
    world.edit(|vm| ask(vm, 250, 4, 1, 1));
    world.settle();
    assert_eq!(world.phase(), VmPhase::Scaling);
    let mut writes = 0;
    for step in 1..=20_u64 {
        world.pass(Span::from_millis(50));
        let state = world.runners.get_mut(&pod).expect("there");
        state.memory.plugged = Bytes::mib(128 * step);
        state.generation += 1;
        world.show_runner();
        writes += world.settle().len();
    }
    assert!((3..=4).contains(&writes), "{writes} writes in a second");
    world.finish_resize(&pod);
    assert_eq!(
        world.settle(),
        ["WriteStatus"],
        "the end is written at once"
    );
}

#[test]
fn last_progress_is_written_without_another_event() {
    let (mut world, pod) = running();
    world.edit(|vm| ask(vm, 250, 4, 1, 1));
    world.settle();
    world.pass(Span::from_millis(100));
    world.runners.get_mut(&pod).expect("there").memory.plugged = Bytes::gib(1);
    world.show_runner();
    assert!(world.settle().is_empty());
    let due = world.core.poll_deadline().expect("a deadline");
    assert!(due.since(world.at.now) <= Span::from_millis(150));
    world.pass(Span::from_millis(150));
    assert_eq!(world.settle(), ["WriteStatus"]);
    assert_eq!(
        world.status().memory_size,
        Some(Quantity::from_bytes(2 << 30))
    );
}

#[test]
fn restarted_controller_continues_resize_from_runner_state() {
    let (mut world, pod) = running();
    world.edit(|vm| ask(vm, 2000, 4, 9, 1));
    world.settle();
    world.restart_controller();
    assert!(
        world.settle().is_empty(),
        "the order is held, there is nothing to repeat"
    );
    world.finish_resize(&pod);
    world.settle();
    assert_eq!(current(&world), Some(Revision { value: 9, flags: 1 }));

    world.edit(|vm| ask(vm, 250, 1, 10, 2));
    world.restart_controller();
    world.settle();
    let order = world.runners[&pod].resize.clone().expect("an order").order;
    assert_eq!(
        order.trace.revision, 10,
        "what was not yet ordered is ordered now"
    );
}

#[test]
fn obstacle_of_resize_is_reported_once_and_cleared() {
    let (mut world, pod) = running();
    world.edit(|vm| ask(vm, 250, 2, 1, 1));
    world.settle();
    while world.core.poll_note().is_some() {}
    for missing in [512, 384, 256] {
        let state = world.runners.get_mut(&pod).expect("there");
        let report = state.resize.as_mut().expect("an order");
        report.problem = Some(ResizeProblem::MemoryStuck {
            missing: Bytes::mib(missing),
        });
        world.show_runner();
        world.settle();
    }
    let degraded = world
        .status()
        .conditions
        .into_iter()
        .find(|c| c.kind == "Degraded");
    let degraded = degraded.expect("told");
    assert_eq!(
        degraded.message,
        "the guest has still to give back 256Mi of memory"
    );
    let notes: Vec<&str> = std::iter::from_fn(|| world.core.poll_note())
        .map(|note| note.reason())
        .collect();
    assert_eq!(notes, ["ScalingStuck"], "once");
    let state = world.runners.get_mut(&pod).expect("there");
    state.resize.as_mut().expect("an order").problem = None;
    world.finish_resize(&pod);
    world.settle();
    let degraded = world
        .status()
        .conditions
        .into_iter()
        .find(|c| c.kind == "Degraded");
    assert_eq!(
        degraded.map(|c| (c.status, c.message)),
        Some(("False".into(), String::new()))
    );
}

#[test]
fn silent_runner_is_reported_after_delay_and_phase_stays() {
    let (mut world, pod) = running();
    let state = world.runners.remove(&pod).expect("there");
    world.show_runner();
    assert!(world.settle().is_empty());
    world.pass(Span::from_secs(5));
    world.show_runner();
    world.settle();
    assert_eq!(world.phase(), VmPhase::Running);
    let degraded = world
        .status()
        .conditions
        .into_iter()
        .find(|c| c.kind == "Degraded");
    assert!(
        degraded
            .expect("told")
            .message
            .contains("does not answer: connection refused")
    );
    world.runners.insert(pod, state);
    world.show_runner();
    world.settle();
    let degraded = world
        .status()
        .conditions
        .into_iter()
        .find(|c| c.kind == "Degraded");
    assert_eq!(degraded.map(|c| c.status).as_deref(), Some("False"));
}

#[test]
fn conflict_leads_to_read_and_loses_nothing() {
    let (mut world, pod) = running();
    world.edit(|vm| ask(vm, 500, 1, 1, 1));
    world.settle();
    world.finish_resize(&pod);
    // The agent patches again before our write of the status arrives.
    let write = world.core.poll_action(world.at).expect("a write");
    assert_eq!(write.kind(), Kind::WriteStatus);
    let mut newer = world.vm();
    ask(&mut newer, 750, 1, 2, 1);
    world.vm = Some(serde_json::to_value(newer).expect("a VM"));
    world.touch_vm();
    let done = Event::Done {
        kind: write.kind(),
        began: world.at,
        result: Err(Refusal::Conflict),
    };
    world.core.handle(world.at, done);
    let kinds = world.settle();
    assert_eq!(
        kinds[0], "ReadVm",
        "what is stored is read before anything else"
    );
    world.finish_resize(&pod);
    world.pass(Span::from_millis(10));
    world.settle();
    assert_eq!(current(&world), Some(Revision { value: 2, flags: 1 }));
}

#[test]
fn repeated_failure_is_reported_and_delays_nothing_else() {
    let mut world = World::new(&sample_vm());
    let mut told = false;
    for _ in 0..40 {
        world.pass(Span::from_millis(20));
        while let Some(action) = world.core.poll_action(world.at) {
            let kind = action.kind();
            let result = if let Action::CreatePod { .. } = action {
                Err(Refusal::Failed {
                    message: "quota exceeded (403)".into(),
                    permanent: true,
                })
            } else {
                world.log.push(action.clone());
                world.carry_out(&action)
            };
            world.core.handle(
                world.at,
                Event::Done {
                    kind,
                    began: world.at,
                    result,
                },
            );
        }
        let message = world
            .status()
            .conditions
            .iter()
            .find(|c| c.kind == "Degraded")
            .map(|c| c.message.clone());
        told |= message
            .is_some_and(|message| message == "could not create the pod: quota exceeded (403)");
    }
    assert!(told);
    assert_eq!(world.phase(), VmPhase::Pending);
    world.settle();
    world.pass(Span::from_secs(20));
    world.settle();
    assert_eq!(world.created.len(), 1, "it is tried again and again");
}

#[test]
fn stages_are_stamped_once_each() {
    let (mut world, pod) = running();
    world.core.take_stages();
    world.edit(|vm| ask(vm, 500, 2, 5, 1));
    world.settle();
    let state = world.runners.get_mut(&pod).expect("there");
    let report = state.resize.as_mut().expect("an order");
    report.stages = vec![
        StageStamp {
            stage: Stage::Qmp,
            start_unix_us: 10,
            duration_us: 20,
        },
        StageStamp {
            stage: Stage::GuestVisible,
            start_unix_us: 30,
            duration_us: 40,
        },
    ];
    world.finish_resize(&pod);
    world.show_runner();
    world.settle();
    world.show_runner();
    world.settle();
    let records = world.core.take_stages();
    let stages: Vec<Stage> = records.iter().map(|record| record.stage).collect();
    assert_eq!(
        stages,
        [
            Stage::Controller,
            Stage::Qmp,
            Stage::GuestVisible,
            Stage::Status
        ]
    );
    assert!(records.iter().all(|record| record.trace.revision == 5));
    assert_eq!(records[0].change, "250m CPU / 1Gi -> 500m CPU / 2Gi");
    assert_eq!(records[1].duration_us, 20);
}

/// The runner tells its new limit on the long-poll before it answers the order.
#[test]
fn report_before_response_keeps_size_before_resize() {
    let (mut world, pod) = running();
    world.core.take_stages();
    world.edit(|vm| ask(vm, 500, 2, 5, 1));
    for _ in 0..20 {
        let Some(action) = world.core.poll_action(world.at) else {
            break;
        };
        let result = world.carry_out(&action);
        if let Action::SetSize { order, .. } = &action {
            let state = world.runners.get_mut(&pod).expect("there");
            state.cpus.limit = order.cpu;
            world.show_runner();
        }
        let (kind, began) = (action.kind(), world.at);
        let done = Event::Done {
            kind,
            began,
            result,
        };
        world.core.handle(world.at, done);
        world.show();
    }
    let records = world.core.take_stages();
    assert_eq!(records[0].stage, Stage::Controller);
    assert_eq!(records[0].change, "250m CPU / 1Gi -> 500m CPU / 2Gi");
}

#[test]
fn runner_on_other_machine_is_reported() {
    let mut settings = crate::core::Settings::one_machine();
    settings.local_node = Some("elsewhere".into());
    let mut world = World::with(&sample_vm(), settings);
    world.settle();
    let pod = world.status().pod_name;
    world.start(&pod);
    assert_eq!(world.core.link_target(), None);
    world.settle();
    world.settle();
    let degraded = world
        .status()
        .conditions
        .into_iter()
        .find(|c| c.kind == "Degraded");
    let problem = Problem::RunnerElsewhere {
        node: "here".into(),
    };
    assert_eq!(degraded.map(|c| c.message), Some(problem.to_string()));
}

#[test]
fn older_state_of_vm_or_pod_changes_nothing() {
    let (mut world, pod) = running();
    let old_vm = world.vm();
    let old_pod: Pod = world.pod(&pod);
    world.edit(|vm| ask(vm, 500, 1, 1, 1));
    world.settle();
    world.core.handle(world.at, Event::Vm(Box::new(old_vm)));
    world.core.handle(world.at, Event::Pod(Box::new(old_pod)));
    world.core.handle(
        world.at,
        Event::PodUnseen {
            name: pod,
            uid: Some("another".into()),
        },
    );
    assert!(world.core.poll_action(world.at).is_none());
    let held = serde_json::to_value(world.core.snapshot()).expect("a dump");
    assert_eq!(held["wanted"], json!({"vCPUs": "500m", "mem": "1Gi"}));
}

#[test]
fn failed_actions_are_retried_at_once_after_response() {
    let (mut world, pod) = running();
    world.edit(|vm| ask(vm, 500, 1, 1, 1));
    world.settle();
    world.finish_resize(&pod);
    for _ in 0..20 {
        while let Some(action) = world.core.poll_action(world.at) {
            let result = Err(Refusal::Failed {
                message: "connection refused".into(),
                permanent: false,
            });
            let done = Event::Done {
                kind: action.kind(),
                began: world.at,
                result,
            };
            world.core.handle(world.at, done);
        }
        world.pass(Span::from_secs(16));
    }
    while let Some(action) = world.core.poll_action(world.at) {
        let result = Err(Refusal::Failed {
            message: "connection refused".into(),
            permanent: false,
        });
        world.core.handle(
            world.at,
            Event::Done {
                kind: action.kind(),
                began: world.at,
                result,
            },
        );
    }
    assert!(world.core.poll_action(world.at).is_none(), "a long pause");
    let vm = Box::new(world.vm());
    world.core.handle(world.at, Event::Vm(vm));
    world.settle();
    assert_eq!(current(&world), Some(Revision { value: 1, flags: 1 }));
}

#[test]
fn reported_refusal_does_not_cause_next_attempt_at_once() {
    let mut world = World::new(&sample_vm());
    let mut refused = 0_u32;
    for _ in 0..2_000 {
        let Some(action) = world.core.poll_action(world.at) else {
            break;
        };
        let kind = action.kind();
        let result = if let Action::CreatePod { .. } = action {
            refused += 1;
            // Words that differ every time, as some servers' do.
            Err(Refusal::Failed {
                message: format!("refused, request {refused}"),
                permanent: true,
            })
        } else {
            world.carry_out(&action)
        };
        world.core.handle(
            world.at,
            Event::Done {
                kind,
                began: world.at,
                result,
            },
        );
        world.show();
    }
    assert!(refused <= 2, "{refused} attempts without any time passing");
}

#[test]
fn resize_quicker_than_status_is_reported_with_its_first_size() {
    let (mut world, pod) = running();
    while world.core.poll_note().is_some() {}
    for (milli, from) in [(750, 250), (1250, 750)] {
        world.edit(|vm| ask(vm, milli, 1, i64::from(milli), 1));
        // Something else is being written while the order goes out and is carried out.
        world.edit(|vm| {
            vm.metadata
                .annotations
                .insert("n".into(), milli.to_string());
        });
        let sync = world.core.poll_action(world.at).expect("the sync");
        let result = world.carry_out(&sync);
        let done = Event::Done {
            kind: sync.kind(),
            began: world.at,
            result,
        };
        world.core.handle(world.at, done);
        let order = world.core.poll_action(world.at).expect("the order");
        let write = world.core.poll_action(world.at).expect("phase Scaling");
        assert_eq!(
            (order.kind(), write.kind()),
            (Kind::SetSize, Kind::WriteStatus)
        );
        let result = world.carry_out(&order);
        let done = Event::Done {
            kind: order.kind(),
            began: world.at,
            result,
        };
        world.core.handle(world.at, done);
        world.finish_resize(&pod);
        let refused = Err(Refusal::Conflict);
        let done = Event::Done {
            kind: write.kind(),
            began: world.at,
            result: refused,
        };
        world.core.handle(world.at, done);
        world.pass(Span::from_millis(100));
        world.settle();
        let notes: Vec<VmEvent> = std::iter::from_fn(|| world.core.poll_note()).collect();
        let [
            VmEvent::Scaled {
                from: before, to, ..
            },
        ] = notes.as_slice()
        else {
            panic!("{notes:?}")
        };
        assert_eq!((before.cpu.0, to.cpu.0), (from, milli));
    }
}

#[test]
fn last_stage_is_stamped_after_next_order() {
    let (mut world, pod) = running();
    world.edit(|vm| ask(vm, 1000, 1, 5, 1));
    world.settle();
    world.finish_resize(&pod);
    world.core.take_stages();
    let write = world
        .core
        .poll_action(world.at)
        .expect("the end of the first");
    let result = world.carry_out(&write);
    world.edit(|vm| ask(vm, 500, 1, 6, 2));
    let order = world.core.poll_action(world.at).expect("the second");
    assert_eq!(
        (write.kind(), order.kind()),
        (Kind::WriteStatus, Kind::SetSize)
    );
    let second = world.carry_out(&order);
    let done = Event::Done {
        kind: order.kind(),
        began: world.at,
        result: second,
    };
    world.core.handle(world.at, done);
    let done = Event::Done {
        kind: write.kind(),
        began: world.at,
        result,
    };
    world.core.handle(world.at, done);
    let stages: Vec<(i64, Stage)> = world
        .core
        .take_stages()
        .iter()
        .map(|r| (r.trace.revision, r.stage))
        .collect();
    assert_eq!(stages, [(6, Stage::Controller), (5, Stage::Status)]);
}

pub(super) fn requesting() -> (World, String) {
    let settings = Settings {
        true_requests: true,
        quick: Span(0),
        ..Settings::one_machine()
    };
    let mut world = World::with(&sample_vm(), settings);
    world.settle();
    let pod = world.status().pod_name;
    world.start(&pod);
    world.settle();
    (world, pod)
}

pub(super) fn requested(world: &World, pod: &str) -> serde_json::Value {
    world.pods[pod]["spec"]["containers"][0]["resources"]["requests"].clone()
}

/// Requirement: N41
#[test]
fn requests_grow_before_guest_and_shrink_after_it() {
    let (mut world, pod) = requesting();
    assert_eq!(
        requested(&world, &pod),
        json!({"cpu": "250m", "memory": "1Gi"})
    );
    world.edit(|vm| ask(vm, 2000, 4, 1, 1));
    let kinds = world.settle();
    assert!(kinds.contains(&"SetSize".to_owned()), "{kinds:?}");
    let at = |kind: &str| kinds.iter().position(|it| it == kind);
    assert!(at("ResizePod") < at("SetSize"), "{kinds:?}");
    assert!(at("ResizePod").is_some(), "{kinds:?}");
    let large = json!({"cpu": "2", "memory": "4Gi"});
    assert_eq!(requested(&world, &pod), large);
    world.finish_resize(&pod);
    world.settle();
    world.edit(|vm| ask(vm, 500, 2, 2, 1));
    world.settle();
    assert_eq!(requested(&world, &pod), large, "the guest has it yet");
    world.finish_resize(&pod);
    assert!(world.settle().contains(&"ResizePod".to_owned()));
    assert_eq!(
        requested(&world, &pod),
        json!({"cpu": "500m", "memory": "2Gi"})
    );
    assert!(world.settle().is_empty());
}

#[test]
fn api_server_without_pod_resize_delays_no_growth() {
    let (mut world, pod) = requesting();
    world.edit(|vm| ask(vm, 2000, 4, 1, 1));
    let kinds = world.order_without_resizing_pods();
    assert!(kinds.contains(&Kind::SetSize), "{kinds:?}");
    assert_eq!(
        requested(&world, &pod),
        json!({"cpu": "250m", "memory": "1Gi"})
    );
    let conditions = world.status().conditions;
    let told = conditions.iter().find(|c| c.kind == "Degraded");
    let told = told.expect("told").message.clone();
    assert!(
        told.contains("could not resize what the pod requests"),
        "{told}"
    );
}

/// Reading the pod again after a refusal led to the next try at once: as fast as the server
/// refused.
#[test]
fn a_patch_that_is_always_refused_is_not_tried_as_fast_as_the_server_answers() {
    let (mut world, _) = running();
    world.edit(|vm| {
        vm.metadata.labels.insert("a".into(), "b".into());
    });
    let mut tries = 0;
    for _ in 0..1000 {
        let Some(action) = world.core.poll_action(world.at) else {
            break;
        };
        let (kind, began) = (action.kind(), world.at);
        let result = if kind == Kind::PatchPodMetadata {
            tries += 1;
            Err(Refusal::Failed {
                message: "denied by a webhook (403)".into(),
                permanent: true,
            })
        } else {
            world.carry_out(&action)
        };
        let done = Event::Done {
            kind,
            began,
            result,
        };
        world.core.handle(world.at, done);
    }
    assert_eq!(tries, 1, "in one instant");
    assert_eq!(world.core.poll_action(world.at), None, "and then it waits");
}
