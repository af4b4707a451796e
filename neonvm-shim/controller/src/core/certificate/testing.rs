//! The three objects and an issuer, for tests: what steps do to them, and what the issuer makes of
//! a request.

use protocol::time::WallTime;

use super::{
    Certificate, Facts, Order, OwnRequest, PublicKey, Request, RequestStatus, Step, Stored,
    TemporaryKey,
};

/// One hour in microseconds.
pub(crate) const HOUR: i64 = 3_600_000_000;

/// What an issuer makes of the requests it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// A certificate of 24 hours.
    Signs,
    Ponders,
    /// It says no.
    Denies,
    /// A certificate for another key.
    OtherKey,
    /// A certificate for another name.
    OtherName,
    /// A certificate of yesterday.
    Stale,
    /// No certificate at all.
    Rubbish,
}

/// The objects of one VM's certificate, and the issuer.
#[derive(Debug, Clone)]
pub(crate) struct Ca {
    pub(crate) manner: Manner,
    pub(crate) facts: Facts,
    /// Keys ever made.
    pub(crate) keys: u8,
    /// Requests ever made.
    pub(crate) requests: u32,
    pub(crate) version: u32,
}

impl Default for Ca {
    fn default() -> Self {
        Self {
            manner: Manner::Signs,
            facts: Facts {
                stored: Stored::Absent,
                key: TemporaryKey::Absent,
                request: Request::Absent,
            },
            keys: 0,
            requests: 0,
            version: 0,
        }
    }
}

/// The public key of that number.
pub(crate) fn key(number: u8) -> PublicKey {
    PublicKey(vec![number; 8])
}

/// A certificate of so many hours from `from` on.
pub(crate) fn certificate(of: PublicKey, name: &str, from: WallTime, hours: i64) -> Certificate {
    Certificate {
        not_before: from,
        not_after: WallTime(from.0 + hours * HOUR),
        names: vec![name.to_owned()],
        key: of,
    }
}

impl Ca {
    /// Does what a step does, the issuer having had its time.
    pub(crate) fn take(&mut self, step: &Step, order: &Order, now: WallTime) -> Facts {
        match step {
            Step::Read => {}
            Step::MakeKey => {
                if self.facts.key != TemporaryKey::Foreign {
                    self.keys += 1;
                    self.facts.key = TemporaryKey::Key(key(self.keys));
                }
            }
            Step::Request => self.ask(order),
            Step::Await { .. } => self.issue(now),
            Step::Store => self.store(),
            Step::Withdraw { uid } => {
                if matches!(&self.facts.request, Request::Ours(request) if request.uid == *uid) {
                    self.facts.request = Request::Absent;
                }
            }
            Step::Tidy => {
                if self.facts.key != TemporaryKey::Foreign {
                    self.facts.key = TemporaryKey::Absent;
                }
                if self.facts.request != Request::Foreign {
                    self.facts.request = Request::Absent;
                }
            }
        }
        self.facts.clone()
    }

    fn ask(&mut self, order: &Order) {
        if let (TemporaryKey::Key(key), Request::Absent) = (&self.facts.key, &self.facts.request) {
            self.requests += 1;
            self.version += 1;
            self.facts.request = Request::Ours(Box::new(OwnRequest {
                uid: format!("request-{}", self.requests),
                version: self.version.to_string(),
                issuer: order.wanted.issuer.clone(),
                subject: Some((order.wanted.name.clone(), key.clone())),
                status: RequestStatus::Waiting {
                    message: "in the queue".into(),
                },
            }));
        }
    }

    /// The issuer looks at what waits.
    pub(crate) fn issue(&mut self, now: WallTime) {
        let Request::Ours(request) = &mut self.facts.request else {
            return;
        };
        let (RequestStatus::Waiting { .. }, Some((name, of))) = (&request.status, &request.subject)
        else {
            return;
        };
        let (name, of) = (name.as_str(), of.clone());
        request.status = match self.manner {
            Manner::Ponders => return,
            Manner::Signs => RequestStatus::Issued(Ok(certificate(of, name, now, 24))),
            Manner::Denies => RequestStatus::Refused {
                reason: "Denied",
                message: "not for you".into(),
            },
            Manner::OtherKey => RequestStatus::Issued(Ok(certificate(key(200), name, now, 24))),
            Manner::OtherName => RequestStatus::Issued(Ok(certificate(of, "else.local", now, 24))),
            Manner::Stale => {
                let yesterday = WallTime(now.0 - 24 * HOUR);
                RequestStatus::Issued(Ok(certificate(of, name, yesterday, 24)))
            }
            Manner::Rubbish => RequestStatus::Issued(Err("no PEM".into())),
        };
        self.version += 1;
        request.version = self.version.to_string();
    }

    /// The pair that was handed out for the key that is there becomes the one that guests get.
    pub(crate) fn store(&mut self) {
        if let (TemporaryKey::Key(key), Request::Ours(request)) =
            (&self.facts.key, &self.facts.request)
            && let RequestStatus::Issued(Ok(issued)) = &request.status
            && issued.key == *key
            && self.facts.stored != Stored::Foreign
        {
            self.facts.stored = Stored::Pair(issued.clone());
        }
    }
}
