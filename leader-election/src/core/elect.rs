//! Our own election by one Lease, without a kube-scheduler beside this process that holds one.
//!
//! ```text
//!  stale ──read──► another holder ── not renewed for its duration ──► take ─┐
//!    ▲              no holder, or no Lease ─────────────────────────► take ─┤ tests the version that was observed
//!    │                                                                      ▼
//!    └── conflict, or no response ◄────────── renew, each retry pause ── ours ──► release, on request
//! ```
//!
//! Every write tests the observed version, so one of two candidates wins. A duration counts by this
//! host's clock from the first observation of a state, never from a time of day in it. That is
//! later than the holder's own count, which begins when it sends a renewal. A holder stops at
//! [`ElectRule::deadline`], which is earlier still. In the time between, the last write of the
//! holder takes effect ([`super::lease`]). A candidate that has waited for the duration does not
//! wait again.
//!
//! A holder that releases the Lease with no call in flight, of its own or of an earlier leader,
//! sets [`LeaseState::is_drained`]. Its successor need not wait. It may leave a [`HandoverNote`]
//! for that one hand-over. A deleted Lease proves nothing. A process that creates it again waits as
//! long as a leader may continue that has not observed the deletion.
//!
//! Invariants: at most one process leads, with lost and late calls, restarts and deletions
//! (`tests::at_most_one_leads_whatever_happens`); a successor does not act before the last leader's
//! deadline and the pause after it (the same test).

use protocol::time::{Span, Timestamp};
use serde::Serialize;

use super::lease::{LeaseRule, LeaseSeen};

/// Shortest duration of a Lease. Margin and retry pause are eighths of it, and the duration is in
/// whole seconds.
pub const MIN_LEASE: Span = Span::from_secs(4);

/// The name of this process in the election, and the durations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ElectRule {
    /// Unique name of this process. The next process of the same pod must have another one.
    pub identity: String,
    /// How long other processes respect the Lease after a renewal. At least [`MIN_LEASE`].
    pub duration: Span,
    /// Pause between the end of the last leader and the lists of the next one, longer than a write
    /// can take.
    pub settle: Span,
}

impl ElectRule {
    /// How long a holder leads after a renewal: three quarters of a duration.
    #[must_use]
    pub const fn deadline(duration: Span) -> Span {
        Span(duration.0 / 4 * 3)
    }

    /// Pause between two renewals, and before a failed call is repeated.
    #[must_use]
    pub const fn retry(&self) -> Span {
        Span(self.duration.0 / 8)
    }

    /// The rule by which the core judges observations of the Lease.
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

/// A state of the Lease object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeaseState {
    /// `metadata.resourceVersion` as a number, larger in later states.
    pub version: u64,
    /// `spec.holderIdentity`. Empty: no holder.
    pub holder: String,
    /// `spec.leaseDurationSeconds`. Zero if it is absent.
    pub duration: Span,
    /// `spec.leaseTransitions`: how often the holder changed. Zero if it is absent.
    pub transitions: u32,
    /// Whether the last holder released it with no call in flight, of its own or of an earlier
    /// leader.
    pub is_drained: bool,
    /// The hand-over of the last holder.
    pub handover: Option<HandoverNote>,
}

impl LeaseState {
    /// The hand-over of the last term. One of an earlier term may be out of date.
    fn current_handover(&self) -> Option<&str> {
        let is_fresh =
            |handover: &&HandoverNote| self.is_drained && handover.transitions == self.transitions;
        let handover = self.handover.as_ref().filter(is_fresh);
        handover.map(|handover| handover.text.as_str())
    }
}

/// Text that a holder leaves to the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HandoverNote {
    /// [`LeaseState::transitions`] in the term of its writer. A holder of an older version keeps an
    /// old note and increments the transitions.
    pub transitions: u32,
    /// The text, which this crate does not interpret.
    pub text: String,
}

/// How a process releases the Lease.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Leave {
    /// Whether this process has no call in flight and none of unknown outcome.
    pub is_drained: bool,
    /// Text for the next holder. Dropped unless `is_drained`.
    pub handover: Option<String>,
}

/// What the shell does next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Step {
    /// Wait until this time, or for an observation.
    Wait(Timestamp),
    /// Read the Lease. [`Elector::seen`] or [`Elector::failed`] must follow.
    Read,
    /// Create or replace the Lease. [`Elector::written`] or [`Elector::failed`] must follow.
    Write(LeaseWrite),
}

/// A compare-and-set of the Lease, with this process or no process as holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeaseWrite {
    /// The version to replace. `None`: create the Lease.
    pub base: Option<u64>,
    /// The new state.
    pub state: LeaseState,
    /// Whether the holder changes. The write then sets `spec.acquireTime`.
    pub takes: bool,
}

