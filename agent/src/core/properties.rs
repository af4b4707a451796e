//! Random event sequences against the model of the peers in `world`, and hostile numbers.

use proptest::prelude::*;
use protocol::time::Timestamp;
use protocol::units::Resources;

use super::config::ScalingConfig;
use super::decision::Bound;
use super::desired::{Denied, Inputs, desired};
use super::metrics::{LfcMetrics, Signals, SystemMetrics};
use super::stabilization::Stabilization;
use super::world::{UNIT, World, scaling, settle, step};

/// A gauge: usually below `most`, sometimes any number, as a broken guest may send.
fn gauge(most: f64) -> impl Strategy<Value = f64> {
    prop_oneof![
        6 => 0.0..most,
        1 => prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, -1.0]),
        1 => prop::num::f64::ANY,
    ]
}

fn system() -> impl Strategy<Value = SystemMetrics> {
    let signal = |most| prop::option::of(gauge(most));
    let signals = (signal(1e12), signal(100.0));
    let page = (gauge(100.0), gauge(100.0), gauge(1e12), gauge(1e12));
    (page, signals).prop_map(|((load1, load5, usage, cached), (estimate, pressure))| {
        SystemMetrics {
            load1,
            load5,
            memory_usage_bytes: usage,
            memory_cached_bytes: cached,
            signals: Signals {
                estimate_bytes: estimate,
                pressure_percent: pressure,
            },
        }
    })
}

/// A size within these units; one in three fields is off the unit grid.
fn size_of(unit: Resources, units: std::ops::Range<u32>) -> impl Strategy<Value = Resources> {
    let part = prop_oneof![2 => Just(0_u32), 1 => 1_u32..100];
    (units.clone(), units, part.clone(), part).prop_map(move |(cpu, mem, odd_cpu, odd_mem)| {
        let whole = unit.saturating_mul(cpu).cpu.0 + unit.cpu.0 * odd_cpu / 100;
        let mem = unit.saturating_mul(mem).mem.0 + unit.mem.0 / 100 * u64::from(odd_mem);
        Resources::new(whole, mem)
    })
}

/// What a desired size is made of, with numbers of every kind.
#[derive(Debug, Clone)]
struct Case {
    unit: Resources,
    min: Resources,
    max: Resources,
    using: Resources,
    scaling: ScalingConfig,
    system: Option<SystemMetrics>,
    lfc: Option<LfcMetrics>,
    is_stale: bool,
    requested_units: Option<u32>,
    denied: Option<Denied>,
}

impl Case {
    fn any() -> impl Strategy<Value = Self> {
        let unit = (1_u32..3000, 1_u64..9000).prop_map(|(cpu, mib)| Resources::new(cpu, mib << 20));
        unit.prop_flat_map(Self::of_unit)
    }

