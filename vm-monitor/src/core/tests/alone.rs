//! Monitors that no agent dials.

use super::*;

const LIMIT: Span = Span::from_secs(300);

fn fixture(exit_when_alone: Option<Span>) -> Fixture {
    let mut fixture = Fixture::new(CacheMode::Off, Watched::Cgroup);
    let setup = Setup {
        exit_when_alone,
        ..fixture.core.setup
    };
    fixture.core = Monitor::new(setup);
    fixture.act();
    fixture
}

fn ends(fixture: &Fixture) -> Vec<Span> {
    let ends = fixture.done.iter().filter_map(|action| match action {
        Action::EndAlone { alone } => Some(*alone),
        _ => None,
    });
    ends.collect()
}

/// Requirement: R21
#[test]
fn monitor_ends_once_after_five_minutes_alone_and_not_before() {
    let mut fixture = fixture(Some(LIMIT));
    fixture.run_for(Span::from_secs(299));
    assert_eq!(ends(&fixture), []);
    fixture.run_for(Span::from_secs(2));
    assert_eq!(ends(&fixture), [LIMIT]);
    fixture.run_for(Span::from_secs(600));
    assert_eq!(ends(&fixture).len(), 1);
}

/// Requirement: R21
#[test]
fn time_alone_begins_again_when_an_agent_has_been_there() {
    let mut fixture = fixture(Some(LIMIT));
    fixture.run_for(Span::from_secs(299));
    fixture.connect(AGENT);
    fixture.run_for(Span::from_secs(3600));
    assert_eq!(ends(&fixture), [], "an agent is there");
    fixture.tell(Event::AgentGone { connection: AGENT });
    fixture.run_for(Span::from_secs(299));
    assert_eq!(ends(&fixture), []);
    fixture.run_for(Span::from_secs(2));
    assert_eq!(ends(&fixture), [LIMIT]);
}

#[test]
fn monitor_without_a_limit_stays() {
    let mut fixture = fixture(None);
    assert_eq!(fixture.core.poll_deadline(), None);
    fixture.run_for(Span::from_secs(1_000_000));
    assert_eq!(ends(&fixture), []);
}
