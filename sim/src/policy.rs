//! The policy of each VM, as the agent's task has it: its limits, the questions to it, its answers.
//!
//! What `agent/src/shell/policy` does between core and worker is done here: a task asks after an
//! event, at most once a second, and not while metrics are old. A hostile policy gives every answer
//! that the contract allows, faults, answers too late and none. In a quiescent phase it is silent,
//! so the built-in goal must take over.

use agent::core::{Advice, Event as CoreEvent, RequestId, Said, Terms};
use protocol::policy::Fault;
use protocol::time::{Span, Timestamp};

use crate::agent::METRICS_MAX_AGE;
use crate::event::Event;
use crate::options::{PolicyKind, Sabotage};
use crate::rng::{MILLION, Rng};
use crate::world::World;

/// Shortest time between two questions about a VM.
const ASK_EVERY: Span = Span::from_secs(1);
/// Time without an answer after which the built-in goal decides.
const FALLBACK_AFTER: Span = Span::from_secs(20);
/// Largest size that a hostile policy may ask for, units. VMs go beyond it.
const MAX_UNITS: u32 = 7;
/// Units by which a hostile policy may shrink a VM in a minute.
const SHRINK_RATE: u32 = 6;
/// Shortest and longest time that a hostile policy behaves in one way, ms.
const MOOD_LASTS: (u64, u64) = (3_000, 90_000);
/// How long a task has no policy before it gets one again.
const UNBOUND_LASTS: Span = Span::from_secs(7);
/// Digests of two policies.
const DIGESTS: [u32; 2] = [0x5be1_a7c0, 0x77ab_90c4];
/// Most by which the clock of a recorded task is ahead.
const CLOCK_AHEAD: Span = Span::from_millis(1);
/// Credit that a unit costs: the rate is per minute.
const MINUTE: u128 = 60_000_000;

/// The longest that a policy delays convergence: its last answer grows old, then its absence lasts.
pub(crate) fn delays_convergence(kind: PolicyKind) -> Span {
    match kind {
        PolicyKind::None | PolicyKind::Builtin => Span(0),
        PolicyKind::Hostile => Span(METRICS_MAX_AGE.0 + FALLBACK_AFTER.0),
    }
}

fn terms(kind: PolicyKind, digest: u32) -> Option<Terms> {
    let is_hostile = match kind {
        PolicyKind::None => return None,
        PolicyKind::Builtin => false,
        PolicyKind::Hostile => true,
    };
    Some(Terms {
        digest,
        fallback_after: is_hostile.then_some(FALLBACK_AFTER),
        max_units: is_hostile.then_some(MAX_UNITS),
        shrink_units_per_minute: is_hostile.then_some(SHRINK_RATE),
    })
}

/// A way in which a hostile policy behaves for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Honest,
    Random,
    Flapping,
    Greedy,
    Stingy,
    Holding,
    Faulty,
    Late,
    Silent,
    Mixed,
}

const MOODS: [Mood; 10] = [
    Mood::Honest,
    Mood::Random,
    Mood::Flapping,
    Mood::Greedy,
    Mood::Stingy,
    Mood::Holding,
    Mood::Faulty,
    Mood::Late,
    Mood::Silent,
    Mood::Mixed,
];

/// What happens to a policy's part of a task.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PolicyEvent {
    /// The task gets its policy, or another one.
    Bind,
    /// An answer reaches the task.
    Answer(Advice),
    /// The task gets no answer.
    NoAnswer,
}

/// Policy of one task, and the truth about its answers.
#[derive(Debug, Clone)]
pub(crate) struct TaskPolicy {
    is_scheduled: bool,
    /// Limits in force, whatever the core was told.
    pub terms: Option<Terms>,
    pub bound_at: Timestamp,
    asked_at: Option<Timestamp>,
    mood: Mood,
    mood_until: Timestamp,
    flips: bool,
    /// Newest answer without a fault of the policy in force, and when it came.
    pub answered: Option<(Timestamp, Advice)>,
    /// When the answers failed: the first fault since the newest answer.
    pub failed_at: Option<Timestamp>,
    /// When metrics returned after they were old.
    pub metrics_since: Timestamp,
    /// Whether the built-in goal may decide until the next answer.
    pub has_fallen_back: bool,
    /// Since when the policy has a rate.
    pub rated_since: Timestamp,
    /// Units that the policy took from the VM since then.
    pub shrunk: u64,
    /// Patch in flight by which it takes this many more.
    pub patch: Option<(RequestId, u64)>,
}

impl Default for TaskPolicy {
    fn default() -> Self {
        Self {
            is_scheduled: false,
            terms: None,
            bound_at: Timestamp::default(),
            asked_at: None,
            mood: Mood::Honest,
            mood_until: Timestamp::default(),
            flips: false,
            answered: None,
            failed_at: None,
            metrics_since: Timestamp::default(),
            has_fallen_back: false,
            rated_since: Timestamp::default(),
            shrunk: 0,
            patch: None,
        }
    }
}

