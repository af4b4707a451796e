//! The end of a monitor that no agent dials, or whose agent has no schedule for it: what started it
//! may then start another version.
//!
//! It is off by default. A monitor that stays keeps the guest at its size, which is right.

use protocol::time::Timestamp;

use super::{Action, Monitor};

/// How long the monitor has been without an agent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Alone {
    since: Option<Timestamp>,
    is_over: bool,
}

impl Monitor {
    /// Ends the process once no agent has come, or no schedule could be had, for as long as the
    /// setup allows.
    pub(super) fn end_alone(&mut self, now: Timestamp) -> Option<Action> {
        if self.session.is_some() {
            self.alone.since = None;
        } else {
            self.alone.since.get_or_insert(now);
        }
        let limit = self.setup.exit_when_alone?;
        let Some(since) = self.alone_since() else {
            self.alone.is_over = false;
            return None;
        };
        let alone = now.since(since);
        if alone < limit || self.alone.is_over {
            return None;
        }
        self.alone.is_over = true;
        Some(Action::EndAlone { alone })
    }

    /// When the process ends unless an agent comes and gives a schedule.
    pub(super) fn end_alone_at(&self) -> Option<Timestamp> {
        let since = self.alone_since().filter(|_| !self.alone.is_over)?;
        Some(since + self.setup.exit_when_alone?)
    }

    fn alone_since(&self) -> Option<Timestamp> {
        let without_agent = self.alone.since.filter(|_| self.session.is_none());
        let times = [without_agent, self.schedule.failing_since];
        times.into_iter().flatten().min()
    }
}
