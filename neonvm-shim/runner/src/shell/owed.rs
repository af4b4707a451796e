//! What is owed to whoever gave a size order: the record of it, and then the answer.
//!
//! The order is carried out first. Writing a file takes as long as all else between the order and the command to QEMU, and whoever
//! ordered waits for the guest. A runner that dies in between has answered nobody: it is ordered again.

use protocol::runner::{RunnerState, SizeOrder};
use protocol::trace::TraceId;
use tokio::sync::oneshot;
use tracing::info;

use super::supervisor::Supervisor;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Owed {
    is_new: bool,
    is_unwritten: bool,
    answers: Vec<oneshot::Sender<RunnerState>>,
}

impl Owed {
    /// The record is as it was given to be written.
    pub(super) fn written(&mut self) {
        self.is_unwritten = false;
    }
}

impl Supervisor {
    /// Holds an order for which somebody waits.
    pub(super) fn owe(&mut self, order: &SizeOrder, reply: oneshot::Sender<RunnerState>) {
        if self.sizer.order() != Some(order) {
            self.record.order = Some(order.clone());
            (self.owed.is_new, self.owed.is_unwritten) = (true, true);
        }
        self.owed.answers.push(reply);
    }

    /// Pays what is owed, after what this turn began.
    pub(super) async fn settle(&mut self) {
        if self.owed.answers.is_empty() {
            return;
        }
        // The commands to QEMU are tasks of their own, and it is their turn now.
        tokio::task::yield_now().await;
        if std::mem::take(&mut self.owed.is_new)
            && let Some(order) = &self.record.order
        {
            let TraceId { vm, revision } = &order.trace;
            info!(vm, revision, cpu = %order.cpu, memory = %order.memory, "size ordered");
        }
        if self.owed.is_unwritten {
            self.save();
        }
        for reply in std::mem::take(&mut self.owed.answers) {
            // Whoever asked and went away does not need the answer.
            let _ = reply.send(self.state.current());
        }
    }
}
