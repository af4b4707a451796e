//! Messages between the owner of the core and the other tasks.

use std::path::PathBuf;

use protocol::monitor::Version;
use tokio::sync::{mpsc, oneshot};

use crate::core::{CloseReason, ConnectionId, Event, StateDump};

/// Messages that may wait for the owner. A full inbox makes its senders wait, and so their peers.
pub const INBOX_LIMIT: usize = 128;

/// Messages to the owner.
#[derive(Debug)]
pub enum Inbox {
    /// A connection has completed its handshake.
    Ready {
        /// Number of the connection, from 1 in order of accept.
        connection: ConnectionId,
        /// The version both speak.
        version: Version,
        /// Channel of the frames to it.
        outgoing: mpsc::Sender<Outgoing>,
    },
    /// An event for the core.
    Event(Event),
    /// Order to execute another program in this process.
    Exec(ExecOrder),
    /// Request for the state.
    Dump(oneshot::Sender<StateDump>),
}

/// Messages from the owner to a connection.
#[derive(Debug)]
pub enum Outgoing {
    /// JSON of one frame, sent as one WebSocket text message.
    Text(String),
    /// The end, after all frames before it.
    Close(Goodbye),
}

/// Why a connection is ended from our side.
#[derive(Debug, Clone, Copy)]
pub enum Goodbye {
    /// Decided by the core.
    Core(CloseReason),
    /// The process ends.
    ShuttingDown,
    /// The process executes another program, which listens at the same address.
    Restarting,
}

/// A checked order to execute another program.
#[derive(Debug)]
pub struct ExecOrder {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Channel of the refusal. It is dropped without one when the program runs.
    pub refused: oneshot::Sender<ExecRefusal>,
}

/// Why a program is not executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecRefusal {
    /// Work is in hand that the change would cut off.
    #[error("busy: {0}; repeat the order when it has ended")]
    Busy(&'static str),
    /// The kernel has refused, and this program serves on.
    #[error(
        "failed to execute {program}: {error}; give a static program of this machine's kind, mode 0755"
    )]
    Failed {
        /// Path of the program.
        program: String,
        /// Error of the kernel.
        error: String,
    },
}
