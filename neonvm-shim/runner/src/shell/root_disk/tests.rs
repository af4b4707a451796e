//! Tests of decisions around `qemu-img`, which a script replaces. `tests/root_disk.rs` runs the
//! real one.

use std::os::unix::fs::PermissionsExt;

use protocol::quantity::Quantity;
use protocol::time::WallTime;

use super::*;
use crate::core::args::tests::config as sample;
use crate::core::root_disk::{DISK_FILE, DISK_FORMAT};
use crate::shell::record::write_json_durably;

struct Rig {
    dir: tempfile::TempDir,
    config: RunnerConfig,
}

impl Rig {
    /// A disk directory whose record says `made`, and a `qemu-img` that prints `info` and ends its
    /// check with status `check`.
    fn new(made: bool, info: &str, check: i32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let record = DiskRecord {
            format: DISK_FORMAT,
            namespace: "default".into(),
            vm: "pg".into(),
            vm_uid: "uid".into(),
            image: "i".into(),
            image_digest: "ab".repeat(32),
            whole: false,
            bytes: 1 << 30,
            created: WallTime(1),
            made,
            released: false,
        };
        write_json_durably(&dir.path().join(RECORD_FILE), &record).unwrap();
        let tool = dir.path().join("qemu-img");
        let log = dir.path().join("log");
        // The draft's path is the ninth word of `create`.
        let script = format!(
            "#!/bin/sh\necho \"$1\" >> {log}\ncase $1 in\ncreate) echo whole > \"$9\";;\ninfo) {info};;\n\
             check) echo 'found something' >&2; exit {check};;\nesac\n",
            log = log.display()
        );
        fs::write(&tool, script).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let mut config = sample();
        config.programs.qemu_img = tool;
        config.root_overlay = Some(dir.path().join(DISK_FILE));
        Self { dir, config }
    }

    fn sound(made: bool) -> Self {
        Self::new(made, &says("qcow2", "/i/root.ext4", ""), 0)
    }

    fn disk(&self) -> PathBuf {
        self.dir.path().join(DISK_FILE)
    }

    async fn open(&self) -> Result<(), String> {
        loop {
            let opened = open(&self.config, &self.disk())
                .await
                .map_err(|error| daemon_kit::chain(&error));
            // A child of another test, forked during the write, still has the script open.
            if !opened
                .as_ref()
                .is_err_and(|why| why.contains("Text file busy"))
            {
                return opened;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    fn record(&self) -> DiskRecord {
        let path = self.dir.path().join(RECORD_FILE);
        read_json(&path).unwrap().unwrap()
    }

    fn ran(&self) -> String {
        let log = fs::read_to_string(self.dir.path().join("log"));
        log.unwrap_or_default().replace('\n', " ")
    }
}

fn says(format: &str, backing: &str, more: &str) -> String {
    format!(
        r#"echo '{{"virtual-size": 1073741824, "format": "{format}", "backing-filename": "{backing}"{more}}}'"#
    )
}

#[tokio::test]
async fn disk_is_made_once_and_then_used_as_it_is() {
    let rig = Rig::sound(false);
    rig.open().await.unwrap();
    assert!(rig.record().made);
    assert_eq!(rig.ran(), "create info check ");
    fs::write(rig.disk(), "data of the guest").unwrap();
    rig.open().await.unwrap();
    assert_eq!(rig.ran(), "create info check info check ");
    assert_eq!(fs::read_to_string(rig.disk()).unwrap(), "data of the guest");
}

#[tokio::test]
async fn disk_grows_to_the_size_of_the_spec() {
    let mut rig = Rig::sound(true);
    fs::write(rig.disk(), "data").unwrap();
    rig.config.spec.guest.root_disk.size = Some(Quantity::from_bytes(4 << 30));
    rig.open().await.unwrap();
    assert_eq!(rig.ran(), "info check resize ");
    assert_eq!(rig.record().bytes, 4 << 30);
}

#[tokio::test]
async fn disk_that_is_missing_or_has_no_record_is_never_made_again() {
    let rig = Rig::sound(true);
    let refused = rig.open().await.unwrap_err();
    assert!(refused.contains("is missing"), "{refused}");
    assert!(!rig.disk().exists());
    fs::write(rig.disk(), "data").unwrap();
    fs::remove_file(rig.dir.path().join(RECORD_FILE)).unwrap();
    let refused = rig.open().await.unwrap_err();
    assert!(refused.contains("has no disk.json"), "{refused}");
    assert_eq!(fs::read_to_string(rig.disk()).unwrap(), "data");
    assert_eq!(rig.ran(), "");
}

#[tokio::test]
async fn disk_of_another_image_or_with_data_elsewhere_is_refused() {
    let elsewhere = r#", "format-specific": {"data": {"data-file": "/etc/shadow"}}"#;
    for info in [
        says("qcow2", "/etc/shadow", ""),
        says("raw", "/i/root.ext4", ""),
        says("qcow2", "/i/root.ext4", elsewhere),
    ] {
        let rig = Rig::new(true, &info, 0);
        fs::write(rig.disk(), "data").unwrap();
        let refused = rig.open().await.unwrap_err();
        assert!(refused.contains("instead of \"/i/root.ext4\""), "{refused}");
        assert_eq!(rig.ran(), "info ", "nothing else was read");
    }
}

#[tokio::test]
async fn damaged_disk_is_refused_and_leaked_clusters_are_not_damage() {
    for (check, fits) in [(0, true), (1, false), (2, false), (3, true)] {
        let rig = Rig::new(true, &says("qcow2", "/i/root.ext4", ""), check);
        fs::write(rig.disk(), "data").unwrap();
        let opened = rig.open().await;
        assert_eq!(opened.is_ok(), fits, "{check}: {opened:?}");
        if let Err(refused) = opened {
            assert!(refused.contains("found something"), "{refused}");
        }
    }
}

#[tokio::test]
async fn full_disk_leaves_no_draft_and_the_disk_is_made_later() {
    let rig = Rig::sound(false);
    let tool = fs::read_to_string(&rig.config.programs.qemu_img).unwrap();
    let full = tool.replace(
        "echo whole > \"$9\"",
        "echo half > \"$9\"; echo No space left >&2; exit 1",
    );
    assert_ne!(full, tool);
    fs::write(&rig.config.programs.qemu_img, full).unwrap();
    let refused = rig.open().await.unwrap_err();
    assert!(
        refused.contains("is there room") && refused.contains("No space left"),
        "{refused}"
    );
    assert!(!rig.disk().exists() && !rig.record().made);
    assert!(!rig.dir.path().join("root.qcow2.new").exists());
    fs::write(&rig.config.programs.qemu_img, tool).unwrap();
    rig.open().await.unwrap();
    assert!(rig.disk().exists());
}

#[tokio::test]
async fn disk_open_in_another_qemu_is_reported() {
    let held = r#"echo 'Failed to get shared "write" lock' >&2; exit 1"#;
    let rig = Rig::new(true, held, 0);
    fs::write(rig.disk(), "data").unwrap();
    let refused = rig.open().await.unwrap_err();
    assert!(refused.contains("in use by another QEMU"), "{refused}");
}
