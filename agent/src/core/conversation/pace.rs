//! Rate at which a monitor is read. A guest controls its monitor and may send without pause, so
//! frames and bytes are counted in token buckets. An empty bucket pauses the reading, and TCP slows
//! the sender.
//!
//! A pause lasts a second, longer than until the next token. A flood is thus read in batches, and
//! the upscale requests of a batch count as one ([`super::UPSCALE_REQUEST_GAP`]). It costs one
//! wake-up a second.

use protocol::time::{Span, Timestamp};

/// Length of a pause in reading after a bucket is empty.
pub const PAUSE: Span = Span::from_secs(1);
/// Rate of frames on one link. An honest monitor stays below: at most ten upscale requests and two
/// pushes a second, and responses.
pub const FRAMES: Rate = Rate {
    per_second: 20,
    burst: 200,
};
/// Rate of bytes on one link, below TLS and WebSocket. The burst holds two of the largest frames.
pub const BYTES: Rate = Rate {
    per_second: 32 << 10,
    burst: 64 << 10,
};
/// A link with pauses in a row for this long is closed.
pub const FLOOD_LIMIT: Span = Span::from_secs(10);
/// Longest time between two pauses of one flood.
const FLOOD_GAP: Span = Span::from_secs(3);
/// Wait after the first flood; it doubles with each further one.
const FIRST_WAIT: Span = Span::from_secs(10);
/// Upper bound of the wait after a flood.
const LONGEST_WAIT: Span = Span::from_secs(300);
/// After a link of this length without a flood, the next flood counts as the first one.
const FORGIVEN_AFTER: Span = Span::from_secs(60);
/// Parts of a token: a bucket gains one per microsecond for each token a second.
const TOKEN: u64 = 1_000_000;

/// Rate of a token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens a second in the long run.
    pub per_second: u64,
    /// Capacity: tokens after a time without use.
    pub burst: u64,
}

/// A token bucket that pauses reading for [`PAUSE`] when it is empty.
#[derive(Debug, Clone)]
pub struct Bucket {
    rate: Rate,
    millionths: u64,
    at: Timestamp,
    paused_until: Option<Timestamp>,
}

impl Bucket {
    /// A full bucket at `now`.
    #[must_use]
    pub const fn new(now: Timestamp, rate: Rate) -> Self {
        Self {
            rate,
            millionths: rate.burst * TOKEN,
            at: now,
            paused_until: None,
        }
    }

    /// Takes `count` tokens. Returns true if the bucket is empty then and a pause begins.
    pub fn take(&mut self, now: Timestamp, count: u64) -> bool {
        let grown = now.since(self.at).0.saturating_mul(self.rate.per_second);
        let full = self.rate.burst * TOKEN;
        let held = self.millionths.saturating_add(grown).min(full);
        self.at = self.at.max(now);
        self.millionths = held.saturating_sub(count.saturating_mul(TOKEN));
        let is_empty = self.millionths < TOKEN;
        if is_empty {
            self.paused_until = Some(now + PAUSE);
        }
        is_empty
    }

    /// End of the newest pause; it may be in the past.
    #[must_use]
    pub const fn paused_until(&self) -> Option<Timestamp> {
        self.paused_until
    }
}

/// Consecutive pauses of one link.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flood {
    /// Begin of the first and of the last pause.
    pauses: Option<(Timestamp, Timestamp)>,
}

impl Flood {
    /// Takes the begin of a pause. Returns true if the flood has lasted for [`FLOOD_LIMIT`].
    pub(super) fn paused(&mut self, now: Timestamp) -> bool {
        let first = match self.pauses {
            Some((first, last)) if now.since(last) <= FLOOD_GAP => first,
            _ => now,
        };
        self.pauses = Some((first, now));
        now.since(first) >= FLOOD_LIMIT
    }
}

/// Wait before the next link after floods.
#[derive(Debug, Clone, Copy, Default)]
pub struct Backoff {
    floods: u32,
}