impl TaskPolicy {
    /// Whether the newest answer is no fault and not old.
    pub(crate) fn is_fresh(&self, now: Timestamp) -> bool {
        // The clock of a recorded task is ahead by a microsecond for each event at one time.
        let is_young = |(at, _)| now.since(at) <= Span(METRICS_MAX_AGE.0 + CLOCK_AHEAD.0);
        self.failed_at.is_none() && self.answered.is_some_and(is_young)
    }

    /// Whether the built-in goal may decide.
    pub(crate) fn may_fall_back(&self, now: Timestamp) -> bool {
        let Some(after) = self.terms.and_then(|terms| terms.fallback_after) else {
            return self.terms.is_none();
        };
        let asked = self.bound_at.max(self.metrics_since);
        let since = match (self.failed_at, self.answered) {
            (Some(at), _) => at.max(asked),
            (None, Some((at, _))) => at.max(asked) + METRICS_MAX_AGE,
            (None, None) => asked + METRICS_MAX_AGE,
        };
        now >= since + after
    }

    /// Whether the policy has taken no more than its rate allows.
    pub(crate) fn is_within_rate(&self, now: Timestamp) -> bool {
        let rate = self.terms.and_then(|terms| terms.shrink_units_per_minute);
        rate.is_none_or(|rate| {
            let passed = Span(now.since(self.rated_since).0 + CLOCK_AHEAD.0);
            let credit = u128::from(passed.0) * u128::from(rate);
            u128::from(self.shrunk) * MINUTE <= credit
        })
    }

    fn bind(&mut self, now: Timestamp, terms: Option<Terms>) {
        let of = |terms: Option<Terms>| terms.map(|terms| terms.digest);
        if of(terms) != of(self.terms) {
            (self.answered, self.failed_at, self.bound_at) = (None, None, now);
            self.has_fallen_back = false;
        }
        if self.terms.is_none() {
            (self.rated_since, self.shrunk, self.patch) = (now, 0, None);
        }
        self.terms = terms;
    }

    fn took(&mut self, now: Timestamp, advice: Advice) {
        if self.terms.map(|terms| terms.digest) != Some(advice.digest) {
            return;
        }
        if let Said::Fault(_) = advice.said {
            self.failed_at = self.failed_at.or(Some(now));
        } else {
            (self.answered, self.failed_at) = (Some((now, advice)), None);
            self.has_fallen_back = false;
        }
    }
}

impl World {
    /// Takes an event that a task's core was told, and asks its policy.
    pub(crate) fn policy_hears(&mut self, vm: usize, is_metrics: bool) {
        let (kind, now) = (self.options.policy, self.now);
        if kind == PolicyKind::None {
            return;
        }
        let Some(task) = self.vms[vm].agent_task.as_mut() else {
            return;
        };
        let id = task.id;
        if !task.policy.is_scheduled {
            task.policy.is_scheduled = true;
            self.policy_later(vm, id, Span(0), PolicyEvent::Bind);
            return;
        }
        let is_due = task
            .policy
            .asked_at
            .is_none_or(|at| now.since(at) >= ASK_EVERY);
        let decision = task.core.last_evaluation().map(|last| last.decision);
        let builtin = decision
            .filter(|it| it.has_all_metrics)
            .map(|it| it.goal_units);
        if let (Some(builtin), Some(terms), true) = (builtin, task.policy.terms, is_due) {
            task.policy.asked_at = Some(now);
            self.ask_policy(vm, id, terms.digest, builtin);
        }
        let is_hostile = kind == PolicyKind::Hostile && self.fault_schedule.is_active;
        if is_hostile && is_metrics && self.policy_rng.chance(MILLION / 60) {
            self.policy_later(vm, id, Span(0), PolicyEvent::Bind);
        }
    }

    fn ask_policy(&mut self, vm: usize, id: u64, digest: u32, builtin: u32) {
        let quick = self.policy_rng.span(Span(300), Span::from_millis(3));
        let (said, after) = if self.options.policy == PolicyKind::Builtin {
            (Said::Want(builtin), quick)
        } else {
            match self.hostile_answer(vm, builtin) {
                Some((said, late)) => (said, quick.max(late)),
                None => return self.policy_later(vm, id, quick, PolicyEvent::NoAnswer),
            }
        };
        let mut advice = Advice { digest, said };
        if self.options.policy == PolicyKind::Hostile && self.policy_rng.chance(MILLION / 50) {
            self.tally.count("advice of another policy");
            advice.digest ^= 1;
        }
        self.policy_later(vm, id, after, PolicyEvent::Answer(advice));
    }

