//! Effects of calls and of the controller on the objects, and what the watches deliver of them.

use scheduler::core::event::{Event, MigrationOutcome};

use super::state::{Call, Object, Phase, Role, State, WatchUpdate};
use super::views::{migration_view, pod_name, pod_view};

pub(super) fn land(state: &mut State, index: usize, outcome: MigrationOutcome) -> Event {
    match state.calls.remove(index) {
        Call::Create(id, vm, pod) => {
            let is_there = |object: &Object| (object.vm, object.pod) == (vm, pod);
            let has_pod = state.vms[vm].pod == pod;
            if has_pod && !state.objects.iter().any(is_there) {
                state.last_uid += 1;
                let object = Object {
                    vm,
                    pod,
                    uid: state.last_uid,
                    phase: Phase::Pending,
                };
                state
                    .migrations
                    .push_back(WatchUpdate::Migration(object.clone()));
                state.objects.push(object);
            }
            Event::MigrationDone(id, outcome)
        }
        Call::Delete(id, _, uid) => {
            if let Some(at) = state.objects.iter().position(|object| object.uid == uid) {
                let object = state.objects.remove(at);
                if object.phase == Phase::Running {
                    undo(state, &object);
                }
                state
                    .migrations
                    .push_back(WatchUpdate::MigrationGone(object));
            }
            Event::MigrationDone(id, outcome)
        }
    }
}

/// The target pod goes, the source is as before.
fn undo(state: &mut State, object: &Object) {
    let (vm, pod) = (object.vm, object.pod);
    let node = state.vms[vm].node;
    state
        .pods
        .push_back(WatchUpdate::PodGone { vm, pod: pod + 1 });
    state.pods.push_back(WatchUpdate::Pod {
        vm,
        pod,
        node,
        role: Role::Settled,
    });
}

/// The controller's next step.
pub(super) fn advance(state: &mut State, index: usize) {
    let object = &mut state.objects[index];
    let (vm, pod) = (object.vm, object.pod);
    let from = state.vms[vm].node;
    let pod_update = |pod: u32, node: usize, role: Role| WatchUpdate::Pod {
        vm,
        pod,
        node,
        role,
    };
    if object.phase == Phase::Pending {
        object.phase = Phase::Running;
        state.pods.push_back(pod_update(pod, from, Role::Source));
        state
            .pods
            .push_back(pod_update(pod + 1, 1 - from, Role::Target));
    } else {
        object.phase = Phase::Succeeded;
        state.vms[vm].pod = pod + 1;
        state.vms[vm].node = 1 - from;
        state
            .pods
            .push_back(pod_update(pod + 1, 1 - from, Role::Settled));
        state.pods.push_back(WatchUpdate::PodGone { vm, pod });
        state.reached.arrived = true;
    }
    let object = state.objects[index].clone();
    state.migrations.push_back(WatchUpdate::Migration(object));
}

pub(super) fn fail(state: &mut State, index: usize) {
    state.failures += 1;
    state.reached.failed = true;
    let object = state.objects[index].clone();
    if object.phase == Phase::Running {
        undo(state, &object);
    }
    state.objects[index].phase = Phase::Failed;
    let object = state.objects[index].clone();
    state.migrations.push_back(WatchUpdate::Migration(object));
}

pub(super) fn event_of(update: WatchUpdate) -> Event {
    match update {
        WatchUpdate::Pod {
            vm,
            pod,
            node,
            role,
        } => Event::PodApplied(pod_view(vm, pod, node, role)),
        WatchUpdate::PodGone { vm, pod } => Event::PodDeleted(pod_name(vm, pod)),
        WatchUpdate::Migration(object) => Event::MigrationApplied(migration_view(&object)),
        WatchUpdate::MigrationGone(object) => {
            let view = migration_view(&object);
            Event::MigrationDeleted(view.key, view.uid)
        }
    }
}
