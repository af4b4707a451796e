//! Signals that a monitor pushes beside the page's gauges. Disabled ones change nothing, enabled
//! ones vote.

use proptest::prelude::*;
use protocol::time::Timestamp;
use protocol::units::Resources;

use super::config::ScalingConfig;
use super::decision::Reason;
use super::desired::{Desired, Inputs, desired};
use super::metrics::{Signals, SystemMetrics};
use super::stabilization::Stabilization;
use super::world::UNIT;

const GIB: f64 = 1_073_741_824.0;
/// Largest estimate that fits into one unit, GiB: its share of memory, less the kernel's allowance.
const FULL: f64 = 0.9 - 104_857_600.0 / GIB;

fn units(n: u32) -> Resources {
    UNIT.saturating_mul(n)
}

/// A VM with bounds of 1 to 8 units whose page alone votes for two.
struct Case {
    scaling: ScalingConfig,
    using: Resources,
    signals: Signals,
    requested: Option<u32>,
    is_stale: bool,
}

impl Case {
    fn new(scaling: ScalingConfig, using: u32, signals: Signals) -> Self {
        Self {
            scaling,
            using: units(using),
            signals,
            requested: None,
            is_stale: false,
        }
    }

    fn decide(&self) -> Desired {
        let page = SystemMetrics {
            memory_usage_bytes: 1.5 * GIB,
            signals: self.signals,
            ..SystemMetrics::default()
        };
        desired(&Inputs {
            unit: UNIT,
            min: units(1),
            max: units(8),
            using: self.using,
            scaling: &self.scaling,
            system: (!self.is_stale).then_some(&page),
            lfc: None,
            is_stale: self.is_stale,
            requested_units: self.requested,
            denied: None,
            advised: None,
            stabilization: Stabilization::default(),
            now: Timestamp(1_000_000),
        })
    }
}

fn estimate(gib: f64) -> Signals {
    Signals {
        estimate_bytes: Some(gib * GIB),
        pressure_percent: None,
    }
}

fn pressure(percent: f64) -> Signals {
    Signals {
        estimate_bytes: None,
        pressure_percent: Some(percent),
    }
}

fn with_estimate() -> ScalingConfig {
    ScalingConfig {
        enable_monitor_estimate: true,
        ..ScalingConfig::default()
    }
}

fn held_above(percent: f64) -> ScalingConfig {
    ScalingConfig {
        memory_pressure_hold_percent: percent,
        ..ScalingConfig::default()
    }
}

/// Requirement: N02
#[test]
fn monitor_estimate_votes_only_when_enabled() {
    let (on, off) = (with_estimate(), ScalingConfig::default());
    for (scaling, gib, wanted, reason) in [
        (off, 6.0, 2, Reason::Memory),
        (on, 0.0, 2, Reason::Memory),
        (on, 1.5, 2, Reason::Memory),
        (on, 1.8 + FULL, 3, Reason::MonitorEstimate),
        (on, 1.8 + FULL + 0.001, 4, Reason::MonitorEstimate),
        (on, 5.0, 6, Reason::MonitorEstimate),
        // Bounds win over the estimate.
        (on, 50.0, 8, Reason::MonitorEstimate),
    ] {
        let got = Case::new(scaling, 2, estimate(gib)).decide();
        assert_eq!((got.size, got.reason), (units(wanted), reason), "{gib} GiB");
        let vote = got.goal.votes.monitor_estimate;
        assert_eq!(vote.is_some(), scaling == on, "{gib} GiB");
        if let Some(vote) = vote {
            let needs = (gib + 104_857_600.0 / GIB) / 0.9;
            assert!((vote - needs).abs() < 1e-9, "{vote} for {gib} GiB");
        }
    }
    let none = Case::new(on, 4, Signals::default()).decide();
    assert_eq!(none.goal.votes.monitor_estimate, None, "none was pushed");
    assert_eq!((none.size, none.reason), (units(2), Reason::Memory));
}

/// Requirement: N02
#[test]
fn memory_pressure_holds_the_size_and_never_grows_it() {
    for (most, share, using, wanted, reason) in [
        // Disabled.
        (0.0, 90.0, 4, 2, Reason::Memory),
        // Pressure up to the limit does not count.
        (10.0, 0.0, 4, 2, Reason::Memory),
        (10.0, 10.0, 4, 2, Reason::Memory),
        (10.0, 10.1, 4, 4, Reason::MemoryPressure),
        (10.0, 100.0, 8, 8, Reason::MemoryPressure),
        // Pressure never grows a VM.
        (10.0, 50.0, 1, 2, Reason::Memory),
        (10.0, 50.0, 2, 2, Reason::Memory),
    ] {
        let got = Case::new(held_above(most), using, pressure(share)).decide();
        let text = format!("{share} % of {most}, {using} units");
        assert_eq!((got.size, got.reason), (units(wanted), reason), "{text}");
        let vote = (most > 0.0 && share > most).then(|| f64::from(using));
        assert_eq!(got.goal.votes.memory_pressure, vote, "{text}");
        assert_eq!(got.goal.units, 2, "{text}");
    }
}

#[test]
fn upscale_request_and_maximum_win_over_memory_pressure() {
    let held = |using| Case::new(held_above(5.0), using, pressure(20.0));
    let larger = Case {
        requested: Some(6),
        ..held(4)
    };
    let raised = larger.decide();
    assert_eq!(
        (raised.size, raised.reason),
        (units(6), Reason::RequestedUpscale)
    );
    // A request below the size does not end the hold.
    let smaller = Case {
        requested: Some(3),
        ..held(4)
    };
    assert_eq!(smaller.decide().size, units(4));
    // The maximum does.
    let above = held(10).decide();
    assert_eq!(above.size, units(8));
    // A size off the unit grid stays as it is.
    let uneven = Case {
        using: Resources::new(1000, 3 << 30),
        ..held(1)
    };
    let kept = uneven.decide();
    assert_eq!(kept.size, Resources::new(1000, 3 << 30));
    assert_eq!(kept.goal.votes.memory_pressure, Some(4.0));
    // Stale metrics hold the size for a reason of their own.
    let stale = Case {
        is_stale: true,
        ..held(4)
    };
    let got = stale.decide();
    assert_eq!((got.size, got.reason), (units(4), Reason::StaleMetrics));
    assert_eq!(got.goal.votes.memory_pressure, None);
}

proptest! {
    #[test]
    fn disabled_signals_change_nothing(
        using in 1_u32..9,
        gib in prop::option::of(0.0..20.0_f64),
        share in prop::option::of(0.0..100.0_f64),
        requested in prop::option::of(1_u32..9),
    ) {
        let signals = Signals { estimate_bytes: gib.map(|gib| gib * GIB), pressure_percent: share };
        let decide = |signals| Case { requested, ..Case::new(ScalingConfig::default(), using, signals) }.decide();
        prop_assert_eq!(decide(signals), decide(Signals::default()));
    }

    #[test]
    fn enabled_signals_never_shrink_a_vm(
        using in 1_u32..9,
        gib in prop::option::of(any::<f64>()),
        share in prop::option::of(any::<f64>()),
        most in 0.1..100.0_f64,
    ) {
        let signals = Signals { estimate_bytes: gib, pressure_percent: share };
        let on = ScalingConfig { memory_pressure_hold_percent: most, ..with_estimate() };
        let (with, without) = (
            Case::new(on, using, signals).decide(),
            Case::new(on, using, Signals::default()).decide(),
        );
        prop_assert!(!with.size.has_field_below(without.size), "{:?} and {:?}", with, without);
        prop_assert!(!with.is_out_of_bounds);
    }
}
