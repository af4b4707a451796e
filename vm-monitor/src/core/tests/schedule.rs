//! Requests for the schedule of upgrades.

use protocol::monitor::AgentBody;
use protocol::monitor_v2::{
    AgentBodyV2, AgentFrameV2, Capabilities, MonitorBodyV2, SYSTEMD_TIMER, Schedule,
    ScheduleRequest,
};
use protocol::release::RELEASE;

use super::*;

const LIMIT: Span = Span::from_secs(300);
const SIX_HOURS: Span = Span::from_secs(21_600);
const SPEC: &str = "Sat,Sun *-*-* 02,03:00/20:00 Europe/Berlin";

/// A monitor that asks for a schedule, without an agent.
fn fixture(exit_when_alone: Option<Span>) -> Fixture {
    let mut fixture = Fixture::new(CacheMode::Off, Watched::Nothing);
    let setup = Setup {
        asks_schedule: true,
        exit_when_alone,
        ..fixture.core.setup
    };
    fixture.core = Monitor::new(setup);
    fixture.act();
    fixture
}

fn receive(fixture: &mut Fixture, connection: ConnectionId, body: AgentBodyV2, id: u64) {
    let what = Received::Text(AgentFrameV2 { body, id }.encode());
    fixture.tell(Event::Received { connection, what });
}

/// An agent of version 2 comes and names these capabilities.
fn connect(fixture: &mut Fixture, connection: ConnectionId, names: Vec<String>) {
    fixture.tell(Event::AgentReady {
        connection,
        version: Version::V2,
        machine_total: Some(Bytes::gib(4)),
    });
    receive(fixture, connection, AgentBodyV2::Capabilities { names }, 2);
}

/// Names of an agent that answers requests for a schedule and wants no metrics.
fn names() -> Vec<String> {
    let capabilities = Capabilities {
        schedule: true,
        ..Capabilities::default()
    };
    capabilities.names()
}

fn served(exit_when_alone: Option<Span>) -> Fixture {
    let mut fixture = fixture(exit_when_alone);
    connect(&mut fixture, AGENT, names());
    fixture
}

fn texts(fixture: &Fixture) -> Vec<String> {
    let text = |action: &Action| match action {
        Action::Send { frame, .. } => Some(frame.encode()),
        Action::SendV2 { frame, .. } => Some(frame.encode()),
        _ => None,
    };
    fixture.done.iter().filter_map(text).collect()
}

/// Ids of the requests so far.
fn requests(fixture: &Fixture) -> Vec<u64> {
    let id = |action: &Action| match action {
        Action::SendV2 { frame, .. } => {
            matches!(frame.body, MonitorBodyV2::ScheduleRequest(_)).then_some(frame.id)
        }
        _ => None,
    };
    fixture.done.iter().filter_map(id).collect()
}

fn written(fixture: &Fixture) -> Vec<String> {
    let spec = |action: &Action| match action {
        Action::WriteSchedule { spec } => Some(spec.clone()),
        _ => None,
    };
    fixture.done.iter().filter_map(spec).collect()
}

fn has_ended(fixture: &Fixture) -> bool {
    let mut actions = fixture.done.iter();
    actions.any(|action| matches!(action, Action::EndAlone { .. }))
}

fn schedule(spec: &str, valid_s: u64) -> AgentBodyV2 {
    let spec = spec.to_owned();
    AgentBodyV2::Schedule(Schedule { spec, valid_s })
}

fn refusal() -> AgentBodyV2 {
    let error = "no schedule".to_owned();
    AgentBody::InternalError { error }.into()
}

/// Answers the newest request.
fn answer(fixture: &mut Fixture, connection: ConnectionId, body: AgentBodyV2) {
    let id = *requests(fixture).last().expect("a request");
    receive(fixture, connection, body, id);
}

fn answer_and_write(fixture: &mut Fixture) {
    answer(fixture, AGENT, schedule(SPEC, 21_600));
    fixture.tell(Event::ScheduleWritten { is_written: true });
}

/// Time passes, and the agent refuses each request.
fn refuse_for(fixture: &mut Fixture, span: Span) {
    let end = fixture.now + span;
    let mut refused = requests(fixture).len();
    while fixture.now < end {
        fixture.run_for(Span::from_millis(500));
        if requests(fixture).len() > refused {
            refused = requests(fixture).len();
            answer(fixture, AGENT, refusal());
        }
    }
}

/// Requirement: R20
#[test]
fn schedule_is_asked_for_in_the_first_frame_after_capabilities() {
    let mut fixture = served(None);
    let request = ScheduleRequest {
        version: RELEASE.to_owned(),
        kind: SYSTEMD_TIMER.to_owned(),
    };
    let sent: Vec<&Action> = fixture.done.iter().collect();
    let [
        Action::SendV2 { frame: first, .. },
        Action::SendV2 { frame: second, .. },
    ] = sent[..]
    else {
        panic!("{sent:?}");
    };
    assert!(matches!(first.body, MonitorBodyV2::Capabilities { .. }));
    assert_eq!(second.body, MonitorBodyV2::ScheduleRequest(request));
    answer(&mut fixture, AGENT, schedule(SPEC, 21_600));
    assert_eq!(written(&fixture), [SPEC]);
}

