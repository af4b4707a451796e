//! QMP commands for backups and for growing the root disk. `bellows` sends them over the monitor
//! for people.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::qmp::Qmp;
use crate::core::sizer::QmpFailure;

const DRIVE: &str = "root";
/// Id of the backup's job.
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
command!(AddFd, "add-fd");
command!(Backup, "drive-backup");
command!(Jobs, "query-jobs");
command!(Cancel, "job-cancel");
command!(Dismiss, "job-dismiss");

/// Progress of the backup's job in QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupStage {
    /// The copy is in progress.
    Copying {
        /// Bytes that were copied so far.
        done: u64,
        /// Bytes in total; grows while the guest writes.
        total: u64,
    },
    /// The copy is complete and can be read.
    Whole,
    /// The copy has failed for this reason.
    Failed(String),
}

/// An empty file for a backup.
#[derive(Debug)]
pub struct BackupFile {
    writable: File,
    readable: File,
}

impl BackupFile {
    /// Creates the file with mode 0600.
    ///
    /// # Errors
    /// The file exists, or the file system's error.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut new = File::options();
        new.read(true).write(true).create_new(true).mode(0o600);
        Ok(Self {
            writable: new.open(path)?,
            readable: File::open(path)?,
        })
    }
}

impl Qmp {
    /// Grows the root disk of a running guest to this size.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn grow_root_disk(&self, bytes: u64) -> Result<(), QmpFailure> {
        let grow = Resize(json!({"device": DRIVE, "size": bytes}));
        self.execute(grow).await.map(drop)
    }

    /// Begins a copy of the root disk at this moment, with its image's content, into an empty file.
    /// QEMU gets the open file, as it sees no directory but its own.
    ///
    /// # Errors
    /// QEMU refuses, for example during another backup, or does not answer.
    pub async fn begin_backup(&self, to: BackupFile) -> Result<(), QmpFailure> {
        self.attach(to.writable.into());
        let set = self.execute(AddFd(json!({"opaque": JOB}))).await?;
        let set = &set["fdset-id"];
        // QEMU also opens the new file for reading, and picks a descriptor of the set with that
        // mode.
        self.attach(to.readable.into());
        self.execute(AddFd(json!({"opaque": JOB, "fdset-id": set})))
            .await?;
        let target = format!("/dev/fdset/{set}");
        let backup = json!({
            "job-id": JOB, "device": DRIVE, "target": target, "sync": "full", "format": "qcow2",
            "auto-dismiss": false,
        });
        self.execute(Backup(backup)).await.map(drop)
    }

    /// Progress of the backup.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
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

    /// Cancels a backup in progress. Without one it has no effect.
    pub async fn cancel_backup(&self) {
        // QEMU refuses each command where the job is not in its state.
        let _ = self.execute(Cancel(json!({"id": JOB}))).await;
        let _ = self.execute(Dismiss(json!({"id": JOB}))).await;
    }
}
