//! Which program does a runner of this machine run? Its digest, by the process at its socket.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use daemon_kit::unix_socket;
use fleet_store::sha256_of;
use tokio::time::timeout;

/// Longest connection attempt.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// A file that does not change: device, inode, length and time of its last change.
type FileKey = (u64, u64, u64, i64);

/// Digests of programs, since many runners run the same file.
static DIGESTS: Mutex<BTreeMap<FileKey, String>> = Mutex::new(BTreeMap::new());

/// Digest of this process' program, as `sha256:HEX`.
///
/// # Errors
/// The program cannot be read.
pub fn own_program() -> io::Result<String> {
    digest(Path::new("/proc/self/exe"))
}

/// Digest of the program of the process that listens at a socket. `None` if nobody answers, or the
/// process is another user's.
pub(super) async fn of_socket(socket: PathBuf) -> Option<String> {
    let stream = timeout(CONNECT_LIMIT, unix_socket::connect(&socket)).await;
    let pid = stream.ok()?.ok()?.peer_cred().ok()?.pid()?;
    let hashing = tokio::task::spawn_blocking(move || program_of(pid));
    hashing.await.ok()?.ok()
}

/// Digest of the program of a process, as `sha256:HEX`. It can be read although the file was
/// replaced.
///
/// # Errors
/// There is no such process, or it is another user's.
pub fn program_of(pid: i32) -> io::Result<String> {
    digest(Path::new(&format!("/proc/{pid}/exe")))
}

fn digest(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    let of = file.metadata()?;
    let key = (of.dev(), of.ino(), of.len(), of.mtime());
    if let Some(known) = kept().get(&key) {
        return Ok(known.clone());
    }
    let digest = format!("sha256:{}", sha256_of(file)?);
    kept().insert(key, digest.clone());
    Ok(digest)
}

fn kept() -> std::sync::MutexGuard<'static, BTreeMap<FileKey, String>> {
    // Only whole values are stored.
    DIGESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn program_at_a_socket_is_that_of_the_process_that_listens() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("control.sock");
        assert_eq!(of_socket(socket.clone()).await, None);
        let _listener = UnixListener::bind(&socket).expect("a socket");
        let own = own_program().expect("a program");
        assert_eq!(of_socket(socket).await, Some(own.clone()));
        let hex = own.strip_prefix("sha256:").expect("a digest");
        assert_eq!(hex.len(), 64);
    }
}
