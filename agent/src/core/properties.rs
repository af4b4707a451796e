//! Random event sequences against the independent model of the peers in `world`, and hostile numbers.

use proptest::prelude::*;
use protocol::time::Timestamp;
use protocol::units::Resources;

use super::calm::Calm;
use super::config::ScalingConfig;
use super::desired::{Inputs, desired};
use super::metrics::{LfcMetrics, SystemMetrics};
use super::world::{UNIT, World, scaling, settle, step};

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn n05_n11_n13_n14_n16_order_holds_under_any_loss(
        using in 1_u32..8,
        scaling in scaling(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::with(using, scaling);
        for step in &steps {
            world.step(step)?;
        }
    }

    /// N26 and liveness: whatever happened before, with healthy peers the VM gets to the size wanted and stays there.
    #[test]
    fn n26_it_converges_and_stays(
        using in 1_u32..8,
        scaling in scaling(),
        steps in prop::collection::vec(step(), 1..60),
        load in 0_u32..300,
        mib in 0_u32..9000,
    ) {
        let mut world = World::with(using, scaling);
        for step in &steps {
            world.step(step)?;
        }
        settle(&mut world, load, mib)?;
        let decision = world.core.last_evaluation().expect("it has decided").decision;
        prop_assert_eq!(world.u, decision.target, "did not get there: {:?}", decision);
        prop_assert_eq!(world.a, world.u, "the monitor was not told");
        prop_assert_eq!(world.p, Some(world.u), "the scheduler was not told");
        let revision = decision.revision;
        settle(&mut world, load, mib)?;
        let later = world.core.last_evaluation().expect("it has decided").decision;
        prop_assert_eq!(later.revision, revision, "it flaps");
    }

    #[test]
    fn n03_desired_is_whole_units_within_bounds(
        load1 in 0.0_f64..1e12,
        load5 in 0.0_f64..1e12,
        usage in 0.0_f64..1e18,
        cached in 0.0_f64..1e18,
        pages in prop::option::of(prop::collection::vec(0.0_f64..1e12, 0..70)),
        has_system in any::<bool>(),
        min in 1_u32..40,
        more in 0_u32..200,
        using in 1_u32..240,
        unit_cpu in 1_u32..3000,
        unit_mib in 1_u64..9000,
    ) {
        let unit = Resources::new(unit_cpu, unit_mib << 20);
        let system = SystemMetrics { load1, load5, memory_usage_bytes: usage, memory_cached_bytes: cached, ..SystemMetrics::default() };
        let lfc = pages.map(|working_set_pages| LfcMetrics { working_set_pages, ..LfcMetrics::default() });
        let scaling = ScalingConfig { enable_lfc_metrics: lfc.is_some(), ..ScalingConfig::default() };
        let (low, high) = (unit.saturating_mul(min), unit.saturating_mul(min + more));
        let got = desired(&Inputs {
            unit,
            min: low,
            max: high,
            using: unit.saturating_mul(using),
            scaling: &scaling,
            system: has_system.then_some(&system),
            lfc: lfc.as_ref(),
            is_stale: false,
            requested_units: None,
            denied: None,
            calm: Calm::default(),
            now: Timestamp(0),
        });
        let units = got.size.exact_multiple_of(unit);
        prop_assert!(units.is_some_and(|n| n >= min && n <= min + more), "{:?}", got);
        prop_assert!(!got.is_out_of_bounds);
    }

    #[test]
    fn hostile_numbers_never_crash_the_goal(
        values in prop::array::uniform4(any::<f64>()),
        pages in prop::collection::vec(any::<f64>(), 0..40),
    ) {
        let [load1, load5, memory_usage_bytes, memory_cached_bytes] = values;
        let system = SystemMetrics { load1, load5, memory_usage_bytes, memory_cached_bytes, ..SystemMetrics::default() };
        let lfc = LfcMetrics { working_set_pages: pages, ..LfcMetrics::default() };
        let scaling = ScalingConfig { enable_lfc_metrics: true, ..ScalingConfig::default() };
        let got = super::goal::goal(&scaling, UNIT, Some(&system), Some(&lfc));
        prop_assert!(got.units == 0 || got.winner.is_some());
    }
}
