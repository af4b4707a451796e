//! Stabilization: disabled it changes nothing, enabled it delays no urgent growth.

use proptest::prelude::*;
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, Resources};

use super::actions::Action;
use super::config::{ScalingConfig, ShrinkStep};
use super::decision::Bound;
use super::desired::{Denied, Desired, Inputs, desired};
use super::metrics::SystemMetrics;
use super::stabilization::Stabilization;
use super::world::{PEERS, Step, UNIT, World, scaling};

const GIB: f64 = 1_073_741_824.0;

fn units(n: u32) -> Resources {
    UNIT.saturating_mul(n)
}

fn secs(n: u64) -> Timestamp {
    Timestamp(0) + Span::from_secs(n)
}

/// Metrics that vote for `cpu` units by load and `memory` units by usage.
fn page(cpu: f64, memory: f64) -> SystemMetrics {
    let defaults = ScalingConfig::default();
    SystemMetrics {
        load1: cpu * 0.25 * defaults.load_average_fraction_target,
        load5: 0.0,
        memory_usage_bytes: memory * GIB * defaults.memory_usage_fraction_target,
        ..SystemMetrics::default()
    }
}

struct Case {
    scaling: ScalingConfig,
    using: u32,
    page: SystemMetrics,
    stabilization: Stabilization,
    requested: Option<u32>,
    denied: Option<Denied>,
    now: u64,
}

fn decide(case: &Case) -> Desired {
    decide_in_use(case, units(case.using))
}

fn decide_in_use(case: &Case, using: Resources) -> Desired {
    desired(&Inputs {
        unit: UNIT,
        min: units(1),
        max: units(16),
        using,
        scaling: &case.scaling,
        system: Some(&case.page),
        lfc: None,
        is_stale: false,
        requested_units: case.requested,
        denied: case.denied,
        advised: None,
        stabilization: case.stabilization,
        now: secs(case.now),
    })
}

fn case(scaling: ScalingConfig, using: u32, cpu: f64, memory: f64) -> Case {
    Case {
        scaling,
        using,
        page: page(cpu, memory),
        stabilization: Stabilization::default(),
        requested: None,
        denied: None,
        now: 1_000,
    }
}

fn bounds(desired: &Desired) -> Vec<Bound> {
    desired.bounded_by.iter().collect()
}

#[test]
fn margin_is_a_dead_band_below_the_size_only() {
    let scaling = ScalingConfig {
        downscale_margin_units: 0.5,
        ..ScalingConfig::default()
    };
    for (using, memory, wanted) in [
        (3, 2.1, 3),
        (3, 1.9, 3),
        (3, 1.6, 3),
        (3, 1.5, 2),
        (3, 1.0, 2),
        (3, 0.4, 1),
        // The margin does not raise a growth.
        (2, 1.9, 2),
        (1, 1.2, 2),
    ] {
        let got = decide(&case(scaling, using, 0.0, memory));
        assert_eq!(got.size, units(wanted), "{using} units, {memory} asked");
        let goal = UNIT.saturating_mul(got.goal.units);
        assert_eq!(
            bounds(&got),
            vec![Bound::DownscaleMargin; usize::from(goal != got.size)]
        );
        assert_eq!(got.stabilized_until, None, "it does not end by time");
    }
}

#[test]
fn margin_keeps_a_size_off_the_unit_grid() {
    let scaling = ScalingConfig {
        downscale_margin_units: 0.5,
        ..ScalingConfig::default()
    };
    let case = case(scaling, 3, 0.0, 2.9);
    let using = Resources {
        cpu: UNIT.cpu,
        mem: Bytes(units(3).mem.0 + 1),
    };
    let got = decide_in_use(&case, using);
    let kept = Resources {
        cpu: units(3).cpu,
        ..using
    };
    assert_eq!(got.size, kept);
    assert_eq!(bounds(&got), [Bound::DownscaleMargin]);
}

