//! Members of a spec that never change, and those that may be set once.

use super::*;

#[test]
fn fixed_members_stay() {
    let old = vm();
    for (path, value, field) in [
        ("spec.guest.cpus.min", json!(2), "spec.guest.cpus.min"),
        ("spec.guest.cpus.max", json!(5), "spec.guest.cpus.max"),
        (
            "spec.guest.memorySlots.max",
            json!(5),
            "spec.guest.memorySlots.max",
        ),
        (
            "spec.guest.memorySlotSize",
            json!("512Mi"),
            "spec.guest.memorySlotSize",
        ),
        (
            "spec.guest.rootDisk.image",
            json!("other"),
            "spec.guest.rootDisk",
        ),
        ("spec.guest.command", json!(["x"]), "spec.guest.command"),
        ("spec.disks", json!([{"name": "d"}]), "spec.disks"),
        ("spec.enableSSH", json!(false), "spec.enableSSH"),
        ("spec.guest.cpus.use", json!(9), "spec.guest.cpus.use"),
        (
            "spec.guest.memorySlots.use",
            json!(0),
            "spec.guest.memorySlots.use",
        ),
    ] {
        assert_eq!(
            fields(validate_update("VirtualMachine", &old, &with(path, value))),
            [field]
        );
    }
    for (path, value) in [
        ("spec.guest.cpus.use", json!(4)),
        ("spec.guest.memorySlots.use", json!(1)),
        ("spec.runnerImage", json!("r")),
        ("spec.disks", json!([])),
    ] {
        assert_eq!(
            validate_update("VirtualMachine", &old, &with(path, value)),
            Ok(())
        );
    }
}

/// Every member that never changes, as the tables of docs/compatibility/neonvm.md §1.2 to §1.4 have
/// them, then those that may be set once; two values of each.
fn fixed() -> Vec<(&'static str, [Value; 2])> {
    let ports = |protocol: &str| json!([{"port": 1, "protocol": protocol}]);
    let env = |value: &str| json!([{"name": "A", "value": value}]);
    vec![
        ("guest.cpus.min", [json!(1), json!("500m")]),
        ("guest.cpus.max", [json!(4), json!(5)]),
        ("guest.memorySlotSize", [json!("1Gi"), json!("512Mi")]),
        ("guest.memorySlots.min", [json!(1), json!(2)]),
        ("guest.memorySlots.max", [json!(4), json!(5)]),
        (
            "guest.rootDisk",
            [json!({"image": "i"}), json!({"image": "j"})],
        ),
        ("guest.command", [json!(["x"]), json!(["y"])]),
        ("guest.args", [json!(["x"]), json!(["y"])]),
        ("guest.env", [env("1"), env("2")]),
        ("guest.ports", [ports("TCP"), ports("UDP")]),
        (
            "guest.settings",
            [json!({"swap": "1Gi"}), json!({"swap": "2Gi"})],
        ),
        (
            "podResources",
            [
                json!({"limits": {"cpu": "1"}}),
                json!({"requests": {"cpu": "1"}}),
            ],
        ),
        ("initScript", [json!("true"), json!("false")]),
        (
            "disks",
            ["1Gi", "2Gi"].map(|size| disk("tmpfs", json!({"size": size}))),
        ),
        ("enableAcceleration", [json!(true), json!(false)]),
        ("enableSSH", [json!(true), json!(false)]),
        ("enableNetworkMonitoring", [json!(true), json!(false)]),
        ("targetArchitecture", [json!("amd64"), json!("arm64")]),
        (
            "cpuScalingMode",
            [json!("QmpScaling"), json!("SysfsScaling")],
        ),
    ]
}

#[test]
fn every_fixed_member_stays() {
    let fixed = fixed();
    let named: Vec<&str> = fixed.iter().map(|(member, _)| *member).collect();
    assert_eq!(named, [&IMMUTABLE[..], &SET_ONCE].concat());
    for (member, values) in fixed {
        let path = format!("spec.{member}");
        let [one, other] = values.map(|value| with(&path, value));
        let none = with(&path, Value::Null);
        assert_eq!(validate_update("VirtualMachine", &one, &one), Ok(()));
        let mut changes = vec![(&one, &other), (&other, &one), (&one, &none)];
        if IMMUTABLE.contains(&member) {
            changes.push((&none, &other));
        }
        for (old, new) in changes {
            let errors = validate_update("VirtualMachine", old, new).expect_err(member);
            assert_eq!(errors[0].message, format!(".{path} is immutable"));
            assert_eq!(fields(Err(errors)), [path.as_str()]);
        }
    }
}

#[test]
fn root_disk_that_stays_may_grow_and_nothing_else_of_it_changes() {
    let disk = |disk: Value| with("spec.guest.rootDisk", disk);
    let stays = |size: &str| disk(json!({"image": "i", "persistent": true, "size": size}));
    let update = |old: &Value, new: &Value| validate_update("VirtualMachine", old, new);
    assert_eq!(update(&stays("1Gi"), &stays("2Gi")), Ok(()));
    let unsized_disk = disk(json!({"image": "i", "persistent": true}));
    assert_eq!(update(&unsized_disk, &stays("2Gi")), Ok(()));
    for (old, new) in [
        (stays("2Gi"), stays("1Gi")),
        (stays("2Gi"), unsized_disk),
        (stays("1Gi"), disk(json!({"image": "i", "size": "2Gi"}))),
        (
            stays("1Gi"),
            disk(json!({"image": "j", "persistent": true, "size": "2Gi"})),
        ),
        (
            disk(json!({"image": "i", "size": "1Gi"})),
            disk(json!({"image": "i", "size": "2Gi"})),
        ),
    ] {
        assert_eq!(fields(update(&old, &new)), ["spec.guest.rootDisk"]);
    }
}