/// The observed state of the Lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
enum Known {
    /// No read or watch has shown the Lease.
    Not,
    /// There is no Lease.
    Absent,
    /// A state, and when it was first observed.
    Seen(LeaseState, Timestamp),
}

/// The state machine of one candidate.
#[derive(Debug, Clone, Serialize)]
pub struct Elector {
    rule: ElectRule,
    known: Known,
    /// Whether the Lease must be read before the next write.
    is_stale: bool,
    /// The call in flight: when it was sent, and the write. `None`: a read.
    flight: Option<(Timestamp, Option<LeaseWrite>)>,
    /// Time before which no call begins.
    pause: Timestamp,
    /// When all writes of earlier leaders have taken effect or never will. Set when this process
    /// takes the Lease.
    settled: Timestamp,
    /// When the last successful renewal was sent, while this process holds the Lease.
    renewed: Option<Timestamp>,
    /// The hand-over of the last holder, if this process takes the Lease.
    handed_over: Option<String>,
    /// Set to release the Lease.
    leaving: Option<Leave>,
}

impl Elector {
    /// An elector that has not observed the Lease.
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
            handed_over: None,
            leaving: None,
        }
    }

    /// Handles an observed state of the Lease. `None`: there is no Lease. Returns the observation
    /// for the core.
    pub fn seen(&mut self, now: Timestamp, state: Option<LeaseState>) -> Option<LeaseSeen> {
        if self.flight.take_if(|(_, write)| write.is_none()).is_some() {
            self.is_stale = false;
        }
        match (&self.known, &state) {
            // The watch may deliver a state after the response to a write, and older states.
            (Known::Seen(known, _), Some(seen)) if seen.version <= known.version => return None,
            _ => {}
        }
        self.known = match state {
            None => Known::Absent,
            Some(state) => Known::Seen(state, now),
        };
        let holder = self.holder().to_owned();
        // The core gets a state of our own from `written`, which has the time of sending.
        if holder == self.rule.identity || self.renewed.take().is_none() {
            return None;
        }
        Some(LeaseSeen {
            holder,
            renewed: now,
            settled: Timestamp(u64::MAX),
            handover: None,
        })
    }

    /// Requires a read before the next write.
    pub fn doubt(&mut self) {
        self.is_stale = true;
    }

    /// Handles a successful write with its response. Returns the observation for the core.
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
            handover: self.handed_over.take().filter(|_| takes && is_ours),
        })
    }

    /// Handles a failed call, or one of unknown outcome.
    pub fn failed(&mut self, now: Timestamp) {
        self.flight = None;
        self.is_stale = true;
        self.pause = now + self.rule.retry();
    }

    /// Releases the Lease if this process holds it, and takes it no more.
    pub fn leave(&mut self, leave: Leave) {
        self.leaving = Some(leave);
    }

    /// Whether the Lease was released, or this process does not hold it, after [`Elector::leave`].
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.leaving.is_some() && self.renewed.is_none() && self.flight.is_none()
    }

    /// The next step.
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

    /// When the Lease of another holder may be taken.
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
            // The holder stopped at its deadline, which counts from before the observation.
            Known::Seen(state, at) if !state.holder.is_empty() => {
                Some(*at + longest(state.duration))
            }
            Known::Seen(state, _) if state.is_drained => None,
            // An earlier holder may not have observed the release.
            Known::Seen(state, at) => Some(*at + longest(state.duration)),
            Known::Absent | Known::Not => Some(now + longest(Span(0))),
        };
        self.settled = quiet.map_or(now, |quiet| quiet + self.rule.settle);
        self.handed_over = match &self.known {
            Known::Seen(state, _) if state.holder.is_empty() => {
                state.current_handover().map(str::to_owned)
            }
            Known::Seen(..) | Known::Absent | Known::Not => None,
        };
        let transitions = self.transitions().saturating_add(1);
        let write = self.plan(self.rule.identity.clone(), transitions, true);
        self.send(now, write)
    }

    fn release(&mut self, now: Timestamp, leave: Leave) -> Step {
        let mut write = self.plan(String::new(), self.transitions(), false);
        // Before it settled, this process cannot vouch for the calls of the leader before it.
        write.state.is_drained = leave.is_drained && now >= self.settled;
        let transitions = write.state.transitions;
        let handover = leave.handover.filter(|_| write.state.is_drained);
        write.state.handover = handover.map(|text| HandoverNote { transitions, text });
        // This process leads no more, even if the write fails.
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
            handover: None,
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