/// Requirement: R20
#[test]
fn schedule_is_asked_for_again_after_its_time_within_bounds() {
    for (valid_s, seconds) in [(0, 60), (900, 900), (21_600, 21_600), (u64::MAX, 21_600)] {
        let mut fixture = served(None);
        answer(&mut fixture, AGENT, schedule(SPEC, valid_s));
        fixture.tell(Event::ScheduleWritten { is_written: true });
        fixture.run_for(Span::from_secs(seconds - 1));
        assert_eq!(requests(&fixture).len(), 1, "{valid_s}");
        fixture.run_for(Span::from_secs(2));
        assert_eq!(requests(&fixture).len(), 2, "{valid_s}");
    }
}

/// Requirement: R20
#[test]
fn schedule_is_kept_while_the_link_is_lost_and_asked_for_at_the_next_one() {
    let mut fixture = served(None);
    answer_and_write(&mut fixture);
    fixture.tell(Event::AgentGone { connection: AGENT });
    fixture.run_for(SIX_HOURS);
    assert_eq!(written(&fixture), [SPEC], "nothing takes it away");
    assert_eq!(requests(&fixture).len(), 1, "no agent is there to ask");
    connect(&mut fixture, ConnectionId(2), names());
    assert_eq!(requests(&fixture).len(), 2);
    // An answer to a request of the link before is none.
    let spec = schedule("*-*-* 02:00:00 UTC", 60);
    receive(&mut fixture, ConnectionId(2), spec, 5);
    assert_eq!(written(&fixture), [SPEC]);
}

/// Requirement: R22
#[test]
fn schedule_that_is_refused_for_300_seconds_ends_the_monitor_and_299_do_not() {
    let mut fixture = served(Some(LIMIT));
    answer(&mut fixture, AGENT, refusal());
    refuse_for(&mut fixture, Span::from_secs(299));
    assert!(!has_ended(&fixture));
    let count = requests(&fixture).len();
    assert!((10..=11).contains(&count), "{count} requests in 299 s");
    refuse_for(&mut fixture, Span::from_secs(2));
    assert!(has_ended(&fixture));
}

/// Requirement: R22
#[test]
fn schedule_that_is_not_answered_ends_the_monitor_too() {
    let mut fixture = served(Some(LIMIT));
    fixture.run_for(Span::from_secs(299));
    assert!(!has_ended(&fixture));
    fixture.run_for(Span::from_secs(2));
    assert!(has_ended(&fixture));
}

/// Requirement: R22
#[test]
fn schedule_that_cannot_be_written_ends_the_monitor_too() {
    let mut fixture = served(Some(LIMIT));
    let end = fixture.now + Span::from_secs(301);
    let mut seen = 0;
    while fixture.now < end {
        if requests(&fixture).len() > seen {
            seen = requests(&fixture).len();
            answer(&mut fixture, AGENT, schedule(SPEC, 21_600));
            fixture.tell(Event::ScheduleWritten { is_written: false });
        }
        assert!(!has_ended(&fixture) || end.since(fixture.now) <= Span::from_secs(2));
        fixture.run_for(Span::from_millis(500));
    }
    assert!(has_ended(&fixture));
}

/// Requirement: R22
#[test]
fn schedule_that_comes_begins_the_time_of_failures_again() {
    let mut fixture = served(Some(LIMIT));
    answer(&mut fixture, AGENT, refusal());
    refuse_for(&mut fixture, Span::from_secs(250));
    let before = requests(&fixture).len();
    while requests(&fixture).len() == before {
        fixture.run_for(Span::from_millis(500));
    }
    answer_and_write(&mut fixture);
    fixture.run_for(Span::from_secs(21_000));
    assert!(!has_ended(&fixture));
}

/// Requirement: R22
#[test]
fn failures_count_on_while_the_link_is_lost() {
    let mut fixture = served(Some(LIMIT));
    answer(&mut fixture, AGENT, refusal());
    refuse_for(&mut fixture, Span::from_secs(200));
    fixture.tell(Event::AgentGone { connection: AGENT });
    fixture.run_for(Span::from_secs(99));
    assert!(!has_ended(&fixture));
    fixture.run_for(Span::from_secs(2));
    assert!(has_ended(&fixture));
}

#[test]
fn agent_without_the_capability_ends_the_time_of_failures() {
    let mut fixture = served(Some(LIMIT));
    answer(&mut fixture, AGENT, refusal());
    connect(&mut fixture, ConnectionId(2), vec!["observed".to_owned()]);
    fixture.run_for(Span::from_secs(3600));
    assert!(!has_ended(&fixture));
    assert_eq!(requests(&fixture).len(), 1);
}

/// Requirement: R19
#[test]
fn without_the_capability_the_frames_are_those_of_before() {
    let old = r#"{"type":"Capabilities","names":["ask_details","refusal_details","refusal_again","observed","metrics=60000"],"id":2}"#;
    // The agent does not answer such requests.
    let mut fixture = fixture(None);
    connect(&mut fixture, AGENT, vec!["refusal_details".to_owned()]);
    fixture.run_for(SIX_HOURS);
    assert_eq!(texts(&fixture), [old]);
    // The monitor has no file for it.
    let mut fixture = Fixture::new(CacheMode::Off, Watched::Nothing);
    connect(&mut fixture, AGENT, names());
    fixture.run_for(SIX_HOURS);
    assert_eq!(texts(&fixture), [old]);
}

#[test]
fn schedule_that_nobody_asked_for_is_refused() {
    let mut fixture = served(None);
    answer_and_write(&mut fixture);
    receive(&mut fixture, AGENT, schedule(SPEC, 60), 9);
    answer(&mut fixture, AGENT, schedule(SPEC, 60));
    assert_eq!(written(&fixture), [SPEC]);
    let complaints: Vec<u64> = fixture.sent().iter().map(|frame| frame.id).collect();
    assert_eq!(complaints, [9, 3]);
}
