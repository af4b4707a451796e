//! Use that climbs after an approved shrink: how long it is over the threshold before growth is
//! asked for.

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
/// Use before the climb.
const IDLE: u64 = 100 * MIB;
/// Use after the climb: above the threshold of the size that was shrunk to, 785 MiB.
const FULL: u64 = 900 * MIB;
/// Longest time that use may be over the threshold before growth is asked for.
const LIMIT: Span = Span::from_millis(100);
/// A gibibyte a second: the fastest climb that looks by deadline are planned for.
const PLANNED_RATE: u64 = 1 << 30;

/// A climb of the use after a shrink.
#[derive(Debug, Clone, Copy)]
struct Spike {
    /// Time from connection to request, which decides where in its period the next look is.
    before: Span,
    /// Time that the file cache takes between request and approval; none without a file cache.
    cache: Option<Span>,
    /// Time from approval to the beginning of the climb.
    after: Span,
    /// Bytes a second.
    rate: u64,
    /// Page cache, which the climb replaces.
    page_cache: u64,
}

impl Spike {
    fn used(self, since: Span) -> u64 {
        (IDLE + crate::core::watch::risen(self.rate, since).0).min(FULL)
    }

    /// A served guest of 4 GiB whose shrink to 1 GiB was just approved.
    fn shrunk_guest(self) -> Fixture {
        let mode = self.cache.map_or(CacheMode::Off, |_| CacheMode::Auto);
        let mut fixture = Fixture::with(Rules::default(), mode, Watched::Cgroup);
        fixture.usage = Ok(Bytes(IDLE));
        fixture.bound = Some(Bytes(IDLE + self.page_cache));
        fixture.connect(AGENT);
        fixture.finish_cache(Ok(change(3072)));
        fixture.run_for(Span::from_secs(1));
        fixture.run_for(self.before);
        fixture.done.clear();
        fixture.ask_downscale(GIB, 2);
        if let Some(cache) = self.cache {
            fixture.run_for(cache);
            fixture.finish_cache(Ok(change(698)));
        }
        let sent = fixture.sent();
        assert!(
            matches!(sent[0].body, MonitorBody::DownscaleResult { ok: true, .. }),
            "{sent:?}"
        );
        fixture
    }

    /// Time from use over the threshold to the request for growth.
    fn time_to_ask(self) -> Span {
        let mut fixture = self.shrunk_guest();
        fixture.run_for(self.after);
        let began = fixture.now;
        let threshold = fixture.core.snapshot(began).threshold.expect("a threshold");
        let climb = threshold.0 - IDLE;
        let crossed = began + Span((climb * 1_000_000).div_ceil(self.rate));
        let end = crossed + Span::from_secs(2);
        while let Some(due) = fixture.core.poll_deadline().filter(|due| *due <= end) {
            fixture.now = fixture.now.max(due);
            let used = self.used(fixture.now.since(began));
            fixture.usage = Ok(Bytes(used));
            fixture.bound = Some(Bytes(used + self.page_cache.saturating_sub(used - IDLE)));
            fixture.act();
            if let Some(asked) = fixture.core.snapshot(fixture.now).asked {
                return asked.at.since(crossed);
            }
        }
        panic!("growth is never asked for: {self:?}");
    }
}

fn spikes(after_ms: u64, rates: std::ops::RangeInclusive<u64>) -> impl Strategy<Value = Spike> {
    let cache = proptest::option::of((0..3_000_000_u64).prop_map(Span));
    let times = (0..5_000_000_u64, 0..after_ms * 1000);
    (times, cache, rates, 0..3000_u64).prop_map(|((before, after), cache, rate, page_cache)| {
        Spike {
            before: Span(before),
            cache,
            after: Span(after),
            rate,
            page_cache: page_cache * MIB,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Requirement: N29. Up to a climb that is one step between two looks.
    #[test]
    fn spike_of_any_rate_within_25_seconds_after_a_shrink_is_asked_about_in_100_ms(
        spike in spikes(25_000, 32 * MIB..=1 << 50),
    ) {
        let took = spike.time_to_ask();
        prop_assert!(took <= LIMIT, "{took:?}");
    }

    /// Requirement: N29. The forecast asks before the threshold is reached.
    #[test]
    fn climb_up_to_a_gibibyte_a_second_at_any_time_after_a_shrink_is_asked_about_in_100_ms(
        spike in spikes(120_000, 128 * MIB..=PLANNED_RATE),
    ) {
        let took = spike.time_to_ask();
        prop_assert!(took <= LIMIT, "{took:?}");
    }

    /// Requirement: N29. A climb too slow for a forecast is left to the mean of five readings once
    /// the watch after the shrink is over, as in the deployed monitor.
    #[test]
    fn slow_climb_at_any_time_after_a_shrink_is_asked_about_within_the_time_of_the_mean(
        spike in spikes(120_000, 4 * MIB..=128 * MIB),
    ) {
        let took = spike.time_to_ask();
        prop_assert!(took <= Span::from_millis(500), "{took:?}");
    }
}

#[test]
fn next_look_after_an_approved_shrink_is_due_within_100_ms() {
    let mut fixture = Fixture::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
    fixture.bound = Some(Bytes::mib(150));
    fixture.connect(AGENT);
    fixture.run_for(Span::from_secs(5));
    for id in 1..=100 {
        fixture.ask_downscale(GIB, 2 * id);
        let due = fixture.core.snapshot(fixture.now).next_look_ms;
        assert!(due.is_some_and(|due| due <= 100), "{due:?}");
        fixture.run_for(Span::from_millis(20));
    }
}
