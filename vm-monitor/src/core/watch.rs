//! When to look at memory again: by deadline, not by period.
//!
//! Two figures are kept. The *bound* is `memory.current`: one cheap number, never less than what
//! cannot be reclaimed, and mostly page cache. The *use* is what cannot be reclaimed, from the
//! dearer `memory.stat`. Each of them promises, by itself, a time before which the use cannot reach
//! the threshold: its distance divided by the fastest climb that is plausible. The later of the two
//! promises is when to look again, so that a guest far from its threshold is looked at about once a
//! second, one near it every few milliseconds, and a guest full of page cache is not mistaken for a
//! full one.

use std::collections::VecDeque;

use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;
use serde::Serialize;

/// The numbers of looking by deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pacing {
    /// Longest time without a reading of the use.
    pub slow: Span,
    /// Shortest time between two looks, while memory climbs.
    pub fast: Span,
    /// Longest that the shortest time may become while memory does not climb.
    pub steady: Span,
    /// A climb that is plausible though none so fast was seen, bytes a second. One core that
    /// touches new pages.
    pub least_rate: u64,
    /// No climb is held for faster than this, bytes a second.
    pub most_rate: u64,
    /// The fastest climb seen counts half after this time.
    pub forget: Span,
    /// Time from asking to having, while no growth was seen yet.
    pub lead: Span,
    /// The lead is never taken for less or more than these.
    pub lead_limits: (Span, Span),
}

impl Default for Pacing {
    fn default() -> Self {
        Self {
            slow: Span::from_secs(1),
            fast: Span::from_millis(5),
            steady: Span::from_millis(50),
            least_rate: 1 << 30,
            most_rate: 8 << 30,
            forget: Span::from_secs(60),
            lead: Span::from_millis(500),
            lead_limits: (Span::from_millis(100), Span::from_secs(5)),
        }
    }
}

/// Points a [`Climb`] keeps: at the shortest interval, about the time it looks back.
const POINTS: usize = 64;
/// How far a climb looks back.
const LOOK_BACK: Span = Span::from_millis(300);
/// A rise is never divided by less than this, so that one burst is no rate.
const SHORTEST: Span = Span::from_millis(50);
/// A climb is reckoned to go on for no more than this many times as long as it was seen to last.
const TRUST: u64 = 4;
/// A rise below this share of the threshold is noise.
const NOISE_SHARE: u64 = 32;
/// A rise below this is noise, however small the guest.
const NOISE: Bytes = Bytes::mib(4);

/// How fast a figure climbs, from its newest readings.
#[derive(Debug, Clone, Default)]
pub struct Climb {
    points: VecDeque<(Timestamp, Bytes)>,
}

impl Climb {
    /// One more reading.
    pub fn note(&mut self, now: Timestamp, value: Bytes) {
        while self.points.len() >= POINTS {
            self.points.pop_front();
        }
        // The newest of those that are too old is kept: after a long pause it is all there is to
        // compare with.
        while self
            .points
            .get(1)
            .is_some_and(|(at, _)| now.since(*at) > LOOK_BACK)
        {
            self.points.pop_front();
        }
        self.points.push_back((now, value));
    }

    /// Drops all readings. The rate is 0 until two new ones show a rise.
    pub fn clear(&mut self) {
        self.points.clear();
    }

    /// For how long the readings go back.
    fn span(&self) -> Span {
        let ends = self.points.front().zip(self.points.back());
        ends.map_or(Span(0), |((began, _), (ended, _))| ended.since(*began))
    }

    /// Bytes that this climb will add within `lead`, as far as it can be trusted to go on.
    fn ahead(&self, threshold: Bytes, lead: Span) -> Bytes {
        let trusted = Span(self.span().max(SHORTEST).0.saturating_mul(TRUST));
        risen(self.rate(threshold), lead.min(trusted))
    }

    /// Bytes a second, 0 while it does not rise, or by no more than noise beside `threshold`.
    #[must_use]
    pub fn rate(&self, threshold: Bytes) -> u64 {
        let (Some((began, low)), Some((ended, high))) = (self.points.front(), self.points.back())
        else {
            return 0;
        };
        let rise = high.0.saturating_sub(low.0);
        if rise < NOISE.0.max(threshold.0 / NOISE_SHARE) {
            return 0;
        }
        per_second(rise, ended.since(*began).max(SHORTEST))
    }
}

