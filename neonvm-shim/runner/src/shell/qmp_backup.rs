//! What a backup and the growth of the root disk ask of QEMU. `bellows` asks it over the monitor for people.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::qmp::Qmp;
use crate::core::sizer::QmpFailure;

/// Id of the root disk's drive.
const DRIVE: &str = "root";
/// Id of the job that copies it.
const JOB: &str = "bellows-backup";

macro_rules! command {
    ($type:ident, $name:literal) => {
        #[derive(Debug, Serialize)]
        #[serde(transparent)]
        struct $type(Value);

        impl qapi::qmp::QmpCommand for $type {}
        impl qapi::Command for $type {
            type Ok = Value;
            const NAME: &'static str = $name;
            const ALLOW_OOB: bool = false;
        }
    };
}

command!(Resize, "block_resize");
command!(Backup, "drive-backup");
command!(Jobs, "query-jobs");
command!(Cancel, "job-cancel");
command!(Dismiss, "job-dismiss");

/// How far a backup is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupStage {
    /// Bytes copied, and bytes in all.
    Copying {
        /// Copied.
        done: u64,
        /// In all; grows while the guest writes.
        total: u64,
    },
    /// The copy is whole.
    Whole,
    /// It ended without one.
    Failed(String),
}

impl Qmp {
    /// Makes the root disk larger while the guest runs.
    ///
    /// # Errors
    /// When QEMU refuses or is silent.
    pub async fn grow_root_disk(&self, bytes: u64) -> Result<(), QmpFailure> {
        let grow = Resize(json!({"device": DRIVE, "size": bytes}));
        self.execute(grow).await.map(drop)
    }

    /// Begins a copy of the root disk as it is at this moment, with what its image holds.
    ///
    /// # Errors
    /// When QEMU refuses or is silent: one backup at a time.
    pub async fn begin_backup(&self, to: &Path) -> Result<(), QmpFailure> {
        let backup = json!({
            "job-id": JOB, "device": DRIVE, "target": to, "sync": "full", "format": "qcow2",
            "auto-dismiss": false,
        });
        self.execute(Backup(backup)).await.map(drop)
    }

    /// How far the backup is.
    ///
    /// # Errors
    /// When QEMU refuses or is silent.
    pub async fn backup_stage(&self) -> Result<BackupStage, QmpFailure> {
        let jobs = self.execute(Jobs(json!({}))).await?;
        let jobs = jobs.as_array().cloned().unwrap_or_default();
        let Some(job) = jobs.into_iter().find(|job| job["id"] == JOB) else {
            return Ok(BackupStage::Failed(
                "QEMU does not know the backup".to_owned(),
            ));
        };
        if job["status"] != "concluded" {
            let number = |name: &str| job[name].as_u64().unwrap_or(0);
            return Ok(BackupStage::Copying {
                done: number("current-progress"),
                total: number("total-progress"),
            });
        }
        self.execute(Dismiss(json!({"id": JOB}))).await?;
        Ok(match job["error"].as_str() {
            None => BackupStage::Whole,
            Some(error) => BackupStage::Failed(error.to_owned()),
        })
    }

    /// Ends a backup that is under way; none is as good.
    pub async fn cancel_backup(&self) {
        // Each is refused where the job is not in that state.
        let _ = self.execute(Cancel(json!({"id": JOB}))).await;
        let _ = self.execute(Dismiss(json!({"id": JOB}))).await;
    }
}
