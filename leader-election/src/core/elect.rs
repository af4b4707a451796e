//! Our own election through one Lease, where no kube-scheduler beside us holds one.
//!
//! ```text
//!  stale ──read──► somebody's ── not renewed for its duration ──► take ─┐
//!    ▲              nobody's, or gone ───────────────────────────► take ─┤ conditional on the state that was seen
//!    │                                                                   ▼
//!    └── conflict, or no answer ◄────────── renew, each retry pause ── ours ──► release, when told to
//! ```
//!
//! Every write is conditional on the version that was seen, so of two takers one wins. A duration
//! is counted by this host's clock from when a state was first *seen* here, never from a time of
//! day in it: it is longer than what the holder counts from its sending. A holder stops at
//! [`ElectRule::deadline`], which is earlier still. What is left between is the pause in which its
//! last write lands ([`super::lease`]), so a taker that waited does not wait again.
//!
//! A hand-over says so: who released the Lease with nothing of its own under way, and nothing left
//! of whoever led before, leaves [`LeaseState::is_drained`], and the next one need not wait at all.
//! Beside it may stand a [`Note`] to the next one, good for that one hand-over. A Lease that is
//! gone says nothing, so whoever makes it anew waits as long as a leader that does not know of it
//! yet may go on.
//!
//! Invariants: at most one leads, whatever is lost, late, restarted or deleted
//! (`tests::at_most_one_leads_whatever_happens`); a taker does not act before the last leader's
//! deadline and the pause after it (the same test).

use protocol::time::{Span, Timestamp};
use serde::Serialize;

use super::lease::{LeaseRule, LeaseSeen};

/// Shortest Lease: its margin and retries are eighths of it, and a Lease's duration is whole
/// seconds.
pub const MIN_LEASE: Span = Span::from_secs(4);

/// Who runs, and for how long a Lease is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ElectRule {
    /// This process's own name: never used by another one, not even by the next of the same pod.
    pub identity: String,
    /// How long others respect the Lease after a renewal. At least [`MIN_LEASE`].
    pub duration: Span,
    /// Pause between the last leader's end and a new one's lists: longer than a write can take.
    pub settle: Span,
}

impl ElectRule {
    /// How long after a renewal its holder goes on: three quarters of a duration.
    #[must_use]
    pub const fn deadline(duration: Span) -> Span {
        Span(duration.0 / 4 * 3)
    }

    /// Between two renewals, and before a failed call is made again.
    #[must_use]
    pub const fn retry(&self) -> Span {
        Span(self.duration.0 / 8)
    }

    /// The rule by which the core then judges what is seen.
    #[must_use]
    pub fn lease_rule(&self) -> LeaseRule {
        LeaseRule {
            host: self.identity.clone(),
            deadline: Self::deadline(self.duration),
            margin: Span(self.duration.0 / 8),
            settle: self.settle,
        }
    }
}

/// One state of the Lease object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeaseState {
    /// `metadata.resourceVersion` as a number: later states have larger ones.
    pub version: u64,
    /// `spec.holderIdentity`; empty when nobody holds it.
    pub holder: String,
    /// `spec.leaseDurationSeconds`; zero when it does not say.
    pub duration: Span,
    /// `spec.leaseTransitions`.
    pub transitions: u32,
    /// Its last holder released it with nothing under way, of its own or of an earlier one.
    pub is_drained: bool,
    /// What its last holder left to the next one.
    pub note: Option<Note>,
}

impl LeaseState {
    /// What was left by whoever handed over last; of an earlier term's note nobody can say whether
    /// it still holds.
    fn handed(&self) -> Option<&str> {
        let is_fresh = |note: &&Note| self.is_drained && note.transitions == self.transitions;
        let note = self.note.as_ref().filter(is_fresh);
        note.map(|note| note.text.as_str())
    }
}

/// What a holder leaves to the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// [`LeaseState::transitions`] in the term of whoever wrote it. A holder that does not know of
    /// notes leaves an old one in place, and counts on.
    pub transitions: u32,
    /// What it says; this room does not read it.
    pub text: String,
}

