//! Attempts of a program that a guest placed instead of QEMU. `tests/attacks/guest/stand_in.rs`
//! runs the binary `qemu-stand-in` once for each.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// System calls to try.
pub const CALLS: [&str; 40] = [
    "bpf: make a map",
    "bpf: load a program",
    "userfaultfd",
    "perf_event_open",
    "io_uring_setup",
    "fanotify_init",
    "add_key",
    "keyctl: a session",
    "unshare: a user namespace",
    "clone: a user namespace",
    "clone3: a user namespace",
    "fork",
    "open_by_handle_at",
    "kexec_load",
    "init_module",
    "delete_module",
    "syslog: the kernel's log",
    "reboot",
    "mount",
    "umount",
    "fsopen",
    "open_tree",
    "pivot_root",
    "chroot",
    "make a disk's device",
    "swapon",
    "acct",
    "sethostname",
    "clock_settime",
    "iopl",
    "ioperm",
    "real-time priority",
    "setuid: root",
    "setgroups: root",
    "socket: frames",
    "socket: packets",
    "socket: virtual machines",
    "socket: netlink",
    "socket: the kernel's ciphers",
    "socket: bluetooth",
];

/// Status of the binary when an attempt is refused.
pub const REFUSED: u8 = 3;

/// One attempt to reach what a process may not reach.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Attempt {
    /// Make a file, which is removed again.
    Create(PathBuf),
    /// Make a file in the directory of the runner, and leave it there.
    Leave(PathBuf),
    /// Read a file or device.
    Read(PathBuf),
    /// Open a file to write to it.
    Write(PathBuf),
    /// Connect to an address.
    Connect(String),
    /// Connect to a socket in the file system.
    ConnectUnix(PathBuf),
    /// Execute a program.
    Execute(PathBuf),
    /// Attach to a process as a debugger.
    Trace(i32),
    /// Send a signal to a process.
    Signal(i32),
    /// Read the memory of a process.
    ReadMemory(i32),
    /// Take an open file of a process.
    TakeFile(i32),
    /// Enter the namespaces of a process.
    EnterNamespaces(i32),
    /// A system call of [`CALLS`].
    Call(String),
}

impl Attempt {
    /// Target of the attempt.
    #[must_use]
    pub fn target(&self) -> String {
        match self {
            Self::Create(path)
            | Self::Leave(path)
            | Self::Read(path)
            | Self::Write(path)
            | Self::ConnectUnix(path)
            | Self::Execute(path) => path.display().to_string(),
            Self::Connect(address) => address.clone(),
            Self::Trace(_)
            | Self::Signal(_)
            | Self::ReadMemory(_)
            | Self::TakeFile(_)
            | Self::EnterNamespaces(_) => "a process of root".to_owned(),
            Self::Call(_) => "the kernel".to_owned(),
        }
    }

    /// Method of the attempt.
    #[must_use]
    pub fn how(&self) -> &str {
        match self {
            Self::Create(_) => "make a file",
            Self::Leave(_) => "make a file for its runner",
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::Connect(_) | Self::ConnectUnix(_) => "connect",
            Self::Execute(_) => "become another program",
            Self::Trace(_) => "ptrace",
            Self::Signal(_) => "signal",
            Self::ReadMemory(_) => "process_vm_readv",
            Self::TakeFile(_) => "pidfd_getfd",
            Self::EnterNamespaces(_) => "setns",
            Self::Call(name) => name,
        }
    }
}
