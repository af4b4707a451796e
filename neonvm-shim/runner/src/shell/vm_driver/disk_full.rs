//! The VM driver's part of [`crate::core::disk_full`]: executes its actions concurrently with
//! everything else.

use protocol::core::Core as _;
use protocol::time::Timestamp;
use tracing::{info, warn};

use super::VmDriver;
use crate::core::disk_full::{RecoveryAction, RecoveryEvent, disk_name};
use crate::core::transfer::Incoming;
use crate::shell::input::{Input, RecoveryResult};

impl VmDriver {
    /// Whether a migration decides where the guest runs.
    pub(super) fn is_moving(&self) -> bool {
        let comes = |incoming: &Incoming| !incoming.is_over();
        self.outgoing.is_some() || self.incoming.as_ref().is_some_and(comes)
    }

    pub(super) fn act_recovery(&self, action: RecoveryAction) {
        let (qmp, inputs) = (self.qmp(), self.inputs.clone());
        tokio::spawn(async move {
            let Some(qmp) = qmp else { return };
            let result = match action {
                RecoveryAction::Query => RecoveryResult::Queried(qmp.run_status().await),
                RecoveryAction::Resume => RecoveryResult::Resumed(qmp.go_on().await),
            };
            // The driver is gone only when the runner ends.
            let _ = inputs.send(Input::Recovery(result)).await;
        });
    }

    /// QEMU has stopped the guest, or is about to.
    pub(super) fn disk_stopped(&mut self, now: Timestamp, drive: &str, reason: &str) {
        if self.recovery.full().is_none() {
            warn!(disk = disk_name(drive), reason, "the guest is stopped");
        }
        self.recovery.handle(now, RecoveryEvent::Hint);
    }

    pub(super) fn take_recovery(&mut self, now: Timestamp, result: RecoveryResult) {
        let was_full = self.recovery.full().is_some();
        match result {
            RecoveryResult::Queried(found) => {
                let event = RecoveryEvent::Queried(self.clock.wall(), found.ok());
                self.recovery.handle(now, event);
            }
            RecoveryResult::Resumed(result) => {
                if let Err(failure) = result {
                    warn!(
                        problem = failure.message,
                        "QEMU refused to resume the guest"
                    );
                }
                self.recovery.handle(now, RecoveryEvent::Resumed);
            }
        }
        match (was_full, self.recovery.full()) {
            (false, Some(full)) => warn!(
                disks = full.disks.join(", "),
                "the node's disk or the disk's claim is full: the guest is stopped until there is space"
            ),
            (true, None) => {
                info!("the guest is not stopped by a full disk any more");
                self.liveness.resumed(now);
            }
            _ => {}
        }
    }
}
