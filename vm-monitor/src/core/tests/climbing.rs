//! Memory that moves while it is watched by deadline: who is asked when, and what it costs.

use super::*;
use crate::core::files::MachineMemory;
use crate::core::growth_request::{AskReason, GrowthRequest};
use crate::core::pressure::{Scope, Stall};

const MIB: u64 = 1 << 20;

/// A guest whose memory is a function of time, looked at by deadline.
struct Climber {
    fixture: Fixture,
    began: Timestamp,
    first: Option<GrowthRequest>,
}

impl Climber {
    /// A served guest of `total` MiB with `used` MiB in use and as much page cache as given.
    fn new(total: u64, used: u64, cache: u64) -> Self {
        let mut fixture = Fixture::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
        fixture.bound = Some(Bytes::mib(used + cache));
        fixture.usage = Ok(Bytes::mib(used));
        fixture.tell(Event::AgentReady {
            connection: AGENT,
            version: Version::V1,
            machine_total: Some(Bytes::mib(total)),
        });
        fixture.run_for(Span::from_secs(3));
        fixture.read_at.clear();
        fixture.probes = 0;
        let began = fixture.now;
        Self {
            fixture,
            began,
            first: None,
        }
    }

    /// Lets time pass; at each look memory is what `at` says for the time since the beginning,
    /// `(use, cache)` in bytes.
    fn run(&mut self, span: Span, at: impl Fn(Span) -> (u64, u64)) {
        let end = self.fixture.now + span;
        while let Some(due) = self.fixture.core.poll_deadline().filter(|due| *due <= end) {
            self.fixture.now = self.fixture.now.max(due);
            let (used, cache) = at(self.fixture.now.since(self.began));
            self.fixture.usage = Ok(Bytes(used));
            self.fixture.bound = Some(Bytes(used + cache));
            self.fixture.act();
            let asked = self.fixture.core.snapshot(self.fixture.now).asked;
            self.first = self.first.or(asked);
        }
        self.fixture.now = end;
    }

    /// The first request for growth.
    fn asked(&self) -> Option<(Span, AskReason)> {
        self.first.map(|ask| (ask.at.since(self.began), ask.reason))
    }
}

/// Use after a time of climbing at `rate` bytes a second.
fn climbed(from: u64, rate: u64, since: Span) -> u64 {
    from + crate::core::watch::risen(rate, since).0
}

#[test]
fn n29_a_gibibyte_a_second_is_asked_about_before_it_is_killed() {
    // At every phase of the idle guest's looks, for small and large guests, with and without a full
    // page cache.
    for total in [412, 924, 3996] {
        for cache in [0, total] {
            for phase in 0..40 {
                let mut guest = Climber::new(total, 60, cache);
                guest.run(Span::from_millis(25 * phase), |_| (60 * MIB, cache * MIB));
                guest.began = guest.fixture.now;
                let full = Span(total.saturating_sub(60) * 1_000_000 / 1024);
                guest.run(full, |since| {
                    let used = climbed(60 * MIB, GIB, since);
                    (used, (cache * MIB).min((total * MIB).saturating_sub(used)))
                });
                let (at, _) = guest.asked().expect("asked before memory is full");
                let left = total * MIB - climbed(60 * MIB, GIB, at);
                assert!(
                    left >= total * MIB / 8,
                    "{total} MiB, phase {phase}: {left} bytes left"
                );
            }
        }
    }
}

#[test]
fn n29_the_forecast_asks_early_and_says_so() {
    let mut guest = Climber::new(4096, 500, 0);
    // 300 MiB/s for 12 s; the threshold of 3481 MiB is reached after 9.9 s.
    guest.run(Span::from_secs(12), |since| {
        (climbed(500 * MIB, 300 * MIB, since), 0)
    });
    let dump = guest.fixture.core.snapshot(guest.fixture.now);
    assert_eq!(dump.counters.asks.get("forecast"), 1, "{:?}", dump.asked);
    assert!(dump.counters.asks.get("threshold") >= 1);
    assert!(
        guest.fixture.upscale_requests().len() <= 4,
        "still one a second"
    );
}

#[test]
fn n29_page_cache_up_to_the_brim_asks_for_nothing_and_costs_little() {
    let mut guest = Climber::new(4096, 500, 0);
    guest.run(Span::from_secs(60), |since| {
        let cache = (since.0 * 2048).min(3500 * MIB);
        (500 * MIB, cache)
    });
    assert_eq!(guest.asked(), None);
    assert!(
        guest.fixture.read_at.len() <= 130,
        "{}",
        guest.fixture.read_at.len()
    );
}

#[test]
fn an_idle_guest_is_looked_at_about_once_a_second() {
    let mut guest = Climber::new(4096, 500, 300);
    guest.run(Span::from_secs(60), |_| (500 * MIB, 300 * MIB));
    assert!(
        (58..=62).contains(&guest.fixture.probes),
        "{}",
        guest.fixture.probes
    );
    assert!(guest.fixture.read_at.len() <= 62);
    // Beside its threshold, too, it stays cheap while nothing moves.
    let mut guest = Climber::new(4096, 3475, 0);
    guest.run(Span::from_secs(60), |_| (3475 * MIB, 0));
    assert!(guest.fixture.probes <= 60 * 21, "{}", guest.fixture.probes);
    assert_eq!(guest.asked(), None);
}

