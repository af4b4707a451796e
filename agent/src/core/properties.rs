//! Random event sequences against an independent model of the peers.
//!
//! The model holds what each peer *truly* has: the monitor `a`, the VM object `u`, the scheduler `p`. Every request may be lost
//! on the way there or on the way back, answers come late and in any order, permits may be partial, the monitor may refuse,
//! vanish and come back. After every step `a ≤ u ≤ p` must hold per resource.

use proptest::prelude::*;
use protocol::permit::{MigrateResponse, PluginResponse};
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, MilliCpu, Resources};

use super::actions::{Action, MonitorDownscale, MonitorUpscale, RequestId};
use super::config::{CoreConfig, ScalingConfig, Timers};
use super::desired::{Inputs, desired};
use super::machine::{Core, DownscaleAnswer, Event, Failure, VmUpdate};
use super::metrics::{LfcMetrics, SystemMetrics};
use super::vm::{CpuInfo, MemInfo, VmConfig, VmInfo};

const UNIT: Resources = Resources::new(250, 1 << 30);

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
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
enum Step {
    /// Time passes, milliseconds.
    Wait(u64),
    /// Load in hundredths and usage in MiB.
    Metrics(u32, u32),
    /// Bounds in units.
    Bounds(u32, u32),
    /// The oldest request under way (of three peers) arrives and ends.
    Finish(usize, Fate, u32),
    /// The connection to the monitor comes (and it reads its size anew, or not), or goes (and what was under way arrived, or not).
    Connect(bool, bool),
    /// The monitor asks to grow.
    Wish,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Done),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Refused),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u64..4000).prop_map(Step::Wait),
        3 => (0_u32..300, 0_u32..9000).prop_map(|(load, mib)| Step::Metrics(load, mib)),
        1 => (1_u32..6, 0_u32..6).prop_map(|(min, more)| Step::Bounds(min, min + more)),
        10 => (0_usize..3, fate(), 0_u32..4).prop_map(|(peer, fate, n)| Step::Finish(peer, fate, n)),
        1 => any::<(bool, bool)>().prop_map(|(up, flag)| Step::Connect(up, flag)),
        1 => Just(Step::Wish),
    ]
}

fn vm(min: u32, max: u32, using: u32) -> VmInfo {
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
            scaling: ScalingConfig::default(),
        },
        current_revision: None,
    }
}

fn config() -> CoreConfig {
    CoreConfig {
        compute_unit: UNIT,
        default_scaling: ScalingConfig::default(),
        timers: Timers::default(),
        system_max_age: Some(Span::from_secs(15)),
        lfc_max_age: None,
    }
}

/// The peers as they truly are, and the core that must keep them in order.
struct World {
    core: Core,
    now: Timestamp,
    /// What the monitor counts on; it keeps this over a reconnect.
    a: Resources,
    u: Resources,
    p: Option<Resources>,
    initial: Resources,
    is_connected: bool,
    /// Under way: to the scheduler, the object, the monitor.
    flights: [Option<(RequestId, Action)>; 3],
    requests_to_scheduler: u32,
    last_request_at: Option<Timestamp>,
}

