//! The peers as they truly are, for the tests.
//!
//! The model holds what each peer *truly* has: the monitor `a`, the VM object `u`, the scheduler
//! `p`. Every request may be lost on the way there or on the way back, answers come late and in any
//! order, permits may be partial, the monitor may refuse, vanish and come back. After every step
//! `a ≤ u ≤ p` must hold per resource.

use proptest::prelude::*;
use protocol::permit::PluginResponse;
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, MilliCpu, Resources};

use super::actions::{Action, MonitorDownscale, MonitorUpscale, RequestId};
use super::config::{CoreConfig, ScalingConfig, ShrinkStep, Timers};
use super::machine::{Core, DownscaleAnswer, Event, Failure, Refusal, VmUpdate};
use super::metrics::SystemMetrics;
use super::monitor::Wish;
use super::vm::{CpuInfo, MemInfo, VmConfig, VmInfo};

pub(super) const UNIT: Resources = Resources::new(250, 1 << 30);

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fate {
    /// Arrives, is carried out, the answer comes back.
    Done,
    /// Arrives and is carried out, the answer is lost.
    AnswerLost,
    /// Never arrives, and nobody knows.
    Lost,
    /// Refused at once.
    Refused,
}

/// One step of a run.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Time passes, milliseconds.
    Wait(u64),
    /// Load in hundredths and usage in MiB.
    Metrics(u32, u32),
    /// Bounds in units.
    Bounds(u32, u32),
    /// The oldest request under way (of three peers) arrives and ends.
    Finish(usize, Fate, u32),
    /// The connection to the monitor comes (and it reads its size anew, or not), or goes (and what
    /// was under way arrived, or not).
    Connect(bool, bool),
    /// The monitor asks to grow, to so many units or by one.
    Wish(Option<u64>),
    /// The agent's process ends and another begins; what was under way arrived, or not.
    Restart(bool),
}

pub(super) fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Done),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Refused),
    ]
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u64..4000).prop_map(Step::Wait),
        3 => (0_u32..300, 0_u32..9000).prop_map(|(load, mib)| Step::Metrics(load, mib)),
        1 => (1_u32..6, 0_u32..6).prop_map(|(min, more)| Step::Bounds(min, min + more)),
        10 => (0_usize..3, fate(), 0_u32..4).prop_map(|(peer, fate, n)| Step::Finish(peer, fate, n)),
        1 => any::<(bool, bool)>().prop_map(|(up, flag)| Step::Connect(up, flag)),
        1 => prop::option::of(1_u64..12).prop_map(Step::Wish),
        1 => any::<bool>().prop_map(Step::Restart),
    ]
}

/// Settings of all kinds: small and large steps, every kind of calm on or off, all of it shorter
/// than a run settles.
pub(super) fn scaling() -> impl Strategy<Value = ScalingConfig> {
    let step = prop_oneof![Just(ShrinkStep::Unit), Just(ShrinkStep::Whole)];
    let seconds = || prop_oneof![Just(0_u32), 1_u32..15];
    let margin = prop_oneof![Just(0.0), 0.1_f64..1.5];
    (step, margin, seconds(), seconds(), seconds()).prop_map(|(step, margin, hold, down, up)| {
        ScalingConfig {
            shrink_step: step,
            downscale_margin_units: margin,
            downscale_hold_seconds: hold,
            downscale_cooldown_seconds: down,
            upscale_cooldown_seconds: up,
            ..ScalingConfig::default()
        }
    })
}

pub(super) fn vm(min: u32, max: u32, using: u32) -> VmInfo {
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
            scaling: ScalingConfig::default(),
        },
        current_revision: None,
        actual: None,
        last_revision: 0,
        version: None,
    }
}

pub(super) fn config() -> CoreConfig {
    CoreConfig {
        compute_unit: UNIT,
        default_scaling: ScalingConfig::default(),
        timers: Timers::default(),
        system_max_age: Some(Span::from_secs(15)),
        lfc_max_age: None,
    }
}

