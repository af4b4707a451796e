//! Advice of the policy that decides about a VM. The question it answers: *which size stands where
//! the built-in goal stands?*
//!
//! | the VM | size |
//! |---|---|
//! | has no policy | built-in goal |
//! | has metrics that are missing or old | built-in goal; the core then holds the size |
//! | has advice of this age at most: [`MAX_AGE`] or that of metrics | the advice |
//! | has a fault, old advice or none | largest of built-in goal, last advice and size in use |
//! | has had that for [`Terms::fallback_after`] | built-in goal, until the next advice |
//!
//! Everything after the goal is unchanged: stabilization, the monitor's requests and refusals,
//! bounds, mode and permit. Two limits apply to advice alone. [`Terms::max_units`] cuts it.
//! [`Terms::shrink_units_per_minute`] slows a shrink ([`ShrinkBucket`]); it slows no growth.
//!
//! Advice with another digest than that of the terms is ignored, so a late answer of the policy
//! before counts for nothing.
//!
//! *Feeding*: the driver sends [`Event::Bound`](super::Event::Bound) with [`terms`] when the policy
//! that decides or its limits change, and with `None` when no policy decides. It sends
//! [`Event::Advised`](super::Event::Advised) with [`advice`] for each answer of that policy, equal
//! ones too, because the age of advice counts. A new task begins without a policy.
//!
//! # Invariants
//! * Without terms every output is that of a core without policies:
//!   `v33_without_a_policy_advice_changes_nothing` (advice_properties).
//! * Without fresh advice the VM never shrinks below the size in use before the fallback:
//!   `v33_fault_lets_the_vm_grow_and_not_shrink` (advice_tests).
//! * In a time T a VM shrinks by at most T times the rate, and by that much if nothing else holds
//!   it: `v13_shrink_follows_the_rate_exactly_under_any_jitter` (advice_limits).

use policy_contract::{ASK_AT_LATEST, Answer, Digest, Want};
pub use protocol::journal::{Advice, Said, Terms};
use protocol::policy::{Fault, Limits};
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use super::decision::{Bound, Bounds, Reason};
use super::goal::Goal;
use super::units::{units_covering, units_in, whole_units};
use super::warnings::Warning;

/// Age up to which advice counts, if metrics never count as old.
pub(super) const MAX_AGE: Span = Span::from_secs(15);
/// Time without an answer after which the built-in goal decides, where no limit says another.
const FALLBACK_AFTER: Span = Span::from_secs(600);
/// Credit of a [`ShrinkBucket`] that one compute unit costs.
const UNIT_CREDIT: u64 = 60_000_000;
/// Longest time for which a [`ShrinkBucket`] gathers credit: a minute, and the longest time between
/// two questions. Without the latter a rate of one unit would lose the time from the moment at
/// which the unit is allowed to the answer that takes it.
const FULL_AFTER: Span = Span(Span::from_secs(60).0 + ASK_AT_LATEST.0);
/// Largest rate of a [`ShrinkBucket`]. Its credit then fits into a number of the journal.
const MAX_RATE: u32 = 100_000_000;

/// Advice that a checked answer gives, or a fault in its place. `terms` are those of the version
/// that answered. A candidate has none, so none of its answers can become advice.
#[must_use]
pub fn advice(terms: &Terms, answer: Result<&Answer, Fault>) -> Advice {
    Advice {
        digest: terms.digest,
        said: match answer.map(|answer| answer.want) {
            Ok(Want::Units(units)) => Said::Want(units),
            Ok(Want::Hold) => Said::Hold,
            Err(fault) => Said::Fault(fault),
        },
    }
}

/// Terms of the version with this digest, which decides. `limits` are its own within those of the
/// administrator.
#[must_use]
pub fn terms(digest: &Digest, limits: Limits) -> Terms {
    let wait = |seconds: i64| u64::try_from(seconds).ok().map(Span::from_secs);
    Terms {
        digest: number(digest),
        fallback_after: limits
            .fallback_after_seconds
            .map_or(Some(FALLBACK_AFTER), wait),
        max_units: limits.max_units,
        shrink_units_per_minute: limits.shrink_units_per_minute,
    }
}

/// The number whose eight hex digits people see.
fn number(digest: &Digest) -> u32 {
    let [a, b, c, d, ..] = digest.0;
    u32::from_be_bytes([a, b, c, d])
}

/// Newest answer without a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastAdvice {
    /// When it came.
    pub at: Timestamp,
    /// Compute units; `None` = the size in use.
    pub units: Option<u32>,
}

