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
    use protocol::core::Core as _;

    use super::super::actions::Action;
    use super::super::config::ScalingConfig;
    use super::super::event::{DownscaleResponse, Event};
    use super::super::world::{MONITOR, SCHEDULER, Step, VM_OBJECT, World};
    use super::*;

    fn step(world: &mut World, one: &Step) {
        world.step(one).expect("the order holds");
    }

    /// Requirement: R24
    #[test]
    fn shrink_is_under_way_from_its_request_until_it_is_carried_out() {
        let mut world = World::with(4, ScalingConfig::default());
        world.connect_monitor();
        assert!(!world.core.is_shrinking(), "nothing is asked for");
        step(&mut world, &Step::load(0));
        step(&mut world, &Step::done(SCHEDULER));
        let (id, action) = world.flights[MONITOR].take().expect("a request in flight");
        let Action::MonitorDownscale(request) = action else {
            panic!("{action:?}");
        };
        assert!(world.core.is_shrinking(), "the monitor is asked");
        world.a = request.target;
        let allowed = Event::MonitorDownscaleDone(id, Ok(DownscaleResponse::Allowed));
        world.core.handle(world.now, allowed);
        assert!(world.core.is_shrinking(), "it is approved");
        for peer in [VM_OBJECT, SCHEDULER, VM_OBJECT, SCHEDULER] {
            step(&mut world, &Step::done(peer));
            step(&mut world, &Step::load(0));
        }
        assert_eq!(world.core.using(), request.target);
        assert!(!world.core.is_shrinking(), "it is carried out");
    }

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
