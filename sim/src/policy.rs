//! The policy of each VM, as the agent's task has it: its limits, the questions to it, its answers.
//!
//! What `agent/src/shell/policy` does between core and worker is done here: a task asks after an
//! event, at most once a second, and not while metrics are old. A hostile policy gives every answer
//! that the contract allows, faults, answers too late and none. In a quiescent phase it is silent,
//! so the built-in goal must take over. The policy of a batch VM ([`batch`]) gets the units that
//! other VMs of its node lack.

mod answers;
mod batch;

use agent::core::{Advice, RequestId, Said, Terms};
use protocol::journal::Milli;
use protocol::time::{Span, Timestamp};

use crate::agent::times::METRICS_MAX_AGE;
use crate::options::PolicyKind;

/// The VM that has the policy `batch`.
pub(crate) const BATCH_VM: usize = 0;
/// Time from a cut permit until that VM has given way.
const GIVES_WAY_WITHIN: Span = Span::from_secs(10);
/// Time without an answer after which the built-in goal decides.
const FALLBACK_AFTER: Span = Span::from_secs(20);
/// Largest size that a hostile policy may ask for, units. VMs go beyond it.
const MAX_UNITS: u32 = 7;
/// Units by which a hostile policy may shrink a VM in a minute.
const SHRINK_RATE: u32 = 6;
/// Most by which the clock of a recorded task is ahead.
const CLOCK_AHEAD: Span = Span::from_millis(1);
/// Credit that a unit costs: the rate is per minute.
const MINUTE: u128 = 60_000_000;

/// The longest that a policy delays convergence: its last answer grows old, then its absence lasts.
pub(crate) fn delays_convergence(kind: PolicyKind) -> Span {
    match kind {
        PolicyKind::None | PolicyKind::Builtin => Span(0),
        PolicyKind::Batch => GIVES_WAY_WITHIN,
        PolicyKind::Hostile => Span(METRICS_MAX_AGE.0 + FALLBACK_AFTER.0),
    }
}

fn terms(kind: PolicyKind, digest: u32) -> Option<Terms> {
    let is_hostile = match kind {
        PolicyKind::None => return None,
        PolicyKind::Builtin | PolicyKind::Batch => false,
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
    /// Units that the newest permit left out, and when it came.
    pub shortage: Option<(Timestamp, Milli)>,
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
            shortage: None,
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
