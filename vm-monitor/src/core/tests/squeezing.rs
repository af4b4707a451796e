//! The soft squeeze within a shrink: what it waits for, what ends it, and what comes after it.

use super::*;
use crate::core::working_set::Gauge;

/// A served guest whose monitor squeezes.
fn squeezing(hooks: bool) -> Fixture {
    let mut fixture = Fixture::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
    fixture.core = Monitor::new(Setup {
        rules: Rules::default(),
        sizing: Sizing::default(),
        watched: Watched::Cgroup,
        file_cache: CacheMode::Off,
        hooks,
        estimates: false,
        squeezes: true,
        asks_schedule: false,
        exit_when_alone: None,
    });
    fixture.connect(AGENT);
    fixture.run_for(Span::from_millis(500));
    fixture.done.clear();
    fixture
}

/// The newest step asked for.
fn step(fixture: &Fixture) -> Option<(OperationId, u64)> {
    fixture.done.iter().rev().find_map(|action| match action {
        Action::Squeeze { operation, bytes } => Some((*operation, bytes.0 >> 20)),
        _ => None,
    })
}

/// Ends the newest step with these figures.
fn tell(fixture: &mut Fixture, figures: Option<(u64, u64)>) {
    let (operation, _) = step(fixture).expect("a step");
    let gauge = figures.map(|(mib, some_us)| Gauge {
        current: Bytes::mib(mib),
        some_us,
    });
    fixture.done.clear();
    fixture.tell(Event::Squeezed { operation, gauge });
}

fn outcome(fixture: &Fixture, label: &str) -> u64 {
    fixture
        .core
        .snapshot(fixture.now)
        .counters
        .squeezes
        .get(label)
}

#[test]
fn n27_a_shrink_waits_until_the_group_fits() {
    let mut fixture = squeezing(false);
    fixture.ask_downscale(GIB, 2);
    assert_eq!(step(&fixture).expect("a step").1, 0, "it looks first");
    // To 924 MiB, in steps of an eighth of what is too much.
    tell(&mut fixture, Some((1724, 0)));
    assert_eq!(step(&fixture).expect("a step").1, 100);
    tell(&mut fixture, Some((1624, 20_000)));
    assert_eq!(step(&fixture).expect("a step").1, 87);
    // Nothing else waits for it.
    fixture.say(AgentBody::HealthCheck, 4);
    assert_eq!(fixture.sent().last().expect("answered").id, 4);
    fixture.run_for(Span::from_millis(200));
    tell(&mut fixture, Some((924, 50_000)));
    let MonitorBody::DownscaleResult { ok: true, .. } = &fixture.sent()[0].body else {
        panic!("{:?}", fixture.sent());
    };
    assert_eq!(outcome(&fixture, "done"), 1);
    // A group that fits is not squeezed at all.
    fixture.ask_downscale(GIB, 6);
    tell(&mut fixture, Some((500, 0)));
    assert_eq!(step(&fixture), None);
    assert_eq!(fixture.sent()[0].id, 6);
}

#[test]
fn n27_a_squeeze_that_hurts_refuses_with_numbers_and_takes_nothing_more() {
    let mut fixture = squeezing(false);
    fixture.ask_downscale(GIB, 2);
    tell(&mut fixture, Some((1724, 1000)));
    tell(&mut fixture, Some((1600, 52_000)));
    let MonitorBody::DownscaleResult { ok: false, status } = &fixture.sent()[0].body else {
        panic!("{:?}", fixture.sent());
    };
    assert_eq!(
        status,
        "squeezed to fit into 924 MiB, the group still had 1600 MiB and its tasks had waited 51 ms for memory"
    );
    assert_eq!(step(&fixture), None);
    let dump = fixture.core.snapshot(fixture.now);
    assert_eq!(dump.counters.refusals.get("squeeze"), 1);
    assert_eq!(dump.counters.squeezes.get("hurts"), 1);
    assert_eq!(dump.total, Some(Bytes::gib(4)), "the threshold stays");
    assert_eq!(dump.waiting, 0);
}

