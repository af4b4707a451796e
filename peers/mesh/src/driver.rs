//! The task that owns the core.

use daemon_kit::clock::Clock;
use daemon_kit::driver::{Settled, Shell};
use peers_core::{Action, Claim, Event, Leader, Role};
use protocol::core::Core as _;
use tokio::sync::{mpsc, watch};

/// What the core is fed with.
pub type Input = Event;

/// What the core shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) role: Role,
    pub(crate) expected: usize,
    /// The claim whose plans are carried out.
    pub(crate) in_force: Option<Claim>,
}

pub(crate) struct LeaderShell {
    pub(crate) core: Leader,
    pub(crate) clock: Clock,
    pub(crate) inbox: mpsc::Receiver<Event>,
    pub(crate) actions: mpsc::Sender<Action>,
    pub(crate) shown: watch::Sender<Shown>,
}

/// What a core shows now.
pub(crate) fn shown(core: &Leader, clock: Clock) -> Shown {
    Shown {
        role: core.role(clock.now()),
        expected: core.expected(),
        in_force: core.in_force(),
    }
}

impl Shell for LeaderShell {
    type Core = Leader;
    type Input = Event;

    fn core(&mut self) -> &mut Leader {
        &mut self.core
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    async fn input(&mut self) -> Option<Event> {
        self.inbox.recv().await
    }

    fn take(&mut self, input: Event) {
        self.core.handle(self.clock.now(), input);
    }

    fn act(&mut self, action: Action) {
        if let Err(error) = self.actions.try_send(action) {
            tracing::error!(%error, "an action among peers is lost");
        }
    }

    fn settle(&mut self) -> Settled {
        let now = shown(&self.core, self.clock);
        self.shown.send_if_modified(|old| {
            let changed = *old != now;
            if changed {
                tracing::info!(role = ?now.role, expected = now.expected, "role among peers");
            }
            *old = now;
            changed
        });
        Settled::Sleep
    }
}