/// The peers as they truly are, and the core that must keep them in order.
pub(super) struct World {
    pub(super) core: Core,
    pub(super) now: Timestamp,
    /// What the monitor counts on; it keeps this over a reconnect.
    pub(super) a: Resources,
    pub(super) u: Resources,
    pub(super) p: Option<Resources>,
    pub(super) initial: Resources,
    pub(super) is_connected: bool,
    /// Under way: to the scheduler, the object, the monitor.
    pub(super) flights: [Option<(RequestId, Action)>; 3],
    pub(super) requests_to_scheduler: u32,
    pub(super) last_request_at: Option<Timestamp>,
    /// The revision of the last patch sent.
    pub(super) patched: i64,
    /// The most the scheduler grants; it takes nothing back that it granted before.
    pub(super) room: Resources,
}

/// Room for any size.
pub(super) const ENDLESS: Resources = Resources::new(u32::MAX, u64::MAX);

impl World {
    pub(super) fn new(using: u32) -> Self {
        Self::with(using, ScalingConfig::default())
    }

    pub(super) fn with(using: u32, scaling: ScalingConfig) -> Self {
        let mut info = vm(1, 8, using);
        info.config.scaling = scaling;
        let core = Core::new(config(), info);
        let using = core.using();
        let now = Timestamp(1_000_000);
        let (is_connected, flights) = (false, [const { None }; 3]);
        Self {
            core,
            now,
            a: using,
            u: using,
            p: None,
            initial: using,
            is_connected,
            flights,
            requests_to_scheduler: 0,
            last_request_at: None,
            patched: 0,
            room: ENDLESS,
        }
    }

    /// A world in which these steps have been taken.
    pub(super) fn after(
        using: u32,
        scaling: ScalingConfig,
        steps: &[Step],
    ) -> Result<Self, TestCaseError> {
        let mut world = Self::with(using, scaling);
        steps.iter().try_for_each(|step| world.step(step))?;
        Ok(world)
    }

    /// The scheduler grants what was asked, or a part of it.
    fn permits(&self, asked: Resources, choice: u32) -> Resources {
        let old = self.p.unwrap_or(asked);
        grant(old, asked, choice).field_min(old.field_max(self.room))
    }

    pub(super) fn peer(action: &Action) -> usize {
        match action {
            Action::Plugin(_) => 0,
            Action::NeonVm(_) => 1,
            Action::MonitorUpscale(_) | Action::MonitorDownscale(_) => 2,
        }
    }

    pub(super) fn take_actions(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..8 {
            let Some((id, action)) = self.core.poll_action(self.now) else {
                return self.check_deadline();
            };
            self.check_started(&action)?;
            let slot = &mut self.flights[Self::peer(&action)];
            prop_assert!(
                slot.is_none(),
                "two requests to one peer: {:?} and {:?}",
                slot,
                action
            );
            *slot = Some((id, action));
        }
        Err(TestCaseError::fail("the core never stops asking"))
    }

    pub(super) fn check_deadline(&self) -> Result<(), TestCaseError> {
        let is_idle = self.flights[0].is_none();
        prop_assert!(
            !is_idle || self.core.poll_deadline().is_some(),
            "n12: with no permit request under way a heartbeat must be due some time"
        );
        if let (true, Some(last)) = (is_idle, self.last_request_at) {
            let deadline = self.core.poll_deadline().unwrap_or(self.now);
            let tick = Timers::default().plugin_request_tick;
            let retry = Timers::default().plugin_retry_wait;
            prop_assert!(
                deadline <= (last + tick).max(self.now) + retry,
                "n12: the heartbeat is late: {deadline:?}, last {last:?}"
            );
        }
        Ok(())
    }

    pub(super) fn check_started(&mut self, action: &Action) -> Result<(), TestCaseError> {
        match action {
            Action::Plugin(request) => {
                if self.requests_to_scheduler == 0 {
                    prop_assert_eq!(
                        request.last_permit,
                        None,
                        "n09: first contact has no permit"
                    );
                    prop_assert_eq!(
                        request.target,
                        self.core.using(),
                        "n09: first contact asks for nothing"
                    );
                }
                prop_assert!(
                    !request.target.has_field_below(self.u),
                    "n05: a decrease is told after it happened"
                );
                self.requests_to_scheduler += 1;
                self.last_request_at = Some(self.now);
            }
            Action::NeonVm(request) => {
                // Before the first answer the scheduler holds what the object said at the start.
                let permit = self.p.unwrap_or(self.initial);
                prop_assert!(
                    !request.target.has_field_above(permit),
                    "n05, n14: patch {request:?} above permit {permit:?}"
                );
                prop_assert!(
                    !request.target.has_field_below(self.a),
                    "n11: patch {request:?} below approval {:?}",
                    self.a
                );
                let revision = request.revision.value;
                prop_assert!(
                    revision >= self.patched,
                    "a patch carries revision {revision}, the one before carried {}",
                    self.patched
                );
                self.patched = revision;
            }
            Action::MonitorUpscale(request) => {
                prop_assert!(
                    !request.target.has_field_above(self.u),
                    "told of more than there is: {request:?}, {:?}",
                    self.u
                );
            }
            Action::MonitorDownscale(request) => {
                let step = request.current.saturating_sub(UNIT);
                let is_whole = self.core.vm().config.scaling.shrink_step == ShrinkStep::Whole;
                prop_assert!(
                    is_whole || !request.target.has_field_below(step),
                    "more than a unit at a time"
                );
            }
        }
        Ok(())
    }

