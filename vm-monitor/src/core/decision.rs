//! May the VM shrink? The rule, and its answers as data.

use std::fmt;

use protocol::monitor_v2::RefusalReason;
use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;
use serde::Serialize;

use super::files::ReadFailure;
use super::hooks::HookVeto;
use super::memory::{Rules, Window};
use super::squeeze::{GaveUp, Squeezed};
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
pub enum Verdict {
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
pub fn judge(basis: Basis<'_>, mem: u64, now: Timestamp) -> Verdict {
    let Basis {
        rules,
        watched,
        window,
        threshold: was,
        peak,
        weight,
    } = basis;
    if watched == Watched::Nothing {
        return Verdict::Approve(Approval::NotWatched);
    }
    if let Some(failure) = window.failure() {
        return Verdict::Refuse(Refusal::Unreadable(failure.clone()));
    }
    if let Some(age) = window.age(now).filter(|age| *age > rules.max_age) {
        return Verdict::Fail(Failure::Stale { age });
    }
    let (have, need) = (window.len(), rules.min_samples);
    let Some(in_use) = window.mean().filter(|_| have >= need) else {
        return Verdict::Refuse(Refusal::TooFewSamples { have, need });
    };
    let total = rules.usable(mem);
    let (threshold, buffer) = (rules.threshold(total), rules.downscale_buffer);
    if threshold.0 < in_use.0.saturating_add(buffer.0) {
        let swap = weight.swap.unwrap_or_default().min(in_use);
        let in_memory = Bytes(in_use.0 - swap.0);
        let would_fit = threshold.0 >= in_memory.0.saturating_add(buffer.0);
        return Verdict::Refuse(if would_fit {
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
        return Verdict::Refuse(Refusal::RecentPeak { threshold, peak });
    }
    if let Some(refusal) = weight.not_movable(mem) {
        return Verdict::Refuse(refusal);
    }
    let some_permille = weight.some_permille.unwrap_or(0);
    if some_permille >= rules.calm_permille {
        return Verdict::Refuse(Refusal::Pressure { some_permille });
    }
    Verdict::Approve(Approval::Fits {
        watched,
        was,
        threshold,
        total,
    })
}

/// Bytes as MiB with one decimal, for people.
struct Mib(Bytes);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (u128::from(self.0.0) * 10 + (1 << 19)) >> 20;
        match tenths % 10 {
            0 => write!(f, "{} MiB", tenths / 10),
            tenth => write!(f, "{}.{tenth} MiB", tenths / 10),
        }
    }
}

/// `from 3 MiB to 2 MiB`, or `to 2 MiB` where nothing was before.
pub(super) fn change(f: &mut fmt::Formatter<'_>, was: Option<Bytes>, now: Bytes) -> fmt::Result {
    if let Some(was) = was {
        write!(f, "from {} ", Mib(was))?;
    }
    write!(f, "to {}", Mib(now))
}

impl fmt::Display for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWatched => f.write_str("no memory is watched"),
            Self::Fits {
                watched,
                was,
                threshold,
                total,
            } => {
                write!(f, "{} set ", watched.noun())?;
                change(f, *was, *threshold)?;
                write!(f, ", for a new total of {}", Mib(*total))
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(failure) => failure.fmt(f),
            Self::TooFewSamples { have, need } => {
                write!(f, "not enough memory samples yet: have {have}, need {need}")
            }
            Self::RecentPeak { threshold, peak } => write!(
                f,
                "memory threshold would be too low: {} (new threshold) < {} (in use a moment ago)",
                Mib(*threshold),
                Mib(*peak)
            ),
            Self::Swapped {
                threshold,
                in_memory,
                swap,
                buffer,
            } => write!(
                f,
                "memory threshold would be too low: {} (new threshold) < {} (in memory) + {} (in swap) + {} (buffer for a shrink)",
                Mib(*threshold),
                Mib(*in_memory),
                Mib(*swap),
                Mib(*buffer)
            ),
            Self::Pressure { some_permille } => write!(
                f,
                "tasks waited for memory in {}.{} % of the last ten seconds",
                some_permille / 10,
                some_permille % 10
            ),
            Self::NotMovable {
                by,
                can_give,
                zones: Zones {
                    movable, others, ..
                },
                ..
            } => write!(
                f,
                "no more than {} can be given back now, {} are asked for: of {} movable {} are free and {} page cache, elsewhere {} and {}",
                Mib(*can_give),
                Mib(*by),
                Mib(movable.managed),
                Mib(movable.free),
                Mib(movable.cache),
                Mib(others.free),
                Mib(others.cache)
            ),
            Self::Squeezed(squeezed) => squeezed.fmt(f),
            Self::Hook(veto) => write!(f, "hook {veto}"),
            Self::TooLow {
                threshold,
                in_use,
                buffer,
            } => write!(
                f,
                "memory threshold would be too low: {} (new threshold) < {} (in use) + {} (buffer for a shrink)",
                Mib(*threshold),
                Mib(*in_use),
                Mib(*buffer)
            ),
        }
    }
}