#[test]
fn hold_counts_from_the_fall_of_the_goal_and_restarts_after_a_rise() {
    let scaling = ScalingConfig {
        downscale_hold_seconds: 60,
        ..ScalingConfig::default()
    };
    let mut held = case(scaling, 4, 0.0, 1.0);
    let first = decide(&held);
    assert_eq!((first.size, first.is_below), (units(4), true));
    assert_eq!(first.stabilized_until, Some(secs(1_060)));
    assert_eq!(bounds(&first), [Bound::DownscaleHold]);
    held.stabilization.set_below(secs(1_000), true);
    (held.now, held.page) = (1_059, page(0.0, 2.0));
    assert_eq!(decide(&held).size, units(4));
    held.now = 1_060;
    let over = decide(&held);
    assert_eq!((over.size, over.stabilized_until), (units(2), None));
    held.page = page(0.0, 4.0);
    assert!(!decide(&held).is_below, "a rise restarts the hold");
}

#[test]
fn cooldown_counts_from_a_resize_in_the_other_direction() {
    let scaling = ScalingConfig {
        downscale_cooldown_seconds: 100,
        upscale_cooldown_seconds: 30,
        ..ScalingConfig::default()
    };
    let mut case = case(scaling, 4, 0.0, 1.0);
    case.stabilization.resized(secs(950), units(5), units(4));
    assert_eq!(decide(&case).size, units(1), "a shrink goes on");
    case.stabilization.resized(secs(960), units(3), units(4));
    let held = decide(&case);
    assert_eq!(bounds(&held), [Bound::DownscaleCooldown]);
    assert_eq!(
        (held.size, held.stabilized_until),
        (units(4), Some(secs(1_060)))
    );
    case.page = page(9.0, 1.0);
    assert_eq!(decide(&case).size, units(9), "a growth goes on");
    case.stabilization.resized(secs(990), units(5), units(4));
    let held = decide(&case);
    assert_eq!(bounds(&held), [Bound::UpscaleCooldown]);
    assert_eq!(
        (held.size, held.stabilized_until),
        (units(4), Some(secs(1_020)))
    );
    case.now = 1_020;
    assert_eq!(decide(&case).size, units(9));
}

/// Requirement: N37
#[test]
fn growth_for_memory_and_monitor_is_never_delayed() {
    let scaling = ScalingConfig {
        upscale_cooldown_seconds: 600,
        ..ScalingConfig::default()
    };
    let mut case = case(scaling, 2, 9.0, 5.0);
    case.stabilization.resized(secs(999), units(5), units(2));
    let memory = decide(&case);
    assert_eq!(memory.size, units(5), "memory now, the load's part later");
    assert_eq!(bounds(&memory), [Bound::UpscaleCooldown]);
    (case.page, case.requested) = (page(9.0, 1.0), Some(7));
    assert_eq!(decide(&case).size, units(7));
}

#[test]
fn hold_yields_to_bounds_and_restarts_after_missing_metrics() {
    let scaling = ScalingConfig {
        downscale_hold_seconds: 60,
        ..ScalingConfig::default()
    };
    let held = case(scaling, 20, 0.0, 1.0);
    assert_eq!(decide(&held).size, units(16), "its largest size wins");
    let blind = desired(&Inputs {
        unit: UNIT,
        min: units(1),
        max: units(16),
        using: units(4),
        scaling: &scaling,
        system: None,
        lfc: None,
        is_stale: true,
        requested_units: None,
        denied: None,
        advised: None,
        stabilization: Stabilization {
            below_since: Some(secs(900)),
            ..Stabilization::default()
        },
        now: secs(1_000),
    });
    assert_eq!((blind.size, blind.is_below), (units(4), false));
}

/// The desired size in the steps of docs/compatibility/agent.md §2.4, for sizes on the unit grid.
fn as_specified(case: &Case, goal: u32) -> Resources {
    let requested = case.requested.filter(|units| *units > goal).unwrap_or(0);
    let above = |size: Resources| 1 + size.exact_multiple_of(UNIT).expect("whole units");
    let kept = case.denied.map_or(0, |denied| above(denied.requested));
    let wanted = goal.max(requested).max(kept).clamp(1, 16);
    let floor = case.denied.map_or(Resources::default(), |denied| {
        denied.current.field_min(units(above(denied.requested)))
    });
    units(wanted).field_max(floor)
}

