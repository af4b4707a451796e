//! A model of the peers for tests.
//!
//! The model holds the true size at each peer: monitor `a`, VM object `u`, scheduler `p`. A request
//! or its response may be lost. Responses come late and in any order, permits may be partial, and
//! the monitor may refuse, go away and return. After every step `a ≤ u ≤ p` holds per resource.

use proptest::prelude::*;
use protocol::core::Core as _;
use protocol::permit::PluginResponse;
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, MilliCpu, Resources};

use super::actions::{Action, MonitorDownscale, MonitorUpscale, RequestId};
use super::config::{CoreConfig, ScalingConfig, ShrinkStep, Timers};
use super::event::{DownscaleResponse, Event, Failure, Refusal, UpscaleRequest, VmUpdate};
use super::machine::Core;
use super::metrics::SystemMetrics;
use super::vm::{CpuInfo, MemInfo, VmConfig, VmInfo};

pub(super) const UNIT: Resources = Resources::new(250, 1 << 30);

/// Indices of the peers in [`World::flights`].
pub(super) const SCHEDULER: usize = 0;
pub(super) const VM_OBJECT: usize = 1;
pub(super) const MONITOR: usize = 2;
pub(super) const PEERS: [usize; 3] = [SCHEDULER, VM_OBJECT, MONITOR];

/// Course of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fate {
    /// The peer acts on the request, and the response arrives.
    Done,
    /// The peer acts on the request, and the response is lost.
    ResponseLost,
    /// The request is lost.
    Lost,
    /// The peer refuses the request.
    Refused,
}

/// Part of a request that the peer grants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Grant {
    /// No increase. A monitor refuses a shrink without details.
    Nothing,
    /// A small part of the increase. A monitor refuses a shrink and names the smallest size.
    Part,
    /// The whole request.
    Full,
}

/// One step of a run.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Wait {
        millis: u64,
    },
    Metrics {
        /// Load average times 100.
        load: u32,
        mib: u32,
    },
    /// New bounds, in units.
    Bounds {
        min: u32,
        max: u32,
    },
    /// The request in flight to `peer` ends.
    Finish {
        peer: usize,
        fate: Fate,
        grant: Grant,
    },
    /// The link to the monitor comes up. With `rereads` the monitor reads the guest's size again.
    MonitorUp {
        rereads: bool,
    },
    /// The link goes down. With `arrived` the monitor acted on the request in flight.
    MonitorDown {
        arrived: bool,
    },
    /// The monitor requests this many units, or one more.
    UpscaleRequest(Option<u64>),
    /// A new agent process starts. With `arrived` the peers acted on the requests in flight.
    Restart {
        arrived: bool,
    },
}

impl Step {
    /// The request to `peer` is granted.
    pub(super) fn done(peer: usize) -> Self {
        Self::ended(peer, Fate::Done)
    }

    pub(super) fn ended(peer: usize, fate: Fate) -> Self {
        Self::Finish {
            peer,
            fate,
            grant: Grant::Full,
        }
    }

    /// Metrics with this load average times 100 and no memory in use.
    pub(super) fn load(load: u32) -> Self {
        Self::Metrics { load, mib: 0 }
    }

    pub(super) fn wait_ms(millis: u64) -> Self {
        Self::Wait { millis }
    }
}

pub(super) fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Done),
        1 => Just(Fate::ResponseLost),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Refused),
    ]
}

fn grant_of(choice: u32) -> Grant {
    match choice {
        0 => Grant::Nothing,
        1 => Grant::Part,
        _ => Grant::Full,
    }
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u64..4000).prop_map(|millis| Step::Wait { millis }),
        3 => (0_u32..300, 0_u32..9000).prop_map(|(load, mib)| Step::Metrics { load, mib }),
        1 => (1_u32..6, 0_u32..6).prop_map(|(min, more)| Step::Bounds { min, max: min + more }),
        10 => (0_usize..3, fate(), 0_u32..4)
            .prop_map(|(peer, fate, n)| Step::Finish { peer, fate, grant: grant_of(n) }),
        1 => any::<(bool, bool)>().prop_map(|(is_up, flag)| match is_up {
            true => Step::MonitorUp { rereads: flag },
            false => Step::MonitorDown { arrived: flag },
        }),
        1 => prop::option::of(1_u64..12).prop_map(Step::UpscaleRequest),
        1 => any::<bool>().prop_map(|arrived| Step::Restart { arrived }),
    ]
}

/// Settings of all kinds: both shrink steps, and each stabilization setting on or off. All times
/// are shorter than a run takes to settle.
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
        target_revision: None,
        last_revision: 0,
        version: None,
    }
}

