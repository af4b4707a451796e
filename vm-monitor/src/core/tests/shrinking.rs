//! Shrinks that rest on more than the mean, hooks that have a say, and the watch after a shrink.

use super::*;
use crate::core::files::MachineMemory;
use crate::core::pressure::{Scope, Stall, Stalled};

/// A served guest whose monitor has hooks.
fn hooked() -> Fixture {
    let setup = Setup {
        rules: Rules::default(),
        sizing: Sizing::default(),
        watched: Watched::Cgroup,
        file_cache: CacheMode::Off,
        hooks: true,
        estimates: false,
        squeezes: false,
        asks_schedule: false,
        exit_when_alone: None,
    };
    let mut fixture = Fixture::with(setup.rules, CacheMode::Off, Watched::Cgroup);
    fixture.core = Monitor::new(setup);
    fixture.connect(AGENT);
    fixture.run_for(Span::from_millis(500));
    fixture.done.clear();
    fixture
}

fn last_hooks(fixture: &Fixture) -> (OperationId, HookEvent, HookSizes) {
    let found = fixture.done.iter().rev().find_map(|action| match action {
        Action::RunHooks {
            operation,
            event,
            sizes,
        } => Some((*operation, *event, *sizes)),
        _ => None,
    });
    found.expect("hooks are run")
}

fn finish_hooks(fixture: &mut Fixture, outcome: Result<(), HookVeto>) {
    let (operation, ..) = last_hooks(fixture);
    fixture.tell(Event::HooksDone { operation, outcome });
}

#[test]
fn n27_a_recent_peak_holds_a_shrink_for_a_while() {
    let mut fixture = Fixture::served(CacheMode::Off);
    fixture.usage = Ok(Bytes::gib(2));
    fixture.run_for(Span::from_secs(1));
    fixture.usage = Ok(Bytes::mib(100));
    fixture.run_for(Span::from_secs(1));
    fixture.ask_downscale(GIB, 2);
    let MonitorBody::DownscaleResult { ok: false, status } = &fixture.sent()[0].body else {
        panic!("{:?}", fixture.sent());
    };
    assert!(
        status.contains("2048 MiB (in use a moment ago)"),
        "{status}"
    );
    fixture.run_for(Span::from_secs(11));
    fixture.ask_downscale(GIB, 4);
    let sent = fixture.sent();
    assert!(
        matches!(sent[1].body, MonitorBody::DownscaleResult { ok: true, .. }),
        "{sent:?}"
    );
    let refusals = fixture.core.snapshot(fixture.now).counters.refusals;
    assert_eq!(refusals.get("recent_peak"), 1);
}

#[test]
fn n27_a_climb_since_the_last_look_is_seen_before_the_answer() {
    let mut fixture = Fixture::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
    fixture.bound = Some(Bytes::mib(150));
    fixture.connect(AGENT);
    fixture.run_for(Span::from_secs(5));
    // Nobody has looked since.
    fixture.usage = Ok(Bytes::mib(900));
    fixture.bound = Some(Bytes::mib(950));
    fixture.ask_downscale(GIB, 2);
    let sent = fixture.sent();
    assert!(
        matches!(sent[0].body, MonitorBody::DownscaleResult { ok: false, .. }),
        "{sent:?}"
    );
}

#[test]
fn n27_swap_and_stalls_hold_a_shrink() {
    let mut fixture = Fixture::served(CacheMode::Off);
    let idle = fixture.usage.clone();
    // What is in swap is in use, though not in memory.
    fixture.usage = Ok(Bytes::mib(1200));
    fixture.weight.swap = Some(Bytes::gib(1));
    fixture.run_for(Span::from_secs(1));
    fixture.ask_downscale(GIB, 2);
    fixture.usage = idle;
    fixture.run_for(Span::from_secs(30));
    fixture.weight = Weight {
        swap: Some(Bytes(0)),
        some_permille: Some(500),
        ..Weight::default()
    };
    fixture.ask_downscale(GIB, 4);
    fixture.weight = Weight::default();
    fixture.ask_downscale(GIB, 6);
    let outcomes: Vec<_> = fixture
        .sent()
        .into_iter()
        .map(|frame| matches!(frame.body, MonitorBody::DownscaleResult { ok: true, .. }))
        .collect();
    assert_eq!(outcomes, [false, false, true]);
    let refusals = fixture.core.snapshot(fixture.now).counters.refusals;
    assert_eq!((refusals.get("swap"), refusals.get("pressure")), (1, 1));
}

#[test]
fn n27_a_hook_may_veto_and_its_word_is_the_reason() {
    let mut fixture = hooked();
    let before = fixture.core.snapshot(fixture.now).threshold;
    fixture.ask_downscale(GIB, 2);
    assert_eq!(fixture.sent(), [], "not before the hooks have ended");
    let (_, event, sizes) = last_hooks(&fixture);
    assert_eq!(event, HookEvent::BeforeShrink);
    assert_eq!((sizes.target.mem, sizes.usable), (GIB, Bytes::mib(924)));
    assert_eq!(sizes.was_usable, Some(Bytes::gib(4)));
    finish_hooks(&mut fixture, Err(HookVeto::new("vacuum", "runs till noon")));
    let MonitorBody::DownscaleResult { ok: false, status } = &fixture.sent()[0].body else {
        panic!("{:?}", fixture.sent());
    };
    assert_eq!(status, "hook vacuum: runs till noon");
    assert_eq!(fixture.core.snapshot(fixture.now).threshold, before);
    fixture.ask_downscale(GIB, 4);
    finish_hooks(&mut fixture, Ok(()));
    let sent = fixture.sent();
    assert!(
        matches!(sent[1].body, MonitorBody::DownscaleResult { ok: true, .. }),
        "{sent:?}"
    );
}