#[test]
fn n27_an_answer_is_there_in_time_though_a_step_does_not_end() {
    let mut fixture = squeezing(false);
    fixture.ask_downscale(GIB, 2);
    tell(&mut fixture, Some((1724, 0)));
    let (late, _) = step(&fixture).expect("a step");
    let asked_at = fixture.now;
    // A shrink behind it has its turn after it.
    fixture.ask_downscale(2 * GIB, 4);
    while fixture.sent().is_empty() {
        fixture.run_for(Span::from_millis(100));
    }
    assert!(fixture.now.since(asked_at) <= Span::from_secs(2));
    let MonitorBody::DownscaleResult { ok: false, status } = &fixture.sent()[0].body else {
        panic!("{:?}", fixture.sent());
    };
    assert!(
        status.contains("still had 1724 MiB when the time was over"),
        "{status}"
    );
    // Its end, when it comes, is of no use to the next one.
    let (next, _) = step(&fixture).expect("the next one's");
    assert_ne!(next, late);
    let gauge = Some(Gauge {
        current: Bytes(0),
        some_us: 0,
    });
    fixture.tell(Event::Squeezed {
        operation: late,
        gauge,
    });
    assert_eq!(fixture.sent().len(), 1);
    tell(&mut fixture, Some((1724, 0)));
    assert_eq!(fixture.sent()[0].id, 4);
}

#[test]
fn n27_a_group_that_cannot_be_squeezed_is_judged_without() {
    let mut fixture = squeezing(true);
    fixture.ask_downscale(GIB, 2);
    tell(&mut fixture, None);
    assert_eq!(outcome(&fixture, "impossible"), 1);
    // Hooks come after it, as they would without.
    let operation = fixture.done.iter().find_map(|action| match action {
        Action::RunHooks { operation, .. } => Some(*operation),
        _ => None,
    });
    let operation = operation.expect("hooks are run");
    let outcome = Ok(());
    fixture.tell(Event::HooksDone { operation, outcome });
    assert!(matches!(
        fixture.sent()[0].body,
        MonitorBody::DownscaleResult { ok: true, .. }
    ));
}

#[test]
fn n27_a_squeeze_for_an_agent_that_left_ends() {
    let mut fixture = squeezing(false);
    fixture.ask_downscale(GIB, 2);
    tell(&mut fixture, Some((1724, 0)));
    fixture.tell(Event::AgentGone { connection: AGENT });
    tell(&mut fixture, Some((1700, 0)));
    assert_eq!(fixture.done, []);
    assert_eq!(fixture.core.snapshot(fixture.now).waiting, 0);
    // Even where its step never ends.
    fixture.connect(AGENT);
    fixture.run_for(Span::from_millis(500));
    fixture.ask_downscale(GIB, 2);
    fixture.connect(ConnectionId(2));
    fixture.done.clear();
    fixture.run_for(Span::from_secs(2));
    assert_eq!(fixture.sent(), []);
    assert_eq!(fixture.core.snapshot(fixture.now).waiting, 0);
}

#[test]
fn n27_what_the_kernel_cannot_give_is_refused_before_anything_is_squeezed() {
    use crate::core::zones::Zone;
    let mut fixture = squeezing(false);
    let movable = Zone {
        managed: Bytes::gib(3),
        free: Bytes::gib(1),
        cache: Bytes(0),
    };
    fixture.weight.total = Some(Bytes::gib(4));
    fixture.zones = Some(Zones {
        movable,
        ..Zones::default()
    });
    fixture.ask_downscale(GIB, 2);
    assert_eq!(step(&fixture), None);
    let MonitorBody::DownscaleResult { ok: false, status } = &fixture.sent()[0].body else {
        panic!("{:?}", fixture.sent());
    };
    assert!(
        status.starts_with("no more than 1024 MiB can be given back"),
        "{status}"
    );
    fixture.ask_downscale(3 * GIB, 4);
    assert!(step(&fixture).is_some(), "a gibibyte can go");
}