impl World {
    fn new(using: u32) -> Self {
        let core = Core::new(config(), vm(1, 8, using));
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
        }
    }

    fn peer(action: &Action) -> usize {
        match action {
            Action::Plugin(_) => 0,
            Action::NeonVm(_) => 1,
            Action::MonitorUpscale(_) | Action::MonitorDownscale(_) => 2,
        }
    }

    fn take_actions(&mut self) -> Result<(), TestCaseError> {
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

    fn check_deadline(&self) -> Result<(), TestCaseError> {
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

    fn check_started(&mut self, action: &Action) -> Result<(), TestCaseError> {
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
                prop_assert!(
                    !request.target.has_field_below(step),
                    "more than a unit at a time"
                );
            }
        }
        Ok(())
    }

    /// Carries out what a peer has under way.
    fn finish(&mut self, peer: usize, fate: Fate, choice: u32) {
        let Some((id, action)) = self.flights[peer].take() else {
            return;
        };
        let arrives = matches!(fate, Fate::Done | Fate::AnswerLost);
        let event = match action {
            Action::Plugin(request) => {
                let old = self.p.unwrap_or(request.target);
                let granted = grant(old, request.target, choice);
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
                Event::NeonVmDone(id, result(fate, ()))
            }
            Action::MonitorUpscale(request) => {
                if arrives && self.is_connected {
                    self.a = request.target;
                }
                Event::MonitorUpscaleDone(id, result(fate, ()))
            }
            Action::MonitorDownscale(request) => {
                let is_allowed = choice != 0;
                if arrives && self.is_connected && is_allowed {
                    self.a = request.target;
                }
                let answer = if is_allowed {
                    DownscaleAnswer::Allowed
                } else {
                    DownscaleAnswer::Denied
                };
                Event::MonitorDownscaleDone(id, result(fate, answer))
            }
        };
        self.core.handle(self.now, event);
    }

    fn connect(&mut self, up: bool, flag: bool) {
        if up == self.is_connected {
            return;
        }
        self.is_connected = up;
        if up {
            // A new monitor process reads what the guest has; an old one keeps what it knew. A shrink under way was agreed to.
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

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
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
                    memory_cached_bytes: 0.0,
                };
                self.core.handle(self.now, Event::SystemMetrics(metrics));
            }
            Step::Bounds(min, max) => {
                let update = VmUpdate {
                    info: vm(*min, *max, 1),
                    current_revision: None,
                    is_pre_migrating: false,
                };
                self.core
                    .handle(self.now, Event::VmUpdated(Box::new(update)));
            }
            Step::Finish(peer, fate, choice) => self.finish(*peer, *fate, *choice),
            Step::Connect(up, flag) => self.connect(*up, *flag),
            Step::Wish if self.is_connected => {
                self.core.handle(self.now, Event::MonitorUpscaleRequested);
            }
            Step::Wish => {}
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

