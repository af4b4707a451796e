//! What a backup and the growth of the root disk ask of QEMU. `bellows` asks it over the monitor
//! for people.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
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
command!(AddFd, "add-fd");
command!(Backup, "drive-backup");
command!(Jobs, "query-jobs");
command!(Cancel, "job-cancel");
command!(Dismiss, "job-dismiss");

/// How far a backup is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupStage {
    /// Bytes copied, and bytes in all.
    Copying {
        /// Bytes copied so far.
        done: u64,
        /// In all; grows while the guest writes.
        total: u64,
    },
    /// The copy is whole.
    Whole,
    /// It ended without one.
    Failed(String),
}

/// An empty file that a backup is written to.
#[derive(Debug)]
pub struct BackupFile {
    writable: File,
    readable: File,
}

impl BackupFile {
    /// Makes the file, for its owner alone.
    ///
    /// # Errors
    /// When it exists, or as the file system says.
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
    /// Makes the root disk larger while the guest runs.
    ///
    /// # Errors
    /// When QEMU refuses or is silent.
    pub async fn grow_root_disk(&self, bytes: u64) -> Result<(), QmpFailure> {
        let grow = Resize(json!({"device": DRIVE, "size": bytes}));
        self.execute(grow).await.map(drop)
    }

    /// Begins a copy of the root disk as it is at this moment, with what its image holds, into an
    /// empty file. QEMU is given the open file: it sees no directory but its own.
    ///
    /// # Errors
    /// When QEMU refuses or is silent: one backup at a time.
    pub async fn begin_backup(&self, to: BackupFile) -> Result<(), QmpFailure> {
        self.attach(to.writable.into());
        let set = self.execute(AddFd(json!({"opaque": JOB}))).await?;
        let set = &set["fdset-id"];
        // QEMU looks at what it has made, and takes a file of the set that is open for no more than
        // that.
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
