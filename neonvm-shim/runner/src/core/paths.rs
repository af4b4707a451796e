//! The files of a runner's directory.

use std::path::PathBuf;

use protocol::migration::{DISK_SOCKET, STREAM_SOCKET};

use super::disks::Drive;
use crate::config::RunnerConfig;

/// Sockets that QEMU makes, at its start and when a guest is to come.
pub const SOCKETS: [&str; 5] = [
    "qmp.sock",
    "qmp-manual.sock",
    "console.sock",
    STREAM_SOCKET,
    DISK_SOCKET,
];

/// Files and sockets of one runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The directory itself.
    pub dir: PathBuf,
}

impl Paths {
    /// The paths below a directory.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// What a QEMU in a sandbox has in place of the directory, and makes its sockets in. Each has a
    /// link of its name in the directory itself.
    #[must_use]
    pub fn sockets(&self) -> PathBuf {
        self.dir.join("sockets")
    }

    /// The runner's monitor socket.
    #[must_use]
    pub fn qmp(&self) -> PathBuf {
        self.dir.join("qmp.sock")
    }

    /// A second monitor, for people and benchmarks.
    #[must_use]
    pub fn qmp_manual(&self) -> PathBuf {
        self.dir.join("qmp-manual.sock")
    }

    /// The guest's first serial port.
    #[must_use]
    pub fn console(&self) -> PathBuf {
        self.dir.join("console.sock")
    }

    /// What the guest wrote there.
    #[must_use]
    pub fn console_log(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// What its programs wrote to their log.
    #[must_use]
    pub fn guest_log(&self) -> PathBuf {
        self.dir.join("guest.log")
    }

    /// QEMU's own messages.
    #[must_use]
    pub fn qemu_log(&self) -> PathBuf {
        self.dir.join("qemu.log")
    }

    /// The runner's own messages, if who started it sends them there.
    #[must_use]
    pub fn runner_log(&self) -> PathBuf {
        self.dir.join("runner.log")
    }

    /// Messages of the guest's network process.
    #[must_use]
    pub fn passt_log(&self) -> PathBuf {
        self.dir.join("passt.log")
    }

    /// Its process id, written by itself when it serves.
    #[must_use]
    pub fn passt_pid(&self) -> PathBuf {
        self.dir.join("passt.pid")
    }

    /// The socket on which QEMU waits for the guest's network process. Directories of guests that
    /// older versions started have none.
    #[must_use]
    pub fn network(&self) -> PathBuf {
        self.dir.join("network.sock")
    }

    /// QEMU's process id, written by QEMU.
    #[must_use]
    pub fn pid_file(&self) -> PathBuf {
        self.dir.join("qemu.pid")
    }

    /// The writable layer over the image's root disk: a file that stays, or one of this directory.
    #[must_use]
    pub fn root_disk(&self, config: &RunnerConfig) -> PathBuf {
        let stays = config.root_overlay.clone();
        stays.unwrap_or_else(|| self.dir.join("root.qcow2"))
    }

    /// A drive beside it.
    #[must_use]
    pub fn drive(&self, drive: &Drive) -> PathBuf {
        self.dir.join(drive.file())
    }

    /// The volumes of the pod, each where it is mounted in the guest, unless somebody else mounts
    /// them elsewhere.
    #[must_use]
    pub fn mounts(&self) -> PathBuf {
        self.dir.join("mounts")
    }

    /// The key by which the guest's daemon knows the runner.
    #[must_use]
    pub fn guestd_key(&self) -> PathBuf {
        self.dir.join("guestd.key")
    }

    /// Where QEMU waits for the memory and devices of a guest that comes from this machine.
    #[must_use]
    pub fn stream(&self) -> PathBuf {
        self.dir.join(STREAM_SOCKET)
    }

    /// Where it waits for that guest's disk.
    #[must_use]
    pub fn disk(&self) -> PathBuf {
        self.dir.join(DISK_SOCKET)
    }

    /// The token that the agent shows to the guest's monitor; no file where none is asked for.
    #[must_use]
    pub fn monitor_token(&self) -> PathBuf {
        self.dir.join("monitor.token")
    }

    /// The runner's control socket.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    /// What to run.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.dir.join("config.json")
    }

    /// What the runner writes down of its QEMU, for the next runner of the directory.
    #[must_use]
    pub fn record(&self) -> PathBuf {
        self.dir.join("runner.json")
    }

    /// How it ended.
    #[must_use]
    pub fn exit(&self) -> PathBuf {
        self.dir.join("exit.json")
    }

    /// Held by the runner of this directory.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }
}
