//! Inputs of a VM's driver, and the results of actions among them.

use std::sync::Arc;

use protocol::migration::{IncomingOrder, OutgoingOrder};
use protocol::runner::{CpusAhead, RunnerState, SizeOrder, StopOrder};
use protocol::units::MilliCpu;
use tokio::sync::oneshot;

use super::guest::GuestReport;
use super::process::ProcessId;
use super::qmp::{Qmp, QmpEvent};
use crate::core::disk_full::RunStatus;
use crate::core::sizer::{Event, QmpFailure};
use crate::core::transfer::{IncomingEvent, OutgoingEvent};

/// Capacity of the channel of inputs. The driver never blocks.
pub const INPUT_BACKLOG: usize = 64;

/// Inputs of the VM's driver.
#[derive(Debug)]
pub enum Input {
    /// The driver can send commands to QEMU's monitor from now on.
    QmpUp(Arc<Qmp>),
    /// QEMU's monitor is disconnected, and commands in progress have failed.
    QmpDown,
    /// The monitor has not been connected for a while, for this reason.
    QmpUnreached(String),
    /// QEMU has sent an event.
    Qmp(QmpEvent),
    /// The guest's daemon has sent a report.
    Guest(GuestReport),
    /// An action of the sizer has this result.
    ActionDone(Event),
    /// A size order. The reply follows once it is accepted.
    Order {
        /// Size that the guest is to have.
        order: SizeOrder,
        /// Number of orders that the sender has seen. `None` for a sender that does not count.
        over: Option<u64>,
        /// Receives the state, or the reason of a refusal.
        reply: ReplySender,
    },
    /// A request to plug CPUs ahead of an order. The reply follows once it is accepted.
    Ahead(CpusAhead, ReplySender),
    /// A CPU limit by the route of NeonVM's runner; memory stays.
    CpuChange(MilliCpu, ReplySender),
    /// An order to stop the guest.
    Stop(StopOrder),
    /// An order about a migration. The reply follows once it is accepted.
    Migration(MigrationOrder, ReplySender),
    /// Result of a migration's step.
    Transfer(TransferResult),
    /// Result of a step of the recovery from a full disk.
    Recovery(RecoveryResult),
    /// The guest's network process has ended, and this one replaces it.
    Network(ProcessId),
    /// QEMU has ended, with this exit status if it was a child.
    Ended(Option<i32>),
}

/// Reaction to the cancellation of the runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnCancel {
    /// Leave the guest running: the next runner adopts it.
    Leave,
    /// Stop the guest, then end.
    Stop {
        /// Milliseconds that the guest has to shut down.
        grace_ms: u64,
    },
}

/// Reply to a route: the state, or the reason of a refusal.
pub type ReplySender = oneshot::Sender<Result<RunnerState, String>>;

/// Orders of a migration, from the runner's routes.
#[derive(Debug)]
pub enum MigrationOrder {
    /// Hold the size, or send the guest.
    Send(OutgoingOrder),
    /// Undo the departure with this id.
    Recall(String),
    /// End QEMU, as the guest of this migration runs elsewhere.
    Quit(String),
    /// Receive the guest of this order.
    Receive(Box<IncomingOrder>),
    /// Run the guest of this migration.
    Begin(String),
}

/// Result of an action of a migration.
#[derive(Debug)]
pub enum TransferResult {
    /// Of the migration by which the guest leaves.
    Outgoing(OutgoingEvent),
    /// Of the migration by which the guest arrives.
    Incoming(IncomingEvent),
}

/// Result of an action of the recovery from a full disk.
#[derive(Debug)]
pub enum RecoveryResult {
    /// Status of guest and drives, or QEMU's refusal.
    Queried(Result<RunStatus, QmpFailure>),
    /// Acceptance of the order to resume the guest, or QEMU's refusal.
    Resumed(Result<(), QmpFailure>),
}
