use kube::api::DynamicObject;
use serde_json::json;

use super::super::follow::read_policy;
use super::*;

fn object(name: &str, spec: serde_json::Value) -> DynamicObject {
    let object = json!({
        "apiVersion": "policy.bellows.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"name": name},
        "spec": spec,
    });
    serde_json::from_value(object).expect("an object")
}

fn versions(object: &DynamicObject) -> Option<(String, Result<Versions, String>)> {
    let (name, read) = read_policy(object, Limits::default())?;
    Some((name, read.map(|listed| Versions::of(&listed, |_| None))))
}

fn known() -> Known {
    let objects = [
        object("db", json!({"source": "return 1"})),
        object("own", json!({"source": "return 1", "namespaces": ["a"]})),
        object("bad", json!({"source": "\u{0}"})),
        object("sets", json!({"source": "return 1", "scope": "set"})),
    ];
    Known {
        policies: objects.iter().filter_map(versions).collect(),
        namespaces: [("a".to_owned(), "own".to_owned())].into(),
    }
}

fn name_of(choice: &Choice) -> &str {
    match choice {
        Choice::Builtin => "builtin",
        Choice::Unknown(..) => "unknown",
        Choice::Policy(versions) => versions.all().next().map_or("none", |one| &one.name),
    }
}

#[test]
fn annotation_wins_over_label_over_default() {
    let known = known();
    let cases = [
        ("b", None, None, "builtin"),
        ("b", None, Some("db"), "db"),
        ("a", None, Some("db"), "own"),
        ("a", Some("db"), Some("own"), "db"),
        ("a", Some("builtin"), Some("db"), "builtin"),
        ("b", Some("own"), None, "unknown"),
        ("b", Some("absent"), Some("db"), "unknown"),
        ("b", Some("bad"), None, "unknown"),
        ("b", Some("sets"), None, "unknown"),
    ];
    for (namespace, annotation, default, expected) in cases {
        let choice = known.choose(namespace, annotation, default);
        assert_eq!(name_of(&choice), expected, "{namespace} {annotation:?}");
    }
}

#[test]
fn candidate_in_canary_decides_about_its_share_of_the_vms() {
    let mut object = object(
        "db",
        json!({"source": "return 2", "gate": {"canaryPercent": 56}}),
    );
    let read = |object: &DynamicObject| {
        let read = read_policy(object, Limits::default()).expect("a name").1;
        let listed = read.expect("a policy");
        Versions::of(&listed, |_| Some(Spec::of_source("return 1")))
    };
    let newest = read(&object).candidate.expect("a candidate").digest;
    let old = Spec::of_source("return 1").digest();
    // This one is in canary from 56 percent on.
    let vm = "123456789";
    let roles = |versions: &Versions, uid: &str| -> Vec<(Role, Digest)> {
        let roles = versions.roles(uid).into_iter();
        roles.map(|(role, policy)| (role, policy.digest)).collect()
    };
    let shadow = vec![(Role::Live, old), (Role::Shadow, newest)];
    let canary = vec![(Role::Live, newest), (Role::Shadow, old)];
    let status = |stage: &str, candidate: Digest| json!({"live": {"digest": old}, "candidate": {"digest": candidate, "stage": stage}});
    object.data["status"] = status("shadow", newest);
    assert_eq!(roles(&read(&object), vm), shadow);
    object.data["status"] = status("canary", newest);
    assert_eq!(roles(&read(&object), vm), canary);
    assert!(read(&object).is_canary(vm));
    object.data["spec"]["gate"]["canaryPercent"] = 55.into();
    assert_eq!(roles(&read(&object), vm), shadow);
    object.data["spec"]["gate"]["canaryPercent"] = 100.into();
    assert_eq!(roles(&read(&object), "another"), canary);
    object.data["status"]["live"] = json!(null);
    assert_eq!(roles(&read(&object), vm), [(Role::Live, newest)]);
    object.data["status"] = status("canary", old);
    assert_eq!(
        roles(&read(&object), vm),
        shadow,
        "a newer version is not in canary"
    );
}

#[test]
fn version_of_the_status_decides_and_a_newer_one_is_a_candidate() {
    let spec = json!({"source": "return 2"});
    let with_status = |status: serde_json::Value| {
        let mut object = object("db", spec.clone());
        object.data["status"] = status;
        read_policy(&object, Limits::default()).expect("a name").1
    };
    let newest = with_status(json!(null)).expect("a policy").newest;
    let old = newest.with_spec(Spec::of_source("return 1"));
    let digests = |versions: &Versions| {
        let digest = |policy: &Option<Arc<Policy>>| policy.as_ref().map(|one| one.digest);
        (
            digest(&versions.live),
            digest(&versions.candidate),
            versions.missing,
        )
    };
    let live = |digest: Digest| json!({"live": {"digest": digest}});

    let listed = with_status(live(newest.digest)).expect("a policy");
    let versions = Versions::of(&listed, |_| None);
    assert_eq!(digests(&versions), (Some(newest.digest), None, None));

    let listed = with_status(live(old.digest)).expect("a policy");
    let versions = Versions::of(&listed, |_| Some(old.spec.clone()));
    let both = (Some(old.digest), Some(newest.digest), None);
    assert_eq!(digests(&versions), both);
    let versions = Versions::of(&listed, |_| None);
    let missing = (None, Some(newest.digest), Some(old.digest));
    assert_eq!(digests(&versions), missing);

    let mut paused = live(newest.digest);
    paused["conditions"] = json!([{"type": "Paused", "status": "True", "reason": "ByPerson",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let listed = with_status(paused).expect("a policy");
    assert_eq!(listed.deciding, None, "a paused policy decides nothing");
    assert!(with_status(json!({"live": {"digest": "x"}})).is_err());
}
