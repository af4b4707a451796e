//! Shrinks that rest on more than the mean, hooks that have a say, and the watch after a shrink.

use super::*;
use crate::core::files::MachineMemory;
use crate::core::pressure::{Scope, Stall, Stalled};

/// A served guest whose monitor has hooks.
fn hooked() -> Bench {
    let setup = Setup {
        rules: Rules::default(),
        sizing: Sizing::default(),
        watched: Watched::Cgroup,
        file_cache: CacheMode::Off,
        hooks: true,
        estimates: false,
        squeezes: false,
    };
    let mut bench = Bench::with(setup.rules, CacheMode::Off, Watched::Cgroup);
    bench.core = Monitor::new(setup);
    bench.connect(AGENT);
    bench.run_for(Span::from_millis(500));
    bench.done.clear();
    bench
}

fn last_hooks(bench: &Bench) -> (OperationId, HookEvent, HookSizes) {
    let found = bench.done.iter().rev().find_map(|action| match action {
        Action::RunHooks {
            operation,
            event,
            sizes,
        } => Some((*operation, *event, *sizes)),
        _ => None,
    });
    found.expect("hooks are run")
}

fn finish_hooks(bench: &mut Bench, outcome: Result<(), HookVeto>) {
    let (operation, ..) = last_hooks(bench);
    bench.tell(Event::HooksDone { operation, outcome });
}

#[test]
fn n27_a_recent_peak_holds_a_shrink_for_a_while() {
    let mut bench = Bench::served(CacheMode::Off);
    bench.usage = Ok(Bytes::gib(2));
    bench.run_for(Span::from_secs(1));
    bench.usage = Ok(Bytes::mib(100));
    bench.run_for(Span::from_secs(1));
    bench.ask_downscale(GIB, 2);
    let MonitorBody::DownscaleResult { ok: false, status } = &bench.sent()[0].body else {
        panic!("{:?}", bench.sent());
    };
    assert!(
        status.contains("2048 MiB (in use a moment ago)"),
        "{status}"
    );
    bench.run_for(Span::from_secs(11));
    bench.ask_downscale(GIB, 4);
    let sent = bench.sent();
    assert!(
        matches!(sent[1].body, MonitorBody::DownscaleResult { ok: true, .. }),
        "{sent:?}"
    );
    let refusals = bench.core.snapshot(bench.now).counters.refusals;
    assert_eq!(refusals.get("recent_peak"), 1);
}

#[test]
fn n27_a_climb_since_the_last_look_is_seen_before_the_answer() {
    let mut bench = Bench::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
    bench.bound = Some(Bytes::mib(150));
    bench.connect(AGENT);
    bench.run_for(Span::from_secs(5));
    // Nobody has looked since.
    bench.usage = Ok(Bytes::mib(900));
    bench.bound = Some(Bytes::mib(950));
    bench.ask_downscale(GIB, 2);
    let sent = bench.sent();
    assert!(
        matches!(sent[0].body, MonitorBody::DownscaleResult { ok: false, .. }),
        "{sent:?}"
    );
}

#[test]
fn n27_swap_and_stalls_hold_a_shrink() {
    let mut bench = Bench::served(CacheMode::Off);
    let idle = bench.usage.clone();
    // What is in swap is in use, though not in memory.
    bench.usage = Ok(Bytes::mib(1200));
    bench.weight.swap = Some(Bytes::gib(1));
    bench.run_for(Span::from_secs(1));
    bench.ask_downscale(GIB, 2);
    bench.usage = idle;
    bench.run_for(Span::from_secs(30));
    bench.weight = Weight {
        swap: Some(Bytes(0)),
        some_permille: Some(500),
        ..Weight::default()
    };
    bench.ask_downscale(GIB, 4);
    bench.weight = Weight::default();
    bench.ask_downscale(GIB, 6);
    let outcomes: Vec<_> = bench
        .sent()
        .into_iter()
        .map(|frame| matches!(frame.body, MonitorBody::DownscaleResult { ok: true, .. }))
        .collect();
    assert_eq!(outcomes, [false, false, true]);
    let refusals = bench.core.snapshot(bench.now).counters.refusals;
    assert_eq!((refusals.get("swap"), refusals.get("pressure")), (1, 1));
}

#[test]
fn n27_a_hook_may_veto_and_its_word_is_the_reason() {
    let mut bench = hooked();
    let before = bench.core.snapshot(bench.now).threshold;
    bench.ask_downscale(GIB, 2);
    assert_eq!(bench.sent(), [], "not before the hooks have ended");
    let (_, event, sizes) = last_hooks(&bench);
    assert_eq!(event, HookEvent::BeforeShrink);
    assert_eq!((sizes.target.mem, sizes.usable), (GIB, Bytes::mib(924)));
    assert_eq!(sizes.was_usable, Some(Bytes::gib(4)));
    finish_hooks(&mut bench, Err(HookVeto::new("vacuum", "runs till noon")));
    let MonitorBody::DownscaleResult { ok: false, status } = &bench.sent()[0].body else {
        panic!("{:?}", bench.sent());
    };
    assert_eq!(status, "hook vacuum: runs till noon");
    assert_eq!(bench.core.snapshot(bench.now).threshold, before);
    bench.ask_downscale(GIB, 4);
    finish_hooks(&mut bench, Ok(()));
    let sent = bench.sent();
    assert!(
        matches!(sent[1].body, MonitorBody::DownscaleResult { ok: true, .. }),
        "{sent:?}"
    );
}

