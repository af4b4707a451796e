//! One turn of the driver: the actions of its five cores, and the next deadline.

use protocol::core::Core as _;
use protocol::time::{Span, Timestamp};
use tracing::info;

use super::{LAST_EVENTS, ROTATE_EVERY, VmDriver};
use crate::core::disk_full::RecoveryEvent;
use crate::core::sizer::{Action, Event};
use crate::core::transfer::{Outgoing, OutgoingEvent};
use crate::shell::executor::{Context, execute};
use crate::shell::input::Input;

/// Most actions of the sizer in one turn; more would be an endless loop.
const MAX_ACTIONS_A_TURN: u32 = 64;

impl VmDriver {
    /// Carries out everything that is due, then publishes.
    pub(super) fn turn(&mut self) {
        let now = self.clock.now();
        if self.has_qemu() {
            // A guest whose resumption is in progress must not be migrated before its end.
            if !self.recovery.is_resuming() {
                self.turn_transfer(now);
            }
            let migrates = RecoveryEvent::Migrates(self.is_moving());
            self.recovery.handle(now, migrates);
            while let Some(action) = self.recovery.poll_action(now) {
                self.act_recovery(action);
            }
        }
        self.bound_memory();
        for _ in 0..MAX_ACTIONS_A_TURN {
            let Some(action) = self.sizer.poll_action(now) else {
                break;
            };
            self.act(action);
        }
        while let Some(action) = self.seen.stopping.poll_action(now) {
            self.act_stop(action);
        }
        if now >= self.seen.rotate_at {
            self.seen.rotate_at = now + ROTATE_EVERY;
            self.rotate_logs();
        }
        self.publish(now);
    }

    /// Whether QEMU runs and its monitor is connected.
    fn has_qemu(&self) -> bool {
        self.seen.qmp.is_some() && self.seen.ended.is_none()
    }

    /// Executes the actions of the two cores of a migration.
    fn turn_transfer(&mut self, now: Timestamp) {
        let resizing = OutgoingEvent::Resizing(!self.sizer.is_still());
        self.outgoing.handle(now, resizing);
        while let Some(action) = self.outgoing.poll_action(now) {
            self.act_outgoing(action);
        }
        if self.outgoing.as_ref().is_some_and(Outgoing::is_over) {
            info!("the guest stays, and may be resized again");
            self.outgoing = None;
            self.record.leaving = None;
            self.save();
            self.sizer.handle(now, Event::Hold(None));
        }
        while let Some(action) = self.incoming.poll_action(now) {
            self.act_incoming(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::SetQuota(limit) => return self.set_quota(limit),
            Action::Plug { budget, .. } => {
                // Before the plug: a runner that dies right after it must not leave a budget that
                // is too large.
                self.record.budget = budget;
                self.save();
            }
            _ => {}
        }
        let context = Context {
            qmp: self.seen.qmp.clone(),
            guest: self.daemon(),
        };
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            if let Some(event) = execute(context, action).await {
                // The driver is gone only when the runner ends.
                let _ = inputs.send(Input::ActionDone(event)).await;
            }
        });
    }

    /// When the next turn is due without an input.
    pub(super) fn deadline(&self) -> Timestamp {
        let now = self.clock.now();
        let moves = [self.outgoing.poll_deadline(), self.incoming.poll_deadline()];
        // An input ends an action in progress; a query that is due waits for it.
        let soon = now + Span::from_millis(20);
        let moves = moves.into_iter().flatten().map(|at| at.max(soon));
        let of_qemu = moves
            .chain(self.recovery.poll_deadline())
            .filter(|_| self.has_qemu());
        let others = [
            self.sizer.poll_deadline(),
            self.seen.stopping.poll_deadline(),
            self.seen.ended.map(|(_, ended)| ended + LAST_EVENTS),
            self.liveness.poll_deadline(now),
            self.state.poll_deadline(),
        ];
        let deadlines = of_qemu.chain(others.into_iter().flatten());
        deadlines.fold(self.seen.rotate_at, Timestamp::min)
    }
}
