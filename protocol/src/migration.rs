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

/// Order to send the guest of this runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutgoingOrder {
    /// Uid of the migration's object.
    pub id: String,
    /// Target of the guest. `None`: the runner freezes the size and reports the shape only.
    pub to: Option<Destination>,
    /// Options that both QEMUs share.
    pub how: StreamOptions,
}

/// Addresses of a receiving QEMU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Destination {
    /// Address for memory and devices.
    pub stream: SocketAddrV4,
    /// Address for the disk. `None`: both runners have the same file.
    pub disk: Option<DiskDestination>,
    /// Whether both connections use TLS, with the key that both runners have ([`PSK_FILE`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
    /// On one machine: the directory of the receiving runner. QEMU listens on [`STREAM_SOCKET`] and
    /// [`DISK_SOCKET`] in it instead of at the addresses, because every user of the machine may
    /// dial a loopback address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<PathBuf>,
}

/// Address and extent of the disk copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskDestination {
    /// Address of the NBD server of the target.
    pub nbd: SocketAddrV4,
    /// Whether the whole disk is sent. Else only the blocks that the guest wrote over its image.
    pub whole: bool,
}

/// Options that both QEMUs must share, and the sender's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Whether the guest may continue at the target before its memory is complete. Then the source
    /// cannot take it back.
    pub post_copy: bool,
    /// Whether QEMU slows a guest that writes faster than the stream.
    pub auto_converge: bool,
    /// Upper bound of the stream, bytes per second.
    pub max_bandwidth: Bytes,
}

/// Order to receive a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IncomingOrder {
    /// Uid of the migration's object.
    pub id: String,
    /// Shape of the sender's QEMU: [`OutgoingReport::shape`].
    pub shape: Value,
    /// Way of the disk to this runner.
    pub disk: DiskTravel,
    /// Options that both QEMUs share.
    pub how: StreamOptions,
}

/// Ways of a disk to the target of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskTravel {
    /// The same file where the target can open it, else only the written blocks.
    Auto,
    /// Only the blocks that the guest wrote over its image.
    Layer,
    /// The whole disk.
    Whole,
}

/// Stages of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutgoingStage {
    /// The runner has frozen the size.
    Holding,
    /// The runner copies the disk while the guest runs.
    CopyingDisk,
    /// The runner sends memory. The guest runs, or has just been stopped.
    Sending,
    /// Everything needed is at the target. The guest is stopped here and will not go on unless it
    /// is recalled.
    HandedOver,
    /// The migration failed. The guest runs on this runner.
    Failed,
    /// The controller recalled the guest. It does not run again so far.
    Recalling,
}

/// Progress of a migration at its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutgoingReport {
    /// Uid of the migration's object.
    pub id: String,
    /// Stage of the sender.
    pub stage: OutgoingStage,
    /// How its QEMU is built, once known: for the runner at the target, and nobody else.
    /// [`SECRET_OF_SHAPE`] in it is never shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Value>,
    /// Figures of the stream. `None` before the first ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Cause of a failure. `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Time at which QEMU last stopped the guest, microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_unix_us: Option<i64>,
}

/// Stages of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IncomingStage {
    /// The runner waits for an order.
    Waiting,
    /// QEMU starts, stopped.
    Starting,
    /// QEMU listens for the guest or receives it.
    Listening,
    /// The guest is complete and stopped.
    Loaded,
    /// The controller ordered the guest to run.
    Begun,
    /// The migration failed. [`IncomingReport::problem`] says why.
    Failed,
}

/// Progress of a migration at its target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncomingReport {
    /// Uid of the migration's object. Empty without an order.
    pub id: String,
    /// Stage of the receiver.
    pub stage: IncomingStage,
    /// Addresses of the receiving QEMU. `None` before it listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<Destination>,
    /// Cause of a failure. `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Time at which QEMU let the guest run, microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_unix_us: Option<i64>,
}

/// Figures of a sender's stream, as QEMU reports them. The object shows them in `status.info`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// QEMU's word: `setup`, `active`, `pre-switchover`, `device`, `postcopy-active`, `completed`,
    /// `failed`, `cancelled`.
    pub status: String,
    /// Time since the begin, milliseconds.
    pub total_time_ms: i64,
    /// Time of preparation, milliseconds.
    pub setup_time_ms: i64,
    /// Time between the guest's stop and the end of the stream, milliseconds. An estimate until
    /// then.
    pub downtime_ms: i64,
    /// Memory of the guest, sent and to send.
    pub ram: RamProgress,
    /// Extension: whether the stream is encrypted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
}

/// Progress of the guest's memory, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RamProgress {
    /// Bytes sent, with pages that were sent again.
    pub transferred: i64,
    /// Bytes that remain to be sent.
    pub remaining: i64,
    /// Bytes of the guest's memory.
    pub total: i64,
}
