//! Attempts of a local user: connect to loopback and unix sockets, and open files.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use procfs::net::TcpState;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// IDs of the user and group `nobody`.
const NOBODY: u32 = 65534;

/// Acts as a user without groups and capabilities. The kernel keeps identities per thread, so the
/// test itself stays root.
///
/// # Errors
/// When the test is not root, which alone can become another user.
pub fn as_local_user<T: Send>(act: impl FnOnce() -> T + Send) -> Result<T> {
    let become_nobody = || -> rustix::io::Result<()> {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        // Gives up every capability with it.
        set_thread_res_uid(uid, uid, uid)
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| become_nobody().map(|()| act()));
        let acted = thread.join();
        acted
            .map_err(|_| anyhow!("the local user's thread panicked"))?
            .context("cannot become a local user; is the test root?")
    })
}

/// Sockets of TCP that listen in `127.BLOCK.0.0/16`.
///
/// # Errors
/// When the kernel does not list them.
pub fn listening_in(block: u8) -> Result<Vec<SocketAddr>> {
    let sockets = procfs::net::tcp()?.into_iter();
    let listening = sockets.filter(|socket| socket.state == TcpState::Listen);
    let mut found: Vec<SocketAddr> = listening
        .map(|socket| socket.local_address)
        .filter(
            |at| matches!(at.ip(), std::net::IpAddr::V4(ip) if ip.octets()[..2] == [127, block]),
        )
        .collect();
    found.sort();
    found.dedup();
    Ok(found)
}

/// Tries to read a file, list a directory or connect to a socket. Returns which of these worked.
///
/// # Errors
///
/// The kernel's refusal.
pub fn open(path: &Path) -> io::Result<&'static str> {
    use std::os::unix::fs::FileTypeExt as _;
    let kind = std::fs::symlink_metadata(path)?.file_type();
    if kind.is_socket() {
        UnixStream::connect(path).map(|_| "connected")
    } else if kind.is_dir() {
        std::fs::read_dir(path).map(|_| "listed")
    } else {
        File::open(path).map(|_| "opened")
    }
}

/// Everything below a directory, itself included.
///
/// # Errors
/// When a directory cannot be read.
pub fn tree(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![dir.to_owned()];
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(tree(&entry.path())?);
        } else {
            found.push(entry.path());
        }
    }
    Ok(found)
}
