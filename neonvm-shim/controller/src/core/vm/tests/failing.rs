//! Failures on the way to a size: they are reported, and delay nothing else.

use protocol::core::Core as _;
use protocol::revision::Revision;
use protocol::runner::ResizeProblem;
use protocol::time::Span;
use protocol::units::Bytes;
use protocol::vm::VmPhase;
use serde_json::json;

use super::resizing::{current, requested, requesting, running, set_size};
use super::world::World;
use crate::core::problem::Problem;
use crate::core::refusal::Refusal;
use crate::core::testing::sample_vm;
use crate::core::vm::Event;
use crate::core::{Action, Kind};

#[test]
fn restarted_controller_continues_resize_from_runner_state() {
    let (mut world, pod) = running();
    world.edit(|vm| set_size(vm, 2000, 4, 9, 1));
    world.settle();
    world.restart_controller();
    assert!(
        world.settle().is_empty(),
        "the order is held, there is nothing to repeat"
    );
    world.finish_resize(&pod);
    world.settle();
    assert_eq!(current(&world), Some(Revision { value: 9, flags: 1 }));

    world.edit(|vm| set_size(vm, 250, 1, 10, 2));
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
    world.edit(|vm| set_size(vm, 250, 2, 1, 1));
    world.settle();
    while world.core.poll_event().is_some() {}
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
        "the guest has not released 256Mi of memory"
    );
    let event_reasons: Vec<&str> = std::iter::from_fn(|| world.core.poll_event())
        .map(|note| note.reason())
        .collect();
    assert_eq!(event_reasons, ["ScalingStuck"], "once");
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
            .contains("does not respond: connection refused")
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
    world.edit(|vm| set_size(vm, 500, 1, 1, 1));
    world.settle();
    world.finish_resize(&pod);
    // The agent patches again before our write of the status arrives.
    let write = world.core.poll_action(world.at).expect("a write");
    assert_eq!(write.kind(), Kind::WriteStatus);
    let mut newer = world.vm();
    set_size(&mut newer, 750, 1, 2, 1);
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
            .is_some_and(|message| message == "failed to create the pod: quota exceeded (403)");
    }
    assert!(told);
    assert_eq!(world.phase(), VmPhase::Pending);
    world.settle();
    world.pass(Span::from_secs(20));
    world.settle();
    assert_eq!(world.created.len(), 1, "it is tried again and again");
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
fn failed_actions_are_retried_at_once_after_response() {
    let (mut world, pod) = running();
    world.edit(|vm| set_size(vm, 500, 1, 1, 1));
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
fn api_server_without_pod_resize_delays_no_growth() {
    let (mut world, pod) = requesting();
    world.edit(|vm| set_size(vm, 2000, 4, 1, 1));
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
        told.contains("failed to resize the pod's requests"),
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
