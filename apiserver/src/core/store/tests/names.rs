//! Names and paths: missing, taken, generated, and those that do not fit the object.

use super::*;

#[test]
fn names_taken_missing_and_generated() {
    let mut store = store();
    create(&mut store, VMS, vm()).expect("created");
    assert_eq!(
        create(&mut store, VMS, vm()).expect_err("taken").reason,
        Reason::AlreadyExists
    );
    let made = create(
        &mut store,
        "/configmaps",
        json!({"metadata": {"generateName": "x-"}}),
    )
    .expect("created");
    let name = made["metadata"]["name"].as_str().expect("name");
    assert!(name.starts_with("x-") && name.len() == 7, "{name}");
    assert_eq!(
        create(&mut store, "/configmaps", json!({}))
            .expect_err("no name")
            .code(),
        422
    );
    assert_eq!(
        create(
            &mut store,
            "/configmaps",
            json!({"metadata": {"name": "A"}})
        )
        .expect_err("bad name")
        .code(),
        422
    );
    assert_eq!(
        merge(&mut store, "/configmaps/none", json!({}))
            .expect_err("absent")
            .code(),
        404
    );
    assert_eq!(
        create(&mut store, "no.group/things", json!({}))
            .expect_err("unknown kind")
            .code(),
        404
    );
}

#[test]
fn the_path_must_fit_the_object() {
    let mut store = store();
    let other_namespace = json!({"metadata": {"name": "a", "namespace": "other"}});
    assert_eq!(
        create(&mut store, "/configmaps", other_namespace)
            .expect_err("mismatch")
            .code(),
        400
    );
    let other_kind = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a"}});
    assert_eq!(
        create(&mut store, "/configmaps", other_kind)
            .expect_err("mismatch")
            .code(),
        400
    );
    create(
        &mut store,
        "/configmaps",
        json!({"metadata": {"name": "a"}}),
    )
    .expect("created");
    let other_name = json!({"metadata": {"name": "b"}});
    assert_eq!(
        update(&mut store, "/configmaps/a", other_name.clone())
            .expect_err("mismatch")
            .code(),
        400
    );
    assert_eq!(
        merge(&mut store, "/configmaps/a", other_name)
            .expect_err("mismatch")
            .code(),
        422
    );
    for body in [json!([]), json!("x"), json!({"metadata": 1})] {
        assert_eq!(
            create(&mut store, "/configmaps", body)
                .expect_err("malformed")
                .code(),
            400
        );
    }
}
