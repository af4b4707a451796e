//! The way through, and every fault at every step of it.

mod between_nodes;
mod faults;
mod world;

use protocol::annotations::LABEL_VM_NAME;
use protocol::core::Core as _;
use protocol::time::Span;
use protocol::vm::VmPhase;
use serde_json::{Value, json};

use super::{Event, FAILED, Kind, RUNNING, SUCCEEDED};
use crate::core::refusal::Refusal;
use world::{MOVE, SOURCE, World, has_finalizer};

fn plain() -> Value {
    json!({"preventMigrationToSameHost": false})
}

fn world() -> World {
    World::new(&plain())
}

/// How many steps a migration takes when nothing goes wrong.
fn steps() -> usize {
    let mut world = world();
    (0..).find(|_| !world.step()).expect("it ends")
}

/// A world after so many steps.
fn after(count: usize) -> World {
    let mut world = world();
    for _ in 0..count {
        world.step();
    }
    world
}

/// Requirement: N44
#[test]
fn guest_moves() {
    let mut world = world();
    world.settle();
    assert_eq!(world.phase(MOVE), SUCCEEDED, "{:#?}", world.log);
    let target = world.home();
    assert_ne!(target, SOURCE);
    assert_eq!(world.running(), std::slice::from_ref(&target));
    world.assert_tidy();
    let status = world.migration(MOVE).status.unwrap_or_default();
    assert_eq!(
        (status.source_pod_name, status.source_pod_ip),
        (String::new(), String::new())
    );
    assert_eq!(
        (status.source_node.as_str(), status.target_node.as_str()),
        ("here", "here")
    );
    assert_eq!(status.target_pod_name, target);
    assert_eq!(status.target_pod_ip, "127.9.1.2");
    assert_eq!(
        status.info,
        Some(
            json!({"status": "completed", "totalTimeMs": 2000, "setupTimeMs": 0, "downtimeMs": 60,
            "ram": {"transferred": 0, "remaining": 0, "total": 0}, "encrypted": true})
        )
    );
    assert_eq!(
        world.message(MOVE),
        format!(
            "moved to pod {target}: 2000 ms in all, 60 ms of downtime by QEMU's account, 90 ms between the guest's stop and its going on, encrypted"
        )
    );
    let vm = world.vm().status.unwrap_or_default();
    assert_eq!(
        (vm.pod_ip.as_str(), vm.node.as_str()),
        ("127.9.1.2", "here")
    );
    assert!(has_finalizer(&world.moves[MOVE]));
    let owner = &world.moves[MOVE]["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["controller"]),
        (&json!("VirtualMachine"), &json!(true))
    );
    // The writes of the way, in order; who owns what is written between them.
    let way: Vec<&str> = world.log.iter().map(String::as_str).collect();
    let orders = ["Send", "Receive", "Send", "Begin", "Quit"];
    let given: Vec<&str> = way
        .iter()
        .filter(|kind| orders.contains(kind))
        .copied()
        .collect();
    assert_eq!(given, orders);
}

/// The answer to a source's deletion comes after its end was told, and is older: it does not bring
/// the pod back, which would be waited for forever. Found by `sim::migrations`, seed 1.
#[test]
fn n44_a_late_answer_does_not_bring_back_a_pod_that_is_gone() {
    let mut world = world();
    let mut late = None;
    while world.step() {
        late = world.pods.get(SOURCE).cloned().or(late);
    }
    assert!(!world.pods.contains_key(SOURCE), "it has left");
    let late = late.expect("it was there");
    let pod = serde_json::from_value(late).expect("a pod");
    world.core.handle(world.at, Event::Pod(Box::new(pod)));
    let known = world.core.snapshot().known_pods;
    assert!(!known.contains(&SOURCE.to_owned()), "{known:?}");
}

