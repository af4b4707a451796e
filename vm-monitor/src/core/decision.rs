//! May the VM shrink? The rule, and its answers as data.

mod display;
#[cfg(test)]
mod tests;

use protocol::monitor_v2::RefusalReason;
use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;
use serde::Serialize;

use super::files::ReadFailure;
use super::hooks::HookVeto;
use super::memory::{Rules, Window};
use super::squeeze::Squeezed;
use super::zones::Zones;

/// What is watched for memory use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Watched {
    /// One cgroup v2 group.
    Cgroup,
    /// The whole machine.
    Machine,
    /// Nothing: every shrink is approved as far as memory goes.
    Nothing,
}

impl Watched {
    const fn noun(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup memory threshold",
            Self::Machine => "machine memory threshold",
            Self::Nothing => "no memory threshold",
        }
    }
}

/// Why a shrink is approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "approved_because")]
pub enum Approval {
    /// No memory is watched.
    NotWatched,
    /// Use fits under the threshold of the new size.
    Fits {
        /// What is watched.
        watched: Watched,
        /// The threshold until now.
        was: Option<Bytes>,
        /// The threshold of the new size.
        threshold: Bytes,
        /// The usable part of the new size.
        total: Bytes,
    },
}

/// Why a shrink is refused: a value the agent keeps for a while, not an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "refused_because")]
pub enum Refusal {
    /// Memory use cannot be read, so nothing is known.
    Unreadable(ReadFailure),
    /// Too few readings since the agent connected.
    TooFewSamples {
        /// Readings there are.
        have: usize,
        /// Fewest readings to decide with: `min_samples` of the [`Rules`].
        need: usize,
    },
    /// What was in use a moment ago does not fit under the threshold of the new size.
    RecentPeak {
        /// The threshold of the new size.
        threshold: Bytes,
        /// The most that was in use lately.
        peak: Bytes,
    },
    /// What of the use is in memory would fit under the threshold of the new size; with what is in
    /// swap it does not.
    Swapped {
        /// The threshold of the new size.
        threshold: Bytes,
        /// Mean use without what is in swap.
        in_memory: Bytes,
        /// What is in swap.
        swap: Bytes,
        /// What must stay free between the two and the threshold.
        buffer: Bytes,
    },
    /// Tasks wait for memory as it is.
    Pressure {
        /// Share of the last ten seconds in which some did, in thousandths.
        some_permille: u16,
    },
    /// The kernel could not give so much back now.
    NotMovable {
        /// By how much the guest would shrink at least.
        by: Bytes,
        /// The most it could give back.
        can_give: Bytes,
        /// All memory it has now.
        total: Bytes,
        /// What its zones hold.
        zones: Zones,
    },
    /// The group did not fit into the new size, or not without harm, when it was tried.
    Squeezed(Squeezed),
    /// A hook says no.
    Hook(HookVeto),
    /// Use, with its buffer, does not fit under the threshold of the new size.
    TooLow {
        /// The threshold of the new size.
        threshold: Bytes,
        /// Mean of the readings in the window, with what is in swap.
        in_use: Bytes,
        /// What must stay free between the two.
        buffer: Bytes,
    },
}

impl Refusal {
    /// The wire's word for it.
    #[must_use]
    pub const fn reason(&self) -> RefusalReason {
        match self {
            Self::Unreadable(_) => RefusalReason::Unreadable,
            Self::TooFewSamples { .. } => RefusalReason::TooFewSamples,
            Self::TooLow { .. } => RefusalReason::InUse,
            Self::RecentPeak { .. } => RefusalReason::RecentPeak,
            Self::Swapped { .. } => RefusalReason::Swap,
            Self::Pressure { .. } => RefusalReason::Pressure,
            Self::NotMovable { .. } => RefusalReason::NotMovable,
            Self::Squeezed(_) => RefusalReason::Squeeze,
            Self::Hook(_) => RefusalReason::Hook,
        }
    }

    /// The smallest memory that would be accepted now, bytes; none where nothing is known.
    #[must_use]
    pub fn smallest(&self, rules: &Rules) -> Option<u64> {
        match self {
            Self::Unreadable(_)
            | Self::TooFewSamples { .. }
            | Self::Pressure { .. }
            | Self::Hook(_) => None,
            Self::TooLow { in_use, .. } => Some(rules.smallest_for(*in_use)),
            Self::RecentPeak { peak, .. } => Some(rules.smallest_over(*peak)),
            Self::NotMovable {
                can_give, total, ..
            } => Some(total.0.saturating_sub(can_give.0)),
            // Where the group fits as it is, there is nothing to squeeze.
            Self::Squeezed(Squeezed { goal, reached, .. }) => reached
                .filter(|reached| reached > goal)
                .map(|reached| reached.0.saturating_add(rules.kernel_reserve.0)),
            Self::Swapped {
                in_memory, swap, ..
            } => {
                let all = in_memory.0.saturating_add(swap.0);
                Some(rules.smallest_for(Bytes(all)))
            }
        }
    }
}

