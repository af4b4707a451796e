use super::*;

#[test]
fn finalizers_hold_an_object_until_they_are_gone() {
    let mut store = store();
    let mut body = vm();
    body["metadata"]["finalizers"] = json!(["vm.neon.tech/finalizer"]);
    create(&mut store, VMS, body).expect("created");
    let waiting = delete(&mut store, VM, DeleteOptions::default()).expect("marked");
    assert_eq!(
        waiting["metadata"]["deletionTimestamp"],
        "2023-11-14T22:13:20Z"
    );
    delete(&mut store, VM, DeleteOptions::default()).expect("again");
    let added = json!({"metadata": {"finalizers": ["vm.neon.tech/finalizer", "a.b/c"]}});
    assert_eq!(
        merge(&mut store, VM, added).expect_err("no more").code(),
        422
    );
    let verb = Verb::Patch(PatchKind::Merge, json!({"metadata": {"finalizers": null}}));
    let (_, changes) = call(&mut store, VM, verb, WriteOptions::default()).expect("released");
    assert!(changes.iter().any(|change| change.removed));
    assert!(get(&store, VM).is_none());
}

#[test]
fn a_bound_pod_goes_with_grace() {
    let mut store = store();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], "terminationGracePeriodSeconds": 7}});
    create(&mut store, "/pods", pod.clone()).expect("created");
    assert_eq!(
        get(&store, "/pods/p").expect("there")["status"]["phase"],
        "Pending"
    );
    delete(&mut store, "/pods/p", DeleteOptions::default()).expect("unbound goes at once");
    assert!(get(&store, "/pods/p").is_none());
    create(&mut store, "/pods", pod).expect("created");
    let binding =
        json!({"target": {"kind": "Node", "name": "n"}, "metadata": {"annotations": {"a": "b"}}});
    let bind = |store: &mut Store| {
        call(
            store,
            "/pods/p/binding",
            Verb::Bind(binding.clone()),
            WriteOptions::default(),
        )
    };
    assert_eq!(bind(&mut store).expect("bound").0.code, 201);
    assert_eq!(bind(&mut store).expect_err("once").code(), 409);
    let bound = get(&store, "/pods/p").expect("there").clone();
    assert_eq!(
        (
            &bound["spec"]["nodeName"],
            &bound["metadata"]["annotations"]["a"]
        ),
        (&json!("n"), &json!("b"))
    );
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    let waiting = delete(&mut store, "/pods/p", DeleteOptions::default()).expect("marked");
    assert_eq!(
        waiting["metadata"]["deletionTimestamp"],
        "2023-11-14T22:13:27Z"
    );
    assert_eq!(waiting["metadata"]["deletionGracePeriodSeconds"], 7);
    let now = DeleteOptions {
        grace_seconds: Some(0),
        ..DeleteOptions::default()
    };
    delete(&mut store, "/pods/p", now).expect("gone");
    assert!(get(&store, "/pods/p").is_none());
}

#[test]
fn dependents_go_with_their_last_owner() {
    let mut store = store();
    let first = create(&mut store, "/configmaps", config_map("first", &[])).expect("created");
    let second = create(&mut store, "/configmaps", config_map("second", &[])).expect("created");
    create(&mut store, "/configmaps", config_map("one", &[&first])).expect("created");
    let both = create(
        &mut store,
        "/configmaps",
        config_map("both", &[&first, &second]),
    )
    .expect("created");
    create(&mut store, "/configmaps", config_map("deep", &[&both])).expect("created");
    delete(&mut store, "/configmaps/first", DeleteOptions::default()).expect("deleted");
    assert!(get(&store, "/configmaps/one").is_none());
    let left = get(&store, "/configmaps/both").expect("still owned");
    assert_eq!(
        left["metadata"]["ownerReferences"].as_array().map(Vec::len),
        Some(1)
    );
    delete(&mut store, "/configmaps/second", DeleteOptions::default()).expect("deleted");
    assert!(get(&store, "/configmaps/both").is_none() && get(&store, "/configmaps/deep").is_none());
}

#[test]
fn orphans_stay_and_foreground_waits() {
    let mut store = store();
    let owner = create(&mut store, "/configmaps", config_map("owner", &[])).expect("created");
    create(&mut store, "/configmaps", config_map("child", &[&owner])).expect("created");
    let orphan = DeleteOptions {
        propagation: Propagation::Orphan,
        ..DeleteOptions::default()
    };
    delete(&mut store, "/configmaps/owner", orphan).expect("deleted");
    assert_eq!(
        get(&store, "/configmaps/child").expect("stays")["metadata"]["ownerReferences"],
        json!([])
    );

    let owner = create(&mut store, "/configmaps", config_map("owner", &[])).expect("created");
    let mut held = config_map("held", &[&owner]);
    held["metadata"]["finalizers"] = json!(["a.b/c"]);
    create(&mut store, "/configmaps", held).expect("created");
    let foreground = DeleteOptions {
        propagation: Propagation::Foreground,
        ..DeleteOptions::default()
    };
    delete(&mut store, "/configmaps/owner", foreground).expect("marked");
    assert!(get(&store, "/configmaps/owner").is_some());
    merge(
        &mut store,
        "/configmaps/held",
        json!({"metadata": {"finalizers": null}}),
    )
    .expect("released");
    assert!(
        get(&store, "/configmaps/held").is_none() && get(&store, "/configmaps/owner").is_none()
    );
}

