//! Queries the status of a guest that full disks of the host may have stopped: see
//! [`crate::core::disk_full`].

use serde_json::{Value, json};

use super::qmp::Qmp;
use super::qmp_transfer::{QueryBlock, QueryStatus};
use crate::core::room::{STOPPED, Standing};
use crate::core::sizer::QmpFailure;

/// `io-status` of a drive whose last write found the disk full, until the guest is resumed.
const NO_ROOM: &str = "nospace";

impl Qmp {
    /// Whether the guest runs, and if full disks stopped it, which drives they are.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn standing(&self) -> Result<Standing, QmpFailure> {
        let status = self.execute(QueryStatus(json!({}))).await?;
        let run = status["status"].as_str().unwrap_or_default().to_owned();
        let without_room = if run == STOPPED {
            without_room(&self.execute(QueryBlock(json!({}))).await?)
        } else {
            Vec::new()
        };
        Ok(Standing { run, without_room })
    }
}

fn without_room(drives: &Value) -> Vec<String> {
    let drives = drives.as_array().into_iter().flatten();
    let full = drives.filter(|drive| drive["io-status"] == NO_ROOM);
    full.filter_map(|drive| drive["device"].as_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drives_without_room_are_those_that_qemu_names() {
        let drives = json!([
            {"device": "root", "io-status": "nospace", "locked": false},
            {"device": "runtime", "io-status": "ok"},
            {"device": "disk-data", "io-status": "failed"},
            {"device": "disk-other"},
        ]);
        assert_eq!(without_room(&drives), ["root"]);
        assert_eq!(without_room(&json!(null)), Vec::<String>::new());
    }
}
