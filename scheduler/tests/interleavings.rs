//! Random interleavings of grants, lagging watches, lost answers, calls that time out and land
//! late, bindings, deletions and restarts: what is promised must hold after every single step
//! (docs/compatibility/scheduler.md §6, §7.9 item 7).
//!
//! The checks are in `world/truth.rs`: every node's true use within its total (I1, N08), every
//! pod's true use within what is held for that pod (N06, I3, I4, and across restarts N16), every
//! permit written before it is said (I2), each resource of each permit within its bounds (N13,
//! N26), and nothing written as approved that is less than the VM uses (I4).

mod world;

use proptest::prelude::*;

use world::{Step, World};

fn steps(length: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (any::<u8>(), any::<u8>(), any::<u8>());
    prop::collection::vec(
        step.prop_map(|(kind, which, how)| Step { kind, which, how }),
        1..length,
    )
}

fn run(crowd: usize, steps: impl IntoIterator<Item = Step>) -> World {
    let mut world = World::new(crowd);
    for step in steps {
        world.step(step);
    }
    world.drain();
    world
}

/// A plain generator: the same seed is the same run.
struct Seeded(u64);

impl Iterator for Seeded {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let bytes = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D).to_be_bytes();
        Some(Step {
            kind: bytes[0],
            which: bytes[1],
            how: bytes[2],
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn n06_n08_never_overcommits_under_any_interleaving(crowd in 1_usize..10, steps in steps(400)) {
        run(crowd, steps);
    }
}

/// Long runs; `SCHEDULER_SEEDS` asks for more of them.
fn seeds() -> u64 {
    let asked = std::env::var("SCHEDULER_SEEDS");
    asked.ok().and_then(|text| text.parse().ok()).unwrap_or(48)
}

#[test]
fn n13_n16_n26_long_runs_reach_every_kind_of_trouble() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 1..=seeds() {
        let crowd = if seed.is_multiple_of(2) { 10 } else { 3 };
        let world = run(crowd, Seeded(seed).take(4_000));
        for (what, count) in &world.tally {
            *seen.entry(*what).or_insert(0) += count;
        }
    }
    // The run proves something only if all of this happened in it.
    for what in [
        "agent restart",
        "answer lost",
        "call timed out",
        "deleted",
        "deleted before its pod",
        "deletion asked",
        "denied",
        "ghost landed",
        "migration",
        "migration failed",
        "migration succeeded",
        "namesake",
        "no multiple",
        "partial",
        "patch of an agent that is gone",
        "permit",
        "refused",
        "relist",
        "report",
        "request of a VM that is gone",
        "request of an agent that is gone",
        "restart",
        "unschedulable",
        "write",
        "write met a newer version",
    ] {
        assert!(
            seen.get(what).is_some_and(|count| *count > 10),
            "{what} too rare in {seen:?}"
        );
    }
}
