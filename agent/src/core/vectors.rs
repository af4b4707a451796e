//! Conformance vectors of the state machine: spec/agent.md §7.5, sequences S1 to S10, each with the complete set of actions.

use protocol::permit::{PluginResponse, RequestMetrics};
use protocol::revision::{FLAG_DOWNSCALE, FLAG_UPSCALE, Revision};
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, MilliCpu, Resources};

use super::actions::{
    Action, Actions, MonitorDownscale, MonitorUpscale, NeonVmRequest, PluginRequest, RequestId,
};
use super::config::{CoreConfig, ScalingConfig, Timers};
use super::machine::{Core, DownscaleAnswer, Event, Failure, Observation, Path, VmUpdate};
use super::metrics::SystemMetrics;
use super::revision::StampedRevision;
use super::vm::{CpuInfo, MemInfo, VmConfig, VmInfo};
use super::warnings::{Warning, Warnings};

const UNIT: Resources = Resources::new(250, 1 << 30);
const NO_REV: Revision = Revision { value: 0, flags: 0 };

fn up(value: i64) -> Revision {
    Revision {
        value,
        flags: FLAG_UPSCALE,
    }
}

fn down(value: i64) -> Revision {
    Revision {
        value,
        flags: FLAG_DOWNSCALE,
    }
}

fn units(n: u32) -> Resources {
    UNIT.saturating_mul(n)
}

/// Tenths-of-a-millisecond-exact time from the table's seconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "table values"
)]
fn micros(secs: f64) -> u64 {
    (secs * 1e6).round() as u64
}

/// A start well after the clock's origin.
fn at(secs: f64) -> Timestamp {
    Timestamp(3_600_000_000 + micros(secs))
}

fn span(secs: f64) -> Span {
    Span(micros(secs))
}

fn load(value: f32) -> Option<RequestMetrics> {
    Some(RequestMetrics { load_avg_1m: value })
}

/// Expected actions, built in table order.
#[derive(Default, Clone)]
struct Want(Actions);

fn none() -> Want {
    Want::default()
}

fn wait(secs: f64) -> Want {
    Want(Actions {
        wait: Some(span(secs)),
        ..Actions::default()
    })
}

impl Want {
    fn plugin(
        mut self,
        last: Option<u32>,
        target: u32,
        metrics: Option<RequestMetrics>,
        revision: Revision,
    ) -> Self {
        let last_permit = last.map(units);
        self.0.plugin = Some(PluginRequest {
            last_permit,
            target: units(target),
            metrics,
            revision,
        });
        self
    }

    fn neonvm(mut self, current: u32, target: u32, revision: Revision) -> Self {
        let (current, target) = (units(current), units(target));
        self.0.neonvm = Some(NeonVmRequest {
            current,
            target,
            revision,
        });
        self
    }

    fn mon_up(mut self, current: u32, target: u32, revision: Revision) -> Self {
        let (current, target) = (units(current), units(target));
        self.0.monitor_up = Some(MonitorUpscale {
            current,
            target,
            revision,
        });
        self
    }

    fn mon_down(mut self, current: u32, target: u32, revision: Revision) -> Self {
        let (current, target) = (units(current), units(target));
        self.0.monitor_down = Some(MonitorDownscale {
            current,
            target,
            revision,
        });
        self
    }
}

/// One VM under test.
struct Bench {
    core: Core,
    has_revisions: bool,
    ids: [Option<RequestId>; 3],
    seen: Vec<Observation>,
}

struct Setup {
    min: u32,
    max: u32,
    using: u32,
    has_revisions: bool,
    is_monitor_active: bool,
    timers: Timers,
}

fn setup(min: u32, max: u32, using: u32) -> Setup {
    let timers = Timers {
        plugin_request_tick: span(5.0),
        plugin_retry_wait: span(3.0),
        plugin_denied_retry_wait: span(2.0),
        neonvm_retry_wait: span(5.0),
        monitor_retry_wait: span(3.0),
        monitor_denied_downscale_cooldown: span(5.0),
        monitor_requested_upscale_valid_period: span(10.0),
        migration_hold: span(60.0),
    };
    Setup {
        min,
        max,
        using,
        has_revisions: false,
        is_monitor_active: true,
        timers,
    }
}

