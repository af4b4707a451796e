//! What would a restart of the agent disturb? And when is the answer published?
//!
//! A shrink takes several steps, of which the next agent repeats some. Growth is not held: the next
//! agent goes on with it at once.

use protocol::fleet::AgentSchedule;
use protocol::time::{Span, Timestamp};

use super::machine::Core;
use super::monitor::Kind;

/// Least time between two changes of what is published.
const CHANGE_EVERY: Span = Span::from_secs(30);

impl Core {
    /// Whether the monitor is asked for a shrink, or has approved one that is not carried out.
    #[must_use]
    pub fn is_shrinking(&self) -> bool {
        let asks = self
            .monitor
            .ongoing
            .is_some_and(|ongoing| ongoing.kind == Kind::Downscale);
        let using = self.using();
        let wants_less = self
            .last_desired
            .is_some_and(|desired| desired.has_field_below(using));
        let approved = self.monitor.approved.map(|approved| approved.high);
        asks || (wants_less && approved.is_some_and(|high| high.has_field_below(using)))
    }
}

/// Paces what is published.
#[derive(Debug, Clone, Default)]
pub struct Published {
    last: Option<(Timestamp, AgentSchedule)>,
}

impl Published {
    /// The schedule to publish now, if it differs from the last one and that is old enough.
    #[must_use]
    pub fn due(&self, now: Timestamp, reason: Option<&str>) -> Option<AgentSchedule> {
        let schedule = AgentSchedule::of(reason);
        let is_due = self
            .last
            .as_ref()
            .is_none_or(|(at, last)| *last != schedule && now.since(*at) >= CHANGE_EVERY);
        is_due.then_some(schedule)
    }

    /// A schedule was published.
    pub fn done(&mut self, now: Timestamp, schedule: AgentSchedule) {
        self.last = Some((now, schedule));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::default() + Span::from_secs(seconds)
    }

    /// Requirement: R24
    #[test]
    fn schedule_changes_at_most_every_thirty_seconds() {
        let mut published = Published::default();
        let first = published.due(at(0), None).expect("nothing was published");
        published.done(at(0), first);
        assert_eq!(published.due(at(100), None), None, "it is the same");
        assert_eq!(published.due(at(29), Some("a shrink")), None);
        let second = published.due(at(30), Some("a shrink")).expect("due");
        assert!(!second.restart_ok);
        published.done(at(30), second);
        let third = (31..70).find(|second| published.due(at(*second), None).is_some());
        assert_eq!(third, Some(60));
    }
}
