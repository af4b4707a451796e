//! Memory that a guest no longer needs is given back: the shipped cores of agent and monitor with
//! the link between them, on one virtual clock. Scheduler and VM object do at once what they are
//! asked.

use std::collections::BTreeMap;

use agent::Config;
use agent::core::conversation::{self, Conversation, Limits, MonitorResponse, Output};
use agent::core::metrics::KERNEL_ALLOWANCE_BYTES;
use agent::core::{
    Action, Core, CoreConfig, DownscaleResponse, Event, RequestId, ScalingConfig, SystemMetrics,
    Timers, VmInfo,
};
use protocol::core::Core as _;
use protocol::monitor::Version;
use protocol::permit::PluginResponse;
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, Resources};
use serde_json::json;
use vm_monitor::core::cache::CacheMode;
use vm_monitor::core::decision::{Watched, Weight};
use vm_monitor::core::file_cache::Sizing;
use vm_monitor::core::memory::Rules;
use vm_monitor::core::v2::Seen;
use vm_monitor::core::{
    Action as MonitorAction, ConnectionId, Event as MonitorEvent, Monitor, Received, Setup,
};

const UNIT: Resources = Resources::new(250, 1 << 30);
/// Units the guest has before relief, and what it uses then.
const BEFORE: u32 = 6;
/// Load average that asks for as many: 0.225 for each.
const LOAD_BEFORE: f64 = 1.35;
const USED_BEFORE: Bytes = Bytes::mib(4300);
const USED_AFTER: Bytes = Bytes::mib(200);
/// Period of pushed metrics, as deployed.
const PUSH_PERIOD: Span = Span::from_secs(5);
const CONNECTION: ConnectionId = ConnectionId(1);

/// How an agent is set up.
#[derive(Clone, Copy)]
struct Setting {
    core: CoreConfig,
    push_every: Span,
}

/// The deployed settings.
fn deployed() -> Setting {
    Setting {
        core: CoreConfig {
            compute_unit: UNIT,
            default_scaling: ScalingConfig::default(),
            timers: Timers::default(),
            system_max_age: Some(Span::from_secs(17)),
            lfc_max_age: None,
        },
        push_every: PUSH_PERIOD,
    }
}

/// The settings of an agent on one machine that was given none.
fn one_machine() -> Setting {
    let config = Config::one_machine().expect("is valid");
    Setting {
        core: config.core(Span(0)),
        push_every: config.metrics.system.between_requests.span(),
    }
}

/// How long a size is held on one machine.
fn hold() -> Span {
    let scaling = one_machine().core.default_scaling;
    Span::from_secs(scaling.downscale_hold_seconds.into())
}

fn info(scaling: &ScalingConfig) -> VmInfo {
    let vm = json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {"name": "pg", "namespace": "default", "uid": "u", "resourceVersion": "1"},
        "spec": {"guest": {
            "cpus": {"min": "250m", "max": 2, "use": "1500m"},
            "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "max": 8, "use": BEFORE},
            "rootDisk": {"image": "x"},
        }},
    });
    let vm = serde_json::from_value(vm).expect("is an object");
    VmInfo::from_object(&vm, scaling).expect("is good")
}

fn monitor() -> Monitor {
    Monitor::new(Setup {
        rules: Rules::default(),
        sizing: Sizing::default(),
        watched: Watched::Cgroup,
        file_cache: CacheMode::Off,
        hooks: false,
        estimates: false,
        squeezes: false,
        asks_schedule: false,
        exit_when_alone: None,
    })
}

/// A VM with its agent and its monitor.
struct Pair {
    now: Timestamp,
    used: Bytes,
    /// Load average over one minute and over five.
    load: f64,
    monitor: Monitor,
    link: Conversation,
    calls: BTreeMap<u64, RequestId>,
    core: Core,
    /// Shrinks that the monitor was asked to agree to, and when.
    asked: Vec<(Timestamp, Resources)>,
    /// Shrinks that the monitor agreed to.
    approvals: usize,
    scrape_at: Option<Timestamp>,
    scrape_every: Span,
}

