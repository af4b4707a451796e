//! Whether this replica may act, by the Lease as it was seen.
//!
//! Who holds the Lease is told by a kube-scheduler beside each replica, which elects itself, or by
//! our own election ([`super::elect`]). A Lease does not fence, therefore
//!
//! ```text
//! renewed ────────────────────────────────┤ margin ├─ deadline ─── another may take it
//!    └─ may act, each write within what is left ──┘
//! taken over ── settle ─┤ lists are taken only now: what the last leader sent has landed or never will
//! ```
//!
//! A lapse, however short, ends a term: who led meanwhile is not known, so the next term settles
//! and lists again. Source: docs/compatibility/scheduler.md §8.4. Held by the model in the
//! scheduler's `tests/model.rs`.

use protocol::time::{Span, Timestamp};
use serde::Serialize;

/// How leadership is told and how long it lasts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct LeaseRule {
    /// This host's name, or this process's own one; the holder is `<host>` or `<host>_<anything>`.
    pub host: String,
    /// How long after a renewal its holder still leads (`renewDeadline` of kube-scheduler).
    pub deadline: Span,
    /// Nothing is begun this long before the deadline.
    pub margin: Span,
    /// Pause between the last leader's end and the lists: longer than a write of it can take.
    pub settle: Span,
}

/// The Lease as it was seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct LeaseSeen {
    /// Who holds it; nobody where it is empty.
    pub holder: String,
    /// When it was renewed, by this host's clock.
    pub renewed: Timestamp,
    /// From when all that an earlier leader began has landed or never will. Looked at when this
    /// host takes over.
    pub settled: Timestamp,
    /// What an earlier leader left to whoever takes over. Looked at when this host does.
    pub note: Option<String>,
}

impl LeaseRule {
    /// The values of kube-scheduler's own election, for a host.
    #[must_use]
    pub fn of_host(host: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            deadline: Span::from_secs(10),
            margin: Span::from_secs(1),
            settle: Span::from_secs(2),
        }
    }

    /// Whether `holder` is on this host. `pod-1` does not hold what `pod-10_…` holds.
    #[must_use]
    pub fn is_ours(&self, holder: &str) -> bool {
        let rest = holder.strip_prefix(self.host.as_str());
        !self.host.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    }
}

/// Where this replica stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Another leads, or nobody.
    Following,
    /// It leads and waits for what the last leader sent.
    Settling {
        /// Until then.
        until: Timestamp,
    },
    /// It leads.
    Leading {
        /// Nothing may be begun after this; no write may last longer.
        left: Span,
    },
}

/// A change of standing that concerns what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The lists of a new term are to be taken.
    Opens,
    /// A term ended: nothing that is known holds any more.
    Lapses,
}

/// Follows the Lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Lead {
    rule: LeaseRule,
    /// While it is ours without a lapse: from when lists may be taken.
    since: Option<Timestamp>,
    /// Nothing may be begun after this.
    until: Timestamp,
    /// The beginning of the term whose lists were asked for.
    opened: Option<Timestamp>,
    /// What the last leader left to this term.
    note: Option<String>,
}

impl Lead {
    /// One that knows of no Lease yet.
    #[must_use]
    pub fn new(rule: LeaseRule) -> Self {
        Self {
            rule,
            since: None,
            until: Timestamp(0),
            opened: None,
            note: None,
        }
    }

    /// The Lease was seen. A renewal to come is taken as one of now.
    pub fn seen(&mut self, now: Timestamp, seen: &LeaseSeen) {
        if !self.rule.is_ours(&seen.holder) {
            self.since = None;
            self.note = None;
            return;
        }
        if self.standing(now) == Standing::Following {
            // After a lapse of our own it is our own calls that may be late.
            let lapsed = self.since.is_some();
            self.since = Some(if lapsed {
                now + self.rule.settle
            } else {
                seen.settled
            });
            self.until = Timestamp(0);
            // What others did during a lapse, no note says.
            self.note = seen.note.clone().filter(|_| !lapsed);
        }
        let end = (seen.renewed.min(now) + self.rule.deadline).0;
        let until = Timestamp(end.saturating_sub(self.rule.margin.0));
        self.until = self.until.max(until);
    }

    /// Where it stands now.
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

    /// What is to be done about a change of standing, once for each.
    pub fn turn(&mut self, now: Timestamp) -> Option<Turn> {
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

    /// What the last leader left to this term, if it handed over.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Whether this term's lists were asked for.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.opened.is_some() && self.opened == self.since
    }

