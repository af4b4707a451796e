//! Paths, queries and options of requests.

use super::*;

fn target(group: &str, path: &str) -> Option<Target> {
    let segments: Vec<String> = path.split('/').map(str::to_owned).collect();
    Target::parse(group, "v1", &segments)
}

#[test]
fn paths_are_read() {
    let place = |path: &str| {
        let target = target("", path).expect(path);
        (
            target.namespace,
            target.resource,
            target.name,
            target.subresource,
        )
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(place("pods"), (None, "pods".into(), None, None));
    assert_eq!(place("namespaces"), (None, "namespaces".into(), None, None));
    assert_eq!(
        place("namespaces/a"),
        (None, "namespaces".into(), some("a"), None)
    );
    assert_eq!(
        place("namespaces/a/status"),
        (None, "namespaces".into(), some("a"), some("status"))
    );
    assert_eq!(
        place("namespaces/a/pods"),
        (some("a"), "pods".into(), None, None)
    );
    assert_eq!(
        place("namespaces/a/pods/p/status"),
        (some("a"), "pods".into(), some("p"), some("status"))
    );
    assert_eq!(place("nodes/n"), (None, "nodes".into(), some("n"), None));
    for bad in ["", "namespaces//pods", "a/b/c/d", "pods/"] {
        assert_eq!(target("", bad), None, "{bad}");
    }
}

#[test]
fn delete_options_come_from_body_and_query() {
    let query = Query::from_pairs([("gracePeriodSeconds".to_owned(), "3".to_owned())]);
    let options = DeleteOptions::parse(&Value::Null, &query).expect("valid");
    assert_eq!(options.grace_seconds, Some(3));
    let body = serde_json::json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}, "propagationPolicy": "Orphan"});
    let options = DeleteOptions::parse(&body, &query).expect("valid");
    assert_eq!(
        (options.grace_seconds, options.uid.as_deref()),
        (Some(0), Some("u"))
    );
    assert_eq!(options.propagation, Propagation::Orphan);
    let bad = serde_json::json!({"propagationPolicy": "Never"});
    assert!(DeleteOptions::parse(&bad, &Query::default()).is_err());
}
