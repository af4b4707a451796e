//! `bellows vm restore`: recreates a VM from the files that `bellows vm backup` wrote.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use neonvm_runner::core::root_disk::{DISK_FILE, DiskRecord, RECORD_FILE};
use neonvm_runner::node::Store;
use protocol::annotations::ANNOTATION_USE_DISK;
use protocol::postgres;
use protocol::vm::API_VERSION;
use serde_json::{Value, json};

use super::backup::{BACKUP_FORMAT, Description, broken, described};
use super::vm_disk::{dir_of, need_disk_space, not_in_a_cluster};
use crate::api::Kind;
use crate::args::VmArgs;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::places::create_private_dir;
use crate::places::store_dir;
use crate::postgres::make_secret;
use crate::progress::Progress;
use crate::terminal::out;
use crate::view::units::memory;
use crate::vm_state::wait_until_running;

/// Bytes copied between two reports of progress.
const PART: usize = 4 << 20;
/// Longest `FILE.json` that is read.
const MAX_DESCRIPTION_BYTES: u64 = 8 << 20;

/// Make a VM from a backup, under the same name or another one. There must be no VM and no disk of
/// that name.
#[derive(Debug, Clone, Args)]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    vm: VmArgs,
    /// The file that `vm backup` wrote, with FILE.json beside it
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Wait until it runs
    #[arg(long)]
    wait: bool,
    /// Give up waiting after this many seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS", requires = "wait")]
    timeout: u64,
}

pub(crate) async fn restore(context: &Context, args: &RestoreArgs) -> Outcome {
    not_in_a_cluster(context)?;
    let (namespace, name) = args.vm.key();
    let description = read(&args.file)?;
    let store = Store::new(store_dir()?);
    let disk = &description.disk;
    store
        .guest_of(&disk.image, &disk.image_digest)
        .map_err(|error| {
            Fail::missing(daemon_kit::chain(&error))
                .rule("the guest boots the kernel of the image that it was made of")
        })?;
    let state = context.state()?;
    let dir = dir_of(&state, namespace, name);
    let api = context.api().await?;
    if api.get(Kind::Vm, namespace, name).await.is_ok() || dir.exists() {
        return Err(
            Fail::usage(format!("there is a VM or a disk {namespace}/{name}"))
                .rule("a restore never replaces a disk")
                .fix("restore under another name, or delete that VM"),
        );
    }
    create_private_dir(&state.disks())?;
    let record = DiskRecord {
        namespace: namespace.to_owned(),
        vm: name.to_owned(),
        vm_uid: "restored".to_owned(),
        whole: true,
        made: true,
        released: true,
        ..description.disk.clone()
    };
    place(&args.file, &dir, &record)?;
    let object = object(namespace, name, &description);
    let vm = api
        .create(Kind::Vm, namespace, name, &object, false)
        .await?;
    make_secret(&api, &vm).await?;
    out(&format!(
        "VM {namespace}/{name} created from {}",
        args.file.display()
    ));
    if args.wait {
        return wait_until_running(&api, namespace, name, args.timeout).await;
    }
    Ok(())
}

fn read(file: &Path) -> Outcome<Description> {
    let path = described(file);
    let mut text = String::new();
    File::open(&path)
        .and_then(|file| file.take(MAX_DESCRIPTION_BYTES).read_to_string(&mut text))
        .map_err(|error| broken(&path, &error).rule("vm backup writes it beside the disk"))?;
    let wrong = |why: String| {
        Fail::usage(format!(
            "{} is no description of a backup: {why}",
            path.display()
        ))
    };
    let description: Description =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if description.format != BACKUP_FORMAT {
        return Err(wrong(format!(
            "its format is {}, not {BACKUP_FORMAT}",
            description.format
        )));
    }
    Ok(description)
}

/// Copies the disk into a draft directory and renames it. A directory with the final name is
/// complete.
fn place(file: &Path, dir: &Path, record: &DiskRecord) -> Outcome {
    let length = fs::metadata(file).map_err(|error| broken(file, &error))?;
    let parent = dir.parent().unwrap_or(dir);
    need_disk_space(parent, length.blocks() * 512, "the disk")?;
    let draft = dir.with_extension("restoring");
    // The restore failed.
    let _ = fs::remove_dir_all(&draft);
    create_private_dir(&draft)?;
    let mut progress = Progress::new();
    let copied = copy(file, &draft.join(DISK_FILE), length.len(), &mut progress).and_then(|()| {
        let text = serde_json::to_vec_pretty(record)?;
        daemon_kit::durable::replace(&draft.join(RECORD_FILE), &text)?;
        fs::rename(&draft, dir)?;
        daemon_kit::durable::sync_folder_of(dir)
    });
    progress.clear();
    copied.map_err(|error| {
        let _ = fs::remove_dir_all(&draft);
        broken(dir, &error)
    })
}

