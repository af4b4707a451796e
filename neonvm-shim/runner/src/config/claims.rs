//! Where the disks of a VM on claims are.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where the claims of the pod are, and whose disks they hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Directory with a directory for each claim.
    pub dir: PathBuf,
    /// Uid of the VM.
    pub vm_uid: String,
    /// What the VM says of the disks of an earlier VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_disk: Option<String>,
}