    fn hostile_answer(&mut self, vm: usize, builtin: u32) -> Option<(Said, Span)> {
        if !self.fault_schedule.is_active {
            return None;
        }
        let now = self.now;
        let policy = &mut self.vms[vm].agent_task.as_mut()?.policy;
        let rng = &mut self.policy_rng;
        if policy.mood_until <= now {
            policy.mood = MOODS[rng.index(MOODS.len())];
            policy.mood_until = now + rng.millis(MOOD_LASTS.0, MOOD_LASTS.1);
        }
        policy.flips = !policy.flips;
        let mood = match policy.mood {
            Mood::Mixed => MOODS[rng.index(MOODS.len() - 1)],
            mood => mood,
        };
        let (name, said) = match mood {
            Mood::Honest | Mood::Mixed => ("advice as built in", Said::Want(builtin)),
            Mood::Random | Mood::Late => ("advice at random", Said::Want(any_size(rng))),
            Mood::Flapping if policy.flips => ("advice that flaps", Said::Want(u32::MAX)),
            Mood::Flapping => ("advice that flaps", Said::Want(0)),
            Mood::Greedy => ("advice to have all", Said::Want(u32::MAX)),
            Mood::Stingy => ("advice to have nothing", Said::Want(0)),
            Mood::Holding => ("advice to hold", Said::Hold),
            Mood::Faulty => {
                let fault = Fault::ALL[rng.index(Fault::ALL.len())];
                ("advice at fault", Said::Fault(fault))
            }
            Mood::Silent => {
                self.tally.count("advice lost");
                return None;
            }
        };
        let late = if mood == Mood::Late {
            self.tally.count("advice late");
            rng.millis(1_000, 40_000)
        } else {
            Span(0)
        };
        self.tally.count(name);
        Some((said, late))
    }

    fn policy_later(&mut self, vm: usize, agent_task: u64, after: Span, what: PolicyEvent) {
        let event = Event::Policy {
            vm,
            agent_task,
            what,
        };
        self.after(after, event);
    }

    pub(crate) fn policy_event(&mut self, vm: usize, id: u64, what: PolicyEvent) {
        let (now, kind) = (self.now, self.options.policy);
        let is_active = self.fault_schedule.is_active;
        let Some(task) = self.vms[vm]
            .agent_task
            .as_mut()
            .filter(|task| task.id == id)
        else {
            return;
        };
        let is_bound = task.policy.bound_at > Timestamp::default();
        match what {
            // In a quiescent phase every task keeps what it has.
            PolicyEvent::Bind if is_bound && !is_active => {
                self.policy_later(vm, id, UNBOUND_LASTS, PolicyEvent::Bind);
            }
            PolicyEvent::Bind => {
                let rng = &mut self.policy_rng;
                let next = if task.policy.terms.is_some() && rng.chance(MILLION / 3) {
                    self.tally.count("advice unbound");
                    None
                } else {
                    terms(kind, DIGESTS[rng.index(DIGESTS.len())])
                };
                task.policy.bind(now, next);
                if next.is_none() {
                    self.policy_later(vm, id, UNBOUND_LASTS, PolicyEvent::Bind);
                }
                let told = next.map(|terms| self.cheated_terms(terms));
                self.tell_agent_task(vm, CoreEvent::Bound(told));
            }
            PolicyEvent::NoAnswer => {
                let stale = task.policy.answered.map(|(_, advice)| advice);
                if let Some(advice) = stale.filter(|_| self.cheats(Sabotage::StaleAdvice)) {
                    self.tell_agent_task(vm, CoreEvent::Advised(advice));
                }
            }
            // An answer on its way when the faults end is not delivered.
            PolicyEvent::Answer(_) if kind == PolicyKind::Hostile && !is_active => {}
            PolicyEvent::Answer(advice) => {
                task.policy.took(now, advice);
                self.tell_agent_task(vm, CoreEvent::Advised(advice));
            }
        }
    }

    /// Limits as a cheating shell passes them on.
    fn cheated_terms(&self, mut terms: Terms) -> Terms {
        if self.cheats(Sabotage::NoDeclineRate) {
            terms.shrink_units_per_minute = None;
        }
        if self.cheats(Sabotage::NoPolicyLimit) {
            terms.max_units = None;
        }
        if self.cheats(Sabotage::EarlyFallback) {
            terms.fallback_after = Some(Span(0));
        }
        terms
    }

    /// Metrics reach a task.
    pub(crate) fn policy_sees_metrics(&mut self, vm: usize, before: Option<Timestamp>) {
        let now = self.now;
        let is_back = before.is_none_or(|at| now.since(at) > METRICS_MAX_AGE);
        if let Some(task) = self.vms[vm].agent_task.as_mut().filter(|_| is_back) {
            task.policy.metrics_since = now;
            task.policy.failed_at = None;
        }
    }
}

fn any_size(rng: &mut Rng) -> u32 {
    match rng.below(8) {
        0 => 0,
        1 => u32::MAX,
        _ => u32::try_from(rng.below(16)).unwrap_or(0),
    }
}