/// N13: a decrease is granted as asked, an increase between the old value and the one asked, each field alone.
fn grant(old: Resources, asked: Resources, choice: u32) -> Resources {
    fn field(old: u64, asked: u64, step: u64, choice: u32) -> u64 {
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

fn result<T>(fate: Fate, answer: T) -> Result<T, Failure> {
    match fate {
        Fate::Done => Ok(answer),
        Fate::AnswerLost | Fate::Lost => Err(Failure::Unknown),
        Fate::Refused => Err(Failure::NotApplied),
    }
}

/// Lets everything succeed until nothing moves any more.
fn settle(world: &mut World, load: u32, mib: u32) -> Result<(), TestCaseError> {
    // A monitor that kept old knowledge over a reconnect is not told again, so it reads its size anew here.
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn order_holds_under_any_loss(using in 1_u32..8, steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new(using);
        for step in &steps {
            world.step(step)?;
        }
    }

    /// N26 and liveness: whatever happened before, with healthy peers the VM gets to the size wanted and stays there.
    #[test]
    fn n26_it_converges_and_stays(
        using in 1_u32..8,
        steps in prop::collection::vec(step(), 1..60),
        load in 0_u32..300,
        mib in 0_u32..9000,
    ) {
        let mut world = World::new(using);
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
        let system = SystemMetrics { load1, load5, memory_usage_bytes: usage, memory_cached_bytes: cached };
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
        let system = SystemMetrics { load1, load5, memory_usage_bytes, memory_cached_bytes };
        let lfc = LfcMetrics { working_set_pages: pages, ..LfcMetrics::default() };
        let scaling = ScalingConfig { enable_lfc_metrics: true, ..ScalingConfig::default() };
        let got = super::goal::goal(&scaling, UNIT, Some(&system), Some(&lfc));
        prop_assert!(got.units == 0 || got.winner.is_some());
    }
}

/// A bench with everything at `using` units: permit held, monitor connected, metrics that ask for `load` hundredths.
fn ready(using: u32, load: u32) -> World {
    let mut world = World::new(using);
    world.connect(true, true);
    world.step(&Step::Metrics(load, 0)).expect("runs");
    world.step(&Step::Finish(0, Fate::Done, 9)).expect("runs");
    world
}

#[test]
fn n15_after_the_migration_flag_nothing_is_patched() {
    let mut world = ready(2, 45);
    world.step(&Step::Metrics(180, 0)).expect("runs");
    let (id, action) = world.flights[0].take().expect("a request is under way");
    let Action::Plugin(request) = action else {
        panic!("not a permit request: {action:?}")
    };
    let response = PluginResponse {
        permit: request.target,
        migrate: Some(MigrateResponse {}),
    };
    world
        .core
        .handle(world.now, Event::PluginDone(id, Ok(response)));
    for load in [0, 300, 0, 300] {
        for _ in 0..40 {
            let metrics = SystemMetrics {
                load1: f64::from(load) / 100.0,
                load5: f64::from(load) / 100.0,
                ..SystemMetrics::default()
            };
            world.core.handle(world.now, Event::SystemMetrics(metrics));
            while let Some((id, action)) = world.core.poll_action(world.now) {
                match action {
                    Action::Plugin(request) => {
                        assert_eq!(
                            request.target,
                            UNIT.saturating_mul(2),
                            "only reports what is in use"
                        );
                        let response = PluginResponse {
                            permit: request.target,
                            migrate: Some(MigrateResponse {}),
                        };
                        world
                            .core
                            .handle(world.now, Event::PluginDone(id, Ok(response)));
                    }
                    other => panic!("nothing else may be done: {other:?}"),
                }
            }
            world.now = world.now + Span::from_secs(1);
        }
    }
    let decision = world.core.last_evaluation().expect("decided").decision;
    assert_eq!(decision.reason, super::Reason::Migrating);
    assert!(decision.bounded_by.contains(super::Bound::Migration));
}

#[test]
fn a_migration_that_never_comes_is_forgotten() {
    let mut world = ready(2, 45);
    world.core.plugin.migrating_since = Some(world.now);
    world.step(&Step::Metrics(180, 0)).expect("runs");
    let mut seconds = 0;
    while world.core.plugin.migrating_since.is_some() {
        world.step(&Step::Wait(1000)).expect("runs");
        world.step(&Step::Metrics(180, 0)).expect("runs");
        world.step(&Step::Finish(0, Fate::Done, 9)).expect("runs");
        seconds += 1;
        assert!(seconds < 100, "still frozen");
    }
    assert!(
        seconds >= 60,
        "an answer without the flag was believed after {seconds} s"
    );
}

#[test]
fn stale_metrics_hold_and_never_shrink() {
    let mut world = ready(4, 90);
    world.step(&Step::Wait(16_000)).expect("runs");
    let decision = world.core.last_evaluation().expect("decided").decision;
    assert_eq!(decision.target, UNIT.saturating_mul(4));
    assert_eq!(decision.reason, super::Reason::StaleMetrics);
    world.step(&Step::Metrics(0, 0)).expect("runs");
    let decision = world.core.last_evaluation().expect("decided").decision;
    assert_eq!(decision.target, UNIT);
}

#[test]
fn reconnect_while_shrinking_does_not_promise_the_monitor_too_much() {
    let mut world = ready(3, 0);
    world
        .step(&Step::Finish(2, Fate::Done, 9))
        .expect("the monitor agrees to 2");
    assert!(world.flights[1].is_some(), "the patch to 2 is under way");
    world.step(&Step::Connect(false, false)).expect("runs");
    world.step(&Step::Connect(true, true)).expect("runs");
    world
        .step(&Step::Finish(1, Fate::Done, 9))
        .expect("the patch succeeds");
    assert_eq!(world.core.faults().approved_above_use, 0);
    settle(&mut world, 0, 0).expect("settles");
    assert_eq!(world.u, UNIT);
}

#[test]
fn a_wish_before_the_connection_is_active_is_harmless() {
    let mut core = Core::new(config(), vm(1, 8, 2));
    let now = Timestamp(1_000_000);
    core.handle(now, Event::MonitorUpscaleRequested);
    core.next_actions(now);
    core.handle(now, Event::MonitorActive);
    core.next_actions(now);
    assert_eq!(core.faults().total(), 0);
}
