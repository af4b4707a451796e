//! Conformance vectors of goal and desired size: docs/compatibility/agent.md §7.1, §7.2, §7.4.

use protocol::core::Core as _;
use protocol::time::Timestamp;
use protocol::units::{Bytes, MilliCpu, Resources};

use super::config::{CoreConfig, ScalingConfig, Timers};
use super::event::Event;
use super::goal::{Goal, goal};
use super::machine::Core;
use super::metrics::{LfcMetrics, SystemMetrics};
use super::vm::{CpuInfo, MemInfo, VmConfig, VmInfo};
use super::warnings::{Warning, Warnings};

const UNIT: Resources = Resources::new(250, 1 << 30);
const GIB: f64 = (1_u64 << 30) as f64;

fn close(got: Option<f64>, want: Option<f64>, tolerance: f64) -> bool {
    match (got, want) {
        (Some(got), Some(want)) => (got - want).abs() <= tolerance * want.abs().max(1.0),
        (got, want) => got == want,
    }
}

fn system(load1: f64, load5: f64, usage: f64, cached: f64) -> SystemMetrics {
    SystemMetrics {
        load1,
        load5,
        memory_usage_bytes: usage,
        memory_cached_bytes: cached,
        ..SystemMetrics::default()
    }
}

fn series(pages: Vec<f64>) -> LfcMetrics {
    LfcMetrics {
        working_set_pages: pages,
        ..LfcMetrics::default()
    }
}

#[test]
fn cpu_votes_match_the_vectors() {
    let base = ScalingConfig {
        load_average_fraction_target: 1.0,
        memory_usage_fraction_target: 0.5,
        enable_lfc_metrics: true,
        ..ScalingConfig::default()
    };
    let zones = |stable, mixed| ScalingConfig {
        cpu_stable_zone_ratio: stable,
        cpu_mixed_zone_ratio: mixed,
        ..base
    };
    let cases = [
        (base, None, None),
        (base, Some((0.2, 0.0)), Some(0.8)),
        (base, Some((1.0, 0.0)), Some(4.0)),
        (zones(0.5, 0.0), Some((0.7, 0.0)), Some(2.8)),
        (zones(0.5, 0.0), Some((1.0, 0.7)), Some(2.8)),
        (
            zones(0.5, 0.5),
            Some((1.75, 1.0)),
            Some(5.499_997_000_005_999),
        ),
    ];
    for (scaling, loads, want) in cases {
        let metrics = loads.map(|(load1, load5)| system(load1, load5, 0.0, 0.0));
        let got = goal(&scaling, UNIT, metrics.as_ref(), None);
        assert!(close(got.votes.cpu, want, 1e-6), "{loads:?}: {got:?}");
        assert_eq!(got.votes.working_set, None);
    }
}

/// Votes and goal of one row of §7.2.
struct Row {
    name: &'static str,
    scaling: ScalingConfig,
    system: SystemMetrics,
    lfc: Option<Vec<f64>>,
    cpu: f64,
    memory: f64,
    working_set: Option<f64>,
    units: u32,
}

fn row(name: &'static str, metrics: SystemMetrics, cpu: f64, memory: f64, units: u32) -> Row {
    let scaling = ScalingConfig::default();
    Row {
        name,
        scaling,
        system: metrics,
        lfc: None,
        cpu,
        memory,
        working_set: None,
        units,
    }
}

impl Row {
    fn lfc(mut self, pages: Vec<f64>, working_set: f64) -> Self {
        self.scaling.enable_lfc_metrics = true;
        self.lfc = Some(pages);
        self.working_set = Some(working_set);
        self
    }

    fn with(mut self, change: impl FnOnce(&mut ScalingConfig)) -> Self {
        change(&mut self.scaling);
        self
    }

    fn goal(&self) -> Goal {
        let lfc = self.lfc.clone().map(series);
        goal(&self.scaling, UNIT, Some(&self.system), lfc.as_ref())
    }
}