/// How a Lease is given up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Leave {
    /// Nothing this process began is under way or of unclear fate.
    pub is_drained: bool,
    /// What is left to the next holder; only if all that was begun has ended.
    pub note: Option<String>,
}

/// The next thing to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Step {
    /// Nothing before this time, or before a state is seen.
    Wait(Timestamp),
    /// Read the Lease; [`Elector::seen`] must follow, or [`Elector::failed`].
    Read,
    /// Make or replace the Lease; [`Elector::written`] must follow, or [`Elector::failed`].
    Write(LeaseWrite),
}

/// One conditional write of the Lease, with this process as its holder, or nobody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeaseWrite {
    /// The version it replaces; none: there must not be one.
    pub base: Option<u64>,
    /// What it says from then on.
    pub state: LeaseState,
    /// Whether it changes hands, so that the time of taking over is written too.
    pub takes: bool,
}

/// What is known of the Lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
enum Known {
    Not,
    /// There is none.
    Absent,
    /// This, first seen then.
    Seen(LeaseState, Timestamp),
}

/// See the module's description.
#[derive(Debug, Clone, Serialize)]
pub struct Elector {
    rule: ElectRule,
    known: Known,
    /// What is known may be old: it is read before it is built on.
    is_stale: bool,
    /// The call under way: when it was sent, and the write if it is one.
    flight: Option<(Timestamp, Option<LeaseWrite>)>,
    /// No call before this.
    pause: Timestamp,
    /// From when all that an earlier leader began has landed or never will, if this process takes
    /// over or has.
    settled: Timestamp,
    /// When the last renewal that succeeded was sent, while the Lease is ours.
    renewed: Option<Timestamp>,
    /// What the last holder left, if this process takes over from it.
    handed: Option<String>,
    /// The Lease is to be given up.
    leaving: Option<Leave>,
}

impl Elector {
    /// One that knows of no Lease yet.
    #[must_use]
    pub fn new(rule: ElectRule) -> Self {
        Self {
            rule,
            known: Known::Not,
            is_stale: true,
            flight: None,
            pause: Timestamp(0),
            settled: Timestamp(0),
            renewed: None,
            handed: None,
            leaving: None,
        }
    }

    /// A state of the Lease was seen, or that there is none. Returns what the core is to be told.
    pub fn seen(&mut self, now: Timestamp, state: Option<LeaseState>) -> Option<LeaseSeen> {
        if self.flight.take_if(|(_, write)| write.is_none()).is_some() {
            self.is_stale = false;
        }
        match (&self.known, &state) {
            // A watch may tell of it after the answer to a write did, and of older ones too.
            (Known::Seen(known, _), Some(seen)) if seen.version <= known.version => return None,
            _ => {}
        }
        self.known = match state {
            None => Known::Absent,
            Some(state) => Known::Seen(state, now),
        };
        let holder = self.holder().to_owned();
        // A state of our own is told when its write is answered: when it was sent is known then.
        if holder == self.rule.identity || self.renewed.take().is_none() {
            return None;
        }
        Some(LeaseSeen {
            holder,
            renewed: now,
            settled: Timestamp(u64::MAX),
            note: None,
        })
    }

    /// What is known may be wrong: it is read before it is built on.
    pub fn doubt(&mut self) {
        self.is_stale = true;
    }

    /// A write succeeded; the Lease as it is now. Returns what the core is to be told.
    pub fn written(&mut self, now: Timestamp, state: LeaseState) -> Option<LeaseSeen> {
        let (sent, write) = self.flight.take()?;
        let takes = write.is_some_and(|write| write.takes);
        self.known = Known::Seen(state, now);
        self.pause = sent + self.rule.retry();
        let is_ours = self.holder() == self.rule.identity;
        self.renewed = is_ours.then_some(sent);
        Some(LeaseSeen {
            holder: self.holder().to_owned(),
            renewed: sent,
            settled: self.settled,
            note: self.handed.take().filter(|_| takes && is_ours),
        })
    }

    /// The call under way failed, or its outcome is not known.
    pub fn failed(&mut self, now: Timestamp) {
        self.flight = None;
        self.is_stale = true;
        self.pause = now + self.rule.retry();
    }

    /// The Lease is to be given up if it is ours.
    pub fn leave(&mut self, leave: Leave) {
        self.leaving = Some(leave);
    }

