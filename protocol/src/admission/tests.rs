mod fixed;

use proptest::prelude::*;
use serde_json::json;

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
fn kinds_of_errors_have_the_reasons_of_a_status() {
    for (kind, reason) in [
        (FieldErrorKind::Invalid, "FieldValueInvalid"),
        (FieldErrorKind::Forbidden, "FieldValueForbidden"),
        (FieldErrorKind::TooLong, "FieldValueTooLong"),
    ] {
        assert_eq!(kind.as_str(), reason);
    }
}

#[test]
fn error_shows_a_value_that_is_no_structure() {
    let shown = |kind, value: Value| {
        let message = ".spec.a is bad".to_owned();
        FieldError::new(kind, "spec.a", message, &value).to_message()
    };
    for (kind, value, text) in [
        (FieldErrorKind::Invalid, json!(5), "Invalid value: 5: "),
        (
            FieldErrorKind::Invalid,
            json!([5]),
            "Invalid value: \"…\": ",
        ),
        (FieldErrorKind::Forbidden, json!(5), "Forbidden: "),
        (FieldErrorKind::TooLong, json!("abc"), "Too long: "),
    ] {
        assert_eq!(shown(kind, value), format!("{text}.spec.a is bad"));
    }
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