    /// Carries out what a peer has under way.
    pub(super) fn finish(&mut self, peer: usize, fate: Fate, choice: u32) {
        let Some((id, action)) = self.flights[peer].take() else {
            return;
        };
        let arrives = matches!(fate, Fate::Done | Fate::AnswerLost);
        let event = match action {
            Action::Plugin(request) => {
                let granted = self.permits(request.target, choice);
                if arrives {
                    self.p = Some(granted);
                }
                let response = PluginResponse {
                    permit: granted,
                    migrate: None,
                };
                Event::PluginDone(id, result(fate, response))
            }
            Action::NeonVm(request) => {
                if arrives {
                    self.u = request.target;
                }
                Event::NeonVmDone(id, result(fate, None))
            }
            Action::MonitorUpscale(request) => {
                if arrives && self.is_connected {
                    self.a = request.target;
                }
                Event::MonitorUpscaleDone(id, result(fate, ()))
            }
            Action::MonitorDownscale(request) => {
                // Refused, or refused with a size that would do.
                let is_allowed = choice > 1;
                if arrives && self.is_connected && is_allowed {
                    self.a = request.target;
                }
                let answer = if is_allowed {
                    DownscaleAnswer::Allowed
                } else if choice == 1 {
                    let least = self.a.saturating_sub(UNIT).field_max(request.target);
                    DownscaleAnswer::Denied(Refusal {
                        smallest: Some(least),
                        again: Some(Span::from_millis(500)),
                    })
                } else {
                    DownscaleAnswer::DENIED
                };
                Event::MonitorDownscaleDone(id, result(fate, answer))
            }
        };
        self.core.handle(self.now, event);
    }

    pub(super) fn connect(&mut self, up: bool, flag: bool) {
        if up == self.is_connected {
            return;
        }
        self.is_connected = up;
        if up {
            // A new monitor process reads what the guest has; an old one keeps what it knew. A
            // shrink under way was agreed to.
            let coming = match &self.flights[1] {
                Some((_, Action::NeonVm(request))) => request.target,
                _ => self.u,
            };
            if flag {
                self.a = self.u.field_min(coming);
            }
            self.core.handle(self.now, Event::MonitorActive);
            return;
        }
        // The answer to what was under way is lost; if it ever comes, it is for nobody.
        if let Some((id, action)) = self.flights[2].take() {
            match action {
                Action::MonitorUpscale(MonitorUpscale { target, .. })
                | Action::MonitorDownscale(MonitorDownscale { target, .. })
                    if flag =>
                {
                    self.a = target;
                }
                _ => {}
            }
            self.core.handle(self.now, Event::MonitorReset);
            self.core
                .handle(self.now, Event::MonitorUpscaleDone(id, Ok(())));
        }
        self.core.handle(self.now, Event::MonitorReset);
    }

    /// A new core knows nothing but the object; the peers have what they have.
    pub(super) fn restart(&mut self, arrived: bool) {
        let flights = std::mem::replace(&mut self.flights, [const { None }; 3]);
        for (_, action) in flights.into_iter().flatten() {
            match action {
                _ if !arrived => {}
                Action::Plugin(request) => self.p = Some(self.permits(request.target, 9)),
                Action::NeonVm(request) => self.u = request.target,
                Action::MonitorUpscale(MonitorUpscale { target, .. })
                | Action::MonitorDownscale(MonitorDownscale { target, .. }) => self.a = target,
            }
        }
        let mut info = self.core.vm().clone();
        info.set_using(self.u);
        // As the object tells it: of an agent that patched nothing before it ended too.
        info.last_revision = self.core.target_revision.revision.value.max(self.patched);
        self.core = Core::new(config(), info);
        self.initial = self.u;
        (self.is_connected, self.requests_to_scheduler) = (false, 0);
        self.last_request_at = None;
        // Nothing is decided before something happens.
        self.core.handle(self.now, Event::MonitorReset);
    }

