//! Test bench for the state machine: expected actions are values, the test starts and ends each
//! request, and times are seconds of a table.

use protocol::core::Core as _;
use protocol::permit::{PluginResponse, RequestMetrics};
use protocol::revision::{FLAG_DOWNSCALE, FLAG_UPSCALE, Revision};
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, MilliCpu, Resources};

use super::actions::{
    Action, Actions, MonitorDownscale, MonitorUpscale, PermitRequest, RequestId, VmPatch,
};
use super::config::{CoreConfig, ScalingConfig, ShrinkStep, Timers};
use super::event::{DownscaleResponse, Event, VmUpdate};
use super::machine::Core;
use super::metrics::SystemMetrics;
use super::observation::{Observation, Path};
use super::revision::StampedRevision;
use super::vm::{CpuInfo, MemInfo, VmConfig, VmInfo};
use super::warnings::{Warning, Warnings};

pub(super) const UNIT: Resources = Resources::new(250, 1 << 30);
pub(super) const NO_REV: Revision = Revision { value: 0, flags: 0 };

pub(super) fn up(value: i64) -> Revision {
    Revision {
        value,
        flags: FLAG_UPSCALE,
    }
}

pub(super) fn down(value: i64) -> Revision {
    Revision {
        value,
        flags: FLAG_DOWNSCALE,
    }
}

pub(super) fn units(n: u32) -> Resources {
    UNIT.saturating_mul(n)
}

/// Microseconds from the table's seconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "table values"
)]
pub(super) fn micros(secs: f64) -> u64 {
    (secs * 1e6).round() as u64
}

/// Time of the table; its zero is an hour after the clock's origin.
pub(super) fn at(secs: f64) -> Timestamp {
    Timestamp(3_600_000_000 + micros(secs))
}

pub(super) fn span(secs: f64) -> Span {
    Span(micros(secs))
}

pub(super) fn load(value: f32) -> Option<RequestMetrics> {
    Some(RequestMetrics { load_avg_1m: value })
}

#[derive(Default, Clone)]
pub(super) struct Want(pub(super) Actions);

pub(super) fn none() -> Want {
    Want::default()
}

pub(super) fn wait(secs: f64) -> Want {
    Want(Actions {
        wait: Some(span(secs)),
        ..Actions::default()
    })
}

impl Want {
    pub(super) fn permit_request(
        mut self,
        last: Option<u32>,
        target: u32,
        metrics: Option<RequestMetrics>,
        revision: Revision,
    ) -> Self {
        let last_permit = last.map(units);
        self.0.permit = Some(PermitRequest {
            last_permit,
            target: units(target),
            metrics,
            revision,
        });
        self
    }

    pub(super) fn vm_patch(mut self, current: u32, target: u32, revision: Revision) -> Self {
        let (current, target) = (units(current), units(target));
        self.0.vm_patch = Some(VmPatch {
            current,
            target,
            revision,
        });
        self
    }

    pub(super) fn mon_up(mut self, current: u32, target: u32, revision: Revision) -> Self {
        let (current, target) = (units(current), units(target));
        self.0.monitor_up = Some(MonitorUpscale {
            current,
            target,
            revision,
        });
        self
    }

