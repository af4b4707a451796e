//! The soft squeeze within a shrink: what it waits for, what ends it, and what comes after it.

use super::*;
use crate::core::working_set::Gauge;

/// A served guest whose monitor squeezes.
fn squeezing(hooks: bool) -> Bench {
    let mut bench = Bench::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
    bench.core = Monitor::new(Setup {
        rules: Rules::default(),
        sizing: Sizing::default(),
        watched: Watched::Cgroup,
        file_cache: CacheMode::Off,
        hooks,
        estimates: false,
        squeezes: true,
    });
    bench.connect(AGENT);
    bench.run_for(Span::from_millis(500));
    bench.done.clear();
    bench
}

/// The newest step asked for.
fn step(bench: &Bench) -> Option<(OperationId, u64)> {
    bench.done.iter().rev().find_map(|action| match action {
        Action::Squeeze { operation, bytes } => Some((*operation, bytes.0 >> 20)),
        _ => None,
    })
}

/// Ends the newest step with these figures.
fn tell(bench: &mut Bench, figures: Option<(u64, u64)>) {
    let (operation, _) = step(bench).expect("a step");
    let gauge = figures.map(|(mib, some_us)| Gauge {
        current: Bytes::mib(mib),
        some_us,
    });
    bench.done.clear();
    bench.tell(Event::Squeezed { operation, gauge });
}

fn outcome(bench: &Bench, label: &str) -> u64 {
    bench.core.snapshot(bench.now).counters.squeezes.get(label)
}

#[test]
fn n27_a_shrink_waits_until_the_group_fits() {
    let mut bench = squeezing(false);
    bench.ask_downscale(GIB, 2);
    assert_eq!(step(&bench).expect("a step").1, 0, "it looks first");
    // To 924 MiB, in steps of an eighth of what is too much.
    tell(&mut bench, Some((1724, 0)));
    assert_eq!(step(&bench).expect("a step").1, 100);
    tell(&mut bench, Some((1624, 20_000)));
    assert_eq!(step(&bench).expect("a step").1, 87);
    // Nothing else waits for it.
    bench.say(AgentBody::HealthCheck, 4);
    assert_eq!(bench.sent().last().expect("answered").id, 4);
    bench.run_for(Span::from_millis(200));
    tell(&mut bench, Some((924, 50_000)));
    let MonitorBody::DownscaleResult { ok: true, .. } = &bench.sent()[0].body else {
        panic!("{:?}", bench.sent());
    };
    assert_eq!(outcome(&bench, "done"), 1);
    // A group that fits is not squeezed at all.
    bench.ask_downscale(GIB, 6);
    tell(&mut bench, Some((500, 0)));
    assert_eq!(step(&bench), None);
    assert_eq!(bench.sent()[0].id, 6);
}

#[test]
fn n27_a_squeeze_that_hurts_refuses_with_numbers_and_takes_nothing_more() {
    let mut bench = squeezing(false);
    bench.ask_downscale(GIB, 2);
    tell(&mut bench, Some((1724, 1000)));
    tell(&mut bench, Some((1600, 52_000)));
    let MonitorBody::DownscaleResult { ok: false, status } = &bench.sent()[0].body else {
        panic!("{:?}", bench.sent());
    };
    assert_eq!(
        status,
        "squeezed to fit into 924 MiB, the group still had 1600 MiB and its tasks had waited 51 ms for memory"
    );
    assert_eq!(step(&bench), None);
    let dump = bench.core.snapshot(bench.now);
    assert_eq!(dump.counters.refusals.get("squeeze"), 1);
    assert_eq!(dump.counters.squeezes.get("hurts"), 1);
    assert_eq!(dump.total, Some(Bytes::gib(4)), "the threshold stays");
    assert_eq!(dump.waiting, 0);
}

#[test]
fn n27_an_answer_is_there_in_time_though_a_step_does_not_end() {
    let mut bench = squeezing(false);
    bench.ask_downscale(GIB, 2);
    tell(&mut bench, Some((1724, 0)));
    let (late, _) = step(&bench).expect("a step");
    let asked_at = bench.now;
    // A shrink behind it has its turn after it.
    bench.ask_downscale(2 * GIB, 4);
    while bench.sent().is_empty() {
        bench.run_for(Span::from_millis(100));
    }
    assert!(bench.now.since(asked_at) <= Span::from_secs(2));
    let MonitorBody::DownscaleResult { ok: false, status } = &bench.sent()[0].body else {
        panic!("{:?}", bench.sent());
    };
    assert!(
        status.contains("still had 1724 MiB when the time was over"),
        "{status}"
    );
    // Its end, when it comes, is of no use to the next one.
    let (next, _) = step(&bench).expect("the next one's");
    assert_ne!(next, late);
    let gauge = Some(Gauge {
        current: Bytes(0),
        some_us: 0,
    });
    bench.tell(Event::Squeezed {
        operation: late,
        gauge,
    });
    assert_eq!(bench.sent().len(), 1);
    tell(&mut bench, Some((1724, 0)));
    assert_eq!(bench.sent()[0].id, 4);
}

#[test]
fn n27_a_group_that_cannot_be_squeezed_is_judged_without() {
    let mut bench = squeezing(true);
    bench.ask_downscale(GIB, 2);
    tell(&mut bench, None);
    assert_eq!(outcome(&bench, "impossible"), 1);
    // Hooks come after it, as they would without.
    let operation = bench.done.iter().find_map(|action| match action {
        Action::RunHooks { operation, .. } => Some(*operation),
        _ => None,
    });
    let operation = operation.expect("hooks are run");
    let outcome = Ok(());
    bench.tell(Event::HooksDone { operation, outcome });
    assert!(matches!(
        bench.sent()[0].body,
        MonitorBody::DownscaleResult { ok: true, .. }
    ));
}

#[test]
fn n27_a_squeeze_for_an_agent_that_left_ends() {
    let mut bench = squeezing(false);
    bench.ask_downscale(GIB, 2);
    tell(&mut bench, Some((1724, 0)));
    bench.tell(Event::AgentGone { connection: AGENT });
    tell(&mut bench, Some((1700, 0)));
    assert_eq!(bench.done, []);
    assert_eq!(bench.core.snapshot(bench.now).waiting, 0);
    // Even where its step never ends.
    bench.connect(AGENT);
    bench.run_for(Span::from_millis(500));
    bench.ask_downscale(GIB, 2);
    bench.connect(ConnectionId(2));
    bench.done.clear();
    bench.run_for(Span::from_secs(2));
    assert_eq!(bench.sent(), []);
    assert_eq!(bench.core.snapshot(bench.now).waiting, 0);
}

#[test]
fn n27_what_the_kernel_cannot_give_is_refused_before_anything_is_squeezed() {
    use crate::core::zones::Zone;
    let mut bench = squeezing(false);
    let movable = Zone {
        managed: Bytes::gib(3),
        free: Bytes::gib(1),
        cache: Bytes(0),
    };
    bench.weight.total = Some(Bytes::gib(4));
    bench.zones = Some(Zones {
        movable,
        ..Zones::default()
    });
    bench.ask_downscale(GIB, 2);
    assert_eq!(step(&bench), None);
    let MonitorBody::DownscaleResult { ok: false, status } = &bench.sent()[0].body else {
        panic!("{:?}", bench.sent());
    };
    assert!(
        status.starts_with("no more than 1024 MiB can be given back"),
        "{status}"
    );
    bench.ask_downscale(3 * GIB, 4);
    assert!(step(&bench).is_some(), "a gibibyte can go");
}
