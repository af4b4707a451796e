//! The end of a monitor that no agent dials: what started it may then start another version.
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
    /// Ends the process once no agent has come for as long as the setup allows.
    pub(super) fn end_alone(&mut self, now: Timestamp) -> Option<Action> {
        if self.session.is_some() {
            self.alone = Alone::default();
            return None;
        }
        let limit = self.setup.exit_when_alone?;
        let since = *self.alone.since.get_or_insert(now);
        let alone = now.since(since);
        if alone < limit || self.alone.is_over {
            return None;
        }
        self.alone.is_over = true;
        Some(Action::EndAlone { alone })
    }

    /// When the process ends unless an agent comes.
    pub(super) fn end_alone_at(&self) -> Option<Timestamp> {
        let is_waiting = self.session.is_none() && !self.alone.is_over;
        let since = self.alone.since.filter(|_| is_waiting)?;
        Some(since + self.setup.exit_when_alone?)
    }
}