impl Setup {
    fn rev(mut self) -> Self {
        self.has_revisions = true;
        self
    }

    fn bench(self) -> Bench {
        let scaling = ScalingConfig {
            load_average_fraction_target: 0.5,
            memory_usage_fraction_target: 0.5,
            lfc_min_wait_before_downscale_minutes: 15,
            ..ScalingConfig::default()
        };
        let config = CoreConfig {
            compute_unit: UNIT,
            default_scaling: scaling,
            timers: self.timers,
            system_max_age: None,
            lfc_max_age: None,
        };
        let core = Core::new(config, vm_info(self.min, self.max, self.using, scaling));
        let mut bench = Bench {
            core,
            has_revisions: self.has_revisions,
            ids: [None; 3],
            seen: Vec::new(),
        };
        if self.is_monitor_active {
            bench.core.handle(at(0.0), Event::MonitorActive);
        }
        bench
    }
}

fn vm_info(min: u32, max: u32, using: u32, scaling: ScalingConfig) -> VmInfo {
    VmInfo {
        name: "vm".into(),
        namespace: "default".into(),
        cpu: CpuInfo {
            min: MilliCpu(250 * min),
            max: MilliCpu(250 * max),
            r#use: MilliCpu(250 * using),
        },
        mem: MemInfo {
            min,
            max,
            r#use: using,
            slot_size: Bytes::gib(1),
        },
        config: VmConfig {
            auto_migration_enabled: false,
            always_migrate: false,
            scaling_enabled: true,
            overrides: None,
            scaling,
        },
        current_revision: None,
    }
}

/// Peers, as indices of the ids under way.
const PLUGIN: usize = 0;
const NEONVM: usize = 1;
const MONITOR: usize = 2;

impl Bench {
    fn next(&mut self, t: f64) -> (Actions, Warnings) {
        let mut got = self.core.next_actions(at(t));
        if !self.has_revisions {
            let actions = &mut got.actions;
            actions
                .plugin
                .iter_mut()
                .for_each(|action| action.revision = NO_REV);
            actions
                .neonvm
                .iter_mut()
                .for_each(|action| action.revision = NO_REV);
            actions
                .monitor_up
                .iter_mut()
                .for_each(|action| action.revision = NO_REV);
            actions
                .monitor_down
                .iter_mut()
                .for_each(|action| action.revision = NO_REV);
        }
        (got.actions, got.warnings)
    }

    #[track_caller]
    fn expect_warned(&mut self, t: f64, want: &Want, warnings: &[Warning]) {
        let (actions, warned) = self.next(t);
        assert_eq!(actions, want.0, "actions at {t}");
        assert_eq!(
            warned,
            warnings.iter().copied().collect::<Warnings>(),
            "warnings at {t}: {:?}",
            warned.iter().collect::<Vec<_>>()
        );
        let (again, _) = self.next(t);
        assert_eq!(again, want.0, "the same again at {t}");
    }

    #[track_caller]
    fn expect(&mut self, t: f64, want: &Want) {
        self.expect_warned(t, want, &[]);
    }

    /// Starts the action planned at `t` for a peer.
    #[track_caller]
    fn start(&mut self, t: f64, peer: usize) {
        let actions = self.core.next_actions(at(t)).actions;
        let action = match peer {
            PLUGIN => actions.plugin.map(Action::Plugin),
            NEONVM => actions.neonvm.map(Action::NeonVm),
            _ => actions
                .monitor_up
                .map(Action::MonitorUpscale)
                .or(actions.monitor_down.map(Action::MonitorDownscale)),
        };
        let action = action.expect("an action is planned");
        self.ids[peer] = Some(self.core.start(at(t), &action));
    }

    #[track_caller]
    fn end(&mut self, t: f64, peer: usize, event: impl FnOnce(RequestId) -> Event) {
        let id = self.ids[peer].take().expect("a request is under way");
        self.core.handle(at(t), event(id));
        while let Some(observation) = self.core.poll_observation() {
            self.seen.push(observation);
        }
    }

    #[track_caller]
    fn permit(&mut self, t: f64, n: u32) {
        let response = PluginResponse {
            permit: units(n),
            migrate: None,
        };
        self.end(t, PLUGIN, |id| Event::PluginDone(id, Ok(response)));
    }

