//! `bellows vm backup`: copies the root disk of a VM as it is at one moment, even while the guest
//! runs. `FILE.json` holds what is needed to create the VM again.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use neonvm_runner::core::root_disk::DiskRecord;
use neonvm_runner::node::Store;
use neonvm_runner::shell::qmp::Qmp;
use neonvm_runner::shell::qmp_backup::{BackupFile, BackupStage};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::vm_disk::{VmDisk, need_disk_space};
use crate::args::VmArgs;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::places::store_dir;
use crate::progress::Progress;
use crate::terminal::out;
use crate::view::units::memory;

/// Version of the format of [`Description`].
pub(crate) const BACKUP_FORMAT: u32 = 1;
/// Interval at which the progress of the copy is read.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Copy the root disk of a VM into a file, also while its guest runs.
///
/// The copy is as the disk was at one moment, as after a loss of power: a database recovers on it
/// as it does then. It is whole, without its image. What the VM was is in FILE.json, which
/// `vm restore` needs.
#[derive(Debug, Clone, Args)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    vm: VmArgs,
    /// The file to write; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Content of `FILE.json` beside a backup: the VM and its objects.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    /// [`BACKUP_FORMAT`] of the program that wrote it. `vm restore` refuses any other.
    pub(crate) format: u32,
    pub(crate) disk: DiskRecord,
    pub(crate) labels: Value,
    pub(crate) spec: Value,
}

pub(crate) async fn backup(context: &Context, args: &BackupArgs) -> Outcome {
    let api = context.api().await?;
    let disk = VmDisk::find(context, &api, &args.vm).await?;
    let file = std::path::absolute(&args.file).map_err(|error| broken(&args.file, &error))?;
    let described = described(&file);
    for path in [&file, &described] {
        check_is_free(path)?;
    }
    let folder = file.parent().unwrap_or(Path::new("/"));
    let image = image_of(&disk.record)?;
    let most = allocated(&disk.path)? + image.as_deref().map_or(Ok(0), allocated)?;
    need_disk_space(folder, most, "the backup")?;
    let mut progress = Progress::new();
    let draft = match disk.qemu().await? {
        Some(qemu) => by_qemu(&qemu, &disk, most, &mut progress).await?,
        None => by_qemu_img(&disk, &file, &mut progress).await?,
    };
    progress.say("putting it in place");
    put(&draft, &file).map_err(|error| broken(&file, &error))?;
    let description = Description {
        format: BACKUP_FORMAT,
        disk: disk.record.clone(),
        labels: disk.vm["metadata"]["labels"].clone(),
        spec: disk.vm["spec"].clone(),
    };
    let text = json!(description).to_string();
    daemon_kit::durable::replace(&described, text.as_bytes())
        .map_err(|error| broken(&described, &error))?;
    progress.clear();
    let size = allocated(&file)?;
    out(&format!(
        "VM {} is in {} ({}) and {}",
        disk.key(),
        file.display(),
        memory(size),
        described.display()
    ));
    Ok(())
}

fn check_is_free(path: &Path) -> Outcome {
    if path.exists() {
        return Err(Fail::usage(format!("{} exists", path.display()))
            .rule("a backup never replaces another one")
            .fix("name another file"));
    }
    Ok(())
}

/// Path of the `FILE.json` that describes a backup.
pub(crate) fn described(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".json");
    PathBuf::from(name)
}

pub(crate) fn broken(path: &Path, error: &io::Error) -> Fail {
    Fail::missing(format!("{}: {error}", path.display()))
}

/// Root disk of the image below a disk. `None` if the disk has no image below.
fn image_of(record: &DiskRecord) -> Outcome<Option<PathBuf>> {
    if record.whole {
        return Ok(None);
    }
    let store = Store::new(store_dir()?);
    let image = store.guest_of(&record.image, &record.image_digest);
    image
        .map(|image| Some(image.root_disk))
        .map_err(|error| Fail::missing(daemon_kit::chain(&error)))
}

fn allocated(path: &Path) -> Outcome<u64> {
    let file = fs::metadata(path).map_err(|error| broken(path, &error))?;
    Ok(file.blocks() * 512)
}

/// Has QEMU write the copy beside the disk. That file system has the space, and a rename stays on
/// it.
async fn by_qemu(
    qemu: &Qmp,
    disk: &VmDisk,
    most: u64,
    progress: &mut Progress,
) -> Outcome<PathBuf> {
    need_disk_space(&disk.path, most, "the backup")?;
    let draft = disk.path.with_extension("backup");
    // The backup was cancelled.
    qemu.cancel_backup().await;
    let _ = fs::remove_file(&draft);
    let target = BackupFile::create(&draft).map_err(|error| broken(&draft, &error))?;
    let refused = |message: &str| {
        Fail::missing(format!("QEMU does not copy the disk: {message}"))
            .rule("the guest runs on, and its disk is as it was")
    };
    let begun = qemu.begin_backup(target).await;
    begun.map_err(|failure| {
        let _ = fs::remove_file(&draft);
        refused(&failure.message)
    })?;
    loop {
        let stage = qemu.backup_stage().await;
        match stage.map_err(|failure| refused(&failure.message))? {
            BackupStage::Copying { done, total } => {
                progress.say(&format!("copying {} of {}", memory(done), memory(total)));
            }
            BackupStage::Whole => return Ok(draft),
            BackupStage::Failed(why) => {
                let _ = fs::remove_file(&draft);
                return Err(refused(&why));
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Copies the disk of a VM that is off.
async fn by_qemu_img(disk: &VmDisk, file: &Path, progress: &mut Progress) -> Outcome<PathBuf> {
    let draft = draft_of(file);
    let programs = Store::new(store_dir()?).programs();
    let programs = programs.map_err(|error| Fail::missing(daemon_kit::chain(&error)))?;
    progress.say("copying the disk of a VM that is off");
    let converted = tokio::process::Command::new(&programs.qemu_img)
        .args(["convert", "-f", "qcow2", "-O", "qcow2"])
        .args([&disk.path, &draft])
        .stdin(std::process::Stdio::null())
        .output()
        .await
        .map_err(|error| broken(&programs.qemu_img, &error))?;
    if converted.status.success() {
        return Ok(draft);
    }
    let _ = fs::remove_file(&draft);
    let said = String::from_utf8_lossy(&converted.stderr);
    Err(Fail::missing(format!(
        "qemu-img does not copy the disk: {}",
        said.trim()
    )))
}

fn draft_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

/// Moves a finished copy to its name, even to another file system. A file with that name is always
/// complete.
pub(crate) fn put(draft: &Path, file: &Path) -> io::Result<()> {
    File::open(draft)?.sync_all()?;
    let moved = fs::rename(draft, file);
    if let Err(error) = moved {
        if error.kind() != io::ErrorKind::CrossesDevices {
            return Err(error);
        }
        let part = draft_of(file);
        let copied = fs::copy(draft, &part).and_then(|_| File::open(&part)?.sync_all());
        if let Err(error) = copied {
            let _ = fs::remove_file(&part);
            return Err(error);
        }
        fs::rename(&part, file)?;
        fs::remove_file(draft)?;
    }
    daemon_kit::durable::sync_folder_of(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_copy_is_moved_into_place_and_described_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let [draft, file] = ["draft", "pg.backup"].map(|name| dir.path().join(name));
        fs::write(&draft, "data").unwrap();
        put(&draft, &file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "data");
        assert!(!draft.exists());
        assert_eq!(described(&file), dir.path().join("pg.backup.json"));
    }
}
