//! What a core does with the terms that a Lease gives it.

use protocol::time::{Span, Timestamp};

use super::event::{Action, Event};
use super::lease::{LeaseRule, LeaseSeen};
use super::{Core, Settings};

const fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000_000)
}

/// Seen and renewed now, and settled two seconds from now.
fn seen(now: u64) -> LeaseSeen {
    LeaseSeen {
        holder: "a_x".into(),
        renewed: at(now),
        settled: at(now + 2),
        note: None,
    }
}

#[test]
fn a_core_knows_nothing_before_its_term_and_forgets_after_it() {
    let settings = crate::config::Config::default().settings(false, true);
    let lease = Some(LeaseRule::of_host("a"));
    let mut core = Core::new(Settings { lease, ..settings });
    let list = |core: &mut Core, now| {
        core.handle(now, Event::NodesListed(Vec::new()));
        core.handle(now, Event::PodsListed(Vec::new()));
        core.handle(now, Event::VmsListed(Vec::new()));
    };
    list(&mut core, at(1));
    core.handle(at(2), Event::Lease(seen(2)));
    list(&mut core, at(3));
    assert!(!core.is_ready(), "listed before it was asked for");
    assert_eq!(core.poll_action(at(3)), None);
    assert_eq!(core.poll_deadline(), Some(at(4)));
    assert_eq!(core.poll_action(at(4)), Some(Action::List));
    list(&mut core, at(4));
    assert!(core.may_permit(at(5)));
    assert_eq!(core.call_bound(at(5)), Some(Span::from_secs(6)));
    assert!(!core.may_permit(at(11)), "the margin");
    assert_eq!(core.poll_action(at(11)), None);
    assert!(!core.is_ready(), "forgotten");
    core.handle(at(12), Event::Lease(seen(12)));
    assert_eq!(core.poll_action(at(14)), Some(Action::List));
}