    #[track_caller]
    fn patched(&mut self, t: f64) {
        self.end(t, NEONVM, |id| Event::NeonVmDone(id, Ok(())));
    }

    #[track_caller]
    fn told(&mut self, t: f64) {
        self.end(t, MONITOR, |id| Event::MonitorUpscaleDone(id, Ok(())));
    }

    #[track_caller]
    fn answered(&mut self, t: f64, answer: DownscaleAnswer) {
        self.end(t, MONITOR, |id| Event::MonitorDownscaleDone(id, Ok(answer)));
    }

    fn metrics(&mut self, t: f64, load1: f64, usage: f64) {
        let metrics = SystemMetrics {
            load1,
            memory_usage_bytes: usage,
            ..Default::default()
        };
        self.core.handle(at(t), Event::SystemMetrics(metrics));
    }

    /// The object changed: bounds and `use` as given, and the revision it carries.
    fn vm_updated(
        &mut self,
        t: f64,
        (min, max, using): (u32, u32, u32),
        revision: Option<(Revision, f64)>,
    ) {
        let info = vm_info(min, max, using, self.core.config.default_scaling);
        let current_revision = revision.map(|(revision, t)| StampedRevision {
            revision,
            at: at(t),
        });
        let update = VmUpdate {
            info,
            current_revision,
            is_pre_migrating: false,
        };
        self.core.handle(at(t), Event::VmUpdated(Box::new(update)));
        while let Some(observation) = self.core.poll_observation() {
            self.seen.push(observation);
        }
    }

    /// Latencies observed since the last call on one path: seconds and flags.
    fn latencies(&mut self, wanted: Path) -> Vec<(Span, u64)> {
        let seen = std::mem::take(&mut self.seen);
        let (mut found, mut rest) = (Vec::new(), Vec::new());
        for observation in seen {
            match observation {
                Observation::Latency { path, after, flags } if path == wanted => {
                    found.push((after, flags));
                }
                other => rest.push(other),
            }
        }
        self.seen = rest;
        found
    }

    #[track_caller]
    fn init(&mut self, n: u32) {
        let first = none().plugin(None, n, None, NO_REV);
        self.expect_warned(0.0, &first, &[Warning::MissingMetrics]);
        self.start(0.0, PLUGIN);
        self.permit(0.1, n);
    }
}

#[test]
fn s01_up_and_down() {
    let mut b = setup(1, 4, 1).rev().bench();
    b.init(1);
    b.metrics(0.2, 0.3, 0.0);
    b.expect(0.2, &none().plugin(Some(1), 2, load(0.3), up(1)));
    b.start(0.2, PLUGIN);
    b.expect(0.3, &none());
    b.permit(0.3, 2);
    b.expect(0.3, &wait(4.9).neonvm(1, 2, up(1)));
    b.start(0.3, NEONVM);
    b.expect(0.4, &wait(4.8));
    b.patched(0.4);
    b.vm_updated(0.4, (1, 4, 1), Some((up(1), 0.4)));
    assert_eq!(b.latencies(Path::EndToEnd), [(span(0.2), FLAG_UPSCALE)]);
    b.expect(0.4, &wait(4.8).mon_up(1, 2, up(1)));
    b.start(0.4, MONITOR);
    b.expect(0.5, &wait(4.7));
    b.told(0.5);
    b.expect(0.5, &wait(4.7));
    b.metrics(0.6, 0.0, 0.0);
    b.expect(0.6, &wait(4.6).mon_down(2, 1, down(2)));
    b.start(0.6, MONITOR);
    b.expect(0.7, &wait(4.5));
    b.answered(0.7, DownscaleAnswer::Allowed);
    b.expect(0.7, &wait(4.5).neonvm(2, 1, down(2)));
    b.start(0.7, NEONVM);
    b.expect(0.8, &wait(4.4));
    b.patched(0.8);
    b.vm_updated(0.9, (1, 4, 1), Some((down(2), 0.9)));
    assert_eq!(b.latencies(Path::EndToEnd), [(span(0.3), FLAG_DOWNSCALE)]);
    b.expect(0.9, &none().plugin(Some(2), 1, load(0.0), down(2)));
    b.start(0.9, PLUGIN);
    b.expect(1.0, &none());
    b.permit(1.0, 1);
    b.expect(1.0, &wait(4.9));
    assert_eq!(b.core.faults().total(), 0);
}

