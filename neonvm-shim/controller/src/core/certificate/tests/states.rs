//! The step for each state of the objects.

use super::*;

#[test]
fn each_state_at_each_time() {
    use TemporaryKey::{Absent, Key};
    let now = wall();
    let pair = |hours_ago: i64| {
        let from = WallTime(now.0 - hours_ago * HOUR);
        Stored::Pair(certificate(key(9), NAME, from, 24))
    };
    let (no, new, due, over) = (Stored::Absent, pair(1), pair(23), pair(25));
    let issued = || RequestStatus::Issued(Ok(certificate(key(1), NAME, now, 24)));
    let refused = || RequestStatus::Refused {
        reason: "Failed",
        message: String::new(),
    };
    // What is kept, the key, the request: at the first time, while the pair is good, when it is
    // due, when it is over.
    let table: [(TemporaryKey, Request, [&str; 4]); 10] = [
        (
            Absent,
            Request::Absent,
            ["make key", "rest", "make key", "make key"],
        ),
        (
            TemporaryKey::Unusable,
            Request::Absent,
            ["make key", "tidy", "make key", "make key"],
        ),
        (Key(key(1)), Request::Absent, ["ask", "tidy", "ask", "ask"]),
        (
            Absent,
            own_request(issued()),
            ["withdraw", "tidy", "withdraw", "withdraw"],
        ),
        (
            Key(key(1)),
            own_request(waiting()),
            ["await", "tidy", "await", "await"],
        ),
        (
            Key(key(1)),
            own_request(issued()),
            ["store", "tidy", "store", "store"],
        ),
        (
            Key(key(1)),
            own_request(refused()),
            ["refused", "tidy", "refused", "refused"],
        ),
        (
            Key(key(2)),
            own_request(issued()),
            ["withdraw", "tidy", "withdraw", "withdraw"],
        ),
        (
            TemporaryKey::Foreign,
            Request::Absent,
            ["stuck", "rest", "stuck", "stuck"],
        ),
        (
            Key(key(1)),
            Request::Foreign,
            ["stuck", "tidy", "stuck", "stuck"],
        ),
    ];
    for (temporary, request, expected) in table {
        for (stored, expected) in [&no, &new, &due, &over].into_iter().zip(expected) {
            let facts = Facts {
                stored: stored.clone(),
                key: temporary.clone(),
                request: request.clone(),
            };
            assert_eq!(
                label(&decide(&wanted(), &facts, now)),
                expected,
                "{facts:?}"
            );
        }
        for stored in [Stored::Foreign, Stored::Unusable] {
            let facts = Facts {
                stored: stored.clone(),
                key: temporary.clone(),
                request: request.clone(),
            };
            let first = if stored == Stored::Foreign {
                "stuck"
            } else {
                expected[0]
            };
            assert_eq!(label(&decide(&wanted(), &facts, now)), first, "{facts:?}");
        }
    }
}