impl Pair {
    fn new(version: Version, setting: Setting) -> Self {
        let now = Timestamp(1_000_000);
        let limits = Limits {
            response: Span::from_secs(5),
            health_check_every: Span::from_secs(5),
            unhealthy: Span::from_secs(20),
            push_every: setting.push_every,
        };
        let mut pair = Self {
            now,
            used: USED_BEFORE,
            load: 0.0,
            monitor: monitor(),
            link: Conversation::new(now, version, limits),
            calls: BTreeMap::new(),
            core: Core::new(setting.core, info(&setting.core.default_scaling)),
            asked: Vec::new(),
            approvals: 0,
            // Nothing is pushed in version 1.
            scrape_at: (version == Version::V1).then_some(now),
            scrape_every: setting.push_every,
        };
        pair.monitor.handle(
            now,
            MonitorEvent::AgentReady {
                connection: CONNECTION,
                version,
                machine_total: pair.total(),
            },
        );
        pair.core.handle(now, Event::MonitorActive);
        pair.settle();
        pair
    }

    fn total(&self) -> Option<Bytes> {
        let size = self.core.using().mem.0;
        Some(Bytes(size - Rules::default().kernel_reserve.0))
    }

    /// Time from relief, so long after the beginning, until the VM is at its minimum.
    fn relieved_after(&mut self, span: Span) -> Span {
        let relief = self.now + span;
        self.run_until(relief, |_| false);
        assert_eq!(self.core.using(), UNIT.saturating_mul(BEFORE));
        self.used = USED_AFTER;
        self.asked.clear();
        self.approvals = 0;
        let is_least = |pair: &Self| pair.core.using() == UNIT;
        self.run_until(relief + Span::from_secs(60), is_least);
        assert!(is_least(self), "still {}", self.core.using());
        self.now.since(relief)
    }

    fn run_until(&mut self, end: Timestamp, is_done: impl Fn(&Self) -> bool) {
        while !is_done(self) {
            let due = [
                self.core.poll_deadline(),
                self.monitor.poll_deadline(),
                self.link.poll_deadline(),
                self.scrape_at,
            ];
            let next = due.into_iter().flatten().min().expect("a health check");
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            self.link.handle(self.now, conversation::Event::Elapsed);
            self.core.handle(self.now, Event::Tick);
            if self.scrape_at.is_some_and(|at| at <= self.now) {
                self.scrape_at = Some(self.now + self.scrape_every);
                self.measured();
            }
            self.settle();
        }
    }

    /// Carries out all that is to be done now.
    fn settle(&mut self) {
        loop {
            if let Some(action) = self.monitor.poll_action(self.now) {
                self.act_for_monitor(action);
            } else if let Some(output) = self.link.poll_action(self.now) {
                self.act_for_link(output);
            } else if let Some((id, action)) = self.core.poll_action(self.now) {
                self.act_for_agent(id, action);
            } else {
                return;
            }
        }
    }

    fn act_for_monitor(&mut self, action: MonitorAction) {
        let event = match action {
            // Page cache makes up a quarter of it.
            MonitorAction::Probe => MonitorEvent::Probed(Some(Bytes(self.used.0 / 4 * 5))),
            MonitorAction::Sample => MonitorEvent::Sampled(Ok(self.used)),
            MonitorAction::Weigh => MonitorEvent::Weighed(Weight::default()),
            MonitorAction::ReadZones => MonitorEvent::ZonesRead(None),
            MonitorAction::Observe => MonitorEvent::Observed(Seen {
                cpus: Some(self.core.using().cpu.rounded_up_cores()),
                total: self.total(),
            }),
            MonitorAction::Measure => MonitorEvent::Measured(Box::default()),
            MonitorAction::Send { frame, .. } => {
                return self
                    .link
                    .handle(self.now, conversation::Event::Text(frame.encode()));
            }
            MonitorAction::SendV2 { frame, .. } => {
                return self
                    .link
                    .handle(self.now, conversation::Event::Text(frame.encode()));
            }
            other => panic!("{other:?}"),
        };
        self.monitor.handle(self.now, event);
    }

    fn act_for_link(&mut self, output: Output) {
        match output {
            Output::Send(frame) => {
                let event = MonitorEvent::Received {
                    connection: CONNECTION,
                    what: Received::Text(frame.encode()),
                };
                self.monitor.handle(self.now, event);
            }
            Output::Pushed(_) => self.measured(),
            Output::Done { id, outcome, .. } => {
                let Some(request) = self.calls.remove(&id) else {
                    return;
                };
                let event = match outcome.expect("an answer") {
                    MonitorResponse::Downscale(result) => {
                        self.approvals +=
                            usize::from(result.response == DownscaleResponse::Allowed);
                        Event::MonitorDownscaleDone(request, Ok(result.response))
                    }
                    _ => Event::MonitorUpscaleDone(request, Ok(())),
                };
                self.core.handle(self.now, event);
            }
            other => panic!("{other:?}"),
        }
    }