/// Bytes in a time as bytes a second.
fn per_second(bytes: u64, over: Span) -> u64 {
    let rate = u128::from(bytes) * 1_000_000 / u128::from(over.0.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Bytes that a climb adds in a time.
#[must_use]
pub fn risen(rate: u64, over: Span) -> Bytes {
    let bytes = u128::from(rate) * u128::from(over.0) / 1_000_000;
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Slices of the time over which a [`Peak`] is taken.
const SLICES: u64 = 10;

/// The highest of the readings of a while.
#[derive(Debug, Clone, Default)]
pub struct Peak {
    /// Beginning of a slice of time, and the highest reading in it.
    slices: VecDeque<(Timestamp, Bytes)>,
}

impl Peak {
    /// One more reading; what is older than `window` no longer counts.
    pub fn note(&mut self, now: Timestamp, value: Bytes, window: Span) {
        let slice = Span(window.0 / SLICES);
        match self.slices.back_mut() {
            Some((began, high)) if now.since(*began) < slice => *high = value.max(*high),
            _ => self.slices.push_back((now, value)),
        }
        self.forget(now, window);
    }

    fn forget(&mut self, now: Timestamp, window: Span) {
        while self
            .slices
            .front()
            .is_some_and(|(began, _)| now.since(*began) > window)
        {
            self.slices.pop_front();
        }
    }

    /// The highest reading, none without readings.
    #[must_use]
    pub fn highest(&self, now: Timestamp, window: Span) -> Option<Bytes> {
        let recent = self.slices.iter();
        let recent = recent.filter(|(began, _)| now.since(*began) <= window);
        recent.map(|(_, high)| *high).max()
    }

    /// When the highest reading will be no more than `limit`, if none above it comes.
    #[must_use]
    pub fn falls_to(&self, limit: Bytes, window: Span) -> Option<Timestamp> {
        let mut newest_first = self.slices.iter().rev();
        let above = newest_first.find(|(_, high)| *high > limit);
        // A slice counts until it is older than the window.
        above.map(|(began, _)| *began + window + Span(1))
    }

    /// Drops all readings, when a new agent connects. [`Self::highest`] is `None` until the next.
    pub fn clear(&mut self) {
        self.slices.clear();
    }
}

/// What the looks have shown, and when the next one is due.
#[derive(Debug, Clone)]
pub struct Watch {
    pacing: Pacing,
    /// When to look again.
    pub next_look_at: Timestamp,
    bound: Option<(Timestamp, Bytes)>,
    used: Option<(Timestamp, Bytes)>,
    bound_climb: Climb,
    used_climb: Climb,
    /// The fastest climb seen, and when.
    fastest: Option<(Timestamp, u64)>,
    lead: Span,
}

impl Watch {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(pacing: Pacing) -> Self {
        Self {
            pacing,
            next_look_at: Timestamp::default(),
            bound: None,
            used: None,
            bound_climb: Climb::default(),
            used_climb: Climb::default(),
            fastest: None,
            lead: pacing.lead,
        }
    }

    /// A new agent: what was seen before says nothing about now. What was learned about this
    /// machine stays.
    pub fn restart(&mut self, now: Timestamp) {
        self.next_look_at = now;
        self.bound = None;
        self.used = None;
        self.bound_climb.clear();
        self.used_climb.clear();
    }

    /// The bound was read, or there is none to read.
    pub fn note_bound(&mut self, now: Timestamp, bound: Option<Bytes>) {
        self.bound = bound.map(|bound| (now, bound));
        if let Some(bound) = bound {
            self.bound_climb.note(now, bound);
        }
    }

    /// The use was read, or could not be.
    pub fn note_used(&mut self, now: Timestamp, used: Option<Bytes>, threshold: Option<Bytes>) {
        self.used = used.map(|used| (now, used));
        let Some(used) = used else { return };
        self.used_climb.note(now, used);
        let seen = self.climb(threshold);
        if seen > self.remembered(now) {
            self.fastest = Some((now, seen));
        }
    }

    /// Growth took this long, from asking to having.
    pub fn note_lead(&mut self, took: Span) {
        let (least, most) = self.pacing.lead_limits;
        let took = took.clamp(least, most);
        // A slower one counts at once, a faster one by half: being early costs less than being
        // late.
        self.lead = took.max(Span(u64::midpoint(self.lead.0, took.0)));
    }

    /// Time from asking to having, as learned.
    #[must_use]
    pub const fn lead(&self) -> Span {
        self.lead
    }

    /// The bound as last read.
    #[must_use]
    pub fn bound(&self) -> Option<Bytes> {
        self.bound.map(|(_, bound)| bound)
    }

    /// The use as last read.
    #[must_use]
    pub fn used(&self) -> Option<Bytes> {
        self.used.map(|(_, used)| used)
    }

    /// How fast the use climbs, bytes a second.
    #[must_use]
    pub fn climb(&self, threshold: Option<Bytes>) -> u64 {
        self.used_climb.rate(threshold.unwrap_or_default())
    }

    /// The fastest climb to reckon with now, bytes a second.
    #[must_use]
    pub fn plausible(&self, now: Timestamp) -> u64 {
        let twice = self.remembered(now).saturating_mul(2);
        twice.clamp(self.pacing.least_rate, self.pacing.most_rate)
    }

    fn remembered(&self, now: Timestamp) -> u64 {
        let half_life = self.pacing.forget.0.max(1);
        self.fastest.map_or(0, |(at, rate)| {
            let halvings = u32::try_from(now.since(at).0 / half_life).unwrap_or(u32::MAX);
            rate.checked_shr(halvings).unwrap_or(0)
        })
    }

    /// Where the use will be when growth asked for now has come, if it climbs.
    #[must_use]
    pub fn forecast(&self, threshold: Bytes) -> Option<Bytes> {
        let ahead = self.ahead(Some(threshold));
        let used = self.used()?;
        (ahead.0 > 0).then(|| Bytes(used.0.saturating_add(ahead.0)))
    }

    /// What the climb of the use will add before growth asked for now has come.
    #[must_use]
    pub fn ahead(&self, threshold: Option<Bytes>) -> Bytes {
        let threshold = threshold.unwrap_or_default();
        self.used_climb.ahead(threshold, self.lead)
    }

    /// Whether the use has to be read now that the bound is known. `patience` is the time for which
    /// the bound alone is trusted.
    #[must_use]
    pub fn needs_use(&self, now: Timestamp, threshold: Option<Bytes>, patience: Span) -> bool {
        let (Some((_, bound)), Some((used_at, _)), Some(threshold)) =
            (self.bound, self.used, threshold)
        else {
            return self
                .used
                .is_none_or(|(at, _)| self.bound.is_none() || now.since(at) >= self.pacing.slow);
        };
        if now.since(used_at) >= self.pacing.slow {
            return true;
        }
        // Whether it is page cache that climbs, only the use can tell, and its own climb has to be
        // known by then.
        self.bound_climb.rate(threshold) > 0
            || bound >= threshold
            || self.safe_for(now, bound, threshold, Bytes(0)) < patience
    }

    /// Plans the next look: no later than half the time in which the use could reach `threshold`.
    /// `reserve` is what lies above the threshold.
    pub fn plan(&mut self, now: Timestamp, threshold: Bytes, reserve: Bytes) {
        let ahead = self.ahead(Some(threshold));
        let rate = self.plausible(now);
        let floor = if ahead.0 > 0 {
            self.pacing.fast
        } else {
            // A quarter of the reserve may go unseen where nothing moves.
            let quarter = Span(Span::from_secs(1).0.saturating_mul(reserve.0 / 4) / rate.max(1));
            quarter.clamp(self.pacing.fast, self.pacing.steady)
        };
        let promise = |(at, value): (Timestamp, Bytes)| {
            at + self
                .safe_for(now, value, threshold, ahead)
                .clamp(floor, self.pacing.slow)
        };
        let promises = [self.bound.map(promise), self.used.map(promise)];
        let latest = promises.into_iter().flatten().max();
        self.next_look_at = latest.unwrap_or(now).max(now + floor);
    }

    /// Half the time in which `value` could come to where growth has to be asked for.
    fn safe_for(&self, now: Timestamp, value: Bytes, threshold: Bytes, ahead: Bytes) -> Span {
        let ask_at = threshold.0.saturating_sub(ahead.0);
        let distance = u128::from(ask_at.saturating_sub(value.0));
        let micros = distance * 1_000_000 / (2 * u128::from(self.plausible(now).max(1)));
        Span(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Bytes = Bytes::gib(3);
    const RESERVE: Bytes = Bytes::mib(500);

    fn watch(bound: u64, used: u64) -> (Watch, Timestamp) {
        let mut watch = Watch::new(Pacing::default());
        let now = Timestamp(9_000_000);
        watch.note_bound(now, Some(Bytes::mib(bound)));
        watch.note_used(now, Some(Bytes::mib(used)), Some(T));
        watch.plan(now, T, RESERVE);
        (watch, now)
    }

    #[test]
    fn n29_far_is_looked_at_once_a_second_and_near_every_few_milliseconds() {
        let (far, now) = watch(200, 100);
        assert_eq!(far.next_look_at.since(now), Span::from_secs(1));
        let (half, now) = watch(2500, 2048);
        assert_eq!(half.next_look_at.since(now), Span::from_millis(500));
        let (near, now) = watch(3060, 3050);
        assert_eq!(
            near.next_look_at.since(now),
            Span::from_millis(50),
            "steady"
        );
    }

    #[test]
    fn peak_keeps_no_more_slices_than_its_window_has() {
        let (mut peak, window) = (Peak::default(), Span::from_secs(1));
        for n in 0..2_000 {
            peak.note(Timestamp(n * 10_000), Bytes(n), window);
        }
        let most = usize::try_from(SLICES).expect("small") + 1;
        assert!(peak.slices.len() <= most);
        let now = Timestamp(1_999 * 10_000);
        assert_eq!(peak.highest(now, window), Some(Bytes(1_999)));
    }

    /// Time from `now` to the next look, with this reserve and all readings at the threshold.
    fn floor(watch: &mut Watch, now: Timestamp, reserve: u64) -> Span {
        watch.plan(now, T, Bytes::mib(reserve));
        watch.next_look_at.since(now)
    }

    #[test]
    fn quarter_of_the_reserve_may_go_unseen_unless_use_climbs() {
        let (mut still, now) = watch(3072, 3072);
        assert_eq!(floor(&mut still, now, 64), Span(15_625));
        assert_eq!(floor(&mut still, now, 4), Span::from_millis(5));
        assert_eq!(floor(&mut still, now, 1024), Span::from_millis(50));
        let later = now + Span::from_secs(2);
        assert_eq!(floor(&mut still, later, 64), Span(15_625));

        let (mut climbing, mut now) = watch(2000, 2000);
        for mib in [2500, 3072] {
            now = now + Span::from_millis(100);
            climbing.note_bound(now, Some(Bytes::mib(mib)));
            climbing.note_used(now, Some(Bytes::mib(mib)), Some(T));
        }
        assert_eq!(floor(&mut climbing, now, 1024), Span::from_millis(5));
    }

    #[test]
    fn n29_page_cache_up_to_the_limit_does_not_hurry() {
        let (cached, now) = watch(3900, 100);
        assert_eq!(cached.next_look_at.since(now), Span::from_secs(1));
        assert!(cached.needs_use(now, Some(T), Span::from_millis(100)));
        let (cold, now) = watch(200, 100);
        assert!(!cold.needs_use(now, Some(T), Span::from_millis(100)));
        let later = now + Span::from_secs(1);
        assert!(
            cold.needs_use(later, Some(T), Span::from_millis(100)),
            "slow tick"
        );
    }

    #[test]
    fn bound_alone_is_trusted_for_half_the_time_to_the_threshold() {
        // 1 GiB below the threshold, at the slowest plausible climb of 1 GiB a second.
        let (watch, now) = watch(2048, 100);
        let half = Span::from_millis(500);
        assert!(!watch.needs_use(now, Some(T), half));
        assert!(watch.needs_use(now, Some(T), Span(half.0 + 1)));
    }

    #[test]
    fn n29_no_plausible_climb_reaches_the_threshold_between_two_looks() {
        // A climb at exactly the rate reckoned with, begun right after a look, at any distance.
        for mib in (0..3072).step_by(7) {
            let (watch, now) = watch(mib, mib);
            let unseen = watch.next_look_at.since(now);
            let used = mib * (1 << 20) + risen(watch.plausible(now), unseen).0;
            assert!(used <= T.0 + RESERVE.0 / 4, "from {mib} MiB: {used}");
        }
    }

    #[test]
    fn a_climb_is_its_rise_over_its_time_and_noise_is_none() {
        let mut climb = Climb::default();
        for n in 0..20_u64 {
            climb.note(Timestamp(n * 10_000), Bytes::mib(100 + n * 10));
        }
        // 190 MiB in 190 ms.
        assert_eq!(climb.rate(Bytes::gib(1)), 1000 << 20);
        let mut noise = Climb::default();
        noise.note(Timestamp(0), Bytes::mib(100));
        noise.note(Timestamp(1), Bytes::mib(103));
        assert_eq!(noise.rate(Bytes::gib(1)), 0);
        // One burst is spread over a time it did not take.
        let mut burst = Climb::default();
        burst.note(Timestamp(0), Bytes::mib(100));
        burst.note(Timestamp(1), Bytes::mib(150));
        assert_eq!(burst.rate(Bytes::gib(1)), 1000 << 20);
    }

    #[test]
    fn a_burst_is_trusted_for_four_times_its_length() {
        let threshold = Bytes::gib(2);
        let mut climb = Climb::default();
        for n in 0..=10_u64 {
            climb.note(Timestamp(n * 10_000), Bytes::mib(n * 10));
        }
        // 100 MiB in 100 ms: 400 MiB more at most, however long growth takes.
        assert_eq!(climb.ahead(threshold, Span::from_secs(5)), Bytes::mib(400));
        assert_eq!(
            climb.ahead(threshold, Span::from_millis(100)),
            Bytes::mib(100)
        );
    }

    #[test]
    fn a_fast_climb_is_remembered_and_forgotten() {
        let mut watch = Watch::new(Pacing::default());
        for n in 0..10_u64 {
            let used = Bytes::mib(100 + n * 40);
            watch.note_used(Timestamp(n * 10_000), Some(used), Some(T));
        }
        let at = Timestamp(90_000);
        assert!(watch.plausible(at) > 7 << 30, "{}", watch.plausible(at));
        let later = at + Span::from_secs(130);
        assert_eq!(watch.plausible(later), 2 * (4000 << 20) / 4);
        assert_eq!(watch.plausible(at + Span::from_secs(3600)), 1 << 30);
    }

    #[test]
    fn a_peak_is_remembered_for_its_window() {
        let (mut peak, window) = (Peak::default(), Span::from_secs(10));
        assert_eq!(peak.highest(Timestamp(0), window), None);
        for second in 0..30_u64 {
            let value = if second == 5 { 900 } else { 100 + second };
            let now = Timestamp(second * 1_000_000);
            peak.note(now, Bytes::mib(value), window);
            let expected = match second {
                0..5 => 100 + second,
                5..=15 => 900,
                _ => 100 + second,
            };
            assert_eq!(
                peak.highest(now, window),
                Some(Bytes::mib(expected)),
                "{second}"
            );
        }
        assert!(peak.slices.len() <= 12);
    }

    #[test]
    fn a_peak_tells_when_it_will_be_forgotten() {
        let (mut peak, window) = (Peak::default(), Span::from_secs(10));
        for (millis, mib) in [(0, 900), (2_300, 500), (2_400, 600), (5_000, 100)] {
            peak.note(Timestamp(millis * 1_000), Bytes::mib(mib), window);
        }
        assert_eq!(peak.falls_to(Bytes::mib(900), window), None, "it fits");
        for limit in [99, 100, 599, 600, 899].map(Bytes::mib) {
            let Some(at) = peak.falls_to(limit, window) else {
                panic!("{limit:?}");
            };
            let before = Timestamp(at.0 - 1);
            assert!(peak.highest(before, window) > Some(limit), "{limit:?}");
            assert!(peak.highest(at, window) <= Some(limit), "{limit:?}");
        }
    }

    #[test]
    fn the_lead_is_learned_within_its_limits() {
        let mut watch = Watch::new(Pacing::default());
        watch.note_lead(Span::from_secs(2));
        assert_eq!(watch.lead(), Span::from_secs(2), "slower counts at once");
        watch.note_lead(Span::from_millis(400));
        assert_eq!(watch.lead(), Span::from_millis(1200), "faster by half");
        watch.note_lead(Span::from_secs(99));
        assert_eq!(watch.lead(), Span::from_secs(5));
    }
}
