//! Whether this replica may act, by its observations of the Lease.
//!
//! The observations come from a kube-scheduler beside each replica, which elects itself, or from
//! our own election ([`super::elect`]). A Lease does not fence. Therefore:
//!
//! ```text
//! renewed ────────────────────────────────┤ margin ├─ deadline ─── another process may take it
//!    └─ may act, each write within the time left ─┘
//! taken over ── settle ─┤ lists begin only now: writes of the last leader have taken effect or never will
//! ```
//!
//! A lapse of any length ends a term, because another replica may have led meanwhile. The next term
//! settles and lists again. Source: docs/compatibility/scheduler.md §8.4. Checked by the model in
//! the scheduler's `tests/model.rs`.

use protocol::core::Core;
use protocol::time::{Span, Timestamp};
use serde::Serialize;

/// The holder that is this replica, and how long a renewal is valid.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct LeaseRule {
    /// Name of this host, or of this process. The holder is `<host>` or `<host>_<anything>`.
    pub host: String,
    /// How long a holder leads after a renewal (`renewDeadline` of kube-scheduler).
    pub deadline: Span,
    /// Time before the deadline in which no call begins.
    pub margin: Span,
    /// Pause between the end of the last leader and the lists, longer than a write of it can take.
    pub settle: Span,
}

/// An observation of the Lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct LeaseSeen {
    /// The holder. Empty: no holder.
    pub holder: String,
    /// When it was renewed, by this host's monotonic clock.
    pub renewed: Timestamp,
    /// When all writes of earlier leaders have taken effect or never will. Used when this host
    /// takes over.
    pub settled: Timestamp,
    /// The hand-over of the last leader. Used when this host takes over.
    pub handover: Option<String>,
}

impl LeaseRule {
    /// The default values of kube-scheduler's election, for a host.
    #[must_use]
    pub fn of_host(host: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            deadline: Span::from_secs(10),
            margin: Span::from_secs(1),
            settle: Span::from_secs(2),
        }
    }

    /// Whether `holder` is on this host. `pod-10_…` is not on host `pod-1`.
    #[must_use]
    pub fn is_ours(&self, holder: &str) -> bool {
        let rest = holder.strip_prefix(self.host.as_str());
        !self.host.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    }
}

/// The standing of this replica in the election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Another replica leads, or none.
    Following,
    /// This replica leads and waits for writes of the last leader.
    Settling {
        /// When it may act.
        until: Timestamp,
    },
    /// This replica leads and may act.
    Leading {
        /// Longest duration of a call that begins now.
        left: Span,
    },
}

/// The beginning or the end of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// A term begins: list every kind.
    Opens,
    /// A term ended: the observed state is no longer valid.
    Lapses,
}

/// The state machine that derives the standing from observations.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Lead {
    rule: LeaseRule,
    /// Since this host holds the Lease without a lapse: when lists may begin.
    since: Option<Timestamp>,
    /// Time after which no call begins.
    until: Timestamp,
    /// `since` of the term whose lists have begun.
    opened: Option<Timestamp>,
    /// The hand-over of the last leader to this term.
    handover: Option<String>,
}

impl Lead {
    /// A standing without an observation.
    #[must_use]
    pub fn new(rule: LeaseRule) -> Self {
        Self {
            rule,
            since: None,
            until: Timestamp(0),
            opened: None,
            handover: None,
        }
    }

    /// The standing now.
    #[must_use]
    pub fn standing(&self, now: Timestamp) -> Standing {
        let Some(since) = self.since.filter(|_| now < self.until) else {
            return Standing::Following;
        };
        if now < since {
            Standing::Settling { until: since }
        } else {
            Standing::Leading {
                left: self.until.since(now),
            }
        }
    }

    /// The hand-over of the last leader to this term.
    #[must_use]
    pub fn handover(&self) -> Option<&str> {
        self.handover.as_deref()
    }

    /// Whether this term's lists have begun.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.opened.is_some() && self.opened == self.since
    }
}

impl Core for Lead {
    type Time = Timestamp;
    type Event = LeaseSeen;
    type Action = Turn;

    /// Handles an observation. A renewal in the future counts as one of now.
    fn handle(&mut self, now: Timestamp, seen: LeaseSeen) {
        if !self.rule.is_ours(&seen.holder) {
            self.since = None;
            self.handover = None;
            return;
        }
        if self.standing(now) == Standing::Following {
            // After a lapse of this host, its own calls may be late.
            let lapsed = self.since.is_some();
            self.since = Some(if lapsed {
                now + self.rule.settle
            } else {
                seen.settled
            });
            self.until = Timestamp(0);
            // A hand-over does not cover what others did during a lapse.
            self.handover = seen.handover.filter(|_| !lapsed);
        }
        let end = (seen.renewed.min(now) + self.rule.deadline).0;
        let until = Timestamp(end.saturating_sub(self.rule.margin.0));
        self.until = self.until.max(until);
    }

