use super::*;
use serde_json::json;

fn disk(value: Value) -> Disk {
    serde_json::from_value(value).unwrap()
}

fn spec(disks: Vec<Value>) -> VmSpec {
    VmSpec {
        disks: disks.into_iter().map(disk).collect(),
        ..VmSpec::default()
    }
}

fn refused(disks: Vec<Value>) -> String {
    plan(&spec(disks), None, None).unwrap_err().to_string()
}

fn secret(name: &str, path: &str) -> Value {
    json!({"name": name, "mountPath": path, "secret": {"secretName": "s"}})
}

#[test]
fn drives_are_attached_in_neonvms_order() {
    let mut spec = spec(vec![
        json!({"name": "cache", "mountPath": "/cache", "emptyDisk": {"size": "1Gi", "discard": true}}),
        json!({"name": "1st", "mountPath": "/first", "emptyDisk": {"size": "8Mi", "enableQuotas": true}}),
        json!({"name": "map", "mountPath": "/map", "configMap": {"name": "m"}}),
        json!({"name": "sync", "mountPath": "/sync", "watch": true, "secret": {"secretName": "s"}}),
        json!({"name": "tmp", "mountPath": "/scratch", "tmpfs": {"size": "1Gi"}}),
    ]);
    spec.tls = Some(json!({"mountPath": "/etc/tls"}));
    spec.guest.settings = Some(protocol::vm::GuestSettings {
        sysctl: Vec::new(),
        swap: Some(Quantity::from_bytes((1 << 30) + 100)),
    });
    let plan = plan(&spec, Some("ssh-ed25519 AAAA"), None).unwrap();
    let drives = plan.drives.iter().map(|one| {
        let options = one.drive.options(DiskCache::OURS);
        format!("{} {} {options}", one.drive.file(), one.label)
    });
    let expected = [
        "runtime.iso vmruntime format=raw,readonly=on",
        "ssh-authorized-keys.iso ssh-authorized-keys format=raw,readonly=on",
        "swapdisk.qcow2 swapdisk format=qcow2,cache.writeback=on,cache.direct=off,cache.no-flush=on,discard=unmap",
        "disk-cache.qcow2 cache format=qcow2,cache.writeback=on,cache.direct=off,cache.no-flush=on,discard=unmap",
        "disk-1st.qcow2 1st format=qcow2,cache.writeback=on,cache.direct=off,cache.no-flush=on",
        "disk-map.iso map format=raw,readonly=on",
    ];
    assert_eq!(drives.collect::<Vec<_>>(), expected);
    assert_eq!(plan.drives[2].content, Content::Swap(1 << 30));
    assert_eq!(plan.watched, ["/sync", "/etc/tls"]);
}

#[test]
fn invalid_disk_is_named_with_the_fix() {
    let said = refused(vec![secret("a", "/a"), secret("a", "/b")]);
    assert_eq!(
        said,
        "disk \"a\": another disk has this name, give each its own"
    );
    let said = refused(vec![secret("a", "/a"), secret("b", "//a/")]);
    assert_eq!(
        said,
        "disk \"b\": disk \"a\" has the same mountPath, give each its own"
    );
    for name in [
        "",
        "-a",
        "a-",
        "A",
        "a_b",
        "a,b",
        "é",
        "a b",
        "a\n",
        &"x".repeat(33),
    ] {
        assert!(
            refused(vec![secret(name, "/a")]).contains("a name is 1 to 32 of"),
            "{name:?}"
        );
    }
    for name in ["runtime", "tls", "swapdisk", "vmruntime"] {
        assert!(
            refused(vec![secret(name, "/a")]).contains("taken by the VM itself"),
            "{name:?}"
        );
    }
    for path in [
        "", "a", "/", "/a/../b", "/./a", "/a b", "/a'b", "/a\nb", "/é", "/a?b", "/%2e",
    ] {
        assert!(
            refused(vec![secret("a", path)]).contains("is not an absolute path"),
            "{path:?}"
        );
    }
    let empty = |size: Value| json!({"name": "a", "mountPath": "/a", "emptyDisk": {"size": size}});
    assert!(
        refused(vec![empty(json!("much"))]).contains("its size \"much\" is not a size such as 1Gi")
    );
    assert!(refused(vec![empty(Value::Null)]).contains("is not a size"));
    assert!(refused(vec![empty(json!("1Mi"))]).contains("is less than 8Mi"));
    assert!(refused(vec![json!({"name": "a", "mountPath": "/a"})]).contains("none of emptyDisk"));
    let many = (0..17).map(|i| secret(&format!("d{i}"), &format!("/{i}")));
    assert!(refused(many.collect()).contains("16 are the most"));
}

#[test]
fn labels_fit_their_file_systems_and_stay_apart() {
    assert_eq!(ext4_label("sixteen-bytes-xx"), "sixteen-bytes-xx");
    let (one, other) = (
        ext4_label("seventeen-bytes-1"),
        ext4_label("seventeen-bytes-2"),
    );
    assert!(one.len() == 16 && one.starts_with("sevente~"), "{one}");
    assert_ne!(one, other);
}

#[test]
fn monitor_token_on_the_runtime_drive_is_for_root_only() {
    let planned = |token: Option<&str>| {
        let plan = plan(&spec(Vec::new()), None, None).unwrap();
        plan.with_monitor_token(token)
    };
    let files = |plan: &Plan| match &plan.drives[0].content {
        Content::Files(files) => files.clone(),
        other => panic!("{other:?}"),
    };
    let (with, without) = (files(&planned(Some("0123"))), files(&planned(None)));
    assert_eq!(with[MONITOR_TOKEN], b"0123\n");
    assert!(!without.contains_key(MONITOR_TOKEN));
    // Rock Ridge's field of a file with mode 0400.
    let mut field = b"PX\x24\x01".to_vec();
    field.extend(0o100_400_u32.to_le_bytes());
    let private = |label: &str, files| {
        let image = iso::iso(label, files, private_files(label)).unwrap();
        let found = image.windows(field.len()).filter(|part| *part == field);
        found.count()
    };
    assert_eq!(private(RUNTIME_LABEL, &with), 1);
    assert_eq!(private(RUNTIME_LABEL, &without), 0);
    assert_eq!(
        private("a-volume", &with),
        0,
        "a volume's file is as it was"
    );
}

#[test]
fn disk_on_a_claim_is_mounted_and_never_formatted() {
    let claimed = json!({"name": "data", "mountPath": "/data",
        "persistentVolumeClaim": {"claimName": "c", "size": "1Gi"}});
    let plan = plan(&spec(vec![claimed.clone()]), None, None).unwrap();
    let drive = &plan.drives[1];
    assert_eq!(drive.drive.kind, DriveKind::Claimed);
    assert_eq!(drive.content, Content::Claimed { bytes: 1 << 30 });
    let Content::Files(files) = &plan.drives[0].content else {
        panic!("{plan:?}");
    };
    let mounts = String::from_utf8(files["mounts.sh"].clone()).unwrap();
    assert!(mounts.contains("\ntry kept 'data' '/data'\n"), "{mounts}");
    let mut small = claimed;
    small["persistentVolumeClaim"]["size"] = json!("1Mi");
    assert!(refused(vec![small]).contains("is less than 8Mi"));
}
