use proptest::prelude::*;

use super::*;

fn vm() -> Value {
    json!({"spec": {"guest": {
        "cpus": {"min": 1, "use": 2, "max": 4},
        "memorySlotSize": "1Gi",
        "memorySlots": {"min": 1, "use": 2, "max": 4},
        "rootDisk": {"image": "i"},
    }}})
}

fn with(path: &str, value: Value) -> Value {
    let mut object = vm();
    *path.split('.').fold(&mut object, |at, name| &mut at[name]) = value;
    object
}

fn fields(result: Result<(), Vec<FieldError>>) -> Vec<String> {
    result
        .err()
        .into_iter()
        .flatten()
        .map(|error| error.field)
        .collect()
}

#[test]
fn amounts_take_their_canonical_form() {
    for (input, output) in [
        (json!(0.25), json!("250m")),
        (json!("0.25"), json!("250m")),
        (json!("250m"), json!("250m")),
        (json!("1"), json!(1)),
        (json!(1.0), json!(1)),
        (json!("1500m"), json!("1500m")),
        (json!("2000m"), json!(2)),
        (json!(3), json!(3)),
    ] {
        let mut object = with("spec.guest.cpus.use", input.clone());
        normalise("VirtualMachine", &mut object).expect("in range");
        assert_eq!(object["spec"]["guest"]["cpus"]["use"], output, "{input}");
    }
    let mut object = with("spec.guest.memorySlotSize", json!("1024Mi"));
    object["spec"]["disks"] = json!([{"name": "d", "emptyDisk": {"size": 1_073_741_824}}]);
    object["spec"]["podResources"] = json!({"limits": {"cpu": 0.5, "memory": "2048Mi"}});
    normalise("VirtualMachine", &mut object).expect("in range");
    assert_eq!(object["spec"]["guest"]["memorySlotSize"], "1Gi");
    assert_eq!(
        object["spec"]["disks"][0]["emptyDisk"]["size"],
        "1073741824"
    );
    assert_eq!(
        object["spec"]["podResources"]["limits"],
        json!({"cpu": "500m", "memory": "2Gi"})
    );
}

#[test]
fn absent_structs_appear_as_zeros() {
    let mut object = json!({"spec": {"guest": {}}, "status": {}});
    normalise("VirtualMachine", &mut object).expect("in range");
    assert_eq!(
        object["spec"]["guest"]["cpus"],
        json!({"min": 0, "max": 0, "use": 0})
    );
    assert_eq!(object["spec"]["guest"]["memorySlots"]["min"], 0);
    assert_eq!(object["spec"]["guest"]["rootDisk"]["image"], "");
    assert_eq!(object["status"]["restartCount"], 0);
}

#[test]
fn amounts_that_are_none_are_refused_by_path() {
    for (path, value) in [
        ("spec.guest.cpus.use", json!("many")),
        ("spec.guest.cpus.min", json!(-1)),
        ("spec.guest.cpus.max", json!("5000000")),
        ("spec.guest.memorySlotSize", json!("1 Gi")),
    ] {
        let result = normalise("VirtualMachine", &mut with(path, value));
        let error = &result.expect_err(path)[0];
        assert_eq!(error.field, path);
        assert!(error.message.contains(&format!(".{path}")), "{error}");
    }
    let mut migration = json!({"spec": {"maxBandwidth": "fast"}});
    assert_eq!(
        fields(normalise("VirtualMachineMigration", &mut migration)),
        ["spec.maxBandwidth"]
    );
}

#[test]
fn creation_rules_name_their_field() {
    assert_eq!(validate_create("VirtualMachine", &vm()), Ok(()));
    for (path, value, field) in [
        ("spec.guest.cpus.use", json!("500m"), "spec.guest.cpus.use"),
        ("spec.guest.cpus.use", json!(5), "spec.guest.cpus.use"),
        (
            "spec.guest.memorySlotSize",
            json!("1Mi"),
            "spec.guest.memorySlotSize",
        ),
        (
            "spec.guest.memorySlotSize",
            json!("0"),
            "spec.guest.memorySlotSize",
        ),
        (
            "spec.guest.memorySlots.use",
            json!(0),
            "spec.guest.memorySlots.use",
        ),
        (
            "spec.guest.memorySlots.use",
            json!(9),
            "spec.guest.memorySlots.use",
        ),
        (
            "spec.disks",
            json!([{"name": "ok"}, {"name": "swapdisk"}]),
            "spec.disks[1].name",
        ),
        (
            "spec.disks",
            json!([{"name": "d".repeat(33)}]),
            "spec.disks[0].name",
        ),
        (
            "spec.guest.ports",
            json!([{"port": 1, "name": "qmp"}]),
            "spec.guest.ports[0].name",
        ),
    ] {
        let result = validate_create("VirtualMachine", &with(path, value));
        assert_eq!(fields(result), [field]);
    }
}

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
fn no_disk_takes_a_name_of_the_vms_own_or_one_that_is_too_long() {
    let named = |name: &str| with("spec.disks", json!([{"name": name, "mountPath": "/d"}]));
    for name in RESERVED_DISK_NAMES {
        let errors = validate_create("VirtualMachine", &named(name)).expect_err(name);
        assert_eq!(errors[0].kind, FieldErrorKind::Invalid);
        assert_eq!(fields(Err(errors)), ["spec.disks[0].name"]);
        // Only as it is: the rules know no prefixes.
        let longer = named(&format!("{name}-2"));
        assert_eq!(validate_create("VirtualMachine", &longer), Ok(()));
    }
    let longest = "d".repeat(disks::MAX_DISK_NAME);
    assert_eq!(validate_create("VirtualMachine", &named(&longest)), Ok(()));
    let longer = validate_create("VirtualMachine", &named(&format!("{longest}d")));
    let errors = longer.expect_err("it is too long");
    assert_eq!(errors[0].kind, FieldErrorKind::TooLong);
}

/// A disk `d` of a source.
fn disk(source: &str, of: Value) -> Value {
    let mut disk = json!({"name": "d", "mountPath": "/d", "readOnly": false, "watch": false});
    disk[source] = of;
    json!([disk])
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

proptest! {
    #[test]
    fn normalising_again_changes_nothing(cpu in 0_u32..100_000, bytes in 0_u64..1 << 50) {
        let mut object = vm();
        object["spec"]["guest"]["cpus"]["use"] = json!(f64::from(cpu) / 1000.0);
        object["spec"]["guest"]["memorySlotSize"] = json!(bytes);
        normalise("VirtualMachine", &mut object).expect("in range");
        let once = object.clone();
        normalise("VirtualMachine", &mut object).expect("in range");
        prop_assert_eq!(object, once);
    }

    #[test]
    fn values_of_any_shape_never_panic(text in "[a-z0-9.]{0,4}", number in any::<f64>()) {
        for value in [json!(null), json!(text), json!([text]), json!({"min": text}), json!(number)] {
            for path in ["spec", "spec.guest", "spec.guest.cpus", "spec.disks", "spec.guest.ports", "spec.guest.memorySlots"] {
                let mut object = with(path, value.clone());
                let _ = normalise("VirtualMachine", &mut object);
                let _ = validate_create("VirtualMachine", &object);
                let _ = validate_update("VirtualMachine", &vm(), &object);
            }
        }
    }
}
