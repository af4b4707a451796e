//! Memory that moves while it is watched by deadline: who is asked when, and what it costs.

use super::*;
use crate::core::ask::{Ask, AskReason};
use crate::core::files::MachineMemory;
use crate::core::pressure::{Scope, Stall};

const MIB: u64 = 1 << 20;

/// A guest whose memory is a function of time, looked at by deadline.
struct Climber {
    bench: Bench,
    began: Timestamp,
    first: Option<Ask>,
}

impl Climber {
    /// A served guest of `total` MiB with `used` MiB in use and as much page cache as given.
    fn new(total: u64, used: u64, cache: u64) -> Self {
        let mut bench = Bench::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
        bench.bound = Some(Bytes::mib(used + cache));
        bench.usage = Ok(Bytes::mib(used));
        bench.tell(Event::AgentReady {
            connection: AGENT,
            version: Version::V1,
            machine_total: Some(Bytes::mib(total)),
        });
        bench.run_for(Span::from_secs(3));
        bench.read_at.clear();
        bench.probes = 0;
        let began = bench.now;
        Self {
            bench,
            began,
            first: None,
        }
    }

    /// Lets time pass; at each look memory is what `at` says for the time since the beginning,
    /// `(use, cache)` in bytes.
    fn run(&mut self, span: Span, at: impl Fn(Span) -> (u64, u64)) {
        let end = self.bench.now + span;
        while let Some(due) = self.bench.core.poll_deadline().filter(|due| *due <= end) {
            self.bench.now = self.bench.now.max(due);
            let (used, cache) = at(self.bench.now.since(self.began));
            self.bench.usage = Ok(Bytes(used));
            self.bench.bound = Some(Bytes(used + cache));
            self.bench.act();
            let asked = self.bench.core.snapshot(self.bench.now).asked;
            self.first = self.first.or(asked);
        }
        self.bench.now = end;
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
                guest.began = guest.bench.now;
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
    let dump = guest.bench.core.snapshot(guest.bench.now);
    assert_eq!(dump.counters.asks.get("forecast"), 1, "{:?}", dump.asked);
    assert!(dump.counters.asks.get("threshold") >= 1);
    assert!(
        guest.bench.upscale_requests().len() <= 4,
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
        guest.bench.read_at.len() <= 130,
        "{}",
        guest.bench.read_at.len()
    );
}

#[test]
fn an_idle_guest_is_looked_at_about_once_a_second() {
    let mut guest = Climber::new(4096, 500, 300);
    guest.run(Span::from_secs(60), |_| (500 * MIB, 300 * MIB));
    assert!(
        (58..=62).contains(&guest.bench.probes),
        "{}",
        guest.bench.probes
    );
    assert!(guest.bench.read_at.len() <= 62);
    // Beside its threshold, too, it stays cheap while nothing moves.
    let mut guest = Climber::new(4096, 3475, 0);
    guest.run(Span::from_secs(60), |_| (3475 * MIB, 0));
    assert!(guest.bench.probes <= 60 * 21, "{}", guest.bench.probes);
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
    let mut bench = Bench::new(CacheMode::Off, Watched::Cgroup);
    bench.bound = Some(Bytes::mib(100));
    bench.connect(AGENT);
    bench.run_for(Span::from_secs(3));
    bench.usage = Ok(Bytes::gib(4));
    bench.bound = Some(Bytes::gib(4));
    bench.run_for(Span::from_secs(3));
    let dump = bench.core.snapshot(bench.now);
    assert_eq!(dump.counters.asks.get("forecast"), 0);
    assert!(dump.counters.asks.get("threshold") >= 1);
}

#[test]
fn the_lead_is_the_time_from_asking_to_having() {
    let mut bench = Bench::served(CacheMode::Off);
    bench.usage = Ok(Bytes::gib(4));
    bench.run_for(Span::from_secs(1));
    let asked = bench.core.snapshot(bench.now).asked.expect("asked");
    bench.run_for(Span::from_secs(2));
    bench.tell_upscale(8 * GIB, 2);
    let dump = bench.core.snapshot(bench.now);
    assert_eq!(dump.lead_ms, bench.now.since(asked.at).as_millis());
}

#[test]
fn a_group_that_comes_late_is_found() {
    let mut guest = Climber::new(4096, 500, 0);
    guest.bench.usage = Err(ReadFailure::new("memory.stat", "no such file"));
    guest.bench.bound = None;
    guest.bench.run_for(Span::from_secs(3));
    assert!(
        guest
            .bench
            .core
            .snapshot(guest.bench.now)
            .read_failure
            .is_some()
    );
    guest.bench.usage = Ok(Bytes::mib(77));
    guest.bench.bound = Some(Bytes::mib(77));
    guest.bench.run_for(Span::from_millis(1100));
    let dump = guest.bench.core.snapshot(guest.bench.now);
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

fn reasons(bench: &Bench) -> Vec<(&'static str, u64)> {
    let asks = bench.core.snapshot(bench.now).counters.asks;
    asks.iter().filter(|(_, count)| *count > 0).collect()
}

#[test]
fn n30_a_stall_wakes_a_reading_and_asks_with_its_reason() {
    for (stall, label) in [(Stall::Some, "psi_some"), (Stall::Full, "psi_full")] {
        let mut bench = Climber::new(4096, 500, 300).bench;
        let reads = bench.read_at.len();
        bench.tell(stalled(stall, 200));
        assert_eq!(bench.read_at.len(), reads + 1, "the use is read at once");
        assert_eq!(reasons(&bench), [(label, 1)]);
        // Still one a second.
        bench.tell(stalled(stall, 200));
        assert_eq!(reasons(&bench), [(label, 1)]);
    }
}

#[test]
fn n30_a_stall_of_page_cache_asks_for_nothing() {
    let mut bench = Climber::new(4096, 500, 3500).bench;
    for stall in [Stall::Some, Stall::Full] {
        bench.tell(stalled(stall, 3400));
        bench.run_for(Span::from_secs(2));
    }
    assert_eq!(reasons(&bench), []);
    let stalls = bench.core.snapshot(bench.now).counters.stalls;
    assert_eq!(stalls.get("not_for_want"), 2);
}

#[test]
fn n30_a_stall_without_an_agent_is_counted_and_forgotten() {
    let mut bench = Bench::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
    bench.tell(stalled(Stall::Full, 1));
    bench.connect(AGENT);
    bench.run_for(Span::from_secs(3));
    assert_eq!(reasons(&bench), []);
    let stalls = bench.core.snapshot(bench.now).counters.stalls;
    assert_eq!(stalls.get("machine_full"), 1);
}

#[test]
fn n30_a_kill_asks_and_old_kills_do_not() {
    let mut bench = Climber::new(4096, 500, 0).bench;
    let counts = |oom_kill| Event::OutOfMemory(OomCounts { oom: 5, oom_kill });
    bench.tell(counts(3));
    assert_eq!(reasons(&bench), []);
    bench.tell(counts(4));
    assert_eq!(reasons(&bench), [("oom_event", 1)]);
    bench.tell(counts(4));
    bench.run_for(Span::from_secs(2));
    assert_eq!(reasons(&bench), [("oom_event", 1)]);
}