    pub(super) fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Wait(ms) => {
                self.now = self.now + Span::from_millis(*ms);
                self.core.handle(self.now, Event::Tick);
            }
            Step::Metrics(load, mib) => {
                let metrics = SystemMetrics {
                    load1: f64::from(*load) / 100.0,
                    load5: f64::from(*load) / 100.0,
                    memory_usage_bytes: f64::from(*mib) * 1_048_576.0,
                    ..SystemMetrics::default()
                };
                self.core.handle(self.now, Event::SystemMetrics(metrics));
            }
            Step::Bounds(min, max) => {
                let mut info = vm(*min, *max, 1);
                info.config.scaling = self.core.vm().config.scaling;
                let update = VmUpdate {
                    info,
                    current_revision: None,
                    is_pre_migrating: false,
                };
                self.core
                    .handle(self.now, Event::VmUpdated(Box::new(update)));
            }
            Step::Finish(peer, fate, choice) => self.finish(*peer, *fate, *choice),
            Step::Connect(up, flag) => self.connect(*up, *flag),
            Step::Wish(units) if self.is_connected => {
                let wish = Wish {
                    reason: None,
                    wanted: units.map(|units| Bytes(UNIT.mem.0 * units - 1)),
                };
                self.core
                    .handle(self.now, Event::MonitorUpscaleRequested(wish));
            }
            Step::Wish(_) => {}
            Step::Restart(arrived) => self.restart(*arrived),
        }
        self.take_actions()?;
        prop_assert!(
            !self.a.has_field_above(self.u),
            "A {:?} above U {:?}",
            self.a,
            self.u
        );
        if let Some(p) = self.p {
            prop_assert!(!self.u.has_field_above(p), "U {:?} above P {:?}", self.u, p);
        }
        let faults = self.core.faults();
        let expected = faults.unknown_reply;
        prop_assert_eq!(faults.total(), expected, "faults: {:?}", faults);
        Ok(())
    }
}

/// N13: a decrease is granted as asked, an increase between the old value and the one asked, each
/// field alone.
pub(super) fn grant(old: Resources, asked: Resources, choice: u32) -> Resources {
    pub(super) fn field(old: u64, asked: u64, step: u64, choice: u32) -> u64 {
        if asked <= old {
            return asked;
        }
        match choice {
            0 => old,
            1 => old.saturating_add(step).min(asked),
            _ => asked,
        }
    }
    // Uneven steps: permits need not be multiples of the unit (N26).
    let cpu = field(old.cpu.0.into(), asked.cpu.0.into(), 130, choice);
    let mem = field(old.mem.0, asked.mem.0, (1 << 30) + (300 << 20), choice);
    Resources::new(u32::try_from(cpu).unwrap_or(u32::MAX), mem)
}

pub(super) fn result<T>(fate: Fate, answer: T) -> Result<T, Failure> {
    match fate {
        Fate::Done => Ok(answer),
        Fate::AnswerLost | Fate::Lost => Err(Failure::Unknown),
        Fate::Refused => Err(Failure::NotApplied),
    }
}

/// Lets everything succeed until nothing moves any more.
pub(super) fn settle(world: &mut World, load: u32, mib: u32) -> Result<(), TestCaseError> {
    // A monitor that kept old knowledge over a reconnect is not told again, so it reads its size
    // anew here.
    world.connect(false, false);
    world.connect(true, true);
    for _ in 0..200 {
        world.step(&Step::Metrics(load, mib))?;
        for peer in 0..3 {
            world.step(&Step::Finish(peer, Fate::Done, 9))?;
        }
        world.step(&Step::Wait(500))?;
    }
    Ok(())
}

/// A bench with everything at `using` units: permit held, monitor connected, metrics that ask for
/// `load` hundredths.
pub(super) fn ready(using: u32, load: u32) -> World {
    let mut world = World::new(using);
    world.connect(true, true);
    world.step(&Step::Metrics(load, 0)).expect("runs");
    world.step(&Step::Finish(0, Fate::Done, 9)).expect("runs");
    world
}
