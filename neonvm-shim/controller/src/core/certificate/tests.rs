mod any_state;
mod scene;
mod states;

use proptest::prelude::*;
use protocol::time::{Span, Timestamp, WallTime};
use serde_json::{Value, json};

use scene::Scene;

use super::testing::{Ca, HOUR, Manner, certificate, key};
use super::*;
use crate::core::testing::{sample_vm, wall};
use crate::core::{Action, Moment};

const NAME: &str = "vm.neon.local";

fn tls() -> Value {
    json!({
        "certificateIssuer": "neon-ca-issuer", "expireAfter": "24h", "renewBefore": "1h",
        "serverName": NAME,
    })
}

fn wanted() -> Wanted {
    Wanted::read(&tls()).expect("all is set")
}

fn own_request(status: RequestStatus) -> Request {
    Request::Ours(Box::new(OwnRequest {
        uid: "r".into(),
        version: "5".into(),
        issuer: "neon-ca-issuer".into(),
        subject: Some((NAME.into(), key(1))),
        status,
    }))
}

fn waiting() -> RequestStatus {
    RequestStatus::Waiting {
        message: String::new(),
    }
}

/// The kind of a verdict, in a word.
fn label(decision: &Decision) -> &'static str {
    match decision {
        Decision::Do(step) => match step {
            Step::Read => "read",
            Step::MakeKey => "make key",
            Step::Request => "ask",
            Step::Await { .. } => "await",
            Step::Store => "store",
            Step::Withdraw { .. } => "withdraw",
            Step::Tidy => "tidy",
        },
        Decision::Failed { failure, .. } => match failure {
            CertificateFailure::Refused { .. } => "refused",
            CertificateFailure::Unfit { .. } => "unfit",
            _ => "failed otherwise",
        },
        Decision::Stuck(_) => "stuck",
        Decision::Rest { .. } => "rest",
    }
}

#[test]
fn unfit_certificate_is_not_stored() {
    let now = wall();
    let good = certificate(key(1), NAME, now, 24);
    let with = |change: fn(&mut Certificate)| {
        let mut certificate = good.clone();
        change(&mut certificate);
        Ok(certificate)
    };
    let cases = [
        (
            with(|it| it.key = key(2)),
            "it does not belong to the key".to_owned(),
        ),
        (
            with(|it| it.names = vec!["else".into()]),
            format!("it is not for {NAME}"),
        ),
        (
            with(|it| it.not_after = it.not_before),
            format!("it expired at {now}"),
        ),
        (Err("no PEM".into()), "it cannot be read: no PEM".to_owned()),
    ];
    for (issued, words) in cases {
        let facts = Facts {
            stored: Stored::Absent,
            key: TemporaryKey::Key(key(1)),
            request: own_request(RequestStatus::Issued(issued)),
        };
        let Decision::Failed { uid, failure } = decide(&wanted(), &facts, now) else {
            panic!("{words}: taken");
        };
        assert_eq!(uid, "r");
        let text = failure.to_string();
        assert!(
            text.contains("neon-ca-issuer") && text.ends_with(&words),
            "{text}"
        );
    }
}

#[test]
fn changed_issuer_or_name_is_requested_at_once() {
    let now = wall();
    let pair = certificate(key(9), NAME, now, 24);
    let facts = Facts {
        stored: Stored::Pair(pair),
        key: TemporaryKey::Absent,
        request: Request::Absent,
    };
    let mut other = wanted();
    other.name = "new.local".into();
    assert_eq!(label(&decide(&other, &facts, now)), "make key");
    for change in [
        (|it: &mut Wanted| it.issuer = "b".into()) as fn(&mut Wanted),
        |it| it.name = "new.local".into(),
    ] {
        let mut other = wanted();
        change(&mut other);
        let facts = Facts {
            stored: Stored::Absent,
            key: TemporaryKey::Key(key(1)),
            request: own_request(waiting()),
        };
        assert_eq!(label(&decide(&other, &facts, now)), "withdraw");
    }
}

#[test]
fn renewal_is_never_due_at_once() {
    let now = wall();
    let day = certificate(key(1), NAME, now, 24);
    let at = |before: Option<Span>| {
        let mut wanted = wanted();
        wanted.renew_before = before;
        (renewal(&wanted, &day).0 - now.0) / HOUR
    };
    let hours = |n: u64| Some(Span::from_secs(n * 3600));
    assert_eq!(at(hours(1)), 23);
    assert_eq!(at(hours(23)), 1);
    assert_eq!(at(None), 16, "two thirds of its life");
    assert_eq!(at(hours(24)), 16);
    assert_eq!(at(hours(1_000_000)), 16);
}

#[test]
fn renewal_goes_on_with_the_old_pair() {
    let mut scene = Scene::new(Ca::default());
    scene.settle();
    let first = scene.kept().expect("issued").clone();
    assert_eq!(scene.ca.facts.key, TemporaryKey::Absent);
    assert_eq!(scene.ca.facts.request, Request::Absent);
    scene.pass(Span::from_secs(22 * 3600));
    scene.settle();
    assert_eq!(scene.ca.keys, 1, "not due");
    scene.ca.manner = Manner::Ponders;
    scene.pass(Span::from_secs(3600));
    scene.settle();
    assert_eq!(
        scene.kept(),
        Some(&first),
        "the old one until the next is there"
    );
    let next_step = scene.next_step();
    assert!(next_step.ready);
    assert_eq!(next_step.failure, None, "it is good for an hour");
    scene.pass(Span::from_secs(301));
    assert!(matches!(
        scene.next_step().failure,
        Some(CertificateFailure::Awaited { .. })
    ));
    scene.pass(Span::from_secs(3600));
    let next_step = scene.next_step();
    assert!(
        next_step.ready,
        "an issuer that is away keeps no guest down"
    );
    assert!(next_step.failure.is_some());
    scene.ca.manner = Manner::Signs;
    scene.settle();
    let second = scene.kept().expect("issued");
    assert_eq!(
        (second.key.clone(), scene.ca.keys),
        (key(2), 2),
        "another key"
    );
    assert_eq!(scene.next_step().failure, None);
}