#[test]
fn garbage_is_collected_when_the_owner_went_first() {
    let mut store = store();
    let owner = create(&mut store, "/configmaps", config_map("owner", &[])).expect("created");
    delete(&mut store, "/configmaps/owner", DeleteOptions::default()).expect("deleted");
    create(&mut store, "/configmaps", config_map("late", &[&owner])).expect("created");
    let changes = store.collect_garbage(NOW);
    assert_eq!(changes.len(), 1);
    assert!(get(&store, "/configmaps/late").is_none());
    assert!(store.collect_garbage(NOW).is_empty());
}

#[test]
fn preconditions_of_a_delete_are_checked() {
    let mut store = store();
    create(&mut store, "/configmaps", config_map("a", &[])).expect("created");
    let uid = DeleteOptions {
        uid: Some("x".into()),
        ..DeleteOptions::default()
    };
    assert_eq!(
        delete(&mut store, "/configmaps/a", uid)
            .expect_err("other uid")
            .code(),
        409
    );
    let version = DeleteOptions {
        resource_version: Some("1".into()),
        ..DeleteOptions::default()
    };
    assert_eq!(
        delete(&mut store, "/configmaps/a", version)
            .expect_err("other version")
            .code(),
        409
    );
    let status = delete(&mut store, "/configmaps/a", DeleteOptions::default()).expect("deleted");
    assert_eq!(
        (&status["kind"], &status["status"]),
        (&json!("Status"), &json!("Success"))
    );
}

#[test]
fn a_namespace_goes_with_its_last_object() {
    let mut store = store();
    create(&mut store, VMS, vm()).expect("created");
    merge(
        &mut store,
        VM,
        json!({"metadata": {"finalizers": ["a.b/c"]}}),
    )
    .expect("patched");
    create(&mut store, "/configmaps", config_map("a", &[])).expect("created");
    let waiting =
        delete(&mut store, "/namespaces/default", DeleteOptions::default()).expect("marked");
    assert_eq!(waiting["status"]["phase"], "Terminating");
    assert!(get(&store, "/configmaps/a").is_none());
    assert_eq!(
        create(&mut store, "/configmaps", config_map("b", &[]))
            .expect_err("closing")
            .code(),
        403
    );
    merge(&mut store, VM, json!({"metadata": {"finalizers": null}})).expect("released");
    assert!(get(&store, "/namespaces/default").is_none());
    assert_eq!(
        create(&mut store, "/configmaps", config_map("b", &[]))
            .expect_err("no namespace")
            .code(),
        404
    );
}

#[test]
fn a_collection_goes_by_selector() {
    let mut store = store();
    for (name, label) in [("a", "x"), ("b", "x"), ("c", "y")] {
        create(
            &mut store,
            "/configmaps",
            json!({"metadata": {"name": name, "labels": {"l": label}}}),
        )
        .expect("created");
    }
    let labels = crate::core::selector::LabelSelector::parse("l=x").expect("selector");
    let selection = Selection {
        namespace: Some("default".into()),
        labels,
        ..Selection::default()
    };
    let verb = Verb::DeleteCollection(selection, DeleteOptions::default());
    let gone = object(call(
        &mut store,
        "/configmaps",
        verb,
        WriteOptions::default(),
    ))
    .expect("deleted");
    assert_eq!((gone, store.view().count("configmaps")), (json!(2), 1));
}

#[test]
fn events_go_an_hour_after_they_were_last_seen() {
    let mut store = store();
    let event = |name: &str, seen: &str| json!({"metadata": {"name": name}, "involvedObject": {}, "lastTimestamp": seen});
    create(&mut store, "/events", event("old", "2023-11-14T22:00:00Z")).expect("created");
    create(&mut store, "/events", event("new", "2023-11-14T23:30:00Z")).expect("created");
    assert!(
        store.collect_garbage(NOW).is_empty(),
        "both were created just now"
    );
    let later = WallTime(NOW.0 + 3_700_000_000);
    assert_eq!(store.collect_garbage(later).len(), 1);
    assert!(get(&store, "/events/old").is_none() && get(&store, "/events/new").is_some());
}