    /// When to look again even if nothing happens.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        if self.is_open() {
            return Some(self.until);
        }
        // After a lapse only a renewal brings it back.
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

    /// Seen now, renewed then, and settled two seconds from now.
    fn seen(holder: &str, now: u64, renewed: u64) -> LeaseSeen {
        LeaseSeen {
            holder: holder.into(),
            renewed: at(renewed),
            settled: at(now + 2),
            note: None,
        }
    }

    #[test]
    fn the_holder_is_told_by_its_whole_host_name() {
        let rule = LeaseRule::of_host("sched-1");
        assert!(rule.is_ours("sched-1") && rule.is_ours("sched-1_6f0c"));
        for other in ["sched-10_6f0c", "sched-10", "", "sched", "x_sched-1"] {
            assert!(!rule.is_ours(other), "{other}");
        }
        assert!(!LeaseRule::of_host("").is_ours("_6f0c"), "no host, no lead");
    }

    #[test]
    fn it_settles_then_leads_until_the_margin() {
        let mut lead = lead();
        assert_eq!(lead.standing(at(100)), Standing::Following);
        lead.seen(at(100), &seen("sched-1_a", 100, 100));
        assert_eq!(
            lead.standing(at(101)),
            Standing::Settling { until: at(102) }
        );
        assert_eq!(lead.poll_deadline(), Some(at(102)));
        assert_eq!(lead.turn(at(101)), None);
        assert_eq!(lead.turn(at(102)), Some(Turn::Opens));
        assert_eq!((lead.turn(at(102)), lead.is_open()), (None, true));
        assert_eq!(lead.poll_deadline(), Some(at(109)));
        let left = Span::from_secs(5);
        assert_eq!(lead.standing(at(104)), Standing::Leading { left });
        assert_eq!(lead.standing(at(109)), Standing::Following, "the margin");
        lead.seen(at(105), &seen("sched-1_a", 105, 105));
        let left = Span::from_secs(4);
        assert_eq!(lead.standing(at(110)), Standing::Leading { left });
        assert_eq!(lead.turn(at(110)), None, "one term");
        assert_eq!(lead.turn(at(114)), Some(Turn::Lapses));
        assert_eq!(lead.poll_deadline(), None, "nothing comes of itself");
        assert_eq!(lead.turn(at(115)), None);
    }

    #[test]
    fn a_lapse_however_short_begins_another_term() {
        let mut lead = lead();
        lead.seen(at(100), &seen("sched-1_a", 100, 100));
        assert_eq!(lead.turn(at(103)), Some(Turn::Opens));
        lead.seen(at(109), &seen("sched-1_a", 109, 109));
        assert!(!lead.is_open(), "nobody looked, and still it lapsed");
        assert_eq!(lead.turn(at(109)), Some(Turn::Lapses));
        assert_eq!(
            lead.standing(at(109)),
            Standing::Settling { until: at(111) }
        );
        assert_eq!(lead.turn(at(111)), Some(Turn::Opens));
        lead.seen(at(112), &seen("sched-2_b", 112, 112));
        assert_eq!(lead.standing(at(112)), Standing::Following);
        lead.seen(at(113), &seen("sched-1_a", 113, 113));
        assert_eq!(lead.turn(at(115)), Some(Turn::Opens), "nobody looked");
    }

    #[test]
    fn lists_are_taken_when_all_that_others_began_has_settled() {
        let taken = |settled: u64| {
            let mut lead = lead();
            let seen = LeaseSeen {
                settled: at(settled),
                ..seen("sched-1_a", 100, 100)
            };
            lead.seen(at(100), &seen);
            lead
        };
        let until = at(101);
        assert_eq!(taken(101).standing(at(100)), Standing::Settling { until });
        let mut handed_over = taken(100);
        assert_eq!(handed_over.turn(at(100)), Some(Turn::Opens), "at once");
        let mut careful = taken(108);
        careful.seen(at(107), &seen("sched-1_a", 107, 107));
        let until = at(108);
        assert_eq!(careful.standing(at(107)), Standing::Settling { until });
        // Its own lapse is no hand-over, whatever the Lease said once.
        handed_over.seen(at(120), &seen("sched-1_a", 98, 120));
        let until = at(122);
        assert_eq!(handed_over.standing(at(120)), Standing::Settling { until });
    }

    #[test]
    fn an_old_renewal_and_a_clock_ahead_give_no_time() {
        let mut lead = lead();
        lead.seen(at(100), &seen("sched-1_a", 100, 50));
        assert_eq!(lead.standing(at(100)), Standing::Following);
        lead.seen(at(100), &seen("sched-1_a", 100, 5_000));
        assert_eq!(lead.standing(at(109)), Standing::Following);
    }
}
