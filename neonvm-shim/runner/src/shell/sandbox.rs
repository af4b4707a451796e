//! QEMU's sandbox on one machine, where the runner is root: a user of its own, an empty network, no
//! other process, a root directory with only its own files, and only the system calls that it needs
//! ([`calls`]).
//!
//! A thread enters the sandbox, starts QEMU and ends; the runner's other threads stay outside. QEMU
//! keeps a process number of this machine, by which the runner knows it. Inside it is process 1, so
//! nothing of it outlives it.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, mknod, umask};
use nix::unistd::{Gid, Uid, chdir, chown, pivot_root};

use crate::core::paths::SOCKETS;

mod calls;

/// Devices of the machine that QEMU has, if they exist.
const DEVICES: [&str; 6] = [
    "/dev/null",
    "/dev/zero",
    "/dev/urandom",
    "/dev/random",
    "/dev/kvm",
    "/dev/vhost-vsock",
];
/// Limits of bytes and inodes of its root directory.
const ROOT_SIZE: &str = "mode=0755,size=256k,nr_inodes=512";

/// Files, devices and user of a sandboxed QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// User and group of QEMU.
    pub user: u32,
    /// Empty directory as mount point of QEMU's root. The mount is not visible outside.
    pub root: PathBuf,
    /// Directories and files that QEMU reads, at the same paths.
    pub readable: Vec<PathBuf>,
    /// Directories and files that QEMU writes, at the same paths.
    pub writable: Vec<PathBuf>,
    /// Directory that replaces the runner's directory in the sandbox. QEMU makes its sockets there.
    pub sockets: PathBuf,
    /// The runner's directory, QEMU's working directory.
    pub dir: PathBuf,
}

impl Sandbox {
    /// Gives the writable files to QEMU's user, and links its sockets into the runner's directory.
    ///
    /// # Errors
    /// The file system's error, with the path.
    pub fn hand_over(&self) -> io::Result<()> {
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.user));
        for path in self.writable.iter().chain([&self.sockets]) {
            chown(path, Some(user), Some(group)).map_err(at("give", path))?;
        }
        for name in SOCKETS {
            let link = self.dir.join(name);
            // A link of an earlier start.
            let _ = fs::remove_file(&link);
            symlink(self.sockets.join(name), &link).map_err(at("link", &link))?;
        }
        Ok(())
    }

    /// Moves this thread and its future children into the sandbox. Only the user remains to be
    /// changed.
    ///
    /// # Errors
    /// The step that failed. The thread cannot be used again.
    pub fn enter(&self) -> io::Result<()> {
        let all = CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWPID;
        unshare(all).map_err(|error| other("cannot make namespaces", error))?;
        // It affects this thread only. QEMU's user must pass the directories of its root.
        umask(Mode::from_bits_truncate(0o022));
        let none: Option<&str> = None;
        // Mounts from here on are not visible outside.
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(none, "/", none, private, none).map_err(at("make private", Path::new("/")))?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
        mount(
            Some("none"),
            &self.root,
            Some("tmpfs"),
            flags,
            Some(ROOT_SIZE),
        )
        .map_err(at("mount", &self.root))?;
        self.fill()?;
        let sealed = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | flags;
        mount(none, &self.root, none, sealed, Some(ROOT_SIZE)).map_err(at("seal", &self.root))?;
        chdir(&self.root).map_err(at("enter", &self.root))?;
        // The old root directory is stacked on the new one, and unmounted.
        pivot_root(".", ".").map_err(at("change to", &self.root))?;
        umount2(".", MntFlags::MNT_DETACH).map_err(at("leave", Path::new("/")))?;
        chdir("/").map_err(at("enter", Path::new("/")))?;
        calls::forbid().map_err(|error| other("cannot forbid system calls", error))
    }

    fn fill(&self) -> io::Result<()> {
        let no_programs = MsFlags::MS_NOEXEC;
        // First: files of the directory are mounted on it.
        show(&self.sockets, &inside(&self.root, &self.dir), no_programs)?;
        for path in &self.readable {
            show(path, &inside(&self.root, path), MsFlags::MS_RDONLY)?;
        }
        for path in &self.writable {
            show(path, &inside(&self.root, path), no_programs)?;
        }
        DEVICES.iter().try_for_each(|device| self.device(device))
    }

    /// Device node in QEMU's `/dev`, with the numbers of the machine's.
    fn device(&self, path: &str) -> io::Result<()> {
        let Ok(there) = fs::metadata(path) else {
            return Ok(());
        };
        let node = inside(&self.root, Path::new(path));
        if !there.file_type().is_char_device() {
            return Ok(());
        }
        fs::create_dir_all(node.parent().unwrap_or(&self.root))?;
        let mode = Mode::from_bits_truncate(0o600);
        mknod(&node, SFlag::S_IFCHR, mode, there.rdev()).map_err(at("make", &node))?;
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.user));
        chown(&node, Some(user), Some(group)).map_err(at("give", &node))
    }
}

/// Path of a file of the machine below another root directory.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Bind-mounts a file or directory, without devices and setuid programs.
fn show(path: &Path, target: &Path, flags: MsFlags) -> io::Result<()> {
    let is_dir = fs::metadata(path).map_err(at("read", path))?.is_dir();
    if is_dir {
        fs::create_dir_all(target)?;
    } else {
        fs::create_dir_all(target.parent().unwrap_or(target))?;
        fs::File::create(target)?;
    }
    let none: Option<&str> = None;
    mount(Some(path), target, none, MsFlags::MS_BIND, none).map_err(at("show", path))?;
    let flags =
        flags | MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(none, target, none, flags, none).map_err(at("restrict", path))
}

/// Makes the directories of a sandbox in a runner's directory. Leftovers of an earlier QEMU are
/// removed, as they may be links.
///
/// # Errors
/// The file system's error.
pub fn directories(sandbox: &Sandbox) -> io::Result<()> {
    for dir in [&sandbox.root, &sandbox.sockets] {
        if dir.exists() {
            fs::remove_dir_all(dir)?;
        }
        fs::create_dir(dir)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn at<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> io::Error {
    move |error| other(&format!("cannot {what} {}", path.display()), error)
}

fn other<E: Into<io::Error>>(what: &str, error: E) -> io::Error {
    let error: io::Error = error.into();
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
