//! Requests of agents, from their arrival to their answer.

use protocol::monitor::Allocation;
use protocol::time::Timestamp;
use protocol::units::Bytes;

use super::decision::{Approval, Weight};
use super::event::ConnectionId;
use super::squeeze::Squeeze;

/// A request not yet begun.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Request {
    /// A connection has begun on a machine of this size.
    Start { total: Bytes },
    /// May the VM shrink to `target`?
    Downscale {
        connection: ConnectionId,
        id: u64,
        target: Allocation,
    },
    /// The VM has grown to `granted`.
    Upscale {
        connection: ConnectionId,
        id: u64,
        granted: Allocation,
    },
}

/// A request whose file cache is being set.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Job {
    /// For the start of a connection.
    Start,
    /// For an approved shrink.
    Downscale {
        connection: ConnectionId,
        id: u64,
        approval: Approval,
    },
    /// For a shrink that would be approved: the soft squeeze.
    Squeeze {
        /// What it is for.
        shrink: Shrink,
        /// How far it is.
        squeeze: Squeeze,
    },
    /// For a shrink that would be approved: the hooks.
    BeforeShrink {
        connection: ConnectionId,
        id: u64,
        target: Allocation,
        approval: Approval,
    },
    /// For a growth that is there: the hooks.
    AfterGrow {
        connection: ConnectionId,
        id: u64,
        observed: Option<Allocation>,
    },
    /// For a growth.
    Upscale {
        connection: ConnectionId,
        id: u64,
        granted: Allocation,
        total: Bytes,
        /// What the guest sees, where that was waited for.
        observed: Option<Allocation>,
    },
}

/// The shrink a squeeze is for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shrink {
    pub(super) connection: ConnectionId,
    pub(super) id: u64,
    pub(super) target: Allocation,
    pub(super) approval: Approval,
}

/// A shrink for which the weight on memory is being read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weighing {
    pub(super) connection: ConnectionId,
    pub(super) id: u64,
    pub(super) target: Allocation,
    /// What was read, while the zones are being read.
    pub(super) weight: Option<Weight>,
}

/// A growth told of, which the guest does not see yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Growth {
    pub(super) connection: ConnectionId,
    pub(super) id: u64,
    pub(super) granted: Allocation,
    /// When to say what is seen, whatever it is.
    pub(super) until: Timestamp,
    pub(super) look_at: Timestamp,
}
