//! State between two decisions: the objects as last read, and the failures of the issuer.

use protocol::time::{Span, Timestamp};
use protocol::vm::VirtualMachine;
use serde::Serialize;
use serde_json::Value;

use super::decide::{Decision, decide};
use super::failure::CertificateFailure;
use super::objects::{Facts, Order, Request, RequestStatus, Step, Stored};
use super::wanted::{TlsFault, Wanted};
use crate::core::action::Action;
use crate::core::backoff::doubling;
use crate::core::moment::Moment;
use crate::core::pod;

/// The three objects are read again after this long at the latest.
const READ_AGAIN: Span = Span::from_secs(300);
/// The same while an object of another owner is in the way.
const FOREIGN_READ_AGAIN: Span = Span::from_secs(15);
/// First pause before a failed request is withdrawn and made again.
const RETRY_FIRST: Span = Span::from_secs(10);
/// And at most after this long.
const RETRY_CAP: Span = Span::from_secs(600);
/// An issuer that takes longer for the first certificate is reported.
const FIRST_REPORTED_AFTER: Span = Span::from_secs(5);
/// The same for one to renew, while the old one is good.
const RENEWAL_REPORTED_AFTER: Span = Span::from_secs(300);

/// Objects of a VM's certificate as last read, and the failures of its issuer.
#[derive(Debug, Clone, Default)]
pub struct CertificateState {
    facts: Option<Facts>,
    read_at: Timestamp,
    failed: Option<Failed>,
    in_a_row: u32,
    waiting_since: Option<(String, Timestamp)>,
}

/// A failed request, which is withdrawn at `withdraw_at`.
#[derive(Debug, Clone)]
struct Failed {
    uid: String,
    withdraw_at: Timestamp,
}

/// Next action for a certificate, and whether a usable pair is stored until then.
#[derive(Debug, Clone, PartialEq)]
pub struct NextStep {
    /// Action to carry out now, or `None`.
    pub action: Option<Action>,
    /// Whether a usable key pair is stored.
    pub ready: bool,
    /// Failure that prevents the first certificate or its renewal.
    pub failure: Option<CertificateFailure>,
    /// Time of the next look if no event comes before.
    pub look_again: Option<Timestamp>,
}

/// Certificate in `/debug/state`.
#[derive(Debug, Clone, Serialize)]
pub struct CertificateDump {
    stored: String,
    request: String,
    refused_in_a_row: u32,
}

impl CertificateState {
    /// Plans the next step for a VM whose `spec.tls` is `tls`.
    ///
    /// # Errors
    /// [`TlsFault`] if `tls` is unusable.
    pub fn next_step(
        &self,
        vm: &VirtualMachine,
        secret: &str,
        tls: &Value,
        at: Moment,
    ) -> Result<NextStep, TlsFault> {
        let order = Order {
            secret: secret.to_owned(),
            wanted: Wanted::read(tls)?,
            owner: pod::owner(vm),
        };
        let Some(facts) = self.facts.as_ref() else {
            return Ok(NextStep {
                action: Some(action(Step::Read, order)),
                ready: false,
                failure: None,
                look_again: None,
            });
        };
        let decision = decide(&order.wanted, facts, at.wall);
        let look_again = self.look_again(&decision, at);
        let mut step = self.step(&decision, at);
        if at.now >= self.read_at && !matches!(step, Some(Step::Await { .. })) {
            step = step.or(Some(Step::Read));
        }
        Ok(NextStep {
            ready: matches!(facts.stored, Stored::Pair(_)),
            failure: self.failure(&order.wanted, decision, at),
            action: step.map(|step| action(step, order)),
            look_again,
        })
    }

    fn step(&self, decision: &Decision, at: Moment) -> Option<Step> {
        match decision {
            Decision::Do(step) => Some(step.clone()),
            Decision::Failed { uid, .. } if self.withdraw_at(uid) <= at.now => {
                Some(Step::Withdraw { uid: uid.clone() })
            }
            Decision::Failed { .. } | Decision::Stuck(_) | Decision::Rest { .. } => None,
        }
    }

    /// When the failed request of that uid is withdrawn.
    fn withdraw_at(&self, uid: &str) -> Timestamp {
        let failed = self.failed.as_ref().filter(|failed| failed.uid == uid);
        failed.map_or(Timestamp(0), |failed| failed.withdraw_at)
    }

