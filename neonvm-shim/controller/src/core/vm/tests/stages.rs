//! Stages and events of a resize, in any order of reports and responses.

use protocol::core::Core as _;
use protocol::object::Pod;
use protocol::runner::StageStamp;
use protocol::time::Span;
use protocol::trace::Stage;
use serde_json::json;

use super::resizing::{running, set_size};
use crate::core::refusal::Refusal;
use crate::core::vm::Event;
use crate::core::vm_event::VmEvent;
use crate::core::{Action, Kind};

#[test]
fn stages_are_stamped_once_each() {
    let (mut world, pod) = running();
    world.core.take_stages();
    world.edit(|vm| set_size(vm, 500, 2, 5, 1));
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
    world.edit(|vm| set_size(vm, 500, 2, 5, 1));
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
fn older_state_of_vm_or_pod_changes_nothing() {
    let (mut world, pod) = running();
    let old_vm = world.vm();
    let old_pod: Pod = world.pod(&pod);
    world.edit(|vm| set_size(vm, 500, 1, 1, 1));
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
fn resize_quicker_than_status_is_reported_with_its_first_size() {
    let (mut world, pod) = running();
    while world.core.poll_event().is_some() {}
    for (milli, from) in [(750, 250), (1250, 750)] {
        world.edit(|vm| set_size(vm, milli, 1, i64::from(milli), 1));
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
        let event_reasons: Vec<VmEvent> = std::iter::from_fn(|| world.core.poll_event()).collect();
        let [
            VmEvent::Scaled {
                from: before, to, ..
            },
        ] = event_reasons.as_slice()
        else {
            panic!("{event_reasons:?}")
        };
        assert_eq!((before.cpu.0, to.cpu.0), (from, milli));
    }
}

#[test]
fn last_stage_is_stamped_after_next_order() {
    let (mut world, pod) = running();
    world.edit(|vm| set_size(vm, 1000, 1, 5, 1));
    world.settle();
    world.finish_resize(&pod);
    world.core.take_stages();
    let write = world
        .core
        .poll_action(world.at)
        .expect("the end of the first");
    let result = world.carry_out(&write);
    world.edit(|vm| set_size(vm, 500, 1, 6, 2));
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
