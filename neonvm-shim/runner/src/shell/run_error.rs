//! Errors at a runner's start.

use std::path::PathBuf;

use super::bridge::BridgeError;
use super::claims::ClaimError;
use super::disk;
use super::drives::DriveError;
use super::init_script::InitError;
use super::overlay::OverlayError;
use super::passt::PasstError;
use super::record::RecordError;
use super::root_disk::RootDiskError;
use crate::config::CONFIG_FORMAT;
use crate::core::disks::DiskProblem;
use crate::core::forwards::UnknownProtocol;
use crate::core::shape::ShapeError;

/// Longest path of a unix socket on every kernel, less the longest file name of a socket.
pub(super) const MAX_DIR_BYTES: usize = 107 - "/qmp-manual.sock".len();

/// Errors at a runner's start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The runner's directory cannot be made or entered.
    #[error("cannot use the runner's directory {0}")]
    Dir(PathBuf, #[source] std::io::Error),
    /// The path of the runner's directory exceeds the limit of unix sockets.
    #[error("{0} is too long for unix sockets: {MAX_DIR_BYTES} bytes are the most")]
    TooLong(PathBuf),
    /// Another runner has locked the directory.
    #[error("another runner holds {0}")]
    Held(PathBuf),
    /// The directory has no `config.json`.
    #[error("{0} is missing")]
    NoConfig(PathBuf),
    /// `config.json` has a format that this version does not read.
    #[error(
        "{path} has format {found}, and this version reads format {CONFIG_FORMAT}: start the VM with the runner of the version that wrote it, or delete its pod, so that the directory is written again"
    )]
    Format {
        /// Path of the configuration's file.
        path: PathBuf,
        /// Value of the file's member `format`.
        found: u32,
    },
    /// A port of the spec has a protocol that no network of a guest forwards.
    #[error(transparent)]
    Port(#[from] UnknownProtocol),
    /// A file of the directory cannot be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The spec asks for a size that QEMU cannot have.
    #[error("no QEMU can be built for this spec")]
    Shape(#[from] ShapeError),
    /// The controller's token cannot be read.
    #[error("cannot read the token in {0}")]
    Token(PathBuf, #[source] std::io::Error),
    /// An address or socket cannot be bound.
    #[error("cannot serve on {0}")]
    Bind(String, #[source] std::io::Error),
    /// The key of the guest's daemon cannot be written.
    #[error("cannot write the key of the guest's daemon to {0}; is there room on the node?")]
    GuestdKey(PathBuf, #[source] std::io::Error),
    /// The root disk in the runner's directory cannot be made.
    #[error("cannot make the root disk")]
    Disk(#[from] disk::DiskError),
    /// The persistent root disk cannot be used.
    #[error("cannot use the VM's root disk")]
    RootDisk(#[from] RootDiskError),
    /// A disk on a claim cannot be used.
    #[error("cannot use the VM's disks on claims")]
    Claim(#[from] ClaimError),
    /// Disks, swap or settings of the spec are not valid.
    #[error("the VM's disks or settings are not valid")]
    Plan(#[from] DiskProblem),
    /// A drive cannot be made.
    #[error("cannot make the VM's drives")]
    Drives(#[from] DriveError),
    /// The shell of `spec.initScript` has failed or could not be run.
    #[error(transparent)]
    InitScript(#[from] InitError),
    /// The guest cannot be connected to the pod's network.
    #[error("the guest cannot be connected to its pod")]
    Bridge(#[from] BridgeError),
    /// The guest cannot be connected to the overlay network.
    #[error("the guest cannot be connected to the overlay network")]
    Overlay(#[from] OverlayError),
    /// The guest's network process cannot be started.
    #[error("the guest has no network")]
    Passt(#[from] PasstError),
    /// QEMU is missing, or could not be run.
    #[error("cannot execute {0}")]
    Qemu(PathBuf, #[source] std::io::Error),
}
