//! A VM that is taken for a migration, and the migration that may be gone.

use protocol::vm::VmPhase;
use serde_json::json;

use super::phases::running;
use super::world::World;
use crate::core::testing::sample_vm;
use crate::core::vm::CLAIM_CHECK_AFTER;

/// A VM that runs and has then been taken for `m`, by a write of somebody who may be gone.
fn taken(phase: &str) -> World {
    let (mut world, _) = running(&sample_vm());
    let vm = world.vm.as_mut().expect("it is there");
    vm["status"]["phase"] = json!(phase);
    vm["status"]["migration"] = json!({"name": "m", "uid": "uid-m"});
    world.touch_vm();
    world.show();
    world
}

fn wait(world: &mut World) -> Vec<String> {
    let mut done = world.settle();
    for _ in 0..3 {
        world.pass(CLAIM_CHECK_AFTER);
        done.extend(world.settle());
    }
    done
}

#[test]
fn n44_a_vm_taken_for_a_migration_that_is_gone_is_taken_back() {
    for phase in ["PreMigrating", "Migrating"] {
        for another in [false, true] {
            let mut world = taken(phase);
            if another {
                world
                    .migrations
                    .insert("m".into(), "uid-of-the-next".into());
            }
            let before = world.status();
            let done = wait(&mut world);
            assert!(done.contains(&"ReadMigration".to_owned()), "{done:?}");
            let status = world.status();
            assert_eq!((status.phase, &status.migration), (VmPhase::Running, &None));
            assert_eq!(status.pod_name, before.pod_name);
            assert_eq!(status.restart_count, 0);
        }
    }
}

/// Requirement: N44
#[test]
fn claimed_vm_is_left_to_its_migration() {
    let mut world = taken("PreMigrating");
    world.migrations.insert("m".into(), "uid-m".into());
    let done = wait(&mut world);
    assert!(done.contains(&"ReadMigration".to_owned()), "{done:?}");
    assert_eq!(world.phase(), VmPhase::PreMigrating);
    // It goes later, and so does what it has taken.
    world.migrations.clear();
    wait(&mut world);
    assert_eq!(world.phase(), VmPhase::Running);
}

/// Requirement: N44
#[test]
fn claimed_vm_without_name_of_migration_is_left_alone() {
    let mut world = taken("PreMigrating");
    let vm = world.vm.as_mut().expect("it is there");
    let status = vm["status"].as_object_mut().expect("an object");
    status.remove("migration");
    world.touch_vm();
    world.show();
    let done = wait(&mut world);
    assert!(!done.contains(&"ReadMigration".to_owned()), "{done:?}");
    assert_eq!(world.phase(), VmPhase::PreMigrating);
}
