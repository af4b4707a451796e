//! Migration, model-checked: the shipped core under every order of growing and shrinking, making,
//! moving, failing, observing, losing and waiting, up to a bound (N23, N24, N25).
//!
//! Real is the core whole. Played are agents, the API server with watches that lag, and the VMs'
//! controller that moves. Larger bounds are in `large_models`, which `cargo xtask model` runs.

mod exhaustive;
mod migration_model;
mod migration_world;

use stateright::{Checker, HasDiscoveries, Model};

use exhaustive::Order;
use migration_model::{ALONE, bounds, check};
use migration_world::System;
use scheduler::core::migrate::MigrationRule;

#[test]
fn n23_n24_n25_every_order_of_two_vms_holds() {
    let [asking, waiting, losing] = bounds(MigrationRule::default());
    let (arrives, fails) = ("a VM arrives", "a migration fails");
    let denied = "one is moved for what it was denied";
    check(waiting, Order::Breadth, &[arrives, fails]);
    check(losing, Order::Breadth, &[arrives]);
    check(asking, Order::Breadth, &[arrives, fails, denied]);
}

/// The model can fail: what the deployed rule lacks is missed.
#[test]
fn n25_the_deployed_rule_moves_a_vm_again_at_once() {
    let found = HasDiscoveries::AllOf([ALONE].into());
    let [asking, ..] = bounds(MigrationRule::deployed());
    let system = System::new(asking);
    let checker = system.checker().finish_when(found).spawn_bfs().join();
    assert!(checker.discovery(ALONE).is_some(), "it has a pause");
}
