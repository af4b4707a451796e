//! How two runners move a guest, over their control links ([`crate::runner`]).
//!
//! | route | body | answer |
//! |---|---|---|
//! | `PUT /v1/outgoing` | [`OutgoingOrder`] | 200 `RunnerState`: the guest's size stands still; with a destination it is sent there |
//! | `DELETE /v1/outgoing/ID` | – | 200 `RunnerState`: the guest stays here, goes on if it was stopped, and may be resized again |
//! | `POST /v1/outgoing/ID/done` | – | 200 `RunnerState`: the guest runs elsewhere, the QEMU it left ends |
//! | `PUT /v1/incoming` | [`IncomingOrder`] | 200 `RunnerState`: a QEMU of the same shape waits for the guest |
//! | `POST /v1/incoming/ID/begin` | – | 200 `RunnerState`: the guest that has arrived runs |
//!
//! 409 with a plain text: the runner has another part, or another migration. Like sizes, orders are
//! held and worked on; what became of them is read from the state. No guest runs twice: QEMU on the
//! receiving side is started stopped, and goes on by `begin` alone, which is only said once the
//! sender is stopped for good ([`OutgoingStage::HandedOver`]) or dead.

use std::net::SocketAddrV4;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::units::Bytes;

/// Environment variable of a runner container that waits for a guest instead of booting one; its
/// value is `true`.
pub const RECEIVE_MIGRATION: &str = "RECEIVE_MIGRATION";
/// Port at the target pod's address for memory and devices.
pub const STREAM_PORT: u16 = 20187;
/// Port at the target pod's address for the disk, where it is copied.
pub const DISK_PORT: u16 = 20188;

/// Socket for memory and devices in the directory of a runner that receives.
pub const STREAM_SOCKET: &str = "stream.sock";
/// Socket for the disk in that directory.
pub const DISK_SOCKET: &str = "disk.sock";

/// Member of a [`OutgoingReport::shape`] that holds the key of the guest's daemon.
pub const SECRET_OF_SHAPE: &str = "guestd_key";

/// The file of a pre-shared key, as QEMU reads it: `qemu:` and hexadecimal digits. Also its key in
/// the secret of the VM's runners.
pub const PSK_FILE: &str = "keys.psk";

/// What to do with the guest that runs here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutgoingOrder {
    /// Which migration: the uid of its object.
    pub id: String,
    /// Where to send it; `None`: keep its size as it is, and say how it is built.
    pub to: Option<Destination>,
    /// How.
    pub how: StreamOptions,
}

/// Where a receiving QEMU listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Destination {
    /// For memory and devices.
    pub stream: SocketAddrV4,
    /// For the disk; `None`: both sides have the same file.
    pub disk: Option<DiskDestination>,
    /// Both are spoken to in TLS, by the key that both runners have ([`PSK_FILE`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
    /// On one machine: the directory of the receiving runner. QEMU listens on [`STREAM_SOCKET`] and
    /// [`DISK_SOCKET`] in it instead of at the addresses, because every user of the machine may
    /// dial a loopback address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<PathBuf>,
}

/// Where and how much of the disk is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskDestination {
    /// An NBD server.
    pub nbd: SocketAddrV4,
    /// All of it; else only what the guest wrote over its image.
    pub whole: bool,
}

/// What both QEMUs must agree on, and the sender's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// The guest goes on at the target before its memory is there. There is no way back then.
    pub post_copy: bool,
    /// A guest that writes faster than the stream is slowed down.
    pub auto_converge: bool,
    /// Bytes per second at most.
    pub max_bandwidth: Bytes,
}

/// A guest to wait for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IncomingOrder {
    /// Which migration.
    pub id: String,
    /// [`OutgoingReport::shape`] of the sender.
    pub shape: Value,
    /// How the disk comes.
    pub disk: DiskTravel,
    /// How the rest comes.
    pub how: StreamOptions,
}

/// How a disk gets to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskTravel {
    /// The same file where the target can have it, else what was written over the image.
    Auto,
    /// What was written over the image.
    Layer,
    /// All of it.
    Whole,
}

/// How far a sender is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutgoingStage {
    /// The size stands still.
    Holding,
    /// The disk is being copied; the guest runs.
    CopyingDisk,
    /// Memory is being sent; the guest runs, or has just been stopped.
    Sending,
    /// Everything needed is at the target. The guest is stopped here and will not go on unless it
    /// is recalled.
    HandedOver,
    /// It did not work; the guest runs here.
    Failed,
    /// It was recalled, and is not yet as it was.
    Recalling,
}

/// What a sender says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutgoingReport {
    /// Which migration.
    pub id: String,
    /// How far it is.
    pub stage: OutgoingStage,
    /// How its QEMU is built, once known: for the runner at the target, and nobody else.
    /// [`SECRET_OF_SHAPE`] in it is never shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Value>,
    /// Figures, once there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// When QEMU stopped the guest last, microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_unix_us: Option<i64>,
}

/// How far a receiver is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IncomingStage {
    /// It waits to be told for which guest.
    Waiting,
    /// QEMU is being started.
    Starting,
    /// QEMU waits for the guest, or receives it.
    Listening,
    /// The guest is all here, and stopped.
    Loaded,
    /// The guest was told to run.
    Begun,
    /// It did not work.
    Failed,
}

/// What a receiver says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncomingReport {
    /// Which migration; empty while it waits.
    pub id: String,
    /// How far it is.
    pub stage: IncomingStage,
    /// Where it listens, once it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<Destination>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// When QEMU let the guest run, microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_unix_us: Option<i64>,
}

/// A sender's figures, by QEMU's account. The object shows them as `status.info`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// QEMU's word: `setup`, `active`, `pre-switchover`, `device`, `postcopy-active`, `completed`,
    /// `failed`, `cancelled`.
    pub status: String,
    /// Milliseconds since it began.
    pub total_time_ms: i64,
    /// Milliseconds of preparation.
    pub setup_time_ms: i64,
    /// Milliseconds between the guest's stop and the stream's end; expected until then.
    pub downtime_ms: i64,
    /// Memory.
    pub ram: RamProgress,
    /// What is sent is encrypted. The field is ours.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
}

/// Memory sent, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RamProgress {
    /// Sent, pages sent again included.
    pub transferred: i64,
    /// Known to be still to send.
    pub remaining: i64,
    /// Of the guest.
    pub total: i64,
}