#[test]
fn n28_hooks_run_after_a_growth_and_before_its_confirmation() {
    let mut bench = hooked();
    for (id, outcome) in [
        (2, Ok(())),
        (4, Err(HookVeto::new("warm", "exit status: 1"))),
    ] {
        bench.tell_upscale(8 * GIB, id);
        assert!(bench.sent().iter().all(|frame| frame.id != id));
        let (_, event, sizes) = last_hooks(&bench);
        assert_eq!((event, sizes.target.mem), (HookEvent::AfterGrow, 8 * GIB));
        finish_hooks(&mut bench, outcome);
        let last = bench.sent().pop().expect("confirmed");
        assert_eq!((last.body, last.id), (MonitorBody::UpscaleConfirmation, id));
    }
    let hooks = bench.core.snapshot(bench.now).counters.hooks;
    assert_eq!((hooks.get("passed"), hooks.get("failed")), (1, 1));
}

#[test]
fn a_veto_for_an_agent_that_left_is_told_to_nobody() {
    let mut bench = hooked();
    bench.ask_downscale(GIB, 2);
    bench.connect(ConnectionId(2));
    finish_hooks(&mut bench, Err(HookVeto::new("late", "no")));
    assert_eq!(bench.sent(), []);
    // The newer agent's requests are not held up by it.
    bench.run_for(Span::from_millis(500));
    let target = Allocation { cpu: 1.0, mem: GIB };
    let body = AgentBody::DownscaleRequest { target };
    let what = Received::Text(AgentFrame { body, id: 2 }.encode());
    bench.tell(Event::Received {
        connection: ConnectionId(2),
        what,
    });
    finish_hooks(&mut bench, Ok(()));
    assert_eq!(bench.sent().len(), 1);
}

#[test]
fn the_working_set_is_probed_only_where_it_is_switched_on() {
    use crate::core::working_set::Gauge;
    let rules = Rules::default();
    for estimates in [false, true] {
        let setup = Setup {
            rules,
            sizing: Sizing::default(),
            watched: Watched::Cgroup,
            file_cache: CacheMode::Off,
            hooks: false,
            estimates,
            squeezes: false,
        };
        let mut bench = Bench::with(rules, CacheMode::Off, Watched::Cgroup);
        bench.core = Monitor::new(setup);
        bench.connect(AGENT);
        let mut taken = 0;
        for step in 0..10 {
            bench.done.clear();
            bench.run_for(Span::from_secs(10));
            if bench.done.contains(&Action::Gauge) {
                // Nothing is missed until the sixth step.
                let gauge = Gauge {
                    current: Bytes::mib(500 - step),
                    some_us: if step < 6 { 0 } else { 90_000 },
                };
                bench.tell(Event::Gauged(Some(gauge)));
            }
            let is_take = |action: &&Action| matches!(action, Action::Reclaim { .. });
            taken += bench.done.iter().filter(is_take).count();
        }
        let estimate = bench.core.snapshot(bench.now).working_set;
        if estimates {
            assert_eq!((taken, estimate), (5, Some(Bytes::mib(495))));
        } else {
            assert_eq!((taken, estimate), (0, None));
        }
    }
}

/// A stall while most of the machine's memory is to be had.
fn stalled(refaults: Option<u64>) -> Event {
    let machine = MachineMemory {
        total: Bytes::gib(4),
        available: Bytes::gib(3),
        cached: Bytes(0),
    };
    Event::Stalled(Stalled {
        scope: Scope::Cgroup,
        stall: Stall::Some,
        machine: Some(machine),
        refaults,
    })
}

fn after_shrink(bench: &Bench) -> u64 {
    let asks = bench.core.snapshot(bench.now).counters.asks;
    asks.get("after_shrink")
}

/// A flood of page cache stalls tasks and brings nothing back; a working set that no longer fits
/// comes back again and again.
#[test]
fn n30_after_a_shrink_page_cache_is_missed_only_if_it_comes_back() {
    let mut bench = Bench::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
    bench.bound = Some(Bytes::mib(150));
    bench.connect(AGENT);
    bench.run_for(Span::from_secs(2));
    bench.ask_downscale(GIB, 2);
    for more in [0, 0, 1000, 1023] {
        bench.tell(stalled(Some(70_000 + more)));
        bench.run_for(Span::from_secs(2));
        assert_eq!(after_shrink(&bench), 0, "{more}");
    }
    bench.tell(stalled(Some(71_024)));
    assert_eq!(after_shrink(&bench), 1);
    // The next shrink is judged by what comes back after it.
    bench.run_for(Span::from_secs(40));
    bench.ask_downscale(GIB, 4);
    bench.tell(stalled(Some(90_000)));
    assert_eq!(after_shrink(&bench), 1);
}

#[test]
fn after_a_shrink_pressure_asks_back_at_once() {
    let stalled = || stalled(None);
    let mut bench = Bench::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
    bench.bound = Some(Bytes::mib(150));
    bench.connect(AGENT);
    bench.run_for(Span::from_secs(2));
    bench.tell(stalled());
    assert_eq!(after_shrink(&bench), 0);
    bench.ask_downscale(GIB, 2);
    bench.tell(stalled());
    assert_eq!(after_shrink(&bench), 1);
    // One reading over the new threshold is enough as well, and looks are close to each other.
    bench.run_for(Span::from_secs(2));
    let probes = bench.probes;
    bench.run_for(Span::from_secs(1));
    assert!(bench.probes >= probes + 9);
    bench.usage = Ok(Bytes::mib(800));
    bench.bound = Some(Bytes::mib(850));
    bench.run_for(Span::from_millis(110));
    assert_eq!(after_shrink(&bench), 2);
    // Growth ends the watch.
    bench.tell_upscale(8 * GIB, 4);
    bench.usage = Ok(Bytes::mib(100));
    bench.run_for(Span::from_secs(2));
    bench.tell(stalled());
    assert_eq!(after_shrink(&bench), 2);
}