fn measured_rows() -> Vec<Row> {
    let load = |load1, load5| system(load1, load5, 0.0, 0.0);
    let memory = |usage, cached| system(0.0, 0.0, usage, cached);
    let flat = |n: usize| vec![262_144.0; n];
    let two_steps: Vec<f64> = std::iter::repeat_n(50_000.0, 20)
        .chain(std::iter::repeat_n(400_000.0, 40))
        .collect();
    let line: Vec<f64> = (1..=60).map(|n| 10_000.0 * f64::from(n)).collect();
    let ws = 2.666_666_67;
    let zone = |name, load1, cpu, units| {
        row(name, load(load1, 1.0), cpu, 0.0, units).with(|s| {
            (s.cpu_stable_zone_ratio, s.cpu_mixed_zone_ratio) = (0.25, 0.15);
        })
    };
    vec![
        row("load .33", load(0.33, 0.33), 1.466_666_67, 0.0, 1),
        row("load .3375", load(0.3375, 0.3375), 1.5, 0.0, 2),
        row("load .34", load(0.34, 0.34), 1.511_111_11, 0.0, 2),
        row("load 1", load(1.0, 1.0), 4.444_444_44, 0.0, 4),
        row("load .5 of 1", load(0.5, 1.0), 2.222_222_22, 0.0, 2),
        row("usage .75 GiB", memory(0.75 * GIB, 0.0), 0.0, 1.0, 1),
        row(
            "usage .75 GiB and a byte",
            memory(0.75 * GIB + 1.0, 0.0),
            0.0,
            1.0,
            2,
        ),
        row("usage 3 GiB", memory(3.0 * GIB, 0.0), 0.0, 4.0, 4),
        row(
            "usage 3.1 GiB",
            memory(3.1 * GIB, 9.0 * GIB),
            0.0,
            4.133_333_33,
            5,
        ),
        row(
            "set, cached 4",
            memory(GIB, 4.0 * GIB),
            0.0,
            3.333_333_33,
            4,
        )
        .lfc(flat(60), ws),
        row("set, cached 1", memory(GIB, GIB), 0.0, 2.222_222_22, 3).lfc(flat(60), ws),
        row(
            "set, usage 2",
            memory(2.0 * GIB, 4.0 * GIB),
            0.0,
            4.444_444_44,
            5,
        )
        .lfc(flat(60), ws),
        row("line", memory(0.0, 0.0), 0.0, 0.0, 7).lfc(line, 6.154_378_26),
        row("steps", memory(0.0, 0.0), 0.0, 0.0, 1).lfc(two_steps.clone(), 0.508_626_302),
        row("steps, largest", memory(0.0, 0.0), 0.0, 0.0, 6)
            .lfc(two_steps, 5.849_202_47)
            .with(|s| s.lfc_use_largest_window = true),
        row("short series", memory(0.0, 0.0), 0.0, 0.0, 0).lfc(flat(8), 0.0),
        row("just long enough", memory(0.0, 0.0), 0.0, 0.0, 3).lfc(flat(9), ws),
        row("LFC missing", load(1.0, 1.0), 4.444_444_44, 0.0, 4)
            .with(|s| s.enable_lfc_metrics = true),
        row("LFC off, still stored", memory(0.0, 0.0), 0.0, 0.0, 3)
            .lfc(flat(60), ws)
            .with(|s| s.enable_lfc_metrics = false),
        zone("zones 1.2", 1.2, 4.444_444_44, 4),
        zone("zones 1.25", 1.25, 4.444_444_44, 4),
        zone("zones 1.325", 1.325, 5.166_661_85, 5),
        zone("zones 1.4", 1.4, 6.222_210_37, 6),
        zone("zones 1.5", 1.5, 6.666_666_67, 7),
        zone("zones .7", 0.7, 4.000_002_96, 4),
        zone("zones .5", 0.5, 2.222_222_22, 2),
    ]
}

#[test]
fn goals_match_the_measured_vectors() {
    for row in measured_rows() {
        let got = row.goal();
        assert!(
            close(got.votes.cpu, Some(row.cpu), 1e-8),
            "{}: {got:?}",
            row.name
        );
        assert!(
            close(got.votes.memory, Some(row.memory), 1e-8),
            "{}: {got:?}",
            row.name
        );
        assert!(
            close(got.votes.working_set, row.working_set, 1e-8),
            "{}: {got:?}",
            row.name
        );
        assert_eq!(got.units, row.units, "{}: {got:?}", row.name);
        assert_eq!(
            got.is_series_short,
            row.name == "short series",
            "{}",
            row.name
        );
    }
}

/// Requirement: N04, N10
#[test]
fn goal_uses_the_configured_compute_unit() {
    let metrics = system(1.0, 1.0, 3.0 * GIB, 0.0);
    let scaling = ScalingConfig::default();
    let small = goal(&scaling, UNIT, Some(&metrics), None).units;
    let large = goal(
        &scaling,
        Resources::new(1000, 4 << 30),
        Some(&metrics),
        None,
    )
    .units;
    assert_eq!((small, large), (4, 1));
}

/// One row of §7.4: milli-CPU and GiB.
struct DesiredRow {
    name: &'static str,
    system: Option<f64>,
    lfc: Option<bool>,
    using: (u32, u32),
    denied: Option<(u32, u32)>,
    want: (u32, u32),
    warnings: &'static [Warning],
}

fn size((milli, gib): (u32, u32)) -> Resources {
    Resources {
        cpu: MilliCpu(milli),
        mem: Bytes::gib(u64::from(gib)),
    }
}

fn sample_series() -> LfcMetrics {
    series(
        [
            0, 15, 30, 40, 50, 150, 175, 180, 185, 190, 250, 300, 350, 375, 400, 415, 425, 430,
            435, 435,
        ]
        .map(|thousand| f64::from(thousand) * 1000.0)
        .to_vec(),
    )
}