#[test]
fn slow_noise_below_the_threshold_asks_for_nothing() {
    let mut guest = Climber::new(4096, 2600, 200);
    guest.run(Span::from_secs(120), |since| {
        let wave = since.as_millis() % 2000;
        (2600 * MIB + wave.min(2000 - wave) * 100 * 1024, 200 * MIB)
    });
    assert_eq!(guest.asked(), None);
}

#[test]
fn the_deployed_rule_holds_where_asking_early_is_off() {
    let mut fixture = Fixture::new(CacheMode::Off, Watched::Cgroup);
    fixture.bound = Some(Bytes::mib(100));
    fixture.connect(AGENT);
    fixture.run_for(Span::from_secs(3));
    fixture.usage = Ok(Bytes::gib(4));
    fixture.bound = Some(Bytes::gib(4));
    fixture.run_for(Span::from_secs(3));
    let dump = fixture.core.snapshot(fixture.now);
    assert_eq!(dump.counters.asks.get("forecast"), 0);
    assert!(dump.counters.asks.get("threshold") >= 1);
}

#[test]
fn the_lead_is_the_time_from_asking_to_having() {
    let mut fixture = Fixture::served(CacheMode::Off);
    fixture.usage = Ok(Bytes::gib(4));
    fixture.run_for(Span::from_secs(1));
    let asked = fixture.core.snapshot(fixture.now).asked.expect("asked");
    fixture.run_for(Span::from_secs(2));
    fixture.tell_upscale(8 * GIB, 2);
    let dump = fixture.core.snapshot(fixture.now);
    assert_eq!(dump.lead_ms, fixture.now.since(asked.at).as_millis());
}

#[test]
fn a_group_that_comes_late_is_found() {
    let mut guest = Climber::new(4096, 500, 0);
    guest.fixture.usage = Err(ReadFailure::new("memory.stat", "no such file"));
    guest.fixture.bound = None;
    guest.fixture.run_for(Span::from_secs(3));
    assert!(
        guest
            .fixture
            .core
            .snapshot(guest.fixture.now)
            .read_failure
            .is_some()
    );
    guest.fixture.usage = Ok(Bytes::mib(77));
    guest.fixture.bound = Some(Bytes::mib(77));
    guest.fixture.run_for(Span::from_millis(1100));
    let dump = guest.fixture.core.snapshot(guest.fixture.now);
    assert_eq!(
        (dump.read_failure, dump.bound),
        (None, Some(Bytes::mib(77)))
    );
}

fn stalled(stall: Stall, available: u64) -> Event {
    let machine = MachineMemory {
        total: Bytes::mib(4096),
        available: Bytes::mib(available),
        cached: Bytes(0),
    };
    Event::Stalled(Stalled {
        scope: Scope::Machine,
        stall,
        machine: Some(machine),
        refaults: None,
    })
}

fn reasons(fixture: &Fixture) -> Vec<(&'static str, u64)> {
    let asks = fixture.core.snapshot(fixture.now).counters.asks;
    asks.iter().filter(|(_, count)| *count > 0).collect()
}

#[test]
fn n30_a_stall_wakes_a_reading_and_asks_with_its_reason() {
    for (stall, label) in [(Stall::Some, "psi_some"), (Stall::Full, "psi_full")] {
        let mut fixture = Climber::new(4096, 500, 300).fixture;
        let reads = fixture.read_at.len();
        fixture.tell(stalled(stall, 200));
        assert_eq!(fixture.read_at.len(), reads + 1, "the use is read at once");
        assert_eq!(reasons(&fixture), [(label, 1)]);
        // Still one a second.
        fixture.tell(stalled(stall, 200));
        assert_eq!(reasons(&fixture), [(label, 1)]);
    }
}

#[test]
fn n30_a_stall_of_page_cache_asks_for_nothing() {
    let mut fixture = Climber::new(4096, 500, 3500).fixture;
    for stall in [Stall::Some, Stall::Full] {
        fixture.tell(stalled(stall, 3400));
        fixture.run_for(Span::from_secs(2));
    }
    assert_eq!(reasons(&fixture), []);
    let stalls = fixture.core.snapshot(fixture.now).counters.stalls;
    assert_eq!(stalls.get("not_for_want"), 2);
}

#[test]
fn n30_a_stall_without_an_agent_is_counted_and_forgotten() {
    let mut fixture = Fixture::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
    fixture.tell(stalled(Stall::Full, 1));
    fixture.connect(AGENT);
    fixture.run_for(Span::from_secs(3));
    assert_eq!(reasons(&fixture), []);
    let stalls = fixture.core.snapshot(fixture.now).counters.stalls;
    assert_eq!(stalls.get("machine_full"), 1);
}

#[test]
fn n30_a_kill_asks_and_old_kills_do_not() {
    let mut fixture = Climber::new(4096, 500, 0).fixture;
    let counts = |oom_kill| Event::OutOfMemory(OomCounts { oom: 5, oom_kill });
    fixture.tell(counts(3));
    assert_eq!(reasons(&fixture), []);
    fixture.tell(counts(4));
    assert_eq!(reasons(&fixture), [("oom_event", 1)]);
    fixture.tell(counts(4));
    fixture.run_for(Span::from_secs(2));
    assert_eq!(reasons(&fixture), [("oom_event", 1)]);
}

#[test]
fn late_look_is_taken_once() {
    let mut fixture = Fixture::served(CacheMode::Off);
    let late = fixture.now + Span::from_secs(30);
    assert_eq!(fixture.core.poll_action(late), Some(Action::Probe));
    assert_eq!(fixture.core.poll_action(late), None);
    let next = fixture.core.poll_deadline().expect("it goes on looking");
    assert!(next > late);
}
