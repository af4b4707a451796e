//! The runner's record of its QEMU, for the next runner of the directory.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use protocol::runner::SizeOrder;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::process::ProcessId;
use crate::config::Accel;
use crate::core::budget::PlugBudget;
use crate::core::disks::Drive;
use crate::core::shape::Shape;
use crate::core::transfer::{Arrival, Leaving};
use crate::core::walls::WallState;

/// Content of `runner.json`: state that the next runner needs to adopt this QEMU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Boot id of the machine, within which the process ids are valid.
    pub host_boot_id: String,
    /// Process of QEMU. `None` while it is being started (then its pid file counts).
    pub qemu: Option<ProcessId>,
    /// The guest's network process, if it has one.
    #[serde(default)]
    pub passt: Option<ProcessId>,
    /// Walls between QEMU and this machine at its start. Empty for a QEMU of an older version.
    #[serde(default)]
    pub walls: Vec<WallState>,
    /// Accelerator that QEMU was started with.
    pub accel: Accel,
    /// Shape of QEMU at its start.
    pub shape: Shape,
    /// vCPU threads that QEMU may still start. Written before each plug, so that it is never too
    /// high.
    pub budget: Option<PlugBudget>,
    /// When QEMU was started, microseconds since 1970.
    pub started_unix_us: i64,
    /// Milliseconds from then to the first response of the guest's daemon.
    pub boot_ms: Option<u64>,
    /// Drives other than the root disk, in QEMU's order.
    #[serde(default)]
    pub drives: Vec<Drive>,
    /// Size order that was accepted last. `None` before the first.
    pub order: Option<SizeOrder>,
    /// Number of accepted size orders.
    #[serde(default)]
    pub orders: u64,
    /// Whether a stop was ordered.
    pub stop_ordered: bool,
    /// Path of QEMU's cgroup: below the root of its hierarchy, or below the runner's own where the
    /// configuration says so.
    pub cgroup: Option<String>,
    /// Migration by which the guest leaves.
    #[serde(default)]
    pub leaving: Option<Leaving>,
    /// Migration by which the guest arrived or is to arrive.
    #[serde(default)]
    pub arrival: Option<Arrival>,
    /// Whether the guest runs elsewhere, so that QEMU's end is no loss.
    #[serde(default)]
    pub moved: bool,
}

/// A file of the runner's directory that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file of this path cannot be read.
    #[error("cannot read {0}")]
    Read(String, #[source] io::Error),
    /// The file of this path cannot be written.
    #[error("cannot write {0}")]
    Write(String, #[source] io::Error),
    /// The file at this path is not the expected JSON.
    #[error("{0} is malformed")]
    Malformed(String, #[source] serde_json::Error),
}

/// Reads a JSON file; `None` if it does not exist.
///
/// # Errors
/// [`RecordError::Read`], [`RecordError::Malformed`].
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, RecordError> {
    let name = || path.display().to_string();
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| RecordError::Malformed(name(), error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(RecordError::Read(name(), error)),
    }
}

/// Writes a JSON file, mode 0600, atomically.
///
/// # Errors
/// [`RecordError::Write`].
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), RecordError> {
    // Such files describe processes, which a crash of the machine ends too.
    write_by(path, value, daemon_kit::durable::replace_lazily)
}

/// Writes a JSON file that must survive a crash of the machine.
///
/// # Errors
/// [`RecordError::Write`].
pub fn write_json_durably<T: Serialize>(path: &Path, value: &T) -> Result<(), RecordError> {
    write_by(path, value, daemon_kit::durable::replace)
}

fn write_by<T: Serialize>(
    path: &Path,
    value: &T,
    replace: fn(&Path, &[u8]) -> io::Result<()>,
) -> Result<(), RecordError> {
    let write = || -> io::Result<()> {
        let mut bytes = serde_json::to_vec_pretty(value).map_err(io::Error::other)?;
        bytes.push(b'\n');
        replace(path, &bytes)
    };
    write().map_err(|error| RecordError::Write(path.display().to_string(), error))
}

/// Makes a directory with mode 0700, and tightens an existing one.
///
/// # Errors
/// The file system's error.
pub fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_private_and_atomic() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a/b");
        private_dir(&dir).unwrap();
        assert_eq!(
            fs::metadata(&dir).unwrap().permissions().mode() & 0o777,
            0o700
        );
        let path = dir.join("x.json");
        assert_eq!(read_json::<u32>(&path).unwrap(), None);
        write_json(&path, &1_u32).unwrap();
        write_json(&path, &2_u32).unwrap();
        assert_eq!(read_json::<u32>(&path).unwrap(), Some(2));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        fs::write(&path, "{").unwrap();
        assert!(matches!(
            read_json::<u32>(&path),
            Err(RecordError::Malformed(..))
        ));
    }
}