#[test]
fn what_may_be_set_once_may_be_set() {
    for (member, [value, _]) in fixed() {
        let path = format!("spec.{member}");
        let set = with(&path, value);
        for absent in [Value::Null, json!("")] {
            let unset = with(&path, absent);
            let result = validate_update("VirtualMachine", &unset, &set);
            assert_eq!(result.is_ok(), SET_ONCE.contains(&member), "{member}");
        }
    }
}

#[test]
fn what_a_type_leaves_out_is_no_change() {
    for (path, long, short) in [
        (
            "disks",
            disk(
                "emptyDisk",
                json!({"size": "1Gi", "discard": false, "enableQuotas": false}),
            ),
            disk("emptyDisk", json!({"size": "1Gi"})),
        ),
        (
            "disks",
            disk(
                "configMap",
                json!({"name": "", "items": [], "optional": false}),
            ),
            disk("configMap", json!({"optional": false})),
        ),
        (
            "disks",
            disk(
                "secret",
                json!({"secretName": "s", "items": [], "defaultMode": null}),
            ),
            disk("secret", json!({"secretName": "s"})),
        ),
        (
            "guest.rootDisk",
            json!({"image": "i", "execute": [], "size": null}),
            json!({"image": "i"}),
        ),
        ("guest.settings", json!({"sysctl": []}), json!({})),
        ("guest.settings", json!({"sysctl": []}), Value::Null),
        (
            "guest.settings",
            json!({"sysctl": [], "swap": "1Gi"}),
            json!({"swap": "1Gi"}),
        ),
        (
            "guest.ports",
            json!([{"port": 1, "name": "", "protocol": "TCP"}]),
            json!([{"port": 1, "protocol": "TCP"}]),
        ),
        (
            "guest.env",
            json!([{"name": "A", "value": ""}]),
            json!([{"name": "A"}]),
        ),
        (
            "podResources",
            json!({"limits": {}, "requests": {"cpu": "1"}, "claims": [{"name": "c", "request": ""}]}),
            json!({"requests": {"cpu": "1"}, "claims": [{"name": "c"}]}),
        ),
        (
            "podResources",
            json!({"limits": {}, "claims": []}),
            Value::Null,
        ),
        ("initScript", json!(""), Value::Null),
        ("guest.args", json!([]), Value::Null),
    ] {
        let path = format!("spec.{path}");
        let (long, short) = (with(&path, long), with(&path, short));
        for (old, new) in [(&long, &short), (&short, &long)] {
            assert_eq!(
                validate_update("VirtualMachine", old, new),
                Ok(()),
                "{old} {new}"
            );
        }
    }
}

#[test]
fn a_zero_that_means_something_is_a_change() {
    for (path, old, new) in [
        ("enableSSH", Value::Null, json!(false)),
        ("enableAcceleration", json!(false), Value::Null),
        (
            "disks",
            disk("secret", json!({"secretName": "s", "optional": false})),
            disk("secret", json!({"secretName": "s"})),
        ),
        (
            "disks",
            disk("configMap", json!({"name": "c", "defaultMode": 0})),
            disk("configMap", json!({"name": "c"})),
        ),
        (
            "disks",
            disk("emptyDisk", json!({"size": "1Gi", "discard": false})),
            disk("emptyDisk", json!({"size": "1Gi", "discard": true})),
        ),
        (
            "disks",
            disk("configMap", json!({})),
            disk("secret", json!({})),
        ),
        (
            "podResources",
            json!({"limits": {"cpu": "0"}}),
            json!({"limits": {}}),
        ),
        // What its type cannot read is compared as it is.
        ("guest.env", json!("x"), json!("y")),
        (
            "guest.ports",
            json!([{"port": "x"}]),
            json!([{"port": "x", "name": ""}]),
        ),
    ] {
        let path = format!("spec.{path}");
        let (old, new) = (with(&path, old), with(&path, new));
        let refused = fields(validate_update("VirtualMachine", &old, &new));
        assert_eq!(refused, [path.as_str()], "{old} {new}");
    }
}

#[test]
fn a_migrations_spec_stays() {
    let full = json!({"vmName": "a", "nodeSelector": {"a": "b"}, "nodeAffinity": {"x": 1},
        "preventMigrationToSameHost": true, "completionTimeout": 3600, "incremental": true,
        "allowPostCopy": false, "autoConverge": true, "maxBandwidth": "1Gi"});
    let old = json!({"spec": full});
    assert_eq!(
        validate_update("VirtualMachineMigration", &old, &old),
        Ok(())
    );
    for (member, value) in [
        ("vmName", json!("b")),
        ("nodeSelector", json!({})),
        ("nodeAffinity", json!({"x": 2})),
        ("preventMigrationToSameHost", json!(false)),
        ("completionTimeout", json!(1)),
        ("incremental", json!(false)),
        ("allowPostCopy", json!(true)),
        ("autoConverge", json!(false)),
        ("maxBandwidth", json!("2Gi")),
    ] {
        let mut new = old.clone();
        new["spec"][member] = value;
        let refused = fields(validate_update("VirtualMachineMigration", &old, &new));
        assert_eq!(refused, ["spec"], "{member}");
    }
    let (long, short) = (
        json!({"spec": {"vmName": "a", "nodeSelector": {}, "allowPostCopy": false}}),
        json!({"spec": {"vmName": "a"}}),
    );
    assert_eq!(
        validate_update("VirtualMachineMigration", &long, &short),
        Ok(())
    );
}