/// Why a request could not be decided or carried out; answered with `InternalError`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "failed_because")]
pub enum Failure {
    /// The newest reading is too old, though no attempt failed: we have not been running.
    Stale {
        /// Time since the newest reading, longer than `max_age` of the [`Rules`].
        age: Span,
    },
    /// The file cache could not be set.
    FileCache {
        /// What the database or the connection said.
        detail: String,
    },
    /// More requests are waiting than a sane agent sends.
    Busy {
        /// Requests waiting when this one came: the queue's limit of 32.
        waiting: usize,
    },
}

/// The answer to "may the VM shrink?".
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShrinkDecision {
    /// Use fits into the new size. Squeeze, hooks and file cache can still stop the shrink.
    Approve(Approval),
    /// The VM must keep its size for now. The agent keeps that answer for a while.
    Refuse(Refusal),
    /// The rule could not be applied. The agent gets an `InternalError`.
    Fail(Failure),
}

/// What a verdict rests on.
#[derive(Debug, Clone, Copy)]
pub struct Basis<'a> {
    /// Numbers of the memory rules: reserve, headroom, buffer, least readings, age.
    pub rules: &'a Rules,
    /// What is watched.
    pub watched: Watched,
    /// Newest readings of memory use in this session, with the failure of the newest attempt.
    pub window: &'a Window,
    /// The threshold in force.
    pub threshold: Option<Bytes>,
    /// The most that was in use lately.
    pub peak: Option<Bytes>,
    /// What else weighs on memory right now.
    pub weight: Weight,
}

/// What weighs on memory beside what is in use, read when a shrink is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Weight {
    /// How much of the use is in swap, none where there is no such figure.
    pub swap: Option<Bytes>,
    /// Share of the last ten seconds in which some tasks waited for memory, in thousandths; none
    /// without PSI.
    pub some_permille: Option<u16>,
    /// All memory the guest sees it has.
    pub total: Option<Bytes>,
    /// What of it is free or page cache; none if the kernel does not say.
    pub idle: Option<Bytes>,
    /// What its zones hold; none if the kernel does not say, or they were not read.
    pub zones: Option<Zones>,
}

impl Weight {
    /// By how much the guest shrinks at least, for it sees a little less memory than it has.
    pub(super) fn shrinks_by(&self, mem: u64) -> Option<Bytes> {
        Some(Bytes(self.total?.0.saturating_sub(mem)))
    }

    /// Why the kernel could not give back what a shrink to `mem` bytes takes, if so.
    fn not_movable(&self, mem: u64) -> Option<Refusal> {
        let (total, zones) = (self.total?, self.zones?);
        let can_give = zones.can_give()?;
        let by = self.shrinks_by(mem)?;
        (by > can_give).then_some(Refusal::NotMovable {
            by,
            can_give,
            total,
            zones,
        })
    }
}

/// Decides on a shrink to `mem` bytes. The order of the checks is part of the rule.
///
/// A failed newest reading refuses before age is looked at: a reason that can be named beats one
/// that follows from it. Source: docs/compatibility/monitor.md §3, §5.
#[must_use]
pub fn judge(basis: Basis<'_>, mem: u64, now: Timestamp) -> ShrinkDecision {
    let Basis {
        rules,
        watched,
        window,
        threshold: was,
        peak,
        weight,
    } = basis;
    if watched == Watched::Nothing {
        return ShrinkDecision::Approve(Approval::NotWatched);
    }
    if let Some(failure) = window.failure() {
        return ShrinkDecision::Refuse(Refusal::Unreadable(failure.clone()));
    }
    if let Some(age) = window.age(now).filter(|age| *age > rules.max_age) {
        return ShrinkDecision::Fail(Failure::Stale { age });
    }
    let (have, need) = (window.len(), rules.min_samples);
    let Some(in_use) = window.mean().filter(|_| have >= need) else {
        return ShrinkDecision::Refuse(Refusal::TooFewSamples { have, need });
    };
    let total = rules.usable(mem);
    let (threshold, buffer) = (rules.threshold(total), rules.downscale_buffer);
    if threshold.0 < in_use.0.saturating_add(buffer.0) {
        let swap = weight.swap.unwrap_or_default().min(in_use);
        let in_memory = Bytes(in_use.0 - swap.0);
        let would_fit = threshold.0 >= in_memory.0.saturating_add(buffer.0);
        return ShrinkDecision::Refuse(if would_fit {
            Refusal::Swapped {
                threshold,
                in_memory,
                swap,
                buffer,
            }
        } else {
            Refusal::TooLow {
                threshold,
                in_use,
                buffer,
            }
        });
    }
    if let Some(peak) = peak.filter(|peak| *peak > threshold) {
        return ShrinkDecision::Refuse(Refusal::RecentPeak { threshold, peak });
    }
    if let Some(refusal) = weight.not_movable(mem) {
        return ShrinkDecision::Refuse(refusal);
    }
    let some_permille = weight.some_permille.unwrap_or(0);
    if some_permille >= rules.calm_permille {
        return ShrinkDecision::Refuse(Refusal::Pressure { some_permille });
    }
    ShrinkDecision::Approve(Approval::Fits {
        watched,
        was,
        threshold,
        total,
    })
}