/// The core of a VM with two units.
pub(crate) fn core() -> Core {
    Core::new(config(), vm(1, 8, 2))
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

/// The peers' true sizes and the core under test.
pub(super) struct World {
    pub(super) core: Core,
    pub(super) now: Timestamp,
    /// Size that the monitor counts on; it keeps the size over a reconnect.
    pub(super) a: Resources,
    pub(super) u: Resources,
    pub(super) p: Option<Resources>,
    pub(super) initial: Resources,
    pub(super) is_connected: bool,
    /// Requests in flight, by the index of the peer.
    pub(super) flights: [Option<(RequestId, Action)>; 3],
    pub(super) requests_to_scheduler: u32,
    pub(super) last_request_at: Option<Timestamp>,
    /// Revision of the last patch.
    pub(super) patched: i64,
    /// Largest permit; the scheduler takes back nothing that it granted before.
    pub(super) room: Resources,
}

/// Headroom for any size.
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

    /// A world after these steps.
    pub(super) fn after(
        using: u32,
        scaling: ScalingConfig,
        steps: &[Step],
    ) -> Result<Self, TestCaseError> {
        let mut world = Self::with(using, scaling);
        steps.iter().try_for_each(|step| world.step(step))?;
        Ok(world)
    }

    /// Permit for a request of `asked`.
    fn permits(&self, asked: Resources, part: Grant) -> Resources {
        let old = self.p.unwrap_or(asked);
        grant(old, asked, part).field_min(old.field_max(self.room))
    }

    pub(super) fn peer(action: &Action) -> usize {
        match action {
            Action::Permit(_) => SCHEDULER,
            Action::VmPatch(_) => VM_OBJECT,
            Action::MonitorUpscale(_) | Action::MonitorDownscale(_) => MONITOR,
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
        Err(TestCaseError::fail("the core never stops to request"))
    }

    pub(super) fn check_deadline(&self) -> Result<(), TestCaseError> {
        let is_idle = self.flights[SCHEDULER].is_none();
        prop_assert!(
            !is_idle || self.core.poll_deadline().is_some(),
            "n12: with no permit request under way a heartbeat must be due some time"
        );
        if let (true, Some(last)) = (is_idle, self.last_request_at) {
            let deadline = self.core.poll_deadline().unwrap_or(self.now);
            let tick = Timers::default().permit_request_tick;
            let retry = Timers::default().permit_retry_wait;
            prop_assert!(
                deadline <= (last + tick).max(self.now) + retry,
                "n12: the heartbeat is late: {deadline:?}, last {last:?}"
            );
        }
        Ok(())
    }

    pub(super) fn check_started(&mut self, action: &Action) -> Result<(), TestCaseError> {
        match action {
            Action::Permit(request) => {
                if self.requests_to_scheduler == 0 {
                    prop_assert_eq!(
                        request.last_permit,
                        None,
                        "n09: first contact has no permit"
                    );
                    prop_assert_eq!(
                        request.target,
                        self.core.using(),
                        "n09: first contact requests the size in use"
                    );
                }
                prop_assert!(
                    !request.target.has_field_below(self.u),
                    "n05: a decrease is reported after the patch"
                );
                self.requests_to_scheduler += 1;
                self.last_request_at = Some(self.now);
            }
            Action::VmPatch(request) => {
                // Before the first permit the scheduler reserves the size of the object at the
                // start.
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
                    "notified of more than the VM has: {request:?}, {:?}",
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

    /// Ends the request in flight to a peer.
    pub(super) fn finish(&mut self, peer: usize, fate: Fate, grant: Grant) {
        let Some((id, action)) = self.flights[peer].take() else {
            return;
        };
        let arrives = matches!(fate, Fate::Done | Fate::ResponseLost);
        let event = match action {
            Action::Permit(request) => {
                let granted = self.permits(request.target, grant);
                if arrives {
                    self.p = Some(granted);
                }
                let response = PluginResponse {
                    permit: granted,
                    migrate: None,
                };
                Event::PermitDone(id, result(fate, response))
            }
            Action::VmPatch(request) => {
                if arrives {
                    self.u = request.target;
                }
                Event::VmPatchDone(id, result(fate, None))
            }
            Action::MonitorUpscale(request) => {
                if arrives && self.is_connected {
                    self.a = request.target;
                }
                Event::MonitorUpscaleDone(id, result(fate, ()))
            }
            Action::MonitorDownscale(request) => {
                let is_allowed = grant == Grant::Full;
                if arrives && self.is_connected && is_allowed {
                    self.a = request.target;
                }
                let response = if is_allowed {
                    DownscaleResponse::Allowed
                } else if grant == Grant::Part {
                    let least = self.a.saturating_sub(UNIT).field_max(request.target);
                    DownscaleResponse::Denied(Refusal {
                        smallest: Some(least),
                        again: Some(Span::from_millis(500)),
                    })
                } else {
                    DownscaleResponse::DENIED
                };
                Event::MonitorDownscaleDone(id, result(fate, response))
            }
        };
        self.core.handle(self.now, event);
    }

    /// Connects a monitor that reads the guest's size.
    pub(super) fn connect_monitor(&mut self) {
        self.monitor_up(true);
    }

    fn monitor_up(&mut self, rereads: bool) {
        if std::mem::replace(&mut self.is_connected, true) {
            return;
        }
        // A new monitor process reads the guest's size; an old one keeps its own. A shrink in
        // flight has an approval.
        let coming = match &self.flights[VM_OBJECT] {
            Some((_, Action::VmPatch(request))) => request.target,
            _ => self.u,
        };
        if rereads {
            self.a = self.u.field_min(coming);
        }
        self.core.handle(self.now, Event::MonitorActive);
    }

    pub(super) fn monitor_down(&mut self, arrived: bool) {
        if !std::mem::replace(&mut self.is_connected, false) {
            return;
        }
        // The response to the request in flight is lost. If it arrives late, no request is open.
        if let Some((id, action)) = self.flights[MONITOR].take() {
            match action {
                Action::MonitorUpscale(MonitorUpscale { target, .. })
                | Action::MonitorDownscale(MonitorDownscale { target, .. })
                    if arrived =>
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

    /// Starts a new core from the object. The peers keep their sizes.
    pub(super) fn restart(&mut self, arrived: bool) {
        let flights = std::mem::replace(&mut self.flights, [const { None }; 3]);
        for (_, action) in flights.into_iter().flatten() {
            match action {
                _ if !arrived => {}
                Action::Permit(request) => self.p = Some(self.permits(request.target, Grant::Full)),
                Action::VmPatch(request) => self.u = request.target,
                Action::MonitorUpscale(MonitorUpscale { target, .. })
                | Action::MonitorDownscale(MonitorDownscale { target, .. }) => self.a = target,
            }
        }
        let mut info = self.core.vm().clone();
        info.set_using(self.u);
        // The object also shows the revision of an agent that died before its patch.
        info.last_revision = self.core.target_revision.revision.value.max(self.patched);
        self.core = Core::new(config(), info);
        self.initial = self.u;
        (self.is_connected, self.requests_to_scheduler) = (false, 0);
        self.last_request_at = None;
        // The core computes after the first event only.
        self.core.handle(self.now, Event::MonitorReset);
    }

    pub(super) fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Wait { millis } => {
                self.now = self.now + Span::from_millis(*millis);
                self.core.handle(self.now, Event::Tick);
            }
            Step::Metrics { load, mib } => {
                let metrics = SystemMetrics {
                    load1: f64::from(*load) / 100.0,
                    load5: f64::from(*load) / 100.0,
                    memory_usage_bytes: f64::from(*mib) * 1_048_576.0,
                    ..SystemMetrics::default()
                };
                self.core.handle(self.now, Event::SystemMetrics(metrics));
            }
            Step::Bounds { min, max } => {
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
            Step::Finish { peer, fate, grant } => self.finish(*peer, *fate, *grant),
            Step::MonitorUp { rereads } => self.monitor_up(*rereads),
            Step::MonitorDown { arrived } => self.monitor_down(*arrived),
            Step::UpscaleRequest(units) if self.is_connected => {
                let request = UpscaleRequest {
                    reason: None,
                    wanted: units.map(|units| Bytes(UNIT.mem.0 * units - 1)),
                };
                self.core
                    .handle(self.now, Event::MonitorUpscaleRequested(request));
            }
            Step::UpscaleRequest(_) => {}
            Step::Restart { arrived } => self.restart(*arrived),
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

/// Permit per field: a decrease as asked, an increase up to `part` of it.
///
/// Requirement: N13
pub(super) fn grant(old: Resources, asked: Resources, part: Grant) -> Resources {
    fn field(old: u64, asked: u64, step: u64, part: Grant) -> u64 {
        if asked <= old {
            return asked;
        }
        match part {
            Grant::Nothing => old,
            Grant::Part => old.saturating_add(step).min(asked),
            Grant::Full => asked,
        }
    }
    // Permits need not be multiples of the unit (N26).
    let cpu = field(old.cpu.0.into(), asked.cpu.0.into(), 130, part);
    let mem = field(old.mem.0, asked.mem.0, (1 << 30) + (300 << 20), part);
    Resources::new(u32::try_from(cpu).unwrap_or(u32::MAX), mem)
}

pub(super) fn result<T>(fate: Fate, response: T) -> Result<T, Failure> {
    match fate {
        Fate::Done => Ok(response),
        Fate::ResponseLost | Fate::Lost => Err(Failure::Unknown),
        Fate::Refused => Err(Failure::NotApplied),
    }
}

/// Lets every request succeed until the size is stable.
pub(super) fn settle(world: &mut World, load: u32, mib: u32) -> Result<(), TestCaseError> {
    // A monitor with an old size gets no second notification, so it reads its guest again here.
    world.monitor_down(false);
    world.connect_monitor();
    for _ in 0..200 {
        world.step(&Step::Metrics { load, mib })?;
        for peer in PEERS {
            world.step(&Step::done(peer))?;
        }
        world.step(&Step::wait_ms(500))?;
    }
    Ok(())
}

/// A world at `using` units with a permit, a connected monitor and metrics with this load.
pub(super) fn ready(using: u32, load: u32) -> World {
    let mut world = World::new(using);
    world.connect_monitor();
    world.step(&Step::load(load)).expect("runs");
    world.step(&Step::done(SCHEDULER)).expect("runs");
    world
}