    /// The beginning or end of a term, once for each.
    fn poll_action(&mut self, now: Timestamp) -> Option<Turn> {
        let leads = matches!(self.standing(now), Standing::Leading { .. });
        let opened = std::mem::replace(&mut self.opened, self.since.filter(|_| leads));
        if leads {
            (opened != self.opened).then_some(Turn::Opens)
        } else {
            opened.map(|_| {
                if self.standing(now) == Standing::Following {
                    self.until = Timestamp(0);
                }
                Turn::Lapses
            })
        }
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        if self.is_open() {
            return Some(self.until);
        }
        // After a lapse only an observation can begin a term.
        self.since.filter(|since| *since < self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    fn lead() -> Lead {
        Lead::new(LeaseRule::of_host("sched-1"))
    }

    /// An observation at `now` that is settled two seconds later.
    fn seen(holder: &str, now: u64, renewed: u64) -> LeaseSeen {
        LeaseSeen {
            holder: holder.into(),
            renewed: at(renewed),
            settled: at(now + 2),
            handover: None,
        }
    }

    #[test]
    fn holder_is_matched_by_its_whole_host_name() {
        let rule = LeaseRule::of_host("sched-1");
        assert!(rule.is_ours("sched-1") && rule.is_ours("sched-1_6f0c"));
        for other in ["sched-10_6f0c", "sched-10", "", "sched", "x_sched-1"] {
            assert!(!rule.is_ours(other), "{other}");
        }
        assert!(!LeaseRule::of_host("").is_ours("_6f0c"), "no host, no lead");
    }

    #[test]
    fn new_leader_settles_then_leads_until_the_margin() {
        let mut lead = lead();
        assert_eq!(lead.standing(at(100)), Standing::Following);
        lead.handle(at(100), seen("sched-1_a", 100, 100));
        assert_eq!(
            lead.standing(at(101)),
            Standing::Settling { until: at(102) }
        );
        assert_eq!(lead.poll_deadline(), Some(at(102)));
        assert_eq!(lead.poll_action(at(101)), None);
        assert_eq!(lead.poll_action(at(102)), Some(Turn::Opens));
        assert_eq!((lead.poll_action(at(102)), lead.is_open()), (None, true));
        assert_eq!(lead.poll_deadline(), Some(at(109)));
        let left = Span::from_secs(5);
        assert_eq!(lead.standing(at(104)), Standing::Leading { left });
        assert_eq!(lead.standing(at(109)), Standing::Following, "the margin");
        lead.handle(at(105), seen("sched-1_a", 105, 105));
        let left = Span::from_secs(4);
        assert_eq!(lead.standing(at(110)), Standing::Leading { left });
        assert_eq!(lead.poll_action(at(110)), None, "one term");
        assert_eq!(lead.poll_action(at(114)), Some(Turn::Lapses));
        assert_eq!(lead.poll_deadline(), None, "nothing comes of itself");
        assert_eq!(lead.poll_action(at(115)), None);
    }

    #[test]
    fn lapse_of_any_length_begins_another_term() {
        let mut lead = lead();
        lead.handle(at(100), seen("sched-1_a", 100, 100));
        assert_eq!(lead.poll_action(at(103)), Some(Turn::Opens));
        lead.handle(at(109), seen("sched-1_a", 109, 109));
        assert!(!lead.is_open(), "nobody looked, and still it lapsed");
        assert_eq!(lead.poll_action(at(109)), Some(Turn::Lapses));
        assert_eq!(
            lead.standing(at(109)),
            Standing::Settling { until: at(111) }
        );
        assert_eq!(lead.poll_action(at(111)), Some(Turn::Opens));
        lead.handle(at(112), seen("sched-2_b", 112, 112));
        assert_eq!(lead.standing(at(112)), Standing::Following);
        lead.handle(at(113), seen("sched-1_a", 113, 113));
        assert_eq!(
            lead.poll_action(at(115)),
            Some(Turn::Opens),
            "nobody looked"
        );
    }

    #[test]
    fn lists_begin_when_writes_of_earlier_leaders_have_settled() {
        let taken = |settled: u64| {
            let mut lead = lead();
            let seen = LeaseSeen {
                settled: at(settled),
                ..seen("sched-1_a", 100, 100)
            };
            lead.handle(at(100), seen);
            lead
        };
        let until = at(101);
        assert_eq!(taken(101).standing(at(100)), Standing::Settling { until });
        let mut handed_over = taken(100);
        assert_eq!(
            handed_over.poll_action(at(100)),
            Some(Turn::Opens),
            "at once"
        );
        let mut careful = taken(108);
        careful.handle(at(107), seen("sched-1_a", 107, 107));
        let until = at(108);
        assert_eq!(careful.standing(at(107)), Standing::Settling { until });
        // Its own lapse is no hand-over, whatever the Lease said once.
        handed_over.handle(at(120), seen("sched-1_a", 98, 120));
        let until = at(122);
        assert_eq!(handed_over.standing(at(120)), Standing::Settling { until });
    }

    #[test]
    fn old_renewal_and_clock_ahead_extend_no_term() {
        let mut lead = lead();
        lead.handle(at(100), seen("sched-1_a", 100, 50));
        assert_eq!(lead.standing(at(100)), Standing::Following);
        lead.handle(at(100), seen("sched-1_a", 100, 5_000));
        assert_eq!(lead.standing(at(109)), Standing::Following);
    }
}