/// What the core keeps of the policy that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PolicyState {
    pub terms: Option<Terms>,
    /// Since when the policy is asked: it was bound, or the metrics returned.
    pub asked_since: Timestamp,
    pub last: Option<LastAdvice>,
    /// Time of the first fault since `last`, and the newest fault.
    pub fault: Option<(Timestamp, Fault)>,
    /// The built-in goal has taken over until the next advice.
    pub has_fallen_back: bool,
    pub bucket: ShrinkBucket,
}

impl PolicyState {
    /// Takes the limits of the policy that decides from now on.
    pub(super) fn bind(&mut self, now: Timestamp, terms: Option<Terms>) {
        if terms == self.terms {
            return;
        }
        let Some(new) = terms else {
            *self = Self::default();
            return;
        };
        let bucket = self.bucket.changed(now, self.rate(), rate(new));
        let is_same_policy = self.terms.is_some_and(|old| old.digest == new.digest);
        let kept = if is_same_policy {
            *self
        } else {
            Self {
                asked_since: now,
                ..Self::default()
            }
        };
        *self = Self {
            terms,
            has_fallen_back: false,
            bucket,
            ..kept
        };
    }

    pub(super) fn advised(&mut self, now: Timestamp, advice: Advice) {
        if self.terms.map(|terms| terms.digest) != Some(advice.digest) {
            return;
        }
        let units = match advice.said {
            Said::Want(units) => Some(units),
            Said::Hold => None,
            Said::Fault(kind) => {
                let since = self.fault.map_or(now, |(at, _)| at);
                self.fault = Some((since, kind));
                return;
            }
        };
        self.last = Some(LastAdvice { at: now, units });
        self.fault = None;
        self.has_fallen_back = false;
    }

    /// The metrics returned. While they were missing the policy was not asked.
    pub(super) fn metrics_returned(&mut self, now: Timestamp) {
        if self.terms.is_some() {
            self.asked_since = now;
            self.fault = None;
        }
    }

    /// A patch changed the size.
    pub(super) fn resized(
        &mut self,
        now: Timestamp,
        (from, to): (Resources, Resources),
        unit: Resources,
    ) {
        if let Some(rate) = self.rate() {
            let units = units_covering(from.saturating_sub(to), unit);
            self.bucket = self.bucket.spent(now, rate, units);
        }
    }

    fn rate(&self) -> Option<u32> {
        self.terms.and_then(rate)
    }

    /// State of the advice at `now`. `None` without a policy.
    pub(super) fn advised_at(&self, now: Timestamp, max_age: Span) -> Option<Advised> {
        let terms = self.terms?;
        let end = |at: Timestamp| at + max_age + Span(1);
        let advised = Advised {
            digest: terms.digest,
            weight: Weight::Floor,
            last: self.last,
            max_units: terms.max_units,
            allowance: self.rate().map(|rate| self.bucket.allowance(now, rate)),
            warning: None,
            until: None,
        };
        if let (Some(last), None) = (self.last, self.fault)
            && now < end(last.at)
        {
            return Some(Advised {
                weight: Weight::Goal,
                until: Some(end(last.at)),
                ..advised
            });
        }
        let asked = |at: Timestamp| at.max(self.asked_since);
        let (since, warning) = match self.fault {
            Some((at, Fault::Late)) => (asked(at), Warning::PolicyLate),
            Some((at, _)) => (asked(at), Warning::PolicyFault),
            None => {
                let due = end(self.last.map_or(self.asked_since, |last| asked(last.at)));
                (due, Warning::PolicyLate)
            }
        };
        if now < since && !self.has_fallen_back {
            return Some(Advised {
                until: Some(since),
                ..advised
            });
        }
        let fallback_at = terms.fallback_after.map(|after| since + after);
        let falls_back = self.has_fallen_back || fallback_at.is_some_and(|at| at <= now);
        Some(Advised {
            weight: if falls_back {
                Weight::None
            } else {
                Weight::Floor
            },
            warning: Some(warning),
            until: fallback_at.filter(|_| !falls_back),
            ..advised
        })
    }
}

fn rate(terms: Terms) -> Option<u32> {
    terms.shrink_units_per_minute.map(|rate| rate.min(MAX_RATE))
}

/// Effect of the last advice on the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// It stands where the built-in goal stands.
    Goal,
    /// It may raise the built-in goal, and so may the size in use.
    Floor,
    /// The built-in goal alone counts.
    None,
}

