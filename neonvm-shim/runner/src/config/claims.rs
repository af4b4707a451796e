//! Claims with the disks of a VM.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Location of a pod's claims, and the VM that their disks belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Directory with a subdirectory per claim.
    pub dir: PathBuf,
    /// Uid of the VM that owns the disks.
    pub vm_uid: String,
    /// Value of the VM's annotation about the disks of an earlier VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_disk: Option<String>,
}
