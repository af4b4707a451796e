//! Every fault at every step of a migration.

use super::*;

/// Requirement: N44. At each step: a target that dies leaves the guest where it was, unless it was
/// its own already.
#[test]
fn target_death_at_any_step_leaves_one_guest() {
    for count in 0..steps() {
        let mut world = after(count);
        let Some(target) = world.target().filter(|name| world.qemus.contains_key(name)) else {
            continue;
        };
        let was_its_own = world.home() == target;
        world.kill(&target);
        world.settle();
        if was_its_own {
            // The VM's own pod has failed: its restart policy decides. Nothing else runs.
            assert!(world.running().is_empty(), "step {count}");
            assert_eq!(world.home(), target, "step {count}");
        } else {
            assert_eq!(world.running(), [SOURCE], "step {count}: {:#?}", world.log);
            assert_eq!(world.phase(MOVE), FAILED, "step {count}");
            assert!(
                world.message(MOVE).contains(&target),
                "{}",
                world.message(MOVE)
            );
            world.assert_tidy();
        }
    }
}

/// Requirement: N44. At each step: a source that dies takes its guest along, unless all of it was
/// elsewhere. Never does an unfinished one run.
#[test]
fn source_death_at_any_step_leaves_one_guest_or_restarts_vm() {
    let (mut lost, mut kept) = (0, 0);
    for count in 0..steps() {
        let mut world = after(count);
        if !world.qemus.contains_key(SOURCE) {
            continue;
        }
        let was_running = world.running() == [SOURCE];
        world.kill(SOURCE);
        world.settle();
        let running = world.running();
        if world.home() == SOURCE {
            lost += 1;
            assert!(was_running || running.is_empty(), "step {count}");
            assert!(running.is_empty(), "step {count}: {running:?}");
            assert_eq!(
                world.vm_phase(),
                VmPhase::Running,
                "step {count}: the VM's reconcile takes over"
            );
            assert_eq!(
                world.target(),
                None,
                "step {count}: nothing is left of the target"
            );
        } else {
            kept += 1;
            assert_eq!(running, [world.home()], "step {count}");
            assert_eq!(world.phase(MOVE), SUCCEEDED, "step {count}");
        }
    }
    assert!(
        lost > 5 && kept > 3,
        "{lost} lost, {kept} kept: both are met"
    );
}

/// Requirement: N44. At each step: pods that lose the label by which the watch finds them are not
/// taken for gone, and get it back.
#[test]
fn guest_moves_though_pods_lose_their_label_at_any_step() {
    for count in 0..steps() {
        let mut world = after(count);
        for name in world.pods.keys().cloned().collect::<Vec<_>>() {
            world.take_label(&name);
        }
        world.settle();
        let log = &world.log;
        assert_eq!(world.phase(MOVE), SUCCEEDED, "step {count}: {log:#?}");
        assert_eq!(world.running(), [world.home()], "step {count}");
        assert_ne!(world.home(), SOURCE, "step {count}");
        world.assert_tidy();
    }
}

/// Requirement: N44. Its every answer is news to the watch.
#[test]
fn label_that_webhook_removes_is_not_set_again_at_once() {
    let mut world = world();
    world.full = true;
    world.settle();
    let target = world.target().expect("a target");
    world.strips = Some("a");
    let vm = world.vm.as_mut().expect("it is there");
    vm["metadata"]["labels"] = json!({"a": "b"});
    world.touch_vm();
    world.show();
    let mut edits = 0;
    while let Some(action) = world.core.poll_action(world.at) {
        let kind = action.kind();
        edits += usize::from(kind == Kind::PatchPod);
        assert!(edits < 10, "{action:?}");
        let result = world.carry_out(action);
        world.core.handle(world.at, Event::Done { kind, result });
        let pod = Box::new(world.pod(&target));
        world.core.handle(world.at, Event::Pod(pod));
    }
    assert_eq!(edits, 1);
}

/// Requirement: N44. The VM's own core leaves its pod to the migration meanwhile.
#[test]
fn label_of_both_pods_is_restored_during_move() {
    let mut world = world();
    while world.phase(MOVE) != RUNNING {
        assert!(world.step(), "it begins to move");
    }
    let target = world.target().expect("a target");
    for name in [SOURCE, &target] {
        world.take_label(name);
    }
    let labelled = |world: &World, name: &str| {
        let labels = world.pod(name).metadata.labels;
        labels.contains_key(LABEL_VM_NAME)
    };
    while !(labelled(&world, SOURCE) && labelled(&world, &target)) {
        assert!(world.step(), "they get it back: {:#?}", world.log);
        assert!(world.target().is_some() && world.pods.contains_key(SOURCE));
    }
}

/// At each step: called off, the guest runs on where it was, or where it has gone, and nothing is
/// left of the rest.
#[test]
fn n44_cancelled_at_any_step_leaves_one_guest() {
    let (mut stayed, mut left) = (0, 0);
    for count in 0..steps() {
        let mut world = after(count);
        world.delete_move(MOVE);
        world.settle();
        assert!(!world.moves.contains_key(MOVE), "step {count}: it goes");
        let home = world.home();
        assert_eq!(
            world.running(),
            std::slice::from_ref(&home),
            "step {count}: {:#?}",
            world.log
        );
        world.assert_tidy();
        if home == SOURCE {
            stayed += 1;
        } else {
            left += 1;
        }
    }
    assert!(
        stayed > 5 && left > 2,
        "{stayed} stayed, {left} left: both are met"
    );
}

/// Requirement: N44. A controller that is restarted at any step, or whose writes conflict there,
/// reaches the same end.
#[test]
fn controller_restarted_at_any_step_converges() {
    for count in 0..=steps() {
        for conflicts in [0, 2] {
            let mut world = after(count);
            world.restart_controller();
            world.conflicts = conflicts;
            world.touch_vm();
            world.settle();
            assert_eq!(
                world.phase(MOVE),
                SUCCEEDED,
                "step {count}: {:#?}",
                world.log
            );
            assert_eq!(world.running(), [world.home()], "step {count}");
            assert_ne!(world.home(), SOURCE, "step {count}");
            world.assert_tidy();
        }
    }
}

/// A restart of the controller and a cancel or the end of a QEMU at each pair of steps.
#[test]
fn n44_two_faults_leave_no_two_guests() {
    let all = steps();
    for first in 0..all {
        for second in 0..all - first {
            for fault in 0..3 {
                let mut world = after(first);
                world.restart_controller();
                for _ in 0..second {
                    world.step();
                }
                let target = world.target().filter(|name| world.qemus.contains_key(name));
                let is_source = world.qemus.contains_key(SOURCE);
                match (fault, target) {
                    (0, _) => world.delete_move(MOVE),
                    (1, Some(target)) => world.kill(&target),
                    (2, _) if is_source => world.kill(SOURCE),
                    _ => continue,
                }
                world.restart_controller();
                // `step` counts the guests.
                world.settle();
                if fault == 0 {
                    assert_eq!(world.running(), [world.home()], "{first} {second}");
                }
            }
        }
    }
}