impl DesiredRow {
    fn core(&self) -> Core {
        let scaling = ScalingConfig {
            load_average_fraction_target: 0.5,
            memory_usage_fraction_target: 0.5,
            enable_lfc_metrics: self.lfc.is_some(),
            ..ScalingConfig::default()
        };
        let second = protocol::time::Span::from_secs(1);
        let timers = Timers {
            permit_request_tick: second,
            permit_retry_wait: second,
            permit_denied_retry_wait: second,
            vm_patch_retry_wait: second,
            monitor_retry_wait: second,
            monitor_denied_downscale_cooldown: second,
            monitor_requested_upscale_valid_period: second,
            ..Timers::default()
        };
        let config = CoreConfig {
            compute_unit: UNIT,
            default_scaling: scaling,
            timers,
            system_max_age: None,
            lfc_max_age: None,
        };
        let vm = VmInfo {
            name: "vm".into(),
            namespace: "default".into(),
            cpu: CpuInfo {
                min: MilliCpu(250),
                max: MilliCpu(1000),
                r#use: MilliCpu(self.using.0),
            },
            mem: MemInfo {
                min: 1,
                max: 4,
                r#use: self.using.1,
                slot_size: Bytes::gib(1),
            },
            config: VmConfig {
                auto_migration_enabled: false,
                always_migrate: false,
                scaling_enabled: true,
                overrides: None,
                own_mode: None,
                scaling,
            },
            current_revision: None,
            actual: None,
            target_revision: None,
            last_revision: 0,
            version: None,
        };
        let mut core = Core::new(config, vm);
        core.scheduler.permit = Some(size(self.using));
        core
    }
}

#[test]
fn desired_sizes_match_the_vectors() {
    use Warning::{DeniedAtMaximum, MissingMetrics};
    let row = |name, system, lfc, using, denied, want, warnings| DesiredRow {
        name,
        system,
        lfc,
        using,
        denied,
        want,
        warnings,
    };
    let rows = [
        row("basic up", Some(0.3), None, (250, 1), None, (500, 2), &[]),
        row(
            "mismatched, no down",
            Some(0.0),
            None,
            (250, 2),
            Some((250, 1)),
            (500, 2),
            &[],
        ),
        row(
            "mismatched at max",
            Some(0.0),
            None,
            (1000, 5),
            Some((1000, 4)),
            (1000, 5),
            &[DeniedAtMaximum],
        ),
        row(
            "LFC up",
            Some(0.0),
            Some(true),
            (250, 1),
            None,
            (750, 3),
            &[],
        ),
        row(
            "up without LFC",
            Some(0.3),
            Some(false),
            (250, 1),
            None,
            (500, 2),
            &[MissingMetrics],
        ),
        row(
            "to bounds without LFC",
            Some(0.3),
            Some(false),
            (750, 5),
            None,
            (750, 4),
            &[MissingMetrics],
        ),
        row(
            "up without system",
            None,
            Some(true),
            (250, 1),
            None,
            (750, 3),
            &[MissingMetrics],
        ),
    ];
    let now = Timestamp(1_000_000);
    for row in rows {
        let mut core = row.core();
        if let Some(load1) = row.system {
            core.handle(now, Event::SystemMetrics(system(load1, 0.0, 0.0, 0.0)));
        }
        if row.lfc == Some(true) {
            core.handle(now, Event::LfcMetrics(sample_series()));
        }
        if let Some(denied) = row.denied {
            core.handle(now, Event::MonitorActive);
            let revision = protocol::revision::Revision::default();
            let id = super::RequestId(7);
            core.monitor.start(
                now,
                id,
                super::monitor::Kind::Downscale,
                size(denied),
                revision,
            );
            core.handle(
                now,
                Event::MonitorDownscaleDone(id, Ok(super::DownscaleResponse::DENIED)),
            );
        }
        let got = core.desired(now);
        assert_eq!(got.size, size(row.want), "{}", row.name);
        assert_eq!(
            got.warnings,
            row.warnings.iter().copied().collect::<Warnings>(),
            "{}",
            row.name
        );
        assert!(!got.is_out_of_bounds, "{}", row.name);
    }
}

#[test]
fn sample_series_is_cut_and_projected() {
    let scaling = ScalingConfig {
        enable_lfc_metrics: true,
        ..ScalingConfig::default()
    };
    let got = goal(&scaling, UNIT, None, Some(&sample_series()));
    let set = got.working_set.expect("long enough");
    assert!(
        close(Some(set.estimate_pages), Some(190_000.0), 1e-12),
        "{set:?}"
    );
    assert!(
        close(Some(set.predicted_pages), Some(200_000.0), 1e-12),
        "{set:?}"
    );
    assert!(close(got.votes.working_set, Some(2.0345), 1e-4), "{got:?}");
}