    pub(super) fn mon_down(mut self, current: u32, target: u32, revision: Revision) -> Self {
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
pub(super) struct Bench {
    pub(super) core: Core,
    pub(super) has_revisions: bool,
    pub(super) ids: [Option<RequestId>; 3],
    pub(super) seen: Vec<Observation>,
}

pub(super) struct Setup {
    pub(super) min: u32,
    pub(super) max: u32,
    pub(super) using: u32,
    pub(super) has_revisions: bool,
    pub(super) is_monitor_active: bool,
    pub(super) timers: Timers,
}

pub(super) fn setup(min: u32, max: u32, using: u32) -> Setup {
    let timers = Timers {
        permit_request_tick: span(5.0),
        permit_retry_wait: span(3.0),
        permit_denied_retry_wait: span(2.0),
        vm_patch_retry_wait: span(5.0),
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
    pub(super) fn rev(mut self) -> Self {
        self.has_revisions = true;
        self
    }

    pub(super) fn bench(self) -> Bench {
        let scaling = ScalingConfig {
            load_average_fraction_target: 0.5,
            memory_usage_fraction_target: 0.5,
            lfc_min_wait_before_downscale_minutes: 15,
            shrink_step: ShrinkStep::Unit,
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

pub(super) fn vm_info(min: u32, max: u32, using: u32, scaling: ScalingConfig) -> VmInfo {
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
            own_mode: None,
            scaling,
        },
        current_revision: None,
        actual: None,
        target_revision: None,
        last_revision: 0,
        version: None,
    }
}

/// Indices of the peers in [`Bench::ids`].
pub(super) const SCHEDULER: usize = 0;
pub(super) const VM_OBJECT: usize = 1;
pub(super) const MONITOR: usize = 2;

impl Bench {
    pub(super) fn next(&mut self, t: f64) -> (Actions, Warnings) {
        let mut got = self.core.next_actions(at(t));
        if !self.has_revisions {
            let actions = &mut got.actions;
            actions
                .permit
                .iter_mut()
                .for_each(|action| action.revision = NO_REV);
            actions
                .vm_patch
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
    pub(super) fn expect_warned(&mut self, t: f64, want: &Want, warnings: &[Warning]) {
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
    pub(super) fn expect(&mut self, t: f64, want: &Want) {
        self.expect_warned(t, want, &[]);
    }

    /// Starts the action planned at `t` for a peer.
    #[track_caller]
    pub(super) fn start(&mut self, t: f64, peer: usize) {
        let actions = self.core.next_actions(at(t)).actions;
        let action = match peer {
            SCHEDULER => actions.permit.map(Action::Permit),
            VM_OBJECT => actions.vm_patch.map(Action::VmPatch),
            _ => actions
                .monitor_up
                .map(Action::MonitorUpscale)
                .or(actions.monitor_down.map(Action::MonitorDownscale)),
        };
        let action = action.expect("an action is planned");
        self.ids[peer] = Some(self.core.start(at(t), &action));
    }

    #[track_caller]
    pub(super) fn end(&mut self, t: f64, peer: usize, event: impl FnOnce(RequestId) -> Event) {
        let id = self.ids[peer].take().expect("a request is in flight");
        self.core.handle(at(t), event(id));
        while let Some(observation) = self.core.poll_observation() {
            self.seen.push(observation);
        }
    }

    #[track_caller]
    pub(super) fn permit(&mut self, t: f64, n: u32) {
        let response = PluginResponse {
            permit: units(n),
            migrate: None,
        };
        self.end(t, SCHEDULER, |id| Event::PermitDone(id, Ok(response)));
    }

    #[track_caller]
    pub(super) fn patched(&mut self, t: f64) {
        self.end(t, VM_OBJECT, |id| Event::VmPatchDone(id, Ok(None)));
    }

    #[track_caller]
    pub(super) fn notified(&mut self, t: f64) {
        self.end(t, MONITOR, |id| Event::MonitorUpscaleDone(id, Ok(())));
    }

    #[track_caller]
    pub(super) fn answered(&mut self, t: f64, answer: DownscaleResponse) {
        self.end(t, MONITOR, |id| Event::MonitorDownscaleDone(id, Ok(answer)));
    }

    pub(super) fn metrics(&mut self, t: f64, load1: f64, usage: f64) {
        let metrics = SystemMetrics {
            load1,
            memory_usage_bytes: usage,
            ..Default::default()
        };
        self.core.handle(at(t), Event::SystemMetrics(metrics));
    }

    /// Shows the object with these bounds and `use` in units, and its revision with its time.
    pub(super) fn vm_updated(
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

    /// Latencies and flags observed on one path since the last call.
    pub(super) fn latencies(&mut self, wanted: Path) -> Vec<(Span, u64)> {
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
    pub(super) fn init(&mut self, n: u32) {
        let first = none().permit_request(None, n, None, NO_REV);
        self.expect_warned(0.0, &first, &[Warning::MissingMetrics]);
        self.start(0.0, SCHEDULER);
        self.permit(0.1, n);
    }
}
