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
pub struct GuestLiveness {
    since: Timestamp,
    /// Report of the silence, with the wall time of its beginning: the clock may be set meanwhile.
    report: GuestSilence,
}

impl GuestLiveness {
    /// No answer since `now`, when the guest did `after`.
    #[must_use]
    pub fn new(now: Timestamp, wall: WallTime, after: BeforeSilence) -> Self {
        let report = GuestSilence {
            since_unix_us: wall.0,
            after,
        };
        Self { since: now, report }
    }

    /// The guest's daemon has answered.
    pub fn answered(&mut self, now: Timestamp, wall: WallTime) {
        *self = Self::new(now, wall, BeforeSilence::Answer);
    }

    /// The guest was stopped until now, so its time begins again.
    pub fn resumed(&mut self, now: Timestamp) {
        self.since = now;
    }

    /// The report, once the silence exceeds its bound.
    #[must_use]
    pub fn silence(&self, now: Timestamp) -> Option<GuestSilence> {
        (now >= self.due()).then_some(self.report)
    }

    /// When the silence exceeds its bound; `None` once it does.
    #[must_use]
    pub fn poll_deadline(&self, now: Timestamp) -> Option<Timestamp> {
        (now < self.due()).then(|| self.due())
    }

    fn due(&self) -> Timestamp {
        match self.report.after {
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

    fn report(after: BeforeSilence) -> Option<GuestSilence> {
        Some(GuestSilence {
            since_unix_us: WALL.0,
            after,
        })
    }

    #[test]
    fn silence_is_reported_after_one_minute_or_five_at_boot() {
        let booting = GuestLiveness::new(at(10), WALL, BeforeSilence::Boot);
        assert_eq!(booting.silence(at(309)), None);
        assert_eq!(booting.poll_deadline(at(309)), Some(at(310)));
        assert_eq!(booting.silence(at(310)), report(BeforeSilence::Boot));
        assert_eq!(booting.poll_deadline(at(310)), None, "it is reported once");

        for after in [BeforeSilence::Move, BeforeSilence::Adoption] {
            let silence = GuestLiveness::new(at(10), WALL, after);
            assert_eq!(silence.silence(at(69)), None);
            assert_eq!(silence.silence(at(70)), report(after));
        }
    }

    #[test]
    fn resumed_guest_gets_its_full_time() {
        let mut silence = GuestLiveness::new(at(0), WALL, BeforeSilence::Answer);
        silence.resumed(at(500));
        assert_eq!(silence.silence(at(559)), None);
        assert_eq!(silence.poll_deadline(at(559)), Some(at(560)));
        let report = report(BeforeSilence::Answer);
        assert_eq!(silence.silence(at(560)), report, "since it last answered");
    }

    #[test]
    fn answer_ends_the_silence() {
        let mut silence = GuestLiveness::new(at(0), WallTime(0), BeforeSilence::Move);
        assert!(silence.silence(at(100)).is_some());
        silence.answered(at(100), WALL);
        assert_eq!(silence.silence(at(159)), None);
        assert_eq!(silence.poll_deadline(at(159)), Some(at(160)));
        assert_eq!(silence.silence(at(160)), report(BeforeSilence::Answer));
    }
}