fn any_stabilization() -> impl Strategy<Value = Stabilization> {
    let time = || prop::option::of((0_u64..1_000).prop_map(secs));
    (time(), time(), time()).prop_map(|(grown_at, shrunk_at, below_since)| Stabilization {
        grown_at,
        shrunk_at,
        below_since,
    })
}

fn any_denied() -> impl Strategy<Value = Option<Denied>> {
    prop::option::of((1_u32..15, 1_u32..4).prop_map(|(requested, more)| Denied {
        current: units(requested + more),
        requested: units(requested),
        smallest: None,
    }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn disabled_stabilization_decides_as_specified(
        using in 1_u32..16,
        (cpu, memory) in (0.0_f64..20.0, 0.0_f64..20.0),
        stabilization in any_stabilization(),
        requested in prop::option::of(1_u32..16),
        denied in any_denied(),
    ) {
        let off = ScalingConfig { shrink_step: ShrinkStep::Unit, ..ScalingConfig::default() };
        let case = Case { stabilization, requested, denied, ..case(off, using, cpu, memory) };
        let got = decide(&case);
        prop_assert_eq!(got.size, as_specified(&case, got.goal.units));
        prop_assert_eq!((got.stabilized_until, got.is_below), (None, false));
        prop_assert!(got.bounded_by.iter().all(|bound| matches!(bound, Bound::Min | Bound::Max)));
    }

    #[test]
    fn enabled_stabilization_only_holds_the_size(
        scaling in scaling(),
        using in 1_u32..16,
        (cpu, memory) in (0.0_f64..20.0, 0.0_f64..20.0),
        stabilization in any_stabilization(),
        requested in prop::option::of(1_u32..16),
        denied in any_denied(),
    ) {
        let case = Case { stabilization, requested, denied, now: 1_005, ..case(scaling, using, cpu, memory) };
        let got = decide(&case);
        let off = ScalingConfig { shrink_step: scaling.shrink_step, ..ScalingConfig::default() };
        let plain = decide(&Case { scaling: off, ..case });
        // The size is between the size in use and the one without stabilization.
        let (low, high) = (plain.size.field_min(units(using)), plain.size.field_max(units(using)));
        prop_assert!(!got.size.has_field_below(low) && !got.size.has_field_above(high));
        // Growth for the monitor and for memory is never delayed.
        let urgent = units(case.requested.unwrap_or(0)).field_max(units(got.goal.units_without_cpu()));
        prop_assert!(!urgent.field_min(units(16)).has_field_above(got.size));
        prop_assert_eq!(got.stabilized_until.is_some(), bounds(&got).iter().any(|bound| matches!(
            bound, Bound::DownscaleHold | Bound::DownscaleCooldown | Bound::UpscaleCooldown
        )));
    }
}

/// Number of patches in ten minutes under a square wave of load with this half period, seconds.
/// Every peer grants at once.
fn resizes(scaling: ScalingConfig, half_period: u64) -> u32 {
    let mut world = World::with(1, scaling);
    world.connect_monitor();
    let mut patches = 0;
    for second in 0..600_u64 {
        let load = if (second / half_period).is_multiple_of(2) {
            90
        } else {
            10
        };
        world.step(&Step::load(load)).expect("runs");
        for _ in 0..6 {
            for peer in PEERS {
                patches += u32::from(matches!(world.flights[peer], Some((_, Action::VmPatch(_)))));
                world.step(&Step::done(peer)).expect("runs");
            }
        }
        world.step(&Step::wait_ms(1_000)).expect("runs");
        while world.core.poll_observation().is_some() {}
    }
    patches
}

#[test]
fn square_wave_load_resizes_once() {
    let plain = ScalingConfig::default();
    assert_eq!(resizes(plain, 20), 30, "one resize per turn");
    let held = ScalingConfig {
        downscale_hold_seconds: 30,
        ..plain
    };
    assert_eq!(resizes(held, 20), 1, "it grows once and stays");
    assert_eq!(resizes(held, 60), 10, "a slow wave is followed, late");
    let cooled = ScalingConfig {
        downscale_cooldown_seconds: 90,
        ..plain
    };
    let resizes_cooled = resizes(cooled, 20);
    assert!(resizes_cooled <= 2 * (600 / 90 + 1), "{resizes_cooled}");
    assert!(resizes_cooled > 1, "a cooldown runs out");
}
