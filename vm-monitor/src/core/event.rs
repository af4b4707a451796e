//! Inputs and outputs of the core as data: what happened, and what the shell is to do.

use protocol::monitor::{Allocation, MonitorFrame, Version};
use protocol::monitor_v2::{GuestMetrics, MonitorFrameV2};
use protocol::time::Span;
use protocol::units::Bytes;
use serde::Serialize;

use super::cache::{CacheChange, CacheFailure};
use super::decision::Weight;
use super::files::{OomCounts, ReadFailure};
use super::handshake::HandshakeFailure;
use super::hooks::{HookEvent, HookSizes, HookVeto};
use super::pressure::Stalled;
use super::working_set::Gauge;
use super::zones::Zones;

/// A connection, numbered by the shell in the order of acceptance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ConnectionId(pub u64);

/// An attempt to set the file cache, numbered by the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct OperationId(pub u64);

/// What came over a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Received {
    /// A text frame.
    Text(String),
    /// A binary frame: counted and ignored.
    NotText,
    /// A text frame past [`protocol::monitor::MONITOR_FRAME_LIMIT_BYTES`], read and dropped. The
    /// core answers it, and the connection stays open.
    TooLarge {
        /// Length of the frame's text in UTF-8 bytes.
        bytes: usize,
    },
    /// A text frame that is no UTF-8: answered, and the connection must end (RFC 6455 §8.1).
    NotUtf8,
    /// A frame so large that it was not read: answered, and the connection must end.
    FarTooLarge,
}

/// Input of the core, from connections, readings and finished actions.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An agent has completed its handshake: it is the one from now on.
    AgentReady {
        /// Connection of the new agent. An earlier agent's connection is closed as replaced.
        connection: ConnectionId,
        /// The version both speak.
        version: Version,
        /// The machine's own `MemTotal`, if it could be read.
        machine_total: Option<Bytes>,
    },
    /// A handshake has failed.
    HandshakeFailed(HandshakeFailure),
    /// A connection has ended.
    AgentGone {
        /// Connection that has ended. One that is no longer served changes nothing.
        connection: ConnectionId,
    },
    /// A frame came.
    Received {
        /// Over which connection.
        connection: ConnectionId,
        /// Text of the frame, or why the core gets none.
        what: Received,
    },
    /// The bound on memory use was read; `None` where there is no such figure.
    Probed(Option<Bytes>),
    /// Memory use was read, or could not be.
    Sampled(Result<Bytes, ReadFailure>),
    /// A signal of the kernel's is listened to from now on.
    Listening(String),
    /// Tasks were stalled for want of memory.
    Stalled(Stalled),
    /// The group's out-of-memory counts, at the beginning and at each change.
    OutOfMemory(OomCounts),
    /// The figures of the estimator's step were read, or could not be.
    Gauged(Option<Gauge>),
    /// What weighs on memory beside what is in use was read.
    Weighed(Weight),
    /// The zones of memory were read, or could not be.
    ZonesRead(Option<Zones>),
    /// A step of the soft squeeze has ended and was looked at.
    Squeezed {
        /// Number from [`Action::Squeeze`]. One of an earlier squeeze is ignored.
        operation: OperationId,
        /// The figures after it; none where the group cannot be squeezed or its figures not be
        /// read.
        gauge: Option<Gauge>,
    },
    /// The hooks have ended: all were content, or the first that was not.
    HooksDone {
        /// Number from [`Action::RunHooks`]. One that no job waits for is ignored.
        operation: OperationId,
        /// `Err` holds the first hook's veto. It refuses a shrink, and is only logged after a
        /// growth.
        outcome: Result<(), HookVeto>,
    },
    /// What the guest sees of its size was read.
    Observed(Seen),
    /// The figures to push were read; those of the group are filled in here.
    Measured(Box<GuestMetrics>),
    /// The schedule of [`Action::WriteSchedule`] was written, or could not be.
    ScheduleWritten {
        /// A failure counts as a failed request.
        is_written: bool,
    },
    /// An attempt to set the file cache has ended.
    CacheSet {
        /// Number from [`Action::SetFileCache`]. One that no job waits for is ignored.
        operation: OperationId,
        /// Sizes before and after, or why the database did not take the size.
        outcome: Result<CacheChange, CacheFailure>,
    },
}

