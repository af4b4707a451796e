use proptest::prelude::*;

use super::*;

/// Random writes over a few objects.
fn any_write() -> impl Strategy<Value = (String, Verb)> {
    let name = prop_oneof!["[abc]"];
    let value = prop_oneof![
        Just(json!("1")),
        Just(json!("2")),
        Just(json!(3)),
        Just(Value::Null)
    ];
    let grace = prop_oneof![Just(None), Just(Some(0))];
    (name, value, grace, 0..5).prop_map(|(name, value, grace_seconds, which)| match which {
        0 => (
            "/configmaps".to_owned(),
            Verb::Create(json!({"metadata": {"name": name}, "data": {"k": value}})),
        ),
        1 => (
            format!("/configmaps/{name}"),
            Verb::Update(json!({"metadata": {"finalizers": ["a.b/c"]}, "data": {"k": value}})),
        ),
        2 => (
            format!("/configmaps/{name}"),
            Verb::Patch(
                PatchKind::Merge,
                json!({"metadata": {"finalizers": null}, "data": {"k": value}}),
            ),
        ),
        3 => (
            format!("/configmaps/{name}"),
            Verb::Patch(
                PatchKind::Json,
                json!([{"op": "test", "path": "/data/k", "value": value}]),
            ),
        ),
        _ => (
            format!("/configmaps/{name}"),
            Verb::Delete(DeleteOptions {
                grace_seconds,
                ..DeleteOptions::default()
            }),
        ),
    })
}

/// Everything that can be seen of a state.
fn seen(store: &Store) -> Vec<(String, String)> {
    let mut seen = vec![(String::new(), store.view().revision.to_string())];
    for kind in store.view().kind_keys() {
        for (place, object) in store.view().iter(kind, None, None) {
            seen.push((
                format!("{kind}/{}/{}", place.0, place.1),
                object.json.to_string(),
            ));
        }
    }
    seen.push(("uids".into(), format!("{:?}", store.by_uid)));
    seen.push(("owners".into(), format!("{:?}", store.dependents)));
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn revisions_only_grow(writes in prop::collection::vec(any_write(), 1..40)) {
        let mut store = store();
        let mut last = store.view().revision;
        for (path, verb) in writes {
            for change in call(&mut store, &path, verb, WriteOptions::default()).map(|(_, changes)| changes).unwrap_or_default() {
                prop_assert_eq!(change.after.revision, last + 1);
                last = change.after.revision;
            }
            prop_assert_eq!(store.view().revision, last);
        }
    }

    #[test]
    fn a_refused_call_changes_nothing(writes in prop::collection::vec(any_write(), 1..40)) {
        let mut store = store();
        for (path, verb) in writes {
            let before = seen(&store);
            if call(&mut store, &path, verb, WriteOptions::default()).is_err() {
                prop_assert_eq!(seen(&store), before);
            }
        }
    }

    #[test]
    fn rollback_restores_the_state(writes in prop::collection::vec(any_write(), 1..40)) {
        let mut store = store();
        let before = seen(&store);
        let mut made = Vec::new();
        for (path, verb) in writes {
            made.extend(call(&mut store, &path, verb, WriteOptions::default()).map(|(_, changes)| changes).unwrap_or_default());
        }
        store.rollback(made);
        prop_assert_eq!(seen(&store), before);
    }
}