impl Backoff {
    /// Takes the end of a link that lasted for `lasted`. Returns the wait before the next one; the
    /// wait after any link comes on top.
    pub fn ended(&mut self, by_flood: bool, lasted: Span) -> Span {
        if !by_flood {
            if lasted >= FORGIVEN_AFTER {
                self.floods = 0;
            }
            return Span(0);
        }
        let doubled = FIRST_WAIT.0.saturating_mul(1 << self.floods.min(16));
        self.floods = self.floods.saturating_add(1);
        Span(doubled.min(LONGEST_WAIT.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of frames read in a minute from a monitor that sends without pause.
    fn read_in_a_minute(rate: Rate) -> u64 {
        let (start, mut now) = (Timestamp(0), Timestamp(0));
        let mut bucket = Bucket::new(now, rate);
        let mut read = 0;
        while now.since(start) < Span::from_secs(60) {
            read += 1;
            now = match bucket.take(now, 1) {
                true => bucket.paused_until().expect("a pause"),
                false => now + Span(10),
            };
        }
        read
    }

    #[test]
    fn monitor_that_never_pauses_is_read_no_faster_than_its_rate() {
        let read = read_in_a_minute(FRAMES);
        let (least, most) = (
            60 * FRAMES.per_second,
            61 * FRAMES.per_second + FRAMES.burst,
        );
        assert!((least..=most).contains(&read), "{read}");
    }

    #[test]
    fn honest_monitor_is_never_paused() {
        let mut now = Timestamp(0);
        let mut bucket = Bucket::new(now, FRAMES);
        for second in 0..3600 {
            // Twelve frames a second, and after a minute of it a burst.
            let frames = if second % 60 == 0 { 100 } else { 12 };
            for _ in 0..frames {
                assert!(!bucket.take(now, 1), "second {second}");
            }
            now = now + Span::from_secs(1);
        }
    }

    #[test]
    fn clock_that_stands_still_or_goes_back_gives_no_tokens() {
        let rate = Rate {
            per_second: 10,
            burst: 2,
        };
        let mut bucket = Bucket::new(Timestamp(5), rate);
        assert!(!bucket.take(Timestamp(5), 1));
        assert!(bucket.take(Timestamp(0), 1));
        assert!(bucket.take(Timestamp(5), u64::MAX));
    }

    #[test]
    fn pauses_in_a_row_are_a_flood() {
        let mut flood = Flood::default();
        let at = Timestamp;
        for second in 0..10 {
            assert!(!flood.paused(at(second * 1_000_000)), "{second}");
        }
        assert!(flood.paused(at(10_000_000)));
        let mut rare = Flood::default();
        for n in 0..100 {
            assert!(!rare.paused(at(n * 4_000_000)), "{n}");
        }
    }

    #[test]
    fn flooding_monitor_is_paused_and_then_disconnected() {
        use super::super::{Breach, Conversation, Event, Limits, Output};
        use protocol::core::Core as _;
        use protocol::monitor::{MonitorBody, MonitorFrame, Version};

        let mut now = Timestamp(0);
        let second = Span::from_secs(1);
        let limits = Limits {
            response: Span::from_secs(60),
            health_check_every: Span::from_secs(60),
            unhealthy: Span::from_secs(60),
            push_every: second,
        };
        let mut conversation = Conversation::new(now, Version::V1, limits);
        let frame = MonitorFrame {
            body: MonitorBody::UpscaleRequest,
            id: 1,
        };
        let text = frame.encode();
        let mut requests = 0;
        let mut pauses = 0;
        let ended = loop {
            conversation.handle(now, Event::Text(text.clone()));
            let mut end = None;
            while let Some(output) = conversation.poll_action(now) {
                match output {
                    Output::UpscaleRequest(Some(_)) => requests += 1,
                    Output::Paused => pauses += 1,
                    Output::End(breach) => end = Some(breach),
                    _ => {}
                }
            }
            if end.is_some() {
                break end;
            }
            now = conversation.paused_until(now).unwrap_or(now + Span(1));
        };
        assert_eq!(ended, Some(Breach::Flood));
        assert!(now <= Timestamp(0) + FLOOD_LIMIT + second, "{now:?}");
        // One request of the burst counts, and one of the frames of each second.
        assert!(
            requests <= pauses + 1 && pauses <= 12,
            "{requests}, {pauses}"
        );
        conversation.handle(now, Event::StreamPaused);
        assert_eq!(
            conversation.poll_action(now),
            None,
            "nothing follows the end"
        );
    }

    #[test]
    fn wait_grows_with_each_flood_and_is_reset_by_a_good_link() {
        let mut backoff = Backoff::default();
        let waits = [(); 7].map(|()| backoff.ended(true, FLOOD_LIMIT));
        assert_eq!(
            waits.map(|wait| wait.as_millis() / 1000),
            [10, 20, 40, 80, 160, 300, 300]
        );
        assert_eq!(backoff.ended(false, Span::from_secs(5)), Span(0));
        assert_eq!(backoff.ended(true, FLOOD_LIMIT), LONGEST_WAIT);
        assert_eq!(backoff.ended(false, FORGIVEN_AFTER), Span(0));
        assert_eq!(backoff.ended(true, FLOOD_LIMIT), FIRST_WAIT);
    }
}
