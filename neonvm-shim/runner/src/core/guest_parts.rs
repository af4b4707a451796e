//! What does the runner report of the guest's parts? The guest is not trusted: length and rate of
//! its texts are bounded.

use protocol::parts::{PartState, PartStates};
use protocol::time::{Span, Timestamp};

/// Most characters of a word …
const MAX_WORD: usize = 64;
/// … and of a reason.
const MAX_REASON: usize = 300;
/// Shortest time between two changes of the report.
const SHORTEST: Span = Span::from_secs(1);

/// The reported parts.
#[derive(Debug, Default)]
pub struct GuestParts {
    shown: PartStates,
    changed: Option<Timestamp>,
}

impl GuestParts {
    /// Takes what the guest reports. A change that comes too early is taken from a later report:
    /// the guest repeats its state at least once a minute.
    pub fn update(&mut self, now: Timestamp, reported: &PartStates) {
        let parts: PartStates = reported
            .iter()
            .map(|(name, part)| (*name, bounded(part)))
            .collect();
        let is_early = self.changed.is_some_and(|at| now.since(at) < SHORTEST);
        if parts != self.shown && !is_early {
            self.shown = parts;
            self.changed = Some(now);
        }
    }

    /// Parts as the runner's state shows them.
    #[must_use]
    pub fn shown(&self) -> &PartStates {
        &self.shown
    }
}

fn bounded(part: &PartState) -> PartState {
    let cut = |text: &str, most: usize| -> String {
        let shown = text.chars().filter(|c| !c.is_control());
        shown.take(most).collect()
    };
    PartState {
        version: cut(&part.version, MAX_WORD),
        sha256: cut(&part.sha256, MAX_WORD),
        token: cut(&part.token, MAX_WORD),
        reason: cut(&part.reason, MAX_REASON),
        ..part.clone()
    }
}

#[cfg(test)]
mod tests {
    use protocol::parts::{PartName, PartPhase, PartSource};

    use super::*;

    #[test]
    fn guest_cannot_make_the_parts_long_or_change_them_often() {
        let part = |text: &str| PartState {
            version: text.into(),
            sha256: text.into(),
            from: PartSource::A,
            phase: PartPhase::Back,
            left_s: 0,
            token: text.into(),
            reason: text.into(),
            starts: 2,
            resident_bytes: 1,
        };
        let of = |text: &str| PartStates::from([(PartName::Monitor, part(text))]);
        let at = |ms| Timestamp(1_000_000) + Span::from_millis(ms);
        let mut parts = GuestParts::default();
        parts.update(at(0), &of(&"\n\u{7}x".repeat(9_000)));
        let shown = &parts.shown()[&PartName::Monitor];
        assert_eq!(shown.version, "x".repeat(64));
        assert_eq!((shown.token.len(), shown.reason.len()), (64, 300));
        parts.update(at(999), &of("early"));
        assert_eq!(parts.shown()[&PartName::Monitor].version.len(), 64);
        parts.update(at(1_000), &of("later"));
        assert_eq!(parts.shown(), &of("later"));
    }
}