#[test]
fn refused_request_is_repeated_with_growing_pauses() {
    for manner in [
        Manner::Denies,
        Manner::OtherKey,
        Manner::OtherName,
        Manner::Stale,
        Manner::Rubbish,
    ] {
        let mut scene = Scene::new(Ca {
            manner,
            ..Ca::default()
        });
        scene.settle();
        for (times, pause) in [10, 20, 40, 80, 160, 320, 600, 600].into_iter().enumerate() {
            let next_step = scene.next_step();
            assert!(
                !next_step.ready && next_step.failure.is_some(),
                "{manner:?}"
            );
            assert_eq!(usize::try_from(scene.ca.requests), Ok(times + 1));
            scene.pass(Span(pause * 1_000_000 - 1));
            scene.settle();
            assert_eq!(
                usize::try_from(scene.ca.requests),
                Ok(times + 1),
                "too soon"
            );
            scene.pass(Span(1));
            scene.settle();
        }
        assert_eq!(scene.kept(), None, "{manner:?}: nothing of it is used");
        scene.ca.manner = Manner::Signs;
        scene.pass(Span::from_secs(600));
        scene.settle();
        assert!(scene.next_step().ready && scene.next_step().failure.is_none());
    }
}

#[test]
fn slow_issuer_is_reported_after_delay_and_core_wakes_then() {
    let mut scene = Scene::new(Ca {
        manner: Manner::Ponders,
        ..Ca::default()
    });
    scene.settle();
    let next_step = scene.next_step();
    assert_eq!((next_step.ready, next_step.failure), (false, None));
    assert_eq!(
        next_step.look_again,
        Some(scene.at.now + Span::from_secs(5))
    );
    scene.pass(Span::from_secs(5));
    let text = scene.next_step().failure.expect("told").to_string();
    assert_eq!(
        text,
        "no certificate from ClusterIssuer neon-ca-issuer yet: in the queue"
    );
    let next = scene.next_step().look_again.expect("the objects are read");
    assert!(next > scene.at.now, "no wake-up that is due for ever");
}

#[test]
fn objects_of_other_owners_are_left_alone() {
    for change in [
        (|facts: &mut Facts| facts.stored = Stored::Foreign) as fn(&mut Facts),
        |facts| facts.key = TemporaryKey::Foreign,
        |facts| facts.request = Request::Foreign,
    ] {
        let mut ca = Ca::default();
        change(&mut ca.facts);
        let mut scene = Scene::new(ca);
        scene.settle();
        let next_step = scene.next_step();
        assert!(!next_step.ready);
        assert!(matches!(
            next_step.failure,
            Some(CertificateFailure::Taken { .. })
        ));
        let before = scene.ca.facts.clone();
        scene.pass(Span::from_secs(16));
        assert_eq!(scene.step(), Some(Step::Read), "whether it has gone");
        assert_eq!(scene.ca.facts, before);
    }
}

/// A controller that ended after it stored a pair, and before it tidied up, and was away until that
/// pair is due.
#[test]
fn a_pair_that_is_due_and_whose_request_is_still_there_is_renewed() {
    let from = WallTime(wall().0 - 23 * HOUR - 1);
    let pair = certificate(key(1), NAME, from, 24);
    let facts = Facts {
        stored: Stored::Pair(pair.clone()),
        key: TemporaryKey::Key(key(1)),
        request: own_request(RequestStatus::Issued(Ok(pair.clone()))),
    };
    let mut scene = Scene::new(Ca {
        keys: 1,
        facts,
        ..Ca::default()
    });
    scene.settle();
    let next_step = scene.next_step();
    assert!(next_step.ready, "the old one is good for an hour");
    let text = next_step.failure.expect("told").to_string();
    let end = format!(
        "ends at {}, no later than the certificate that it replaces",
        pair.not_after
    );
    assert!(text.ends_with(&end), "{text}");
    assert_eq!(
        next_step.look_again,
        Some(scene.at.now + Span::from_secs(10))
    );
    scene.pass(Span::from_secs(10));
    scene.settle();
    assert!(scene.kept().expect("a pair").not_after > pair.not_after);
    assert_eq!(scene.next_step().failure, None);
    assert_eq!(scene.ca.requests, 1);
}

/// An issuer that hands out what is due at once is not asked for it without a pause.
#[test]
fn issuer_of_short_lives_gets_no_endless_requests() {
    let from = WallTime(wall().0 - 23 * HOUR - 1);
    let short = certificate(key(1), NAME, from, 24);
    let mut ca = Ca::default();
    ca.facts.key = TemporaryKey::Key(key(1));
    ca.facts.request = own_request(RequestStatus::Issued(Ok(short.clone())));
    let mut scene = Scene::new(ca);
    assert_eq!(scene.step(), Some(Step::Read));
    assert_eq!(scene.step(), Some(Step::Store), "better than none");
    assert_eq!(scene.step(), None);
    assert_eq!(scene.kept(), Some(&short));
}
