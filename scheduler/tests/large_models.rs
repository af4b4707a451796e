//! The models of permits and migration in bounds that take minutes. `cargo xtask model` runs them;
//! an ordinary test run does not build them to run (`test = false` in `Cargo.toml`).

mod exhaustive;
mod migration_model;
mod migration_world;
mod permit_model;
#[allow(
    dead_code,
    unused_imports,
    reason = "counterexamples and renamed states are the smaller models' own"
)]
mod system;

use exhaustive::Order;
use permit_model::{hand_over, small};
use scheduler::core::migrate::MigrationRule;
use system::Bounds;

fn check(bounds: Bounds) {
    permit_model::check(bounds, Order::Depth);
}

fn three(bounds: Bounds) -> Bounds {
    Bounds { vms: 3, ..bounds }
}

#[test]
fn every_order_holds_in_the_larger_bounds() {
    check(Bounds {
        wishes: &[2, 1],
        ..small(None)
    });
}

#[test]
fn every_order_of_a_hand_over_and_a_fault_holds() {
    check(Bounds {
        ticks: 4,
        faults: 1,
        ..hand_over(None)
    });
}

#[test]
fn n06_n08_n16_every_order_of_three_vms_holds() {
    check(three(small(None)));
    check(Bounds {
        nodes: 2,
        ..three(small(None))
    });
}

#[test]
fn n06_n08_n16_every_order_of_three_vms_that_also_shrink_holds() {
    check(Bounds {
        wishes: &[2, 1],
        ..three(small(None))
    });
}

#[test]
fn every_order_of_a_hand_over_among_three_vms_holds() {
    check(three(hand_over(None)));
}

#[test]
fn n23_n24_n25_every_order_of_three_vms_holds() {
    for max_per_node in [0, 1] {
        let rule = MigrationRule {
            max_per_node,
            ..MigrationRule::default()
        };
        for bounds in migration_model::bounds(rule) {
            let bounds = migration_world::Bounds {
                vms: 3,
                objects: 3,
                ..bounds
            };
            migration_model::check(bounds, Order::Depth, &["a VM arrives"]);
        }
    }
}