#[test]
fn s02_heartbeat() {
    let mut b = setup(1, 4, 1).rev().bench();
    b.metrics(0.0, 0.0, 0.0);
    b.expect(0.0, &none().plugin(None, 1, load(0.0), NO_REV));
    b.start(0.0, PLUGIN);
    b.permit(0.1, 1);
    for tenth in 2..=200_u32 {
        let t = f64::from(tenth) / 10.0;
        if tenth % 50 == 0 {
            b.expect(t, &none().plugin(Some(1), 1, load(0.0), NO_REV));
            b.start(t, PLUGIN);
            b.expect(t + 0.05, &none());
            b.permit(t + 0.05, 1);
        } else {
            b.expect(t, &wait(f64::from(50 - tenth % 50) / 10.0));
        }
    }
    assert_eq!(b.latencies(Path::Plugin), []);
}

#[test]
fn s03_partial_then_full() {
    let mut b = setup(1, 4, 1).rev().bench();
    b.init(1);
    b.metrics(0.2, 1.0, 12_345_678.0);
    b.expect(0.2, &none().plugin(Some(1), 4, load(1.0), up(1)));
    b.start(0.2, PLUGIN);
    b.expect(0.2, &none());
    b.permit(0.3, 3);
    assert_eq!(b.latencies(Path::Plugin), [(span(0.1), FLAG_UPSCALE)]);
    b.expect_warned(
        0.3,
        &wait(1.9).neonvm(1, 3, up(1)),
        &[Warning::PluginDenied],
    );
    b.start(0.3, NEONVM);
    b.patched(0.4);
    b.vm_updated(0.5, (1, 4, 3), Some((up(1), 0.5)));
    assert_eq!(b.latencies(Path::EndToEnd), [(span(0.3), FLAG_UPSCALE)]);
    b.expect(
        2.5,
        &none()
            .plugin(Some(3), 4, load(1.0), up(2))
            .mon_up(1, 3, up(2)),
    );
    b.start(2.5, PLUGIN);
    b.start(2.5, MONITOR);
    b.permit(2.6, 4);
    b.told(2.6);
    assert_eq!(b.latencies(Path::Plugin), [(span(0.1), FLAG_UPSCALE)]);
    b.expect(2.6, &wait(4.9).neonvm(3, 4, up(2)));
    b.start(2.6, NEONVM);
    b.patched(2.7);
    b.vm_updated(2.8, (1, 4, 4), Some((up(2), 2.7)));
    assert_eq!(b.latencies(Path::EndToEnd), [(span(0.2), FLAG_UPSCALE)]);
    b.expect(2.8, &wait(4.7).mon_up(3, 4, up(2)));
}

