//! Replies to accepted orders, and the record and log line that precede them.
//!
//! The driver begins an order first: it writes file and log while QEMU works, so that they do not
//! delay the guest. A runner that dies in between has not replied, and its client repeats the
//! order.

use super::supervisor::Supervisor;
use super::transfer::Answer;

/// Replies that are due at the end of the driver's turn.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// The record differs from its file.
    pub(super) is_unwritten: bool,
    /// The order is not in the log.
    pub(super) is_untold: bool,
    /// Clients that wait for an accepted order.
    pub(super) answers: Vec<Answer>,
}

impl Supervisor {
    /// Writes record and log, and replies, after this turn's actions have begun.
    pub(super) async fn settle(&mut self) {
        if self.owed.answers.is_empty() {
            return;
        }
        // Lets the tasks with commands to QEMU run first.
        tokio::task::yield_now().await;
        if std::mem::take(&mut self.owed.is_untold) {
            self.tell_order();
        }
        if self.owed.is_unwritten {
            self.save();
        }
        for reply in std::mem::take(&mut self.owed.answers) {
            // The client may have disconnected.
            let _ = reply.send(Ok(self.state.current()));
        }
    }
}