    fn of_unit(unit: Resources) -> impl Strategy<Value = Self> {
        let denied = (
            (size_of(unit, 1..240), size_of(unit, 0..240)),
            prop::option::of(size_of(unit, 0..240)),
        )
            .prop_map(|((current, requested), smallest)| Denied {
                current,
                requested: requested.field_min(current),
                smallest,
            });
        let pages = prop::collection::vec(gauge(1e9), 0..70);
        let requested = prop_oneof![9 => 0_u32..300, 1 => any::<u32>()];
        (
            (1_u32..40, 0_u32..200),
            size_of(unit, 1..240),
            (
                scaling(),
                any::<bool>(),
                prop_oneof![Just(0.0), 0.1_f64..50.0],
            ),
            (prop::option::weighted(0.8, system()), any::<bool>()),
            prop::option::of(pages),
            prop::option::of(requested),
            prop::option::of(denied),
        )
            .prop_map(
                move |((min, more), using, settings, page, pages, requested, denied)| {
                    let (scaling, enable_monitor_estimate, memory_pressure_hold_percent) = settings;
                    let (system, is_stale) = page;
                    Self {
                        unit,
                        min: unit.saturating_mul(min),
                        max: unit.saturating_mul(min + more),
                        using,
                        scaling: ScalingConfig {
                            enable_lfc_metrics: pages.is_some(),
                            enable_monitor_estimate,
                            memory_pressure_hold_percent,
                            ..scaling
                        },
                        system,
                        lfc: pages.map(|working_set_pages| LfcMetrics {
                            working_set_pages,
                            ..LfcMetrics::default()
                        }),
                        is_stale,
                        requested_units: requested,
                        denied,
                    }
                },
            )
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            unit: self.unit,
            min: self.min,
            max: self.max,
            using: self.using,
            scaling: &self.scaling,
            system: self.system.as_ref(),
            lfc: self.lfc.as_ref(),
            is_stale: self.is_stale,
            requested_units: self.requested_units,
            denied: self.denied,
            advised: None,
            stabilization: Stabilization::default(),
            now: Timestamp(0),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Requirement: N05, N11, N13, N14, N16
    #[test]
    fn order_holds_under_any_loss(
        using in 1_u32..8,
        scaling in scaling(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        World::after(using, scaling, &steps)?;
    }

    /// With healthy peers the VM reaches its target and stays there, whatever happened before.
    ///
    /// Requirement: N26
    #[test]
    fn size_converges_and_stays(
        using in 1_u32..8,
        scaling in scaling(),
        steps in prop::collection::vec(step(), 1..60),
        load in 0_u32..300,
        mib in 0_u32..9000,
    ) {
        let mut world = World::after(using, scaling, &steps)?;
        settle(&mut world, load, mib)?;
        let decision = world.core.last_evaluation().expect("it has decided").decision;
        prop_assert_eq!(world.u, decision.target, "did not get there: {:?}", decision);
        prop_assert_eq!(world.a, world.u, "the monitor was not notified");
        prop_assert_eq!(world.p, Some(world.u), "the scheduler got no report");
        let revision = decision.revision;
        settle(&mut world, load, mib)?;
        let later = world.core.last_evaluation().expect("it has decided").decision;
        prop_assert_eq!(later.revision, revision, "it flaps");
    }

    /// On a full node the VM reaches the size that the node has headroom for, and stays there.
    ///
    /// Requirement: N26
    #[test]
    fn size_settles_when_permits_are_partial_or_denied(
        using in 1_u32..8,
        scaling in scaling(),
        steps in prop::collection::vec(step(), 1..60),
        load in 0_u32..300,
        mib in 0_u32..9000,
        room_milli in 0_u32..2500,
        room_mib in 0_u64..10_000,
    ) {
        let mut world = World::after(using, scaling, &steps)?;
        world.room = Resources::new(room_milli, room_mib << 20);
        settle(&mut world, load, mib)?;
        let target = world.core.last_evaluation().expect("it has decided").decision.target;
        let mut due = target.field_min(world.room);
        due.mem.0 -= due.mem.0 % UNIT.mem.0;
        prop_assert!(
            !world.u.has_field_above(target) && !world.u.has_field_below(due),
            "has {:?} of {target:?}, room {:?}", world.u, world.room
        );
        prop_assert_eq!(world.a, world.u, "the monitor was not notified");
        // Part of a unit of memory cannot be used.
        let mut permitted = world.p.expect("a permit");
        permitted.mem.0 -= permitted.mem.0 % UNIT.mem.0;
        prop_assert_eq!(permitted, world.u, "a permit is not used, or was not given back");
        let (settled, patched) = (world.u, world.patched);
        settle(&mut world, load, mib)?;
        prop_assert_eq!((world.u, world.patched), (settled, patched), "it flaps");
    }

    /// A size off the unit grid is the one in use during a hold, or the one that a refusal keeps.
    /// Only a refusal exceeds the maximum.
    ///
    /// Requirement: N03
    #[test]
    fn desired_size_is_whole_units_within_bounds(case in Case::any()) {
        let got = desired(&case.inputs());
        // The margin has no end.
        let by_margin = got.bounded_by.contains(Bound::DownscaleMargin);
        let is_stabilized = got.stabilized_until.is_some() || by_margin;
        let is_pressed = got.goal.votes.memory_pressure.is_some();
        let may_hold = !got.has_all_metrics || is_pressed || is_stabilized;
        let kept = case.denied.map(|denied| denied.current);
        for field in [|size: Resources| u64::from(size.cpu.0), |size: Resources| size.mem.0] {
            let size = field(got.size);
            let is_whole = size.is_multiple_of(field(case.unit));
            let is_held = may_hold && size == field(case.using);
            let is_kept = kept.is_some_and(|kept| size == field(kept));
            prop_assert!(is_whole || is_held || is_kept, "{:?}", got);
            let most = kept.map_or(0, field).max(field(case.max));
            prop_assert!(size >= field(case.min) && size <= most, "{:?}", got);
        }
        if case.denied.is_none() && case.using.exact_multiple_of(case.unit).is_some() {
            prop_assert!(got.size.exact_multiple_of(case.unit).is_some(), "{:?}", got);
        }
        prop_assert!(!got.is_out_of_bounds, "{:?}", got);
    }

    #[test]
    fn hostile_numbers_give_a_goal_without_panic(
        system in system(),
        pages in prop::collection::vec(gauge(1e18), 0..40),
    ) {
        let lfc = LfcMetrics { working_set_pages: pages, ..LfcMetrics::default() };
        let scaling = ScalingConfig { enable_lfc_metrics: true, ..ScalingConfig::default() };
        let got = super::goal::goal(&scaling, UNIT, Some(&system), Some(&lfc));
        prop_assert!(got.units == 0 || got.winner.is_some());
    }
}