#[test]
fn s04_denied_downscale() {
    let mut setup = setup(1, 8, 6);
    setup.timers.plugin_request_tick = span(7.0);
    setup.timers.monitor_denied_downscale_cooldown = span(4.0);
    let mut b = setup.bench();
    let (allowed, denied) = (DownscaleAnswer::Allowed, DownscaleAnswer::Denied);
    // Asks for the shrink planned at `t` and checks that nothing else changes while the answer is out.
    let ask = |b: &mut Bench, t: f64, mut planned: Want| {
        b.expect(t, &planned);
        b.start(t, MONITOR);
        planned.0.monitor_down = None;
        b.expect(t, &planned);
    };
    b.init(6);
    b.metrics(0.2, 0.0, 0.0);
    ask(&mut b, 0.2, wait(6.8).mon_down(6, 5, NO_REV));
    b.answered(0.3, denied);
    b.expect(0.3, &wait(4.0));
    ask(&mut b, 4.3, wait(2.7).mon_down(6, 5, NO_REV));
    b.answered(4.4, allowed);
    ask(
        &mut b,
        4.4,
        wait(2.6).mon_down(5, 4, NO_REV).neonvm(6, 5, NO_REV),
    );
    b.answered(4.5, allowed);
    ask(
        &mut b,
        4.5,
        wait(2.5).mon_down(4, 3, NO_REV).neonvm(6, 4, NO_REV),
    );
    b.answered(4.6, allowed);
    ask(
        &mut b,
        4.6,
        wait(2.4).mon_down(3, 2, NO_REV).neonvm(6, 3, NO_REV),
    );
    b.answered(4.7, denied);
    b.expect(4.7, &wait(2.3).neonvm(6, 3, NO_REV));
    b.start(4.7, NEONVM);
    b.expect(4.7, &wait(2.3));
    b.patched(4.8);
    b.expect(4.8, &wait(3.9).plugin(Some(6), 3, load(0.0), NO_REV));
    b.start(4.8, PLUGIN);
    b.expect(4.8, &wait(3.9));
    b.permit(4.9, 3);
    b.expect(4.9, &wait(3.8));
    ask(&mut b, 8.7, wait(3.1).mon_down(3, 2, NO_REV));
    b.answered(8.8, denied);
    b.expect(8.8, &wait(3.0));
    b.expect(11.8, &wait(1.0).plugin(Some(3), 3, load(0.0), NO_REV));
    b.start(11.8, PLUGIN);
    b.expect(11.8, &wait(1.0));
    b.permit(11.9, 3);
    b.expect(11.9, &wait(0.9));
    ask(&mut b, 12.8, wait(6.0).mon_down(3, 2, NO_REV));
    b.answered(12.9, allowed);
    ask(
        &mut b,
        12.9,
        wait(5.9).mon_down(2, 1, NO_REV).neonvm(3, 2, NO_REV),
    );
    b.answered(13.0, allowed);
    b.expect(13.0, &wait(5.8).neonvm(3, 1, NO_REV));
    b.start(13.0, NEONVM);
    b.expect(13.0, &wait(5.8));
    b.patched(13.1);
    b.expect(13.1, &none().plugin(Some(3), 1, load(0.0), NO_REV));
    b.start(13.1, PLUGIN);
    b.expect(13.1, &none());
    b.permit(13.2, 1);
    b.expect(13.2, &wait(6.9));
}

#[test]
fn s05_requested_upscale() {
    let mut setup = setup(1, 4, 1).rev();
    setup.timers.monitor_requested_upscale_valid_period = span(6.0);
    let mut b = setup.bench();
    b.init(1);
    b.metrics(0.2, 0.0, 0.0);
    b.expect(0.2, &wait(4.8));
    b.core.handle(at(0.2), Event::MonitorUpscaleRequested);
    b.expect(0.2, &wait(6.0).plugin(Some(1), 2, load(0.0), up(1)));
    b.start(0.2, PLUGIN);
    b.expect(0.3, &wait(5.9));
    b.permit(0.3, 2);
    b.expect(0.3, &wait(4.9).neonvm(1, 2, up(1)));
    b.start(0.3, NEONVM);
    b.patched(0.4);
    b.vm_updated(0.4, (1, 4, 1), Some((up(1), 0.4)));
    assert_eq!(b.latencies(Path::EndToEnd), [(span(0.2), FLAG_UPSCALE)]);
    b.expect(0.4, &wait(4.8).mon_up(1, 2, up(1)));
    b.start(0.4, MONITOR);
    b.told(0.5);
    b.expect(0.5, &wait(4.7));
    b.expect(5.2, &wait(1.0).plugin(Some(2), 2, load(0.0), up(1)));
    b.start(5.2, PLUGIN);
    b.expect(5.3, &wait(0.9));
    b.permit(5.3, 2);
    b.expect(5.3, &wait(0.9));
    b.expect(6.2, &wait(4.0).mon_down(2, 1, down(2)));
}

/// The forward and backward walk of S6, with its own clock.
struct Pivot {
    b: Bench,
    t: f64,
    tick_end: f64,
}

impl Pivot {
    fn left(&self) -> Want {
        wait(self.tick_end - self.t)
    }

    /// One tenth of a second; in its middle `turn` sets the load that asks to go back.
    fn tenth(&mut self, turn: bool) {
        if turn {
            self.b.metrics(self.t + 0.05, 0.3, 0.0);
        }
        self.t += 0.1;
    }