#[test]
fn n28_hooks_run_after_a_growth_and_before_its_confirmation() {
    let mut fixture = hooked();
    for (id, outcome) in [
        (2, Ok(())),
        (4, Err(HookVeto::new("warm", "exit status: 1"))),
    ] {
        fixture.tell_upscale(8 * GIB, id);
        assert!(fixture.sent().iter().all(|frame| frame.id != id));
        let (_, event, sizes) = last_hooks(&fixture);
        assert_eq!((event, sizes.target.mem), (HookEvent::AfterGrow, 8 * GIB));
        finish_hooks(&mut fixture, outcome);
        let last = fixture.sent().pop().expect("confirmed");
        assert_eq!((last.body, last.id), (MonitorBody::UpscaleConfirmation, id));
    }
    let hooks = fixture.core.snapshot(fixture.now).counters.hooks;
    assert_eq!((hooks.get("passed"), hooks.get("failed")), (1, 1));
}

#[test]
fn a_veto_for_an_agent_that_left_is_told_to_nobody() {
    let mut fixture = hooked();
    fixture.ask_downscale(GIB, 2);
    fixture.connect(ConnectionId(2));
    finish_hooks(&mut fixture, Err(HookVeto::new("late", "no")));
    assert_eq!(fixture.sent(), []);
    // The newer agent's requests are not held up by it.
    fixture.run_for(Span::from_millis(500));
    let target = Allocation { cpu: 1.0, mem: GIB };
    let body = AgentBody::DownscaleRequest { target };
    let what = Received::Text(AgentFrame { body, id: 2 }.encode());
    fixture.tell(Event::Received {
        connection: ConnectionId(2),
        what,
    });
    finish_hooks(&mut fixture, Ok(()));
    assert_eq!(fixture.sent().len(), 1);
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
            asks_schedule: false,
            exit_when_alone: None,
        };
        let mut fixture = Fixture::with(rules, CacheMode::Off, Watched::Cgroup);
        fixture.core = Monitor::new(setup);
        fixture.connect(AGENT);
        let mut taken = 0;
        for step in 0..10 {
            fixture.done.clear();
            fixture.run_for(Span::from_secs(10));
            if fixture.done.contains(&Action::Gauge) {
                // Nothing is missed until the sixth step.
                let gauge = Gauge {
                    current: Bytes::mib(500 - step),
                    some_us: if step < 6 { 0 } else { 90_000 },
                };
                fixture.tell(Event::Gauged(Some(gauge)));
            }
            let is_take = |action: &&Action| matches!(action, Action::Reclaim { .. });
            taken += fixture.done.iter().filter(is_take).count();
        }
        let estimate = fixture.core.snapshot(fixture.now).working_set;
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

fn after_shrink(fixture: &Fixture) -> u64 {
    let asks = fixture.core.snapshot(fixture.now).counters.asks;
    asks.get("after_shrink")
}

/// A flood of page cache stalls tasks and brings nothing back; a working set that no longer fits
/// comes back again and again.
#[test]
fn n30_after_a_shrink_page_cache_is_missed_only_if_it_comes_back() {
    let mut fixture = Fixture::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
    fixture.bound = Some(Bytes::mib(150));
    fixture.connect(AGENT);
    fixture.run_for(Span::from_secs(2));
    fixture.ask_downscale(GIB, 2);
    for more in [0, 0, 1000, 1023] {
        fixture.tell(stalled(Some(70_000 + more)));
        fixture.run_for(Span::from_secs(2));
        assert_eq!(after_shrink(&fixture), 0, "{more}");
    }
    fixture.tell(stalled(Some(71_024)));
    assert_eq!(after_shrink(&fixture), 1);
    // The next shrink is judged by what comes back after it.
    fixture.run_for(Span::from_secs(40));
    fixture.ask_downscale(GIB, 4);
    fixture.tell(stalled(Some(90_000)));
    assert_eq!(after_shrink(&fixture), 1);
}

#[test]
fn after_a_shrink_pressure_asks_back_at_once() {
    let stalled = || stalled(None);
    let mut fixture = Fixture::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
    fixture.bound = Some(Bytes::mib(150));
    fixture.connect(AGENT);
    fixture.run_for(Span::from_secs(2));
    fixture.tell(stalled());
    assert_eq!(after_shrink(&fixture), 0);
    fixture.ask_downscale(GIB, 2);
    fixture.tell(stalled());
    assert_eq!(after_shrink(&fixture), 1);
    // One reading over the new threshold is enough as well, and looks are close to each other.
    fixture.run_for(Span::from_secs(2));
    let probes = fixture.probes;
    fixture.run_for(Span::from_secs(1));
    assert!(fixture.probes >= probes + 9);
    fixture.usage = Ok(Bytes::mib(800));
    fixture.bound = Some(Bytes::mib(850));
    fixture.run_for(Span::from_millis(110));
    assert_eq!(after_shrink(&fixture), 2);
    // Growth ends the watch.
    fixture.tell_upscale(8 * GIB, 4);
    fixture.usage = Ok(Bytes::mib(100));
    fixture.run_for(Span::from_secs(2));
    fixture.tell(stalled());
    assert_eq!(after_shrink(&fixture), 2);
}
