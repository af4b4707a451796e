//! Queries the status of a guest that full disks of the host may have stopped: see
//! [`crate::core::disk_full`].

use serde_json::{Value, json};

use super::qmp::Qmp;
use super::qmp_transfer::{QueryBlock, QueryStatus};
use crate::core::disk_full::{RunStatus, STOPPED};
use crate::core::sizer::QmpFailure;

/// `io-status` of a drive whose last write found the disk full, until the guest is resumed.
const NO_SPACE: &str = "nospace";

impl Qmp {
    /// Whether the guest runs, and if full disks stopped it, which drives they are.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn run_status(&self) -> Result<RunStatus, QmpFailure> {
        let status = self.execute(QueryStatus(json!({}))).await?;
        let run = status["status"].as_str().unwrap_or_default().to_owned();
        let full_drives = if run == STOPPED {
            full_drives(&self.execute(QueryBlock(json!({}))).await?)
        } else {
            Vec::new()
        };
        Ok(RunStatus { run, full_drives })
    }
}

fn full_drives(drives: &Value) -> Vec<String> {
    let drives = drives.as_array().into_iter().flatten();
    let full = drives.filter(|drive| drive["io-status"] == NO_SPACE);
    full.filter_map(|drive| drive["device"].as_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_drives_are_read_from_query_block() {
        let drives = json!([
            {"device": "root", "io-status": "nospace", "locked": false},
            {"device": "runtime", "io-status": "ok"},
            {"device": "disk-data", "io-status": "failed"},
            {"device": "disk-other"},
        ]);
        assert_eq!(full_drives(&drives), ["root"]);
        assert_eq!(full_drives(&json!(null)), Vec::<String>::new());
    }
}
