//! The one next step, from the objects and the time alone.

use protocol::time::WallTime;

use super::failure::{CertificateFailure, Unfit};
use super::objects::{
    Certificate, Facts, OwnRequest, PublicKey, Request, RequestStatus, Step, Stored, TemporaryKey,
};
use super::wanted::Wanted;

/// Decision about a certificate at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// This step is the next one. Once it ends, the three objects are read and decided on again.
    Do(Step),
    /// The request has failed: withdraw it, but not at once.
    Failed {
        /// Uid of the failed request. Only this incarnation is withdrawn.
        uid: String,
        /// Failure that leads to the withdrawal.
        failure: CertificateFailure,
    },
    /// No step is possible until another owner has acted.
    Stuck(CertificateFailure),
    /// All is well until then.
    Rest {
        /// When the certificate is to be renewed.
        until: WallTime,
    },
}

/// When a certificate is to be renewed. Without `renewBefore`, or if the certificate's life is no
/// longer than that, it is renewed after two thirds of its life. It is never due at once, or
/// renewals would not end.
#[must_use]
pub fn renewal(wanted: &Wanted, certificate: &Certificate) -> WallTime {
    let (from, until) = (certificate.not_before.0, certificate.not_after.0);
    let life = until.saturating_sub(from).max(0);
    let before = wanted
        .renew_before
        .map_or(life, |span| i64::try_from(span.0).unwrap_or(i64::MAX));
    let before = if before < life { before } else { life / 3 };
    WallTime(until.saturating_sub(before))
}

/// Returns the one next step of a VM's certificate. It has no state: the objects and the time are
/// all it rests on.
#[must_use]
pub fn decide(wanted: &Wanted, facts: &Facts, now: WallTime) -> Decision {
    if facts.stored == Stored::Foreign {
        return Decision::Stuck(CertificateFailure::Taken { kind: "secret" });
    }
    if let Stored::Pair(pair) = &facts.stored
        && pair.names.contains(&wanted.name)
    {
        let until = renewal(wanted, pair);
        if now < until {
            return rest(facts, until);
        }
    }
    next(wanted, facts, now)
}

fn rest(facts: &Facts, until: WallTime) -> Decision {
    let key = matches!(facts.key, TemporaryKey::Key(_) | TemporaryKey::Unusable);
    if key || matches!(facts.request, Request::Ours(_)) {
        Decision::Do(Step::Tidy)
    } else {
        Decision::Rest { until }
    }
}

/// Next step on the way to a certificate: a key, then a request for it, then the issued
/// certificate.
fn next(wanted: &Wanted, facts: &Facts, now: WallTime) -> Decision {
    let key = match (&facts.key, &facts.request) {
        (TemporaryKey::Foreign, _) => {
            return Decision::Stuck(CertificateFailure::Taken { kind: "secret" });
        }
        (_, Request::Foreign) => {
            let kind = "CertificateRequest";
            return Decision::Stuck(CertificateFailure::Taken { kind });
        }
        (TemporaryKey::Key(key), _) => key,
        // The key of the request is lost.
        (TemporaryKey::Absent | TemporaryKey::Unusable, Request::Ours(request)) => {
            return withdraw(request);
        }
        (TemporaryKey::Absent | TemporaryKey::Unusable, Request::Absent) => {
            return Decision::Do(Step::MakeKey);
        }
    };
    match &facts.request {
        Request::Ours(request) => by_status(wanted, &facts.stored, request, key, now),
        Request::Absent | Request::Foreign => Decision::Do(Step::Request),
    }
}

fn withdraw(request: &OwnRequest) -> Decision {
    let uid = request.uid.clone();
    Decision::Do(Step::Withdraw { uid })
}

fn by_status(
    wanted: &Wanted,
    stored: &Stored,
    request: &OwnRequest,
    key: &PublicKey,
    now: WallTime,
) -> Decision {
    let subject = request.subject.as_ref();
    let is_it = subject.is_some_and(|(name, of)| *name == wanted.name && of == key);
    if !is_it || request.issuer != wanted.issuer {
        // The spec was changed, or the key lost, since it was made.
        return withdraw(request);
    }
    let issuer = || wanted.issuer.clone();
    let failure = match &request.status {
        RequestStatus::Waiting { .. } => {
            let (uid, version) = (request.uid.clone(), request.version.clone());
            return Decision::Do(Step::Await { uid, version });
        }
        RequestStatus::Refused { reason, message } => CertificateFailure::Refused {
            issuer: issuer(),
            reason,
            message: message.clone(),
        },
        RequestStatus::Issued(issued) => match unfit(wanted, stored, issued, key, now) {
            None => return Decision::Do(Step::Store),
            Some(why) => CertificateFailure::Unfit {
                issuer: issuer(),
                why,
            },
        },
    };
    let uid = request.uid.clone();
    Decision::Failed { uid, failure }
}

fn unfit(
    wanted: &Wanted,
    stored: &Stored,
    issued: &Result<Certificate, String>,
    key: &PublicKey,
    now: WallTime,
) -> Option<Unfit> {
    let certificate = match issued {
        Ok(certificate) => certificate,
        Err(message) => {
            let message = message.clone();
            return Some(Unfit::Unreadable { message });
        }
    };
    if certificate.key != *key {
        Some(Unfit::OtherKey)
    } else if !certificate.names.contains(&wanted.name) {
        let wanted = wanted.name.clone();
        Some(Unfit::OtherName { wanted })
    } else if certificate.not_after <= now {
        let at = certificate.not_after;
        Some(Unfit::Expired { at })
    } else if outlasts(stored, wanted, certificate) {
        let at = certificate.not_after;
        Some(Unfit::NoLonger { at })
    } else {
        None
    }
}

/// Whether the stored certificate lasts at least as long as `issued`. It may be the same one: a
/// controller that ended after the write did not tidy up, and the certificate is due by now.
/// Storing it again would change nothing.
fn outlasts(stored: &Stored, wanted: &Wanted, issued: &Certificate) -> bool {
    matches!(stored, Stored::Pair(pair)
        if pair.names.contains(&wanted.name) && pair.not_after >= issued.not_after)
}