    fn act_for_agent(&mut self, id: RequestId, action: Action) {
        let call = match action {
            Action::Permit(request) => {
                let response = PluginResponse {
                    permit: request.target,
                    migrate: None,
                };
                return self
                    .core
                    .handle(self.now, Event::PermitDone(id, Ok(response)));
            }
            Action::VmPatch(_) => {
                return self.core.handle(self.now, Event::VmPatchDone(id, Ok(None)));
            }
            Action::MonitorUpscale(request) => self.link.upscale(self.now, request.target),
            Action::MonitorDownscale(request) => {
                self.asked.push((self.now, request.target));
                self.link.downscale(self.now, request.target)
            }
        };
        self.calls.insert(call, id);
    }

    /// The agent learns what the guest uses.
    fn measured(&mut self) {
        let used = u32::try_from(self.used.0 >> 20).expect("is small");
        let metrics = SystemMetrics {
            load1: self.load,
            load5: self.load,
            memory_usage_bytes: f64::from(used) * f64::from(1 << 20) + KERNEL_ALLOWANCE_BYTES,
            ..SystemMetrics::default()
        };
        self.core.handle(self.now, Event::SystemMetrics(metrics));
    }
}

/// What it takes from relief to the minimum, at most, wherever between two metrics relief comes.
#[derive(Debug, Default)]
struct Worst {
    took: Span,
    questions: usize,
    approvals: usize,
}

fn worst(version: Version, setting: Setting) -> Worst {
    let mut worst = Worst::default();
    for quarter in 0..20 {
        let mut pair = Pair::new(version, setting);
        let took = pair.relieved_after(Span::from_millis(60_001 + 250 * quarter));
        worst.took = worst.took.max(took);
        worst.questions = worst.questions.max(pair.asked.len());
        worst.approvals = worst.approvals.max(pair.approvals);
    }
    worst
}

#[test]
fn memory_is_given_back_within_eight_seconds_of_relief() {
    let worst = worst(Version::V2, deployed());
    assert!(worst.took <= Span::from_secs(8), "{worst:?}");
    // The monitor says when to ask, so it is not asked in vain again and again.
    assert!(worst.questions <= 5, "{worst:?}");
    // What the recent peak does not need at once, and the rest when it is over.
    assert!(worst.approvals <= 2, "{worst:?}");
}

/// A monitor of version 1 says nothing, and is asked once per cooldown as ever.
#[test]
fn monitor_of_version_1_is_asked_once_per_cooldown() {
    for quarter in 0..20 {
        let mut pair = Pair::new(Version::V1, deployed());
        pair.relieved_after(Span::from_millis(60_001 + 250 * quarter));
        let cooldown = Timers::default().monitor_denied_downscale_cooldown;
        let least = pair.asked.iter().filter(|(_, target)| *target == UNIT);
        let at: Vec<Timestamp> = least.map(|(at, _)| *at).collect();
        let is_whole = |two: &[Timestamp]| two[1].since(two[0]) >= cooldown;
        assert!(at.windows(2).all(is_whole), "{at:?}");
    }
}

/// By the end of the hold the monitor's recent peak is over as well.
#[test]
fn one_machine_gives_memory_back_after_its_hold_and_asks_once() {
    let worst = worst(Version::V2, one_machine());
    assert!(worst.took >= hold(), "{worst:?}");
    let later = Span(worst.took.0 - hold().0);
    assert!(later <= Span::from_secs(8), "{later:?} after the hold");
    assert_eq!((worst.questions, worst.approvals), (1, 1));
}

#[test]
fn load_that_comes_back_within_the_hold_finds_the_size_it_had() {
    let mut pair = Pair::new(Version::V2, one_machine());
    // From here on load alone asks for the size.
    (pair.load, pair.used) = (LOAD_BEFORE, USED_AFTER);
    let calm = Span(hold().0 / 3 * 2);
    for _ in 0..5 {
        for (load, span) in [(LOAD_BEFORE, Span::from_secs(60)), (0.0, calm)] {
            pair.load = load;
            pair.run_until(pair.now + span, |pair| !pair.asked.is_empty());
            assert_eq!(pair.core.using(), UNIT.saturating_mul(BEFORE));
            assert_eq!(pair.asked, []);
        }
    }
    pair.run_until(pair.now + hold(), |pair| pair.core.using() == UNIT);
    assert_eq!(pair.core.using(), UNIT);
}
