//! What this machine has learned: small JSON files beside the VMs' directories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::Accel;
use crate::shell::record::{RecordError, private_dir, read_json, write_json};

/// Most kernels remembered; a machine sees a handful.
const MAX_KERNELS: usize = 256;

/// The remembered choice of an accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccelRecord {
    /// Boot id of the host's kernel at the probe.
    pub host_boot_id: String,
    /// First line of `qemu-system-x86_64 --version` at the probe.
    pub qemu_version: String,
    /// Accelerator that the probe chose.
    pub accel: Accel,
    /// Reason for the choice, as one line for people.
    pub reason: String,
}

fn accel_path(dir: &Path) -> PathBuf {
    dir.join("accel.json")
}

/// Returns the remembered verdict if it is of this boot and this QEMU version.
#[must_use]
pub fn recall_accel(dir: &Path, host_boot_id: &str, qemu_version: &str) -> Option<AccelRecord> {
    // An unreadable file counts as missing: the probe runs again.
    let record: AccelRecord = read_json(&accel_path(dir)).ok().flatten()?;
    (record.host_boot_id == host_boot_id && record.qemu_version == qemu_version).then_some(record)
}

/// Writes a verdict to the knowledge directory.
///
/// # Errors
/// [`RecordError::Write`].
pub fn remember_accel(dir: &Path, record: &AccelRecord) -> Result<(), RecordError> {
    make(dir)?;
    write_json(&accel_path(dir), record)
}

/// Guest kernels that do not see hot-plugged CPUs, by `RELEASE/ACCEL`.
type Kernels = BTreeMap<String, bool>;

fn kernels_path(dir: &Path) -> PathBuf {
    dir.join("guest-kernels.json")
}

fn kernel_key(version: &str, accel: Accel) -> String {
    format!("{version}/{}", accel.as_str())
}

/// Whether a guest kernel is known not to see hot-plugged CPUs. A kernel without a version is
/// unknown.
#[must_use]
pub fn is_blind(dir: &Path, version: &str, accel: Accel) -> bool {
    let kernels: Kernels = read_json(&kernels_path(dir))
        .ok()
        .flatten()
        .unwrap_or_default();
    !version.is_empty()
        && kernels
            .get(&kernel_key(version, accel))
            .copied()
            .unwrap_or(false)
}

/// Records that a guest kernel does not see hot-plugged CPUs.
///
/// # Errors
/// [`RecordError::Write`].
pub fn remember_blind(dir: &Path, version: &str, accel: Accel) -> Result<(), RecordError> {
    if version.is_empty() {
        return Ok(());
    }
    let mut kernels: Kernels = read_json(&kernels_path(dir))
        .ok()
        .flatten()
        .unwrap_or_default();
    if kernels.len() >= MAX_KERNELS {
        kernels.pop_first();
    }
    kernels.insert(kernel_key(version, accel), true);
    make(dir)?;
    write_json(&kernels_path(dir), &kernels)
}

fn make(dir: &Path) -> Result<(), RecordError> {
    private_dir(dir).map_err(|error| RecordError::Write(dir.display().to_string(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_is_valid_for_one_boot_and_one_qemu() {
        let temp = tempfile::tempdir().unwrap();
        let record = AccelRecord {
            host_boot_id: "b".into(),
            qemu_version: "v".into(),
            accel: Accel::Tcg,
            reason: "no /dev/kvm".into(),
        };
        assert_eq!(recall_accel(temp.path(), "b", "v"), None);
        remember_accel(temp.path(), &record).unwrap();
        assert_eq!(recall_accel(temp.path(), "b", "v"), Some(record));
        assert_eq!(recall_accel(temp.path(), "c", "v"), None);
        assert_eq!(recall_accel(temp.path(), "b", "w"), None);
        std::fs::write(accel_path(temp.path()), "{").unwrap();
        assert_eq!(recall_accel(temp.path(), "b", "v"), None);
    }

    #[test]
    fn blindness_is_recorded_per_kernel_and_accelerator() {
        let temp = tempfile::tempdir().unwrap();
        assert!(!is_blind(temp.path(), "6.12", Accel::Tcg));
        remember_blind(temp.path(), "6.12", Accel::Tcg).unwrap();
        assert!(is_blind(temp.path(), "6.12", Accel::Tcg));
        assert!(!is_blind(temp.path(), "6.12", Accel::Kvm));
        remember_blind(temp.path(), "", Accel::Tcg).unwrap();
        assert!(!is_blind(temp.path(), "", Accel::Tcg));
    }
}
