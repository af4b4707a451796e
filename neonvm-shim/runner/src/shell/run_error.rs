//! Why a runner could not begin.

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
use crate::core::disks::DiskProblem;
use crate::core::shape::ShapeError;

/// Longest path of a unix socket that every kernel takes, less the longest of our file names.
pub(super) const MAX_DIR_BYTES: usize = 107 - "/qmp-manual.sock".len();

/// Why a runner could not begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The runner's directory cannot be made or entered.
    #[error("cannot use the runner's directory {0}")]
    Dir(PathBuf, #[source] std::io::Error),
    /// The path of that directory.
    #[error("{0} is too long for unix sockets: {MAX_DIR_BYTES} bytes are the most")]
    TooLong(PathBuf),
    /// Another runner has it.
    #[error("another runner holds {0}")]
    Held(PathBuf),
    /// There is nothing to run.
    #[error("{0} is missing")]
    NoConfig(PathBuf),
    /// A file of it.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The spec asks for a size that QEMU cannot have.
    #[error("no QEMU can be built for this spec")]
    Shape(#[from] ShapeError),
    /// The controller's token.
    #[error("cannot read the token in {0}")]
    Token(PathBuf, #[source] std::io::Error),
    /// An address or socket is taken.
    #[error("cannot serve on {0}")]
    Bind(String, #[source] std::io::Error),
    /// The key of the guest's daemon.
    #[error("cannot write the key of the guest's daemon to {0}; is there room on the node?")]
    GuestdKey(PathBuf, #[source] std::io::Error),
    /// The root disk of a VM whose disk goes with its pod.
    #[error("cannot make the root disk")]
    Disk(#[from] disk::DiskError),
    /// A root disk that stays.
    #[error("cannot use the VM's root disk")]
    RootDisk(#[from] RootDiskError),
    /// A disk on a claim.
    #[error("cannot use the VM's disks on claims")]
    Claim(#[from] ClaimError),
    /// What the spec says of disks, swap and settings.
    #[error("the VM's spec cannot be carried out")]
    Plan(#[from] DiskProblem),
    /// The drives beside it.
    #[error("cannot make the VM's drives")]
    Drives(#[from] DriveError),
    /// The spec's own script.
    #[error(transparent)]
    InitScript(#[from] InitError),
    /// The pod's network.
    #[error("the guest cannot be connected to its pod")]
    Bridge(#[from] BridgeError),
    /// The overlay network.
    #[error("the guest cannot have its place in the overlay network")]
    Overlay(#[from] OverlayError),
    /// The guest's network process.
    #[error("the guest has no network")]
    Passt(#[from] PasstError),
    /// QEMU is missing, or could not be run.
    #[error("cannot execute {0}")]
    Qemu(PathBuf, #[source] std::io::Error),
}
