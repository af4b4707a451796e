//! Tests of disks on claims with real files. A script replaces `qemu-img`. Requirement: D1.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use protocol::quantity::Quantity;
use protocol::vm::{ClaimRef, Disk};
use serde_json::json;

use super::*;
use crate::core::args::tests::config as sample;
use crate::core::disks::plan;

const MIB: u64 = 1 << 20;
/// Writes a word to the tenth argument of `convert`.
const QEMU_IMG: &str = "#!/bin/sh\nprintf image 1<> \"${10}\"\n";

struct Rig {
    dir: tempfile::TempDir,
    config: RunnerConfig,
}

impl Rig {
    /// A VM with a root disk of 2 MiB and a disk of 16 MiB, each on an empty claim.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for drive in ["root", "disk-data"] {
            fs::create_dir(dir.path().join(drive)).unwrap();
        }
        let tool = dir.path().join("qemu-img");
        fs::write(&tool, QEMU_IMG).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let mut config = sample();
        config.programs.qemu_img = tool;
        config.image.root_disk_bytes = MIB;
        let root = &mut config.spec.guest.root_disk;
        root.size = Some(Quantity::from_bytes(2 * MIB));
        root.persistent = true;
        root.persistent_volume_claim = Some(ClaimRef {
            claim_name: "pg-root".into(),
        });
        let disk = json!({"name": "data", "mountPath": "/data",
            "persistentVolumeClaim": {"claimName": "pg-data", "size": "16Mi"}});
        config.spec.disks = vec![serde_json::from_value::<Disk>(disk).unwrap()];
        config.claims = Some(Claims {
            dir: dir.path().to_owned(),
            vm_uid: "first".into(),
            use_disk: None,
        });
        Self { dir, config }
    }

    fn claims(&mut self) -> &mut Claims {
        self.config.claims.as_mut().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn open(&self) -> Result<OpenDisks, String> {
        let plan = plan(&self.config.spec, None, None).unwrap();
        loop {
            let opened = open(&self.config, &plan, WallTime(1))
                .await
                .map_err(|error| daemon_kit::chain(&error));
            // A child of another test, forked during the write, still has the script open.
            let is_busy = |why: &String| why.contains("Text file busy");
            if !opened.as_ref().is_err_and(is_busy) {
                return opened;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn refused(&self) -> String {
        self.open().await.map(drop).unwrap_err()
    }

    fn record(&self, name: &str) -> DiskRecord {
        read_record(&self.path(name)).unwrap().unwrap()
    }

    fn size(&self, name: &str) -> u64 {
        fs::metadata(self.path(name)).unwrap().len()
    }
}

#[tokio::test]
async fn disks_are_made_once_and_then_used_as_they_are() {
    let rig = Rig::new();
    let opened = rig.open().await.unwrap();
    assert_eq!((opened.files.len(), opened.locks.len()), (2, 2));
    let root = fs::read(rig.path("root/root.raw")).unwrap();
    assert!(root.starts_with(b"image\0"));
    assert_eq!(root.len() as u64, 2 * MIB);
    let data = fs::read(rig.path("disk-data/disk-data.raw")).unwrap();
    assert_eq!(data[0x438..0x43a], [0x53, 0xef], "it is ext4");
    assert_eq!(data.len() as u64, 16 * MIB);
    for record in ["root/disk.json", "disk-data/disk-data.json"] {
        let record = rig.record(record);
        assert!(record.made && record.whole, "{record:?}");
        assert_eq!(record.vm_uid, "first");
    }
    drop(opened);
    fs::remove_file(rig.path("qemu-img")).unwrap();
    let mut written = fs::read(rig.path("root/root.raw")).unwrap();
    written[..5].copy_from_slice(b"guest");
    fs::write(rig.path("root/root.raw"), &written).unwrap();
    rig.open().await.unwrap();
    assert_eq!(fs::read(rig.path("root/root.raw")).unwrap(), written);
}

#[tokio::test]
async fn interrupted_disk_is_made_again() {
    let rig = Rig::new();
    drop(rig.open().await.unwrap());
    fs::remove_file(rig.path("root/root.raw")).unwrap();
    fs::write(rig.path("root/root.raw.new"), "half").unwrap();
    let record = DiskRecord {
        made: false,
        ..rig.record("root/disk.json")
    };
    write_json_durably(&rig.path("root/disk.json"), &record).unwrap();
    rig.open().await.unwrap();
    assert!(rig.record("root/disk.json").made);
    assert_eq!(rig.size("root/root.raw"), 2 * MIB);
    assert!(!rig.path("root/root.raw.new").exists());
}

#[tokio::test]
async fn disk_of_another_vm_is_refused_and_taken_over_on_request() {
    let mut rig = Rig::new();
    drop(rig.open().await.unwrap());
    rig.claims().vm_uid = "second".into();
    let refused = rig.refused().await;
    assert!(
        refused.contains("disk of VM default/pg (uid first)"),
        "{refused}"
    );
    assert_eq!(rig.record("root/disk.json").vm_uid, "first");
    rig.claims().use_disk = Some("first".into());
    rig.open().await.unwrap();
    assert_eq!(rig.record("root/disk.json").vm_uid, "second");
    assert_eq!(rig.record("disk-data/disk-data.json").vm_uid, "second");
    rig.claims().use_disk = None;
    rig.open().await.unwrap();
}

#[tokio::test]
async fn locked_disk_is_not_opened() {
    let rig = Rig::new();
    let opened = rig.open().await.unwrap();
    let short = Duration::from_millis(1);
    let path = rig.path("root/root.lock");
    let refused = lock(&path, short).await.unwrap_err().to_string();
    assert!(refused.contains("in use by another runner"), "{refused}");
    drop(opened);
    lock(&path, short).await.unwrap();
}

#[tokio::test]
async fn foreign_object_in_place_of_a_file_is_refused() {
    let secret = "a file of the container";
    for name in [
        "root/root.raw",
        "root/disk.json",
        "root/root.lock",
        "disk-data/disk-data.raw",
    ] {
        for put in ["a link", "no regular file", "a file with another name"] {
            let rig = Rig::new();
            drop(rig.open().await.unwrap());
            let (place, other) = (rig.path(name), rig.path("secret"));
            fs::write(&other, secret).unwrap();
            fs::remove_file(&place).unwrap();
            match put {
                "a link" => symlink(&other, &place).unwrap(),
                "no regular file" => mkfifo(&place, Mode::S_IRWXU).unwrap(),
                _ => fs::hard_link(&other, &place).unwrap(),
            }
            let refused = rig.refused().await;
            assert!(refused.contains(&format!("is {put}")), "{name}: {refused}");
            assert_eq!(fs::read_to_string(&other).unwrap(), secret);
        }
    }
}

#[tokio::test]
async fn link_in_place_of_a_draft_is_replaced_and_not_followed() {
    let rig = Rig::new();
    let other = rig.path("secret");
    fs::write(&other, "kept").unwrap();
    symlink(&other, rig.path("root/root.raw.new")).unwrap();
    rig.open().await.unwrap();
    assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
    assert!(
        rig.path("root/root.raw")
            .symlink_metadata()
            .unwrap()
            .is_file()
    );
}

#[tokio::test]
async fn truncated_disk_is_refused_and_small_disk_grows() {
    let mut rig = Rig::new();
    drop(rig.open().await.unwrap());
    rig.config.spec.guest.root_disk.size = Some(Quantity::from_bytes(4 * MIB + 1));
    drop(rig.open().await.unwrap());
    assert_eq!(rig.size("root/root.raw"), 4 * MIB + 4096);
    assert_eq!(rig.record("root/disk.json").bytes, 4 * MIB + 4096);
    let disk = File::options().write(true).open(rig.path("root/root.raw"));
    disk.unwrap().set_len(MIB).unwrap();
    let refused = rig.refused().await;
    assert!(
        refused.contains("is damaged: it has 1048576 bytes"),
        "{refused}"
    );
    assert_eq!(rig.size("root/root.raw"), MIB);
}

#[tokio::test]
async fn full_claim_leaves_no_draft() {
    let rig = Rig::new();
    let full = "#!/bin/sh\necho No space left >&2; exit 1\n";
    fs::write(&rig.config.programs.qemu_img, full).unwrap();
    let refused = rig.refused().await;
    assert!(refused.contains("is there room on the claim"), "{refused}");
    assert!(refused.contains("No space left"), "{refused}");
    assert!(!rig.path("root/root.raw.new").exists());
    assert!(!rig.record("root/disk.json").made);
}