    fn forward(&mut self, step: u32, turn: bool) {
        let want = self.left();
        match step {
            0 => {
                self.b.expect(self.t, &want.mon_down(2, 1, down(1)));
                self.b.start(self.t, MONITOR);
                self.tenth(turn);
                self.b.answered(self.t, DownscaleAnswer::Allowed);
            }
            1 => {
                self.b.expect(self.t, &want.neonvm(2, 1, down(1)));
                self.b.start(self.t, NEONVM);
                self.tenth(turn);
                self.b.patched(self.t);
            }
            2 => {
                self.b
                    .vm_updated(self.t, (1, 3, 1), Some((down(1), self.t)));
                assert_eq!(
                    self.b.latencies(Path::EndToEnd),
                    [(span(0.2), FLAG_DOWNSCALE)]
                );
                if turn {
                    self.b.metrics(self.t, 0.3, 0.0);
                }
            }
            _ => {
                self.b
                    .expect(self.t, &none().plugin(Some(2), 1, load(0.0), down(1)));
                self.b.start(self.t, PLUGIN);
                self.tick_end = self.t + 5.0;
                self.tenth(turn);
                self.b.permit(self.t, 1);
            }
        }
    }

    fn undo(&mut self, step: u32) {
        let want = self.left();
        match step {
            0 => {
                self.b.expect(self.t, &want.mon_up(1, 2, up(2)));
                self.b.start(self.t, MONITOR);
                self.tenth(false);
                self.b.told(self.t);
            }
            1 => {
                self.b.expect(self.t, &want.neonvm(1, 2, up(2)));
                self.b.start(self.t, NEONVM);
                self.tenth(false);
                self.b.patched(self.t);
            }
            2 => {}
            _ => {
                self.b
                    .expect(self.t, &none().plugin(Some(1), 2, load(0.3), up(2)));
                self.b.start(self.t, PLUGIN);
                self.tick_end = self.t + 5.0;
                self.tenth(false);
                self.b.permit(self.t, 2);
            }
        }
    }
}

#[test]
fn s06_pivot_back() {
    for last in 0..=3 {
        let mut b = setup(1, 3, 2).rev().bench();
        b.init(2);
        b.metrics(0.2, 0.0, 0.0);
        let mut pivot = Pivot {
            b,
            t: 0.2,
            tick_end: 5.0,
        };
        for step in 0..=last {
            pivot.forward(step, step == last);
        }
        for step in (0..=last).rev() {
            pivot.undo(step);
        }
        let want = pivot.left();
        pivot.b.expect(pivot.t, &want);
        assert_eq!(pivot.b.core.using(), units(2), "variant {last}");
        assert_eq!(pivot.b.core.faults().total(), 0, "variant {last}");
    }
}

#[test]
fn s07_maximum_drops_below_use() {
    let mut b = setup(1, 3, 2).rev().bench();
    b.init(2);
    b.metrics(0.2, 0.3, 0.0);
    b.expect(0.2, &wait(4.8));
    b.vm_updated(0.3, (1, 1, 1), None);
    b.expect(0.3, &wait(4.7).mon_down(2, 1, down(1)));
    b.start(0.3, MONITOR);
    b.answered(0.4, DownscaleAnswer::Allowed);
    b.expect(0.4, &wait(4.6).neonvm(2, 1, down(1)));
    b.start(0.4, NEONVM);
    b.patched(0.5);
    b.expect(0.5, &none().plugin(Some(2), 1, load(0.3), down(1)));
    b.start(0.5, PLUGIN);
    b.permit(0.6, 1);
    b.vm_updated(0.7, (1, 1, 1), Some((down(1), 0.7)));
    assert_eq!(b.latencies(Path::EndToEnd), [(span(0.4), FLAG_DOWNSCALE)]);
    b.expect(0.7, &wait(4.8));
}