/// Why the monitor ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// A newer agent has completed its handshake.
    Replaced,
    /// A text frame was no UTF-8.
    NotUtf8,
    /// A frame was too large to be read at all.
    TooLarge,
}

/// The next thing to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Read the bound on memory use now; [`Event::Probed`] brings it.
    Probe,
    /// Read memory use now; [`Event::Sampled`] brings it.
    Sample,
    /// Read the figures of the estimator's step; [`Event::Gauged`] brings them.
    Gauge,
    /// Take this much from the group.
    Reclaim {
        /// Bytes to reclaim. The kernel may reclaim less; the next [`Action::Gauge`] shows it.
        bytes: Bytes,
    },
    /// Read what weighs on memory beside what is in use; [`Event::Weighed`] brings it.
    Weigh,
    /// Read the zones of memory; [`Event::ZonesRead`] brings them.
    ReadZones,
    /// Take this much from the group, then read its figures; [`Event::Squeezed`] brings them.
    Squeeze {
        /// Number of the squeeze, repeated in [`Event::Squeezed`].
        operation: OperationId,
        /// Bytes to reclaim; 0 reads the figures only.
        bytes: Bytes,
    },
    /// Run the hooks; [`Event::HooksDone`] brings the outcome.
    RunHooks {
        /// Number of this run, repeated in [`Event::HooksDone`].
        operation: OperationId,
        /// Event whose hooks are run.
        event: HookEvent,
        /// Sizes for the hooks' environment variables.
        sizes: HookSizes,
    },
    /// Read what the guest sees of its size; [`Event::Observed`] brings it.
    Observe,
    /// Read the figures to push; [`Event::Measured`] brings them.
    Measure,
    /// Set the file cache; [`Event::CacheSet`] brings the outcome.
    SetFileCache {
        /// Number of this attempt, repeated in [`Event::CacheSet`].
        operation: OperationId,
        /// The size wanted, whole MiB, before the database's own maximum.
        size: Bytes,
    },
    /// Send a frame.
    Send {
        /// Over which connection.
        connection: ConnectionId,
        /// Body of version 1, and the transaction it belongs to. Version 2 uses such frames as
        /// well.
        frame: MonitorFrame,
    },
    /// Send a frame of version 2.
    SendV2 {
        /// Over which connection.
        connection: ConnectionId,
        /// Body that version 1 does not have, and the transaction it belongs to.
        frame: MonitorFrameV2,
    },
    /// End a connection, after what has been sent.
    Close {
        /// Connection to end, by then no longer the one that is served.
        connection: ConnectionId,
        /// Reason, which sets code and text of the WebSocket close frame.
        reason: CloseReason,
    },
    /// Write the schedule of upgrades to its file; [`Event::ScheduleWritten`] brings the outcome.
    WriteSchedule {
        /// Text of the file. Empty: there is no schedule, so remove the file.
        spec: String,
    },
    /// End the process: no agent has come, or none with a schedule, for as long as the setup
    /// allows.
    EndAlone {
        /// Time without an agent or a schedule.
        alone: Span,
    },
}

/// What the guest itself sees of its size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// CPUs online in `/proc/stat`; `None` if it cannot be read.
    pub cpus: Option<u32>,
    /// `MemTotal` of `/proc/meminfo`; `None` if it cannot be read.
    pub total: Option<Bytes>,
}

impl Seen {
    /// As a size on the link, if both are known.
    pub(super) fn allocation(self) -> Option<Allocation> {
        let (cpus, total) = (self.cpus?, self.total?);
        Some(Allocation {
            cpu: f64::from(cpus),
            mem: total.0,
        })
    }

    /// Whether a guest that sees this has what was granted. The kernel's account of its memory
    /// takes a little of what is plugged, so that much may be missing.
    pub(super) fn has(self, granted: Allocation, usable: Bytes) -> bool {
        let has_cpus = self
            .cpus
            .is_some_and(|cpus| f64::from(cpus) >= granted.cpu.ceil());
        let enough = usable.0.saturating_sub(granted.mem / 32);
        has_cpus && self.total.is_some_and(|total| total.0 >= enough)
    }
}
