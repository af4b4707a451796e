//! Paths of the files and sockets in a runner's directory.

use std::path::PathBuf;

use protocol::migration::{DISK_SOCKET, STREAM_SOCKET};

use super::disks::Drive;
use crate::config::RunnerConfig;

/// Names of the sockets that QEMU makes, at its start and for an incoming migration.
pub const SOCKETS: [&str; 5] = [
    "qmp.sock",
    "qmp-manual.sock",
    "console.sock",
    STREAM_SOCKET,
    DISK_SOCKET,
];

/// Paths of one runner's files and sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// Absolute path of the runner's directory.
    pub dir: PathBuf,
}

impl Paths {
    /// Paths of a runner whose directory is `dir`. Nothing is created.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Directory in which a sandboxed QEMU makes its sockets. The runner's directory has a link to
    /// each.
    #[must_use]
    pub fn sockets(&self) -> PathBuf {
        self.dir.join("sockets")
    }

    /// Socket of the runner's QMP monitor.
    #[must_use]
    pub fn qmp(&self) -> PathBuf {
        self.dir.join("qmp.sock")
    }

    /// Socket of a second QMP monitor, for people and benchmarks.
    #[must_use]
    pub fn qmp_manual(&self) -> PathBuf {
        self.dir.join("qmp-manual.sock")
    }

    /// Socket of the guest's first serial port.
    #[must_use]
    pub fn console(&self) -> PathBuf {
        self.dir.join("console.sock")
    }

    /// Log of the guest's first serial port.
    #[must_use]
    pub fn console_log(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// Log of the port that the guest's programs write to.
    #[must_use]
    pub fn guest_log(&self) -> PathBuf {
        self.dir.join("guest.log")
    }

    /// Log of QEMU's standard output and error.
    #[must_use]
    pub fn qemu_log(&self) -> PathBuf {
        self.dir.join("qemu.log")
    }

    /// Log of the runner, if its parent redirects the output there.
    #[must_use]
    pub fn runner_log(&self) -> PathBuf {
        self.dir.join("runner.log")
    }

    /// Log of the guest's network process.
    #[must_use]
    pub fn passt_log(&self) -> PathBuf {
        self.dir.join("passt.log")
    }

    /// Process id of passt, which writes it when it serves.
    #[must_use]
    pub fn passt_pid(&self) -> PathBuf {
        self.dir.join("passt.pid")
    }

    /// Socket on which QEMU waits for the guest's network process. Guests of older versions have
    /// none.
    #[must_use]
    pub fn network(&self) -> PathBuf {
        self.dir.join("network.sock")
    }

    /// Process id of QEMU, which writes it.
    #[must_use]
    pub fn pid_file(&self) -> PathBuf {
        self.dir.join("qemu.pid")
    }

    /// Writable layer over the image's root disk: a persistent file, or one of this directory.
    #[must_use]
    pub fn root_disk(&self, config: &RunnerConfig) -> PathBuf {
        let stays = config.root_overlay.clone();
        stays.unwrap_or_else(|| self.dir.join("root.qcow2"))
    }

    /// File of a drive other than the root disk.
    #[must_use]
    pub fn drive(&self, drive: &Drive) -> PathBuf {
        self.dir.join(drive.file())
    }

    /// Directory of the pod's volumes, each at its mount path in the guest, unless the
    /// configuration names another.
    #[must_use]
    pub fn mounts(&self) -> PathBuf {
        self.dir.join("mounts")
    }

    /// File with the key of the guest's daemon.
    #[must_use]
    pub fn guestd_key(&self) -> PathBuf {
        self.dir.join("guestd.key")
    }

    /// Socket on which QEMU waits for memory and devices of a guest from this machine.
    #[must_use]
    pub fn stream(&self) -> PathBuf {
        self.dir.join(STREAM_SOCKET)
    }

    /// Socket on which QEMU waits for the disk of a guest from this machine.
    #[must_use]
    pub fn disk(&self) -> PathBuf {
        self.dir.join(DISK_SOCKET)
    }

    /// File with the token of the guest's monitor. Missing where the monitor asks for none.
    #[must_use]
    pub fn monitor_token(&self) -> PathBuf {
        self.dir.join("monitor.token")
    }

    /// Socket for orders and state of the runner.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    /// File with the [`RunnerConfig`], as JSON.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.dir.join("config.json")
    }

    /// File with the runner's record of its QEMU, for the next runner of the directory.
    #[must_use]
    pub fn record(&self) -> PathBuf {
        self.dir.join("runner.json")
    }

    /// File with the report of the VM's end.
    #[must_use]
    pub fn exit(&self) -> PathBuf {
        self.dir.join("exit.json")
    }

    /// File that the runner of this directory locks.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }
}
