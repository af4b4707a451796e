//! What is owed to whoever ordered something of the guest: where it is to outlive the runner a
//! record of it, and then the answer.
//!
//! The order is carried out first: a file and a log are written while QEMU works, not while whoever
//! ordered waits for the guest. A runner that dies in between has answered nobody, and is ordered
//! again.

use super::supervisor::Supervisor;
use super::transfer::Answer;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// Whether the record has something that its file does not.
    pub(super) is_unwritten: bool,
    /// Whether the log has not told of the order yet.
    pub(super) is_untold: bool,
    /// Those who wait to hear that what they ordered is held.
    pub(super) answers: Vec<Answer>,
}

impl Supervisor {
    /// Pays what is owed, after what this turn began.
    pub(super) async fn settle(&mut self) {
        if self.owed.answers.is_empty() {
            return;
        }
        // The commands to QEMU are tasks of their own, and it is their turn now.
        tokio::task::yield_now().await;
        if std::mem::take(&mut self.owed.is_untold) {
            self.tell_order();
        }
        if self.owed.is_unwritten {
            self.save();
        }
        for reply in std::mem::take(&mut self.owed.answers) {
            // Whoever asked and went away does not need the answer.
            let _ = reply.send(Ok(self.state.current()));
        }
    }
}