#[test]
fn s08_minimum_rises_above_use() {
    let mut b = setup(1, 3, 2).bench();
    b.init(2);
    b.metrics(0.2, 0.3, 0.0);
    b.expect(0.2, &wait(4.8));
    b.vm_updated(0.3, (3, 3, 3), None);
    b.expect(0.3, &none().plugin(Some(2), 3, load(0.3), NO_REV));
    b.start(0.3, PLUGIN);
    b.permit(0.4, 3);
    b.expect(0.4, &wait(4.9).neonvm(2, 3, NO_REV));
    b.start(0.4, NEONVM);
    b.patched(0.5);
    b.expect(0.5, &wait(4.8).mon_up(2, 3, NO_REV));
    b.start(0.5, MONITOR);
    b.told(0.6);
    b.expect(0.6, &wait(4.7));
}

#[test]
fn s09_failures_are_retried() {
    for failure in [Failure::NotApplied, Failure::Unknown] {
        let mut setup = setup(1, 2, 1);
        setup.timers.plugin_retry_wait = span(2.0);
        setup.timers.neonvm_retry_wait = span(3.0);
        let mut b = setup.bench();
        b.init(1);
        b.metrics(0.2, 0.3, 0.0);
        let ask = none().plugin(Some(1), 2, load(0.3), NO_REV);
        b.expect(0.2, &ask);
        b.start(0.2, PLUGIN);
        b.end(0.3, PLUGIN, |id| Event::PluginDone(id, Err(failure)));
        b.expect_warned(0.3, &wait(2.0), &[Warning::PluginFailed]);
        b.expect(2.3, &ask);
        b.start(2.3, PLUGIN);
        b.permit(2.4, 2);
        b.expect(2.4, &wait(4.9).neonvm(1, 2, NO_REV));
        b.start(2.4, NEONVM);
        b.end(2.5, NEONVM, |id| Event::NeonVmDone(id, Err(failure)));
        b.expect_warned(2.5, &wait(3.0), &[Warning::NeonVmFailed]);
        b.expect(5.5, &wait(1.8).neonvm(1, 2, NO_REV));
        b.start(5.5, NEONVM);
        b.patched(5.6);
        b.expect(5.6, &wait(1.7).mon_up(1, 2, NO_REV));
    }
}

#[test]
fn s10_metrics_change_while_shrinking() {
    use Warning::{MissingMetrics, MonitorDownscaleInactive, NeonVmBusy};
    let mut setup = setup(1, 2, 3);
    setup.is_monitor_active = false;
    let mut b = setup.bench();
    let first = none().plugin(None, 3, None, NO_REV);
    b.expect_warned(0.0, &first, &[MissingMetrics, MonitorDownscaleInactive]);
    b.start(0.0, PLUGIN);
    b.permit(0.1, 3);
    b.core.handle(at(0.2), Event::MonitorActive);
    b.expect_warned(0.2, &wait(4.8).mon_down(3, 2, NO_REV), &[MissingMetrics]);
    b.start(0.2, MONITOR);
    b.metrics(0.3, 0.0, 150_589_570.0);
    b.expect(0.3, &wait(4.7));
    b.answered(0.4, DownscaleAnswer::Allowed);
    b.expect(0.4, &wait(4.6).neonvm(3, 2, NO_REV).mon_down(2, 1, NO_REV));
    b.start(0.4, NEONVM);
    b.start(0.4, MONITOR);
    b.answered(0.5, DownscaleAnswer::Allowed);
    b.expect_warned(0.5, &wait(4.5), &[NeonVmBusy]);
    b.patched(0.6);
    b.expect(
        0.6,
        &none()
            .plugin(Some(3), 2, load(0.0), NO_REV)
            .neonvm(2, 1, NO_REV),
    );
    b.start(0.6, PLUGIN);
    b.start(0.6, NEONVM);
    b.permit(0.7, 2);
    b.expect(0.7, &wait(4.9));
    b.patched(0.8);
    b.expect(0.8, &none().plugin(Some(2), 1, load(0.0), NO_REV));
    b.start(0.8, PLUGIN);
    b.permit(0.9, 1);
    b.expect(0.9, &wait(4.9));
}

#[test]
fn n09_first_contact_reports_and_asks_for_nothing() {
    // Even with a load that asks for the maximum and a size off the unit grid.
    let mut b = setup(1, 4, 2).bench();
    b.metrics(0.0, 9.0, 0.0);
    b.expect(0.0, &none().plugin(None, 2, load(9.0), NO_REV));
    b.start(0.0, PLUGIN);
    b.expect(0.05, &none());
}
