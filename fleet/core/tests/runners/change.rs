//! A write of one field.

use fleet_core::runners::change::{changed_paths, only};
use serde_json::{Value, json};

const PATH: &str = "/spec/runnerImage";

fn vm(image: Value) -> Value {
    json!({
        "metadata": {"name": "pg", "resourceVersion": "1", "generation": 1},
        "spec": {"runnerImage": image, "guest": {"ports": [{"port": 1}]}},
    })
}

/// Requirement: R38
#[test]
fn write_that_changes_another_number_of_fields_than_one_is_refused() {
    let before = vm(json!("a"));
    let mut written = vm(json!("b"));
    written["metadata"]["resourceVersion"] = json!("2");
    written["metadata"]["generation"] = json!(2);
    written["metadata"]["managedFields"] = json!([{"manager": "fleet"}]);
    assert_eq!(only(&before, &written, PATH), Ok(()));
    let nothing = only(&before, &before, PATH).expect_err("nothing");
    assert!(nothing.contains("would change nothing"), "{nothing}");
    let others = [
        ("/metadata/name", json!("other")),
        ("/metadata/labels", json!({"a": "b"})),
        ("/spec/qmp", json!(1)),
        ("/spec/guest/ports/0/port", json!(2)),
        ("/spec/guest/ports", json!([])),
        ("/status", json!({"phase": "Failed"})),
    ];
    for (path, value) in others {
        let mut both = written.clone();
        set(&mut both, path, value.clone());
        let refused = only(&before, &both, PATH).expect_err(path);
        assert!(refused.contains(path), "{refused}");
        assert_eq!(changed_paths(&before, &both).len(), 2, "{path}");
        let mut other = before.clone();
        set(&mut other, path, value);
        assert!(only(&before, &other, PATH).is_err(), "{path} alone");
    }
}

/// Requirement: R38
#[test]
fn field_that_is_added_or_taken_away_is_one_change() {
    let none = json!({"metadata": {}, "spec": {}});
    let some = json!({"metadata": {}, "spec": {"runnerImage": "a"}});
    assert_eq!(only(&none, &some, PATH), Ok(()));
    assert_eq!(only(&some, &none, PATH), Ok(()));
    assert_eq!(
        changed_paths(&none, &json!({"metadata": {}, "spec": {"a": null}})),
        [""; 0]
    );
}

fn set(object: &mut Value, path: &str, value: Value) {
    let mut at = object;
    let mut members = path.trim_start_matches('/').split('/').peekable();
    while let Some(member) = members.next() {
        let is_last = members.peek().is_none();
        at = match member.parse::<usize>() {
            Ok(index) if at.is_array() => &mut at[index],
            _ => &mut at[member],
        };
        if is_last {
            *at = value;
            return;
        }
    }
}
