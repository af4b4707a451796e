//! What is different in a cluster: runners are at their pods' addresses, and nodes do not share
//! disks.

use protocol::migration::DiskTravel;
use protocol::runner::{NO_PRIVILEGES, RUNNER_PRIVILEGES};
use serde_json::{Value, json};

use super::world::{MOVE, SOURCE, World};
use crate::core::Settings;
use crate::core::container::CONTAINER;
use crate::core::migration::{FAILED, SUCCEEDED};
use crate::core::observe::is_unprivileged;

/// Says what the disk's image of a pod was resolved to.
fn resolve(world: &mut World, pod: &str, image: &str) {
    let statuses = json!([{"name": "init", "imageID": image}]);
    let pod = world.pods.get_mut(pod).expect("it is there");
    pod["status"]["initContainerStatuses"] = statuses;
}

/// A cluster whose nodes have these images under the name in the spec.
fn moved(spec: &Value, source: &str, target: &str) -> World {
    let mut world = World::with(spec, Settings::cluster("runner:1"));
    resolve(&mut world, SOURCE, source);
    let mut steps = 0;
    while world.travel.is_none() {
        world.step();
        let is_up = |name: &String| world.qemus.contains_key(name);
        if let Some(name) = world.target().filter(is_up) {
            resolve(&mut world, &name, target);
        }
        steps += 1;
        assert!(steps < 100, "it never comes: {:#?}", world.log);
    }
    world
}

/// Requirement: N44
#[test]
fn runners_of_two_nodes_get_orders_at_their_pods_addresses() {
    let mut world = moved(&json!({}), "sha256:a", "sha256:a");
    let target = world.target().expect("a target");
    let address = |pod: &str| world.core.link_address(pod).map(|at| at.to_string());
    assert_eq!(address(SOURCE).as_deref(), Some("127.9.1.1:25183"));
    assert_eq!(address(&target).as_deref(), Some("127.9.1.2:25183"));
    assert_eq!(address("another"), None);
    world.settle();
    assert_eq!(world.phase(MOVE), SUCCEEDED, "{:#?}", world.log);
    assert_eq!(world.running(), [target]);
    world.assert_tidy();
}

#[test]
fn pod_without_address_gets_no_link() {
    let mut world = World::with(&json!({}), Settings::cluster("runner:1"));
    let mut found = false;
    while world.step() {
        let targets = world.core.link_targets();
        for pod in targets {
            assert!(world.core.link_address(&pod).is_some(), "{pod}");
            found = true;
        }
    }
    assert!(found);
}

#[test]
fn what_was_written_over_an_image_goes_only_where_that_very_image_is() {
    let whole = json!({"incremental": false});
    for (spec, source, target, travel) in [
        (json!({}), "sha256:a", "sha256:a", DiskTravel::Auto),
        (json!({}), "sha256:a", "sha256:b", DiskTravel::Whole),
        (json!({}), "", "", DiskTravel::Whole),
        (whole, "sha256:a", "sha256:a", DiskTravel::Whole),
    ] {
        let world = moved(&spec, source, target);
        assert_eq!(world.travel, Some(travel), "{source} {target}");
    }
}

/// Requirement: N44
#[test]
fn guest_stays_and_refusal_of_target_is_reported() {
    let why = "the guest writes to its swap: end the VM there and start it here";
    let mut world = World::with(&json!({}), Settings::cluster("runner:1"));
    world.refuses = Some(why.to_owned());
    world.settle();
    assert_eq!(world.phase(MOVE), FAILED, "{:#?}", world.log);
    let told = format!("the target's runner refused the guest: {why}");
    assert_eq!(world.message(MOVE), told);
    assert_eq!(world.running(), [SOURCE]);
    world.assert_tidy();
}

#[test]
fn guest_with_claimed_disks_is_not_moved_and_claims_are_named() {
    let mut world = World::with(&json!({}), Settings::cluster("runner:1"));
    let vm = world.vm.as_mut().expect("it is there");
    vm["spec"]["disks"] = json!([{"name": "data", "mountPath": "/data",
        "persistentVolumeClaim": {"claimName": "pg-data", "size": "1Gi"}}]);
    world.show();
    world.settle();
    assert_eq!(world.phase(MOVE), FAILED, "{:#?}", world.log);
    let told = world.message(MOVE);
    assert!(told.contains("disks on claims (pg-data)"), "{told}");
    assert_eq!(world.target(), None, "no pod is made for it");
    assert_eq!(world.running(), [SOURCE]);
    world.assert_tidy();
}

#[test]
fn target_of_unprivileged_guest_is_unprivileged() {
    let mut world = World::with(&json!({}), Settings::cluster("runner:1"));
    let source = world.pods.get_mut(SOURCE).expect("it is there");
    source["spec"]["containers"] = json!([{"name": CONTAINER,
        "env": [{"name": RUNNER_PRIVILEGES, "value": NO_PRIVILEGES}]}]);
    world.show();
    while world
        .target()
        .is_none_or(|name| !world.pods.contains_key(&name))
    {
        assert!(world.step(), "no target: {:#?}", world.log);
    }
    let target = &world.pods[&world.target().expect("a target")];
    let target = serde_json::from_value(target.clone()).expect("a pod");
    assert!(is_unprivileged(&target));
}
