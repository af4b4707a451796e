//! Questions to the policies, and how these answer.

use agent::core::{Advice, Event as CoreEvent, Said, Terms};
use protocol::policy::Fault;
use protocol::time::{Span, Timestamp};

use super::{BATCH_VM, MOODS, Mood, PolicyEvent, terms};
use crate::agent::times::METRICS_MAX_AGE;
use crate::event::Event;
use crate::options::{PolicyKind, Sabotage};
use crate::rng::{MILLION, Rng};
use crate::world::World;

/// Shortest time between two questions about a VM.
const ASK_EVERY: Span = Span::from_secs(1);

/// Shortest and longest time that a hostile policy behaves in one way, ms.
const MOOD_LASTS: (u64, u64) = (3_000, 90_000);
/// How long a task has no policy before it gets one again.
const UNBOUND_LASTS: Span = Span::from_secs(7);
/// Digests of two policies.
const DIGESTS: [u32; 2] = [0x5be1_a7c0, 0x77ab_90c4];

impl World {
    /// Takes an event that a task's core was told, and asks its policy.
    pub(crate) fn policy_hears(&mut self, vm: usize, is_metrics: bool) {
        let (kind, now) = (self.options.policy, self.now);
        if kind == PolicyKind::None || (kind == PolicyKind::Batch && vm != BATCH_VM) {
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
        let answer = match self.options.policy {
            PolicyKind::Builtin => Some((Said::Want(builtin), quick)),
            PolicyKind::Batch => Some((self.batch_answer(), quick)),
            PolicyKind::None | PolicyKind::Hostile => {
                let answer = self.hostile_answer(vm, builtin);
                answer.map(|(said, late)| (said, quick.max(late)))
            }
        };
        let Some((said, after)) = answer else {
            return self.policy_later(vm, id, quick, PolicyEvent::NoAnswer);
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