    fn look_again(&self, decision: &Decision, at: Moment) -> Option<Timestamp> {
        let next = match decision {
            Decision::Do(Step::Await { uid, .. }) => {
                let known = self.waiting_since.as_ref().filter(|(of, _)| of == uid);
                known.map_or(at.now, |(_, since)| *since) + self.reported_after(at)
            }
            Decision::Failed { uid, .. } => self.withdraw_at(uid),
            Decision::Rest { until } => {
                let left = until.0.saturating_sub(at.wall.0);
                at.now + Span(u64::try_from(left).unwrap_or(0))
            }
            Decision::Do(_) | Decision::Stuck(_) => self.read_at,
        };
        // A time in the past has been reported, or its step is under way.
        let ahead = [next, self.read_at].into_iter();
        ahead.filter(|time| *time > at.now).min()
    }

    /// How long an issuer may take before that is reported.
    fn reported_after(&self, at: Moment) -> Span {
        match self.facts.as_ref().map(|facts| &facts.stored) {
            Some(Stored::Pair(pair)) if at.wall < pair.not_after => RENEWAL_REPORTED_AFTER,
            _ => FIRST_REPORTED_AFTER,
        }
    }

    fn failure(
        &self,
        wanted: &Wanted,
        decision: Decision,
        at: Moment,
    ) -> Option<CertificateFailure> {
        match decision {
            Decision::Failed { failure, .. } | Decision::Stuck(failure) => return Some(failure),
            Decision::Do(Step::Await { uid, .. }) => {
                let known = self.waiting_since.as_ref().filter(|(of, _)| *of == uid);
                let waited = known.map_or(Span(0), |(_, since)| at.now.since(*since));
                if waited >= self.reported_after(at) {
                    let issuer = wanted.issuer.clone();
                    let message = self.issuer_message();
                    return Some(CertificateFailure::Awaited { issuer, message });
                }
            }
            Decision::Do(_) | Decision::Rest { .. } => {}
        }
        match self.facts.as_ref().map(|facts| &facts.stored) {
            Some(Stored::Pair(pair)) if at.wall >= pair.not_after => {
                let since = pair.not_after;
                Some(CertificateFailure::Expired { since })
            }
            _ => None,
        }
    }

    /// The issuer's message in a request that waits.
    fn issuer_message(&self) -> String {
        match self.facts.as_ref().map(|facts| &facts.request) {
            Some(Request::Ours(request)) => match &request.status {
                RequestStatus::Waiting { message } => message.clone(),
                RequestStatus::Refused { .. } | RequestStatus::Issued(_) => String::new(),
            },
            _ => String::new(),
        }
    }

    /// The three objects were read, for this.
    pub fn refresh(&mut self, wanted: &Wanted, facts: Facts, at: Moment) {
        let decision = decide(wanted, &facts, at.wall);
        let pause = if matches!(decision, Decision::Stuck(_)) {
            FOREIGN_READ_AGAIN
        } else {
            READ_AGAIN
        };
        self.read_at = at.now + pause;
        match &decision {
            Decision::Failed { uid, .. } => self.has_failed(uid, at.now),
            Decision::Rest { .. } => {
                self.in_a_row = 0;
                self.failed = None;
            }
            Decision::Do(_) | Decision::Stuck(_) => {}
        }
        match &decision {
            Decision::Do(Step::Await { uid, .. }) => {
                if self.waiting_since.as_ref().is_none_or(|(of, _)| of != uid) {
                    self.waiting_since = Some((uid.clone(), at.now));
                }
            }
            _ => self.waiting_since = None,
        }
        self.facts = Some(facts);
    }

    fn has_failed(&mut self, uid: &str, now: Timestamp) {
        if self.failed.as_ref().is_some_and(|failed| failed.uid == uid) {
            return;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.failed = Some(Failed {
            uid: uid.to_owned(),
            withdraw_at: now + doubling(RETRY_FIRST, RETRY_CAP, self.in_a_row),
        });
    }

    /// Lets the objects be read again soon. Their last state stays in use until then.
    pub fn expire(&mut self) {
        self.read_at = Timestamp(0);
    }

    /// Dump for `/debug/state`, without the key; `None` for a VM without a certificate.
    #[must_use]
    pub fn dump(&self) -> Option<CertificateDump> {
        let facts = self.facts.as_ref()?;
        Some(CertificateDump {
            stored: match &facts.stored {
                Stored::Pair(pair) => format!("until {}", pair.not_after),
                other => format!("{other:?}"),
            },
            request: match &facts.request {
                Request::Ours(request) => match &request.status {
                    RequestStatus::Waiting { .. } => "waiting".into(),
                    RequestStatus::Refused { reason, .. } => (*reason).into(),
                    RequestStatus::Issued(_) => "issued".into(),
                },
                other => format!("{other:?}"),
            },
            refused_in_a_row: self.in_a_row,
        })
    }
}

fn action(step: Step, order: Order) -> Action {
    Action::Certificate {
        step,
        order: Box::new(order),
    }
}