impl fmt::Display for Squeezed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "squeezed to fit into {}, ", Mib(self.goal))?;
        match self.reached {
            Some(reached) => write!(f, "the group still had {} ", Mib(reached))?,
            None => f.write_str("the group did not answer ")?,
        }
        let waited = self.waited.as_millis();
        match self.why {
            GaveUp::Hurts => write!(f, "and its tasks had waited {waited} ms for memory"),
            GaveUp::TooSlow => write!(f, "when the time was over ({waited} ms of waiting)"),
            GaveUp::Stuck => write!(f, "and would give no more ({waited} ms of waiting)"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { age } => {
                write!(f, "the newest memory sample is {} ms old", age.as_millis())
            }
            Self::FileCache { detail } => write!(f, "could not set the file cache: {detail}"),
            Self::Busy { waiting } => write!(f, "{waiting} requests are waiting already"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::zones::Zone;

    const NOW: Timestamp = Timestamp(60_000_000);

    fn window(samples: &[u64]) -> Window {
        let mut window = Window::default();
        let rules = Rules::default();
        for (n, mib) in samples.iter().rev().enumerate().rev() {
            let back = rules.sample_interval.0 * u64::try_from(n).expect("small");
            window.push(NOW - Span(back), Ok(Bytes::mib(*mib)), &rules);
        }
        window
    }

    fn ask(window: &Window, mem: u64, now: Timestamp) -> Verdict {
        let rules = Rules::default();
        let basis = Basis {
            rules: &rules,
            watched: Watched::Cgroup,
            window,
            threshold: None,
            peak: None,
            weight: Weight::default(),
        };
        judge(basis, mem, now)
    }

    #[test]
    fn n27_shrink_to_1_gib_at_685_mib_is_approved_at_686_refused() {
        let verdict = ask(&window(&[685; 5]), 1 << 30, NOW);
        assert!(
            matches!(verdict, Verdict::Approve(Approval::Fits { .. })),
            "{verdict:?}"
        );
        let verdict = ask(&window(&[686; 5]), 1 << 30, NOW);
        let Verdict::Refuse(refusal @ Refusal::TooLow { .. }) = verdict else {
            panic!("{verdict:?}");
        };
        let text = refusal.to_string();
        assert!(
            text.contains("785.4 MiB (new threshold) < 686 MiB (in use) + 100 MiB"),
            "{text}"
        );
    }

    #[test]
    fn n27_the_smallest_size_of_a_refusal_is_the_smallest_that_is_accepted() {
        for mib in [1, 100, 685, 686, 3000, 70_001] {
            let used = window(&[mib; 5]);
            let smallest = Rules::default().smallest_for(Bytes::mib(mib));
            assert!(
                matches!(ask(&used, smallest, NOW), Verdict::Approve(_)),
                "{mib}"
            );
            let Verdict::Refuse(refusal) = ask(&used, smallest - 1, NOW) else {
                panic!("{mib}: a byte less is accepted");
            };
            assert_eq!(refusal.smallest(&Rules::default()), Some(smallest));
            assert_eq!(refusal.reason(), RefusalReason::InUse);
        }
    }

    #[test]
    fn n27_the_checks_come_in_their_order() {
        // Everything is wrong at once; each correction uncovers the next reason.
        let long_after = NOW + Span::from_secs(6);
        let mut blind = window(&[9000]);
        blind.push(
            NOW,
            Err(ReadFailure::new("memory.stat", "no such file")),
            &Rules::default(),
        );
        assert!(matches!(
            ask(&blind, 1 << 30, long_after),
            Verdict::Refuse(Refusal::Unreadable(_))
        ));
        assert!(matches!(
            ask(&window(&[9000]), 1 << 30, long_after),
            Verdict::Fail(Failure::Stale { age }) if age == Span::from_secs(6)
        ));
        for samples in [&[][..], &[9000]] {
            assert!(matches!(
                ask(&window(samples), 1 << 30, NOW),
                Verdict::Refuse(Refusal::TooFewSamples { need: 2, .. })
            ));
        }
        assert!(matches!(
            ask(&window(&[9000, 9000]), 1 << 30, NOW),
            Verdict::Refuse(Refusal::TooLow { .. })
        ));
        assert!(matches!(
            ask(&window(&[1, 1]), 1 << 30, NOW),
            Verdict::Approve(_)
        ));
    }

    #[test]
    fn n27_peak_swap_and_stalls_weigh_in_and_have_numbers() {
        let rules = Rules::default();
        let ask = |used, peak, swap, some_permille, mem| {
            let calm = window(&[used; 5]);
            let basis = Basis {
                rules: &rules,
                watched: Watched::Cgroup,
                window: &calm,
                threshold: None,
                peak: Some(Bytes::mib(peak)),
                weight: Weight {
                    swap: Some(Bytes::mib(swap)),
                    some_permille: Some(some_permille),
                    ..Weight::default()
                },
            };
            judge(basis, mem, NOW)
        };
        // To 1 GiB, whose threshold is 785.4 MiB.
        let gib = 1 << 30;
        assert!(matches!(ask(685, 785, 385, 99, gib), Verdict::Approve(_)));
        for (used, peak, swap, some, reason, text) in [
            (
                400,
                786,
                0,
                0,
                RefusalReason::RecentPeak,
                "785.4 MiB (new threshold) < 786 MiB",
            ),
            (
                786,
                0,
                386,
                0,
                RefusalReason::Swap,
                "400 MiB (in memory) + 386 MiB (in swap) + 100 MiB (buffer",
            ),
            (
                900,
                0,
                200,
                0,
                RefusalReason::InUse,
                "900 MiB (in use) + 100 MiB (buffer",
            ),
            (400, 400, 0, 100, RefusalReason::Pressure, "10.0 %"),
        ] {
            let Verdict::Refuse(refusal) = ask(used, peak, swap, some, gib) else {
                panic!("{reason:?}");
            };
            assert_eq!(refusal.reason(), reason);
            assert!(refusal.to_string().contains(text), "{refusal}");
            if let Some(smallest) = refusal.smallest(&rules) {
                assert!(matches!(
                    ask(used, peak, swap, some, smallest),
                    Verdict::Approve(_)
                ));
                assert!(matches!(
                    ask(used, peak, swap, some, smallest - 2),
                    Verdict::Refuse(_)
                ));
            }
        }
    }

    #[test]
    fn n27_what_the_kernel_cannot_give_back_is_refused_with_numbers() {
        let zone = |managed, free, cache| Zone {
            managed: Bytes::mib(managed),
            free: Bytes::mib(free),
            cache: Bytes::mib(cache),
        };
        let (rules, calm) = (Rules::default(), window(&[100; 5]));
        let ask = |movable: Zone, others: Zone, to_mib: u64| {
            let weight = Weight {
                total: Some(Bytes::mib(4000)),
                zones: Some(Zones {
                    movable,
                    others,
                    reserve: Bytes(0),
                }),
                ..Weight::default()
            };
            let basis = Basis {
                rules: &rules,
                watched: Watched::Cgroup,
                window: &calm,
                threshold: None,
                peak: None,
                weight,
            };
            judge(basis, to_mib << 20, NOW)
        };
        let (none, full) = (zone(0, 0, 0), zone(1000, 0, 0));
        for (movable, others, to, is_fine) in [
            // 3000 MiB plugged, all of it free: down to what was there at boot and no further.
            (zone(3000, 3000, 0), full, 1000, true),
            (zone(3000, 3000, 0), full, 999, false),
            // Page cache goes, and what is in use finds room elsewhere.
            (zone(3000, 1000, 1500), zone(1000, 400, 100), 1000, true),
            (zone(3000, 1000, 1500), zone(1000, 399, 100), 1000, false),
            (zone(3000, 1000, 1500), zone(1000, 399, 100), 1001, true),
            // No movable zone, no opinion.
            (none, full, 500, true),
            // Growth is never held.
            (zone(3000, 0, 0), full, 4000, true),
        ] {
            let verdict = ask(movable, others, to);
            let Verdict::Refuse(refusal) = verdict else {
                assert!(is_fine, "{verdict:?}");
                continue;
            };
            assert!(!is_fine, "{refusal}");
            assert_eq!(refusal.reason(), RefusalReason::NotMovable);
            let smallest = refusal.smallest(&rules).expect("known") >> 20;
            assert!(matches!(
                ask(movable, others, smallest),
                Verdict::Approve(_)
            ));
            assert!(matches!(
                ask(movable, others, smallest - 1),
                Verdict::Refuse(_)
            ));
        }
        let Verdict::Refuse(refusal) = ask(zone(3000, 500, 250), zone(1000, 30, 20), 2000) else {
            panic!("approved");
        };
        assert_eq!(
            refusal.to_string(),
            "no more than 800 MiB can be given back now, 2000 MiB are asked for: of 3000 MiB movable 500 MiB are free and \
             250 MiB page cache, elsewhere 30 MiB and 20 MiB"
        );
        assert_eq!(refusal.smallest(&rules), Some(3200 << 20));
    }

    #[test]
    fn five_seconds_old_is_still_good() {
        let fine = ask(&window(&[1, 1]), 1 << 30, NOW + Span::from_secs(5));
        assert!(matches!(fine, Verdict::Approve(_)), "{fine:?}");
    }

    #[test]
    fn n27_nothing_watched_is_approved_and_says_so() {
        let rules = Rules::default();
        let empty = Window::default();
        let basis = Basis {
            rules: &rules,
            watched: Watched::Nothing,
            window: &empty,
            threshold: None,
            peak: None,
            weight: Weight::default(),
        };
        let Verdict::Approve(approval) = judge(basis, 1 << 30, NOW) else {
            panic!("refused");
        };
        assert_eq!(approval.to_string(), "no memory is watched");
    }

    #[test]
    fn figures_for_people() {
        for (bytes, text) in [
            (Bytes(0), "0 MiB"),
            (Bytes(823_551_590), "785.4 MiB"),
            (Bytes::mib(170), "170 MiB"),
            (Bytes((1 << 20) - 1), "1 MiB"),
        ] {
            assert_eq!(Mib(bytes).to_string(), text);
        }
    }
}