/// Advice at the time of a computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advised {
    /// First 32 bits of the policy's digest.
    pub digest: u32,
    /// Effect of `last`.
    pub weight: Weight,
    /// Newest answer without a fault; `None` before the first.
    pub last: Option<LastAdvice>,
    /// Largest advice; more is cut.
    pub max_units: Option<u32>,
    /// Limit of a shrink; `None` = no limit.
    pub allowance: Option<Allowance>,
    /// Why there is no fresh advice.
    pub warning: Option<Warning>,
    /// When `weight` changes by time alone; `None` = never.
    pub until: Option<Timestamp>,
}

/// Size that stands where the built-in goal stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub size: Resources,
    pub reason: Reason,
    pub by: Bounds,
    pub vote: Option<f64>,
    /// Limit of a shrink to `size`.
    pub allowance: Option<Allowance>,
}

/// The target of a VM of the size `using` with this advice.
pub(super) fn target(
    (unit, using): (Resources, Resources),
    advised: Option<&Advised>,
    goal: &Goal,
) -> Target {
    let mut target = Target {
        size: unit.saturating_mul(goal.units),
        reason: Reason::from(goal.winner),
        by: Bounds::default(),
        vote: None,
        allowance: None,
    };
    let Some(advised) = advised.filter(|advised| advised.weight != Weight::None) else {
        return target;
    };
    let asked = advised.last.map(|last| match last.units {
        None => (using, units_in(using, unit)),
        Some(units) => {
            let cut = units.min(advised.max_units.unwrap_or(u32::MAX));
            if cut < units {
                target.by.insert(Bound::PolicyLimit);
            }
            (unit.saturating_mul(cut), f64::from(units))
        }
    });
    target.vote = asked.map(|(_, vote)| vote);
    match (advised.weight, asked) {
        (Weight::Goal, Some((size, _))) => {
            target.size = size;
            target.reason = Reason::Policy;
            target.allowance = advised.allowance;
        }
        _ => {
            let floor = asked.map_or(using, |(size, _)| size.field_max(using));
            if floor.has_field_above(target.size) {
                target.size = target.size.field_max(floor);
                target.reason = Reason::Policy;
            }
        }
    }
    target
}

/// Part of a shrink that is allowed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Compute units by which the VM may shrink.
    pub units: u32,
    /// When one unit more is allowed; `None` = never while the VM does not shrink.
    pub more_at: Option<Timestamp>,
}

impl Allowance {
    /// Smallest size that a VM of the size `using` may shrink to: whole units, or `using`.
    pub(super) fn floor(&self, using: Resources, unit: Resources) -> Resources {
        let floor = using.saturating_sub(unit.saturating_mul(self.units));
        whole_units(floor, unit).field_min(using)
    }
}

/// Token bucket for shrinks. It begins empty and holds the units of [`FULL_AFTER`]. Its credit
/// grows by the rate per microsecond, in whole numbers, so nothing is lost to rounding whenever it
/// is read. Only a patch that succeeded takes credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ShrinkBucket {
    /// [`UNIT_CREDIT`] for each unit.
    pub credit: u64,
    /// Time up to which `credit` is counted.
    pub at: Timestamp,
}

impl ShrinkBucket {
    fn credit(&self, now: Timestamp, rate: u32) -> u64 {
        let grown = now.since(self.at).0.saturating_mul(u64::from(rate));
        self.credit.saturating_add(grown).min(Self::most(rate))
    }

    /// Credit of a full bucket.
    fn most(rate: u32) -> u64 {
        FULL_AFTER.0.saturating_mul(u64::from(rate))
    }

    fn allowance(&self, now: Timestamp, rate: u32) -> Allowance {
        let credit = self.credit(now, rate);
        let units = u32::try_from(credit / UNIT_CREDIT).unwrap_or(u32::MAX);
        let missing = UNIT_CREDIT - credit % UNIT_CREDIT;
        let is_growing = u64::from(units + 1).saturating_mul(UNIT_CREDIT) <= Self::most(rate);
        let wait = missing.div_ceil(u64::from(rate.max(1)));
        Allowance {
            units,
            more_at: is_growing.then(|| now + Span(wait)),
        }
    }

    fn spent(&self, now: Timestamp, rate: u32, units: u32) -> Self {
        let cost = UNIT_CREDIT.saturating_mul(u64::from(units));
        Self {
            credit: self.credit(now, rate).saturating_sub(cost),
            at: now.max(self.at),
        }
    }

    /// The same bucket with another rate. A limit that was not there begins without credit.
    fn changed(&self, now: Timestamp, old: Option<u32>, new: Option<u32>) -> Self {
        let credit = old.map_or(0, |rate| self.credit(now, rate));
        Self {
            credit: credit.min(Self::most(new.unwrap_or(0))),
            at: now,
        }
    }
}