/// The guest is handed over and lost at the target, and the VM begins anew in a third pod before
/// the migration is looked at again. What was stopped at the source never runs again. Found by
/// `sim::migrations`, seed 13.
#[test]
fn n44_a_source_is_not_recalled_once_the_vm_has_begun_anew_elsewhere() {
    let mut met = 0;
    for count in 0..steps() {
        let mut world = after(count);
        let Some(target) = world.target() else {
            continue;
        };
        let source_stands = world.qemus.get(SOURCE).is_some_and(|qemu| !qemu.runs);
        if world.home() != target || !source_stands {
            continue;
        }
        met += 1;
        let is_told = world.phase(MOVE) == SUCCEEDED;
        world.kill(&target);
        world.remove_pod(&target);
        world.begin_anew("example-third");
        world.restart_controller();
        world.settle();
        assert_eq!(world.running(), ["example-third"], "after {count} steps");
        assert!(!world.pods.contains_key(SOURCE), "after {count} steps");
        let expected = if is_told { SUCCEEDED } else { FAILED };
        assert_eq!(world.phase(MOVE), expected, "after {count} steps");
    }
    assert!(met > 0);
}

/// Whose a pod is: kinds, and whether they control it.
fn owners(pod: &Value) -> Vec<(&str, bool)> {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    let owners = owners.expect("owners").iter();
    let told = owners.map(|one| (one["kind"].as_str(), one["controller"] == true));
    told.map(|(kind, controls)| (kind.unwrap_or_default(), controls))
        .collect()
}

