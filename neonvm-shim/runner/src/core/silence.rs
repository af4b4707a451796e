//! Detects a guest whose daemon has stopped answering.
//!
//! neonvmd repeats its state every few seconds. A guest that does not is busy, stopped, or hangs.
//! From outside these cannot be told apart, so the runner reports the silence and does nothing
//! else.

use protocol::runner::{BeforeSilence, GuestSilence};
use protocol::time::{Span, Timestamp, WallTime};

/// Bound for a guest that has answered: several times the slowest answer of a guest with a quarter
/// of a CPU.
pub const SILENT_AFTER: Span = Span::from_secs(60);
/// Bound for a guest that boots.
pub const BOOTS_WITHIN: Span = Span::from_secs(300);

/// Time since the guest's last answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    since: Timestamp,
    /// Report of the silence, with the wall time of its beginning: the clock may be set meanwhile.
    told: GuestSilence,
}

impl Silence {
    /// No answer since `now`, when the guest did `after`.
    #[must_use]
    pub fn new(now: Timestamp, wall: WallTime, after: BeforeSilence) -> Self {
        let told = GuestSilence {
            since_unix_us: wall.0,
            after,
        };
        Self { since: now, told }
    }

    /// The guest's daemon has answered.
    pub fn heard(&mut self, now: Timestamp, wall: WallTime) {
        *self = Self::new(now, wall, BeforeSilence::Answer);
    }

    /// The guest was stopped until now, so its time begins again.
    pub fn resumed(&mut self, now: Timestamp) {
        self.since = now;
    }

    /// The report, once the silence exceeds its bound.
    #[must_use]
    pub fn long(&self, now: Timestamp) -> Option<GuestSilence> {
        (now >= self.due()).then_some(self.told)
    }

    /// When the silence exceeds its bound; `None` once it does.
    #[must_use]
    pub fn poll_deadline(&self, now: Timestamp) -> Option<Timestamp> {
        (now < self.due()).then(|| self.due())
    }

    fn due(&self) -> Timestamp {
        match self.told.after {
            BeforeSilence::Boot => self.since + BOOTS_WITHIN,
            BeforeSilence::Move | BeforeSilence::Adoption | BeforeSilence::Answer => {
                self.since + SILENT_AFTER
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: WallTime = WallTime(1_700_000_000_000_000);

    fn at(s: u64) -> Timestamp {
        Timestamp(0) + Span::from_secs(s)
    }

    fn told(after: BeforeSilence) -> Option<GuestSilence> {
        Some(GuestSilence {
            since_unix_us: WALL.0,
            after,
        })
    }

    #[test]
    fn a_silence_is_long_after_a_minute_and_that_of_a_guest_that_boots_after_five() {
        let booting = Silence::new(at(10), WALL, BeforeSilence::Boot);
        assert_eq!(booting.long(at(309)), None);
        assert_eq!(booting.poll_deadline(at(309)), Some(at(310)));
        assert_eq!(booting.long(at(310)), told(BeforeSilence::Boot));
        assert_eq!(booting.poll_deadline(at(310)), None, "it is told once");

        for after in [BeforeSilence::Move, BeforeSilence::Adoption] {
            let silence = Silence::new(at(10), WALL, after);
            assert_eq!(silence.long(at(69)), None);
            assert_eq!(silence.long(at(70)), told(after));
        }
    }

    #[test]
    fn a_guest_that_could_not_answer_gets_its_time_anew() {
        let mut silence = Silence::new(at(0), WALL, BeforeSilence::Answer);
        silence.resumed(at(500));
        assert_eq!(silence.long(at(559)), None);
        assert_eq!(silence.poll_deadline(at(559)), Some(at(560)));
        let told = told(BeforeSilence::Answer);
        assert_eq!(silence.long(at(560)), told, "since it last answered");
    }

    #[test]
    fn an_answer_ends_it() {
        let mut silence = Silence::new(at(0), WallTime(0), BeforeSilence::Move);
        assert!(silence.long(at(100)).is_some());
        silence.heard(at(100), WALL);
        assert_eq!(silence.long(at(159)), None);
        assert_eq!(silence.poll_deadline(at(159)), Some(at(160)));
        assert_eq!(silence.long(at(160)), told(BeforeSilence::Answer));
    }
}
