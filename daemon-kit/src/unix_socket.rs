//! Unix sockets at paths of any length. The kernel accepts at most 107 bytes.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use tokio::net::UnixStream;

/// Longer paths of sockets are opened through their directory.
const PATH_LIMIT_BYTES: usize = 100;

/// A path of a socket that the kernel accepts. It is valid while this value lives.
#[derive(Debug)]
pub struct ShortPath {
    path: PathBuf,
    _dir: Option<File>,
}

impl ShortPath {
    /// # Errors
    /// When the socket's directory cannot be opened.
    pub fn new(socket: &Path) -> std::io::Result<Self> {
        match (socket.parent(), socket.file_name()) {
            (Some(parent), Some(name)) if socket.as_os_str().len() > PATH_LIMIT_BYTES => {
                let dir = File::open(parent)?;
                let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
                Ok(Self {
                    path,
                    _dir: Some(dir),
                })
            }
            _ => Ok(Self {
                path: socket.to_owned(),
                _dir: None,
            }),
        }
    }

    /// The path to bind or connect.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Connects to a unix socket.
///
/// # Errors
/// The kernel's error.
pub async fn connect(socket: &Path) -> std::io::Result<UnixStream> {
    let short = ShortPath::new(socket)?;
    UnixStream::connect(short.path()).await
}
