use serde_json::Value;

use super::*;
use crate::config::RunnerConfig;

const UID: &str = "uid-1";

struct Fixture {
    state: tempfile::TempDir,
}

impl Fixture {
    /// A state directory with the disk of VM `default/pg`.
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let place = Self { state };
        fs::create_dir_all(place.dir()).unwrap();
        let record = DiskRecord {
            format: DISK_FORMAT,
            namespace: "default".into(),
            vm: "pg".into(),
            vm_uid: UID.into(),
            image: "bellows/postgres:15".into(),
            image_digest: "ab".repeat(32),
            whole: false,
            bytes: 1 << 30,
            created: WallTime(1),
            made: true,
            released: false,
        };
        write_json_durably(&place.dir().join(RECORD_FILE), &record).unwrap();
        fs::write(place.dir().join(DISK_FILE), "data").unwrap();
        place
    }

    fn dir(&self) -> PathBuf {
        dir_of(self.state.path(), "default", "pg")
    }

    fn vms(&self) -> PathBuf {
        self.state.path().join("vms")
    }

    fn let_go(&self, uid: &str, annotations: Value) -> Result<LetGo, DiskClaimError> {
        let vm = json!({
            "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
            "metadata": {"name": "pg", "namespace": "default", "uid": uid, "annotations": annotations},
        });
        let vm: DynamicObject = serde_json::from_value(vm).unwrap();
        let now = WallTime::parse("2025-01-31T23:59:59Z").unwrap();
        let_go(self.state.path(), &self.vms(), &vm, now)
    }

    /// A runner's directory whose configuration names the disk.
    fn run(&self) -> PathBuf {
        let dir = self.vms().join("default_pg-abcde");
        fs::create_dir_all(&dir).unwrap();
        let config = RunnerConfig {
            root_overlay: Some(self.dir().join(DISK_FILE)),
            ..crate::core::args::tests::config()
        };
        write_json_durably(&Paths::new(&dir).config(), &config).unwrap();
        dir
    }
}

#[test]
fn disk_of_a_deleted_vm_is_moved_aside_once_no_runner_names_it() {
    let place = Fixture::new();
    let runner = place.run();
    assert_eq!(place.let_go(UID, json!({})).unwrap(), LetGo::InUse);
    assert!(place.dir().join(DISK_FILE).exists());
    fs::remove_dir_all(runner).unwrap();
    let LetGo::Aside(to) = place.let_go(UID, json!({})).unwrap() else {
        panic!("not moved")
    };
    assert_eq!(fs::read_to_string(to.join(DISK_FILE)).unwrap(), "data");
    assert!(!place.dir().exists());
    assert_eq!(place.let_go(UID, json!({})).unwrap(), LetGo::Nothing);
}

#[test]
fn deletion_of_another_vm_of_the_name_leaves_the_disk_alone() {
    let place = Fixture::new();
    assert_eq!(place.let_go("uid-2", json!({})).unwrap(), LetGo::Nothing);
    assert!(place.dir().join(DISK_FILE).exists());
}

#[test]
fn kept_disk_stays_in_its_place_and_is_marked() {
    let place = Fixture::new();
    let kept = json!({ANNOTATION_KEEP_DISK: "true"});
    let there = LetGo::Kept(place.dir());
    assert_eq!(place.let_go(UID, kept).unwrap(), there);
    let record: DiskRecord = read_json(&place.dir().join(RECORD_FILE)).unwrap().unwrap();
    assert!(record.released && place.dir().join(DISK_FILE).exists());
}

#[test]
fn unreadable_record_keeps_the_disk_and_the_vm() {
    let place = Fixture::new();
    fs::write(place.dir().join(RECORD_FILE), "{").unwrap();
    assert!(place.let_go(UID, json!({})).is_err());
    assert!(place.dir().join(DISK_FILE).exists());
}