    /// Whether there is nothing to give up any more.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.leaving.is_some() && self.renewed.is_none() && self.flight.is_none()
    }

    /// The next thing to do.
    pub fn poll(&mut self, now: Timestamp) -> Step {
        if self.flight.is_some() || self.has_left() {
            return Step::Wait(Timestamp(u64::MAX));
        }
        if self.is_stale {
            return self.read(now);
        }
        let is_ours = self.holder() == self.rule.identity;
        match &self.leaving {
            Some(leave) if is_ours => return self.release(now, leave.clone()),
            Some(_) => return Step::Wait(Timestamp(u64::MAX)),
            None => {}
        }
        if now < self.pause {
            return Step::Wait(self.pause);
        }
        if is_ours {
            return self.hold(now);
        }
        match self.free_at() {
            at if now < at => Step::Wait(at),
            _ => self.take(now),
        }
    }

    fn holder(&self) -> &str {
        match &self.known {
            Known::Seen(state, _) => &state.holder,
            Known::Not | Known::Absent => "",
        }
    }

    /// From when another one's Lease may be taken.
    fn free_at(&self) -> Timestamp {
        match &self.known {
            Known::Seen(state, at) if !state.holder.is_empty() => {
                *at + state.duration.max(self.rule.duration)
            }
            _ => Timestamp(0),
        }
    }

    fn read(&mut self, now: Timestamp) -> Step {
        if now < self.pause {
            return Step::Wait(self.pause);
        }
        self.flight = Some((now, None));
        Step::Read
    }

    fn hold(&mut self, now: Timestamp) -> Step {
        let write = self.plan(self.rule.identity.clone(), self.transitions(), false);
        self.send(now, write)
    }

    fn take(&mut self, now: Timestamp) -> Step {
        let longest = |duration: Span| ElectRule::deadline(duration.max(self.rule.duration));
        let quiet = match &self.known {
            // Whoever held it stopped at its deadline, counted from before it was seen here.
            Known::Seen(state, at) if !state.holder.is_empty() => {
                Some(*at + longest(state.duration))
            }
            Known::Seen(state, _) if state.is_drained => None,
            // Somebody may have held it just before, and not know that it is gone.
            Known::Seen(state, at) => Some(*at + longest(state.duration)),
            Known::Absent | Known::Not => Some(now + longest(Span(0))),
        };
        self.settled = quiet.map_or(now, |quiet| quiet + self.rule.settle);
        self.handed = match &self.known {
            Known::Seen(state, _) if state.holder.is_empty() => state.handed().map(str::to_owned),
            Known::Seen(..) | Known::Absent | Known::Not => None,
        };
        let transitions = self.transitions().saturating_add(1);
        let write = self.plan(self.rule.identity.clone(), transitions, true);
        self.send(now, write)
    }

    fn release(&mut self, now: Timestamp, leave: Leave) -> Step {
        let mut write = self.plan(String::new(), self.transitions(), false);
        // Who never settled knows nothing of what the one before may still do.
        write.state.is_drained = leave.is_drained && now >= self.settled;
        let transitions = write.state.transitions;
        let note = leave.note.filter(|_| write.state.is_drained);
        write.state.note = note.map(|text| Note { transitions, text });
        // Whether or not it succeeds, this process leads no more.
        self.renewed = None;
        self.send(now, write)
    }

    fn transitions(&self) -> u32 {
        match &self.known {
            Known::Seen(state, _) => state.transitions,
            Known::Absent | Known::Not => 0,
        }
    }

    fn plan(&self, holder: String, transitions: u32, takes: bool) -> LeaseWrite {
        let base = match &self.known {
            Known::Seen(state, _) => Some(state.version),
            Known::Absent | Known::Not => None,
        };
        let state = LeaseState {
            version: 0,
            holder,
            duration: self.rule.duration,
            transitions,
            is_drained: false,
            note: None,
        };
        LeaseWrite { base, state, takes }
    }

    fn send(&mut self, now: Timestamp, write: LeaseWrite) -> Step {
        self.flight = Some((now, Some(write.clone())));
        Step::Write(write)
    }
}

#[cfg(test)]
mod tests;
