use super::*;
use crate::core::args::tests::config;
use crate::core::disks::RUNTIME_LABEL;
use crate::core::disks::{DriveKind, plan};
use protocol::vm::Disk;
use serde_json::json;
use std::process::Command;
use test_records::{Missing, skip};

/// A runner's directory with a `qemu-img` that copies.
fn place() -> (tempfile::TempDir, RunnerConfig, Paths) {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let mut config = config();
    let img = dir.path().join("img");
    fs::write(
        &img,
        "#!/bin/sh\nshift 8\nexec cp --sparse=always \"$1\" \"$2\"\n",
    )
    .unwrap();
    fs::set_permissions(&img, fs::Permissions::from_mode(0o755)).unwrap();
    config.programs.qemu_img = img;
    let paths = Paths::new(dir.path());
    (dir, config, paths)
}

fn disk(value: serde_json::Value) -> Disk {
    serde_json::from_value(value).unwrap()
}

#[tokio::test]
async fn drives_hold_the_files_of_the_spec_only() {
    let (dir, mut config, paths) = place();
    config.spec.disks = vec![
        disk(json!({"name": "map", "mountPath": "/etc/map", "configMap": {"name": "m"}})),
        disk(
            json!({"name": "data", "mountPath": "/data", "emptyDisk": {"size": "64Mi", "enableQuotas": true}}),
        ),
    ];
    let volume = paths.mounts().join("etc/map");
    let files = BTreeMap::from([("key".to_owned(), vec![7; 3000])]);
    neonvm_files::projected::write(&volume, &files, protocol::time::WallTime(0)).unwrap();
    fs::create_dir(volume.join("directory")).unwrap();
    let plan = plan(&config.spec, Some("ssh-ed25519 AAAA"), None).unwrap();
    let drives = make_all(&config, &paths, &plan).await.unwrap();
    assert_eq!(drives.len(), 4);
    let image = fs::read(paths.drive(&drives[2])).unwrap();
    assert_eq!(image, iso("map", &files, &[]).unwrap());
    let output = Command::new("/sbin/blkid")
        .args(["-p", "-o", "export"])
        .arg(paths.drive(&drives[3]))
        .output();
    if let Ok(output) = output {
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(
            said.contains("LABEL=data") && said.contains("TYPE=ext4"),
            "{said}"
        );
    }
    let mut names: Vec<String> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected = [
        "disk-data.qcow2",
        "disk-map.iso",
        "img",
        "mounts",
        "runtime.iso",
        "ssh-authorized-keys.iso",
    ];
    assert_eq!(names, expected);
    let again = sha256(&paths.drive(&drives[0])).unwrap();
    make_all(&config, &paths, &plan).await.unwrap();
    assert_eq!(sha256(&paths.drive(&drives[0])).unwrap(), again);
}

#[tokio::test]
async fn missing_files_name_the_disk() {
    let (_dir, mut config, paths) = place();
    config.spec.disks = vec![disk(
        json!({"name": "late", "mountPath": "/etc/late", "secret": {"secretName": "s"}}),
    )];
    let late = plan(&config.spec, None, None).unwrap();
    let error = make_all(&config, &paths, &late).await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("disk late: cannot read its files in "),
        "{error}"
    );
    assert!(error.to_string().contains("mounts/etc/late"), "{error}");
}

#[tokio::test]
async fn full_disk_names_the_drive_and_leaves_no_partial_file() {
    let (_dir, mut config, _) = place();
    config.spec.guest.settings = Some(protocol::vm::GuestSettings {
        sysctl: Vec::new(),
        swap: Some(protocol::quantity::Quantity::from_bytes(64 << 20)),
    });
    let plan = plan(&config.spec, None, None).unwrap();
    // `/dev/full` accepts no bytes, as a full file system.
    let full = tempfile::tempdir().unwrap();
    let paths = Paths::new(full.path());
    let swap = &plan.drives[1];
    std::os::unix::fs::symlink("/dev/full", full.path().join("target")).unwrap();
    config.programs.qemu_img = "/bin/false".into();
    let error = make(&config, &paths, swap).await.unwrap_err();
    assert!(error.to_string().starts_with("disk swapdisk: "), "{error}");
    assert!(
        error.to_string().contains("is there room on the node?"),
        "{error}"
    );
    assert!(!full.path().join("swapdisk.raw").exists());
    let nowhere = Paths::new(full.path().join("gone"));
    let error = make(&config, &nowhere, &plan.drives[0]).await.unwrap_err();
    let expected = format!("disk {RUNTIME_LABEL}: cannot write");
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert_eq!(plan.drives[1].drive.kind, DriveKind::FreedBlocks);
}

#[test]
fn blkid_finds_the_label() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.iso");
    fs::write(
        &path,
        iso(
            "vmruntime",
            &BTreeMap::from([("a".to_owned(), b"b".to_vec())]),
            &[],
        )
        .unwrap(),
    )
    .unwrap();
    let Ok(output) = Command::new("blkid")
        .args(["-p", "-o", "export"])
        .arg(&path)
        .output()
    else {
        return skip("blkid_finds_the_label", Missing::Tool, "blkid");
    };
    let said = String::from_utf8(output.stdout).unwrap();
    for line in ["LABEL=vmruntime", "TYPE=iso9660", "BLOCK_SIZE=2048"] {
        assert!(said.lines().any(|said| said == line), "{line}: {said}");
    }
}

#[test]
fn swap_header_equals_that_of_mkswap() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let bytes: u64 = 64 << 20;
    for path in [&ours, &theirs] {
        File::create(path).unwrap().set_len(bytes).unwrap();
    }
    let file = File::options().write(true).open(&ours).unwrap();
    file.write_all_at(&swap_header(bytes, SWAP), 0).unwrap();
    let Ok(made) = Command::new("mkswap")
        .args(["-L", SWAP])
        .arg(&theirs)
        .output()
    else {
        return skip("swap_header_equals_that_of_mkswap", Missing::Tool, "mkswap");
    };
    assert!(made.status.success(), "{made:?}");
    let read = |path| fs::read(path).unwrap();
    let (ours, mut theirs) = (read(&ours), read(&theirs));
    // Its UUID is random.
    theirs[1036..1052].fill(0);
    assert!(ours[..4096] == theirs[..4096], "the first page differs");
}
