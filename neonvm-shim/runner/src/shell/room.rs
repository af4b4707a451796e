//! The VM driver's part of [`crate::core::disk_full`]: executes its actions concurrently with
//! everything else.

use protocol::time::Timestamp;
use tracing::{info, warn};

use super::supervisor::{Input, Supervisor};
use crate::core::room::{RoomAction, Standing, disk_name};
use crate::core::sizer::QmpFailure;
use crate::core::transfer::Incoming;

/// Result of an action.
#[derive(Debug)]
pub enum RoomNews {
    Looked(Result<Standing, QmpFailure>),
    WentOn(Result<(), QmpFailure>),
}

impl Supervisor {
    pub(super) fn turn_room(&mut self, now: Timestamp) {
        let moves = self.is_moving();
        while let Some(action) = self.room.poll_action(now, moves) {
            self.act_room(action);
        }
    }

    /// Whether a migration decides where the guest runs.
    fn is_moving(&self) -> bool {
        let comes = |incoming: &Incoming| !incoming.is_over();
        self.outgoing.is_some() || self.incoming.as_ref().is_some_and(comes)
    }

    fn act_room(&self, action: RoomAction) {
        let (qmp, inputs) = (self.qmp(), self.inputs.clone());
        tokio::spawn(async move {
            let Some(qmp) = qmp else { return };
            let news = match action {
                RoomAction::Look => RoomNews::Looked(qmp.standing().await),
                RoomAction::GoOn => RoomNews::WentOn(qmp.go_on().await),
            };
            // The driver is gone only when the runner ends.
            let _ = inputs.send(Input::Room(news)).await;
        });
    }

    /// QEMU has stopped the guest, or is about to.
    pub(super) fn disk_stopped(&mut self, now: Timestamp, drive: &str, reason: &str) {
        if self.room.full().is_none() {
            warn!(disk = disk_name(drive), reason, "the guest is stopped");
        }
        self.room.hint(now);
    }

    pub(super) fn take_room(&mut self, now: Timestamp, news: RoomNews) {
        let was_full = self.room.full().is_some();
        match news {
            RoomNews::Looked(found) => {
                self.room
                    .looked(now, self.clock.wall(), found.ok().as_ref());
            }
            RoomNews::WentOn(result) => {
                if let Err(failure) = result {
                    warn!(
                        problem = failure.message,
                        "QEMU does not let the guest go on"
                    );
                }
                self.room.went_on(now);
            }
        }
        match (was_full, self.room.full()) {
            (false, Some(full)) => warn!(
                disks = full.disks.join(", "),
                "no room for what the guest writes on the node's disk or on the disk's claim: it stands still until there is some"
            ),
            (true, None) => {
                info!("the guest does not stand still for want of room any more");
                self.silence.resumed(now);
            }
            _ => {}
        }
    }
}