#[test]
fn target_pod_is_like_vms_pod_and_waits_for_guest() {
    let mut world = World::new(&json!({"nodeSelector": {"disk": "fast"}, "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}}}));
    world.full = true;
    world.settle();
    let name = world.target().expect("a target pod");
    let pod = &world.pods[&name];
    assert_eq!(
        pod["spec"]["containers"][0]["env"][1],
        json!({"name": "RECEIVE_MIGRATION", "value": "true"})
    );
    assert_eq!(pod["spec"]["nodeSelector"], json!({"disk": "fast"}));
    assert_eq!(
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"],
        json!([{"matchExpressions": [
            {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
            {"key": "zone", "operator": "In", "values": ["b"]}]}])
    );
    assert_eq!(
        pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"],
        json!([{"labelSelector": {"matchLabels": {"vm.neon.tech/name": "example"}}, "topologyKey": "kubernetes.io/hostname"}])
    );
    assert_eq!(
        owners(pod),
        [("VirtualMachineMigration", true), ("VirtualMachine", false)]
    );
    assert_eq!(pod["metadata"]["labels"]["vm.neon.tech/name"], "example");
    assert_eq!(
        owners(&world.pods[SOURCE]),
        [("VirtualMachine", true), ("VirtualMachineMigration", false)]
    );
    assert_eq!(world.vm_phase(), VmPhase::PreMigrating);
    assert!(
        world.message(MOVE).contains("waits for target pod"),
        "{}",
        world.message(MOVE)
    );
}

#[test]
fn vm_shows_when_its_guest_is_sent() {
    let mut world = world();
    let mut phases = vec![world.vm_phase()];
    while world.step() {
        phases.push(world.vm_phase());
        phases.dedup();
    }
    let way = [
        VmPhase::Running,
        VmPhase::PreMigrating,
        VmPhase::Migrating,
        VmPhase::Running,
    ];
    assert_eq!(phases, way);
}

/// Requirement: N44
#[test]
fn migration_fails_after_timeout() {
    let mut world =
        World::new(&json!({"completionTimeout": 600, "preventMigrationToSameHost": true}));
    world.full = true;
    world.settle();
    assert_eq!(world.phase(MOVE), "Pending");
    world.pass(Span::from_secs(600));
    world.settle();
    assert_eq!(world.phase(MOVE), FAILED);
    assert_eq!(
        world.message(MOVE),
        "not finished within completionTimeout (600 s)"
    );
    assert_eq!(world.running(), [SOURCE]);
    world.assert_tidy();
}

#[test]
fn migration_waits_until_vm_is_running() {
    let mut world = world();
    if let Some(vm) = world.vm.as_mut() {
        vm["status"]["phase"] = json!("Scaling");
    }
    world.touch_vm();
    world.show();
    world.settle();
    assert_eq!(
        (world.phase(MOVE).as_str(), world.vm_phase()),
        ("", VmPhase::Scaling)
    );
    assert_eq!(
        world.message(MOVE),
        "waits until the VM is Running; it is Scaling"
    );
    if let Some(vm) = world.vm.as_mut() {
        vm["status"]["phase"] = json!("Running");
    }
    world.touch_vm();
    world.show();
    world.settle();
    assert_eq!(world.phase(MOVE), SUCCEEDED);
}

#[test]
fn migrations_of_one_vm_take_turns() {
    let mut world = world();
    world.full = true;
    world.migrate("n", &plain());
    world.settle();
    assert_eq!(world.message("n"), "waits for migration m of the same VM");
    assert_eq!(world.pods.len(), 2, "one target at a time");
    world.delete_move(MOVE);
    world.settle();
    assert_eq!(world.phase("n"), "Pending");
    world.full = false;
    world.settle();
    assert_eq!(world.phase("n"), SUCCEEDED);
    assert_eq!(world.running(), [world.home()]);
}

/// One that has failed lets go of the VM once, and not of what the next one takes.
#[test]
fn n44_after_one_that_failed_another_one_moves_the_guest() {
    for count in 0..steps() {
        let mut world = after(count);
        let Some(target) = world.target().filter(|name| world.qemus.contains_key(name)) else {
            continue;
        };
        if world.home() == target {
            continue;
        }
        world.kill(&target);
        world.migrate("n", &plain());
        world.settle();
        assert_eq!(world.phase(MOVE), FAILED, "step {count}");
        assert_eq!(
            world.phase("n"),
            SUCCEEDED,
            "step {count}: {:#?}",
            world.log
        );
        assert_eq!(world.running(), [world.home()], "step {count}");
    }
}

#[test]
fn migration_fails_for_missing_vm_and_releases_deleted_vm() {
    let mut world = world();
    world.vm = None;
    world.show();
    world.settle();
    assert_eq!(
        (world.phase(MOVE).as_str(), world.message(MOVE).as_str()),
        (FAILED, "VM example does not exist")
    );
    for count in 0..steps() {
        let mut world = after(count);
        world.vm = None;
        world.delete_move(MOVE);
        world.settle();
        assert!(!world.moves.contains_key(MOVE), "step {count}");
    }
}

/// Whose phase is changed by somebody else while it migrates is left to them.
#[test]
fn vm_that_another_client_releases_stays_released() {
    let mut world = world();
    world.full = true;
    world.settle();
    if let Some(vm) = world.vm.as_mut() {
        vm["status"]["phase"] = json!("Running");
    }
    world.touch_vm();
    world.show();
    world.settle();
    assert_eq!(world.phase(MOVE), FAILED);
    assert_eq!(
        world.message(MOVE),
        "another client changed the VM, which is Running"
    );
    world.assert_tidy();
}

/// What was read again after a refusal led to the next try at once: as fast as the server refused.
#[test]
fn a_write_that_is_always_refused_is_not_tried_as_fast_as_the_server_answers() {
    for refused in [Kind::WriteMigration, Kind::WriteVm, Kind::CreatePod] {
        let mut world = world();
        let (mut tries, mut calls) = (0, 0);
        for _ in 0..200 {
            let Some(action) = world.core.poll_action(world.at) else {
                break;
            };
            let kind = action.kind();
            calls += 1;
            let result = if kind == refused {
                tries += 1;
                Err(Refusal::Failed {
                    message: "denied by a webhook (403)".into(),
                    permanent: true,
                })
            } else {
                world.carry_out(action)
            };
            world.core.handle(world.at, Event::Done { kind, result });
        }
        assert_eq!(tries, 1, "{refused} in one instant");
        assert!(calls < 50, "{refused}: {calls} calls without rest");
    }
}