fn copy(from: &Path, to: &Path, length: u64, progress: &mut Progress) -> io::Result<()> {
    let (mut from, mut to) = (File::open(from)?, File::create_new(to)?);
    let (mut part, mut done) = (vec![0; PART], 0_u64);
    loop {
        let count = from.read(&mut part)?;
        if count == 0 {
            return to.sync_all();
        }
        to.write_all(&part[..count])?;
        done += count as u64;
        progress.say(&format!("copying {} of {}", memory(done), memory(length)));
    }
}

/// The VM object without the fields of its earlier life.
fn object(namespace: &str, name: &str, description: &Description) -> Value {
    let mut spec = description.spec.clone();
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("targetRevision");
    }
    own_password(&mut spec, &description.disk.vm, name);
    let mut metadata = json!({
        "name": name, "namespace": namespace, "annotations": {ANNOTATION_USE_DISK: "true"},
    });
    if description.labels.is_object() {
        metadata["labels"] = description.labels.clone();
    }
    json!({"apiVersion": API_VERSION, "kind": "VirtualMachine", "metadata": metadata, "spec": spec})
}

/// Gives a VM with a new name its own password secret, if the original had one.
fn own_password(spec: &mut Value, before: &str, name: &str) {
    let old = postgres::disk(&postgres::secret_name(before));
    let disks = spec.get_mut("disks").and_then(Value::as_array_mut);
    for disk in disks.into_iter().flatten() {
        if disk["mountPath"] == old["mountPath"] && disk["secret"] == old["secret"] {
            disk["secret"] = postgres::disk(&postgres::secret_name(name))["secret"].clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Value {
        json!({
            "format": 1, "namespace": "a", "vm": "pg", "vm_uid": "u", "image": "i", "image_digest": "ab",
            "bytes": 4, "created": "2025-01-31T23:59:59Z", "made": true,
        })
    }

    #[test]
    fn restored_vm_takes_over_its_disk_and_keeps_labels_and_spec() {
        let description = Description {
            format: BACKUP_FORMAT,
            disk: serde_json::from_value(record()).unwrap(),
            labels: json!({"x": "y"}),
            spec: json!({"guest": {}, "targetRevision": {"revision": 1}}),
        };
        let object = object("b", "copy", &description);
        assert_eq!(
            object["metadata"]["annotations"],
            json!({ANNOTATION_USE_DISK: "true"})
        );
        assert_eq!(object["metadata"]["labels"], json!({"x": "y"}));
        assert_eq!(object["spec"], json!({"guest": {}}));
    }

    #[test]
    fn restored_vm_of_another_name_gets_a_password_of_its_own() {
        let restored = |secret: &str| {
            let mut spec = json!({"disks": [{"name": "x", "tmpfs": {}}, postgres::disk(secret)]});
            own_password(&mut spec, "pg", "copy");
            assert_eq!(spec["disks"][0], json!({"name": "x", "tmpfs": {}}));
            postgres::secret_of(&json!({"spec": spec})).map(str::to_owned)
        };
        assert_eq!(restored("postgres-pg"), Some("postgres-copy".into()));
        assert_eq!(restored("chosen"), Some("chosen".into()));
    }

    #[test]
    fn backup_without_its_description_is_refused_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pg.backup");
        assert!(
            read(&file)
                .unwrap_err()
                .to_string()
                .contains("pg.backup.json")
        );
        fs::write(described(&file), "{}").unwrap();
        assert!(
            read(&file)
                .unwrap_err()
                .to_string()
                .contains("no description")
        );
        let disk = dir.path().join("disks/a_pg");
        let record = serde_json::from_value(record()).unwrap();
        assert!(place(&file, &disk, &record).is_err(), "there is no file");
        fs::create_dir_all(dir.path().join("disks")).unwrap();
        fs::write(&file, "data").unwrap();
        place(&file, &disk, &record).unwrap();
        assert_eq!(fs::read_to_string(disk.join(DISK_FILE)).unwrap(), "data");
        assert!(disk.join(RECORD_FILE).exists());
        assert_eq!(fs::read_dir(dir.path().join("disks")).unwrap().count(), 1);
    }
}
