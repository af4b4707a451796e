use serde_json::json;

use super::*;

fn sound_environment() -> Value {
    json!({"spec": {"part": "monitor", "source": {"release": {"version": "1.2.3"}}}})
}

fn sound_deployment() -> Value {
    json!({"spec": {"environment": "m", "revision": "m-r1"}})
}

fn sound_instance() -> Value {
    json!({"spec": {"parts": {"monitor": {
        "environment": "m", "deployment": "d", "revision": "m-r1", "version": "1.2.3",
        "sha256": "0".repeat(64), "token": "d-1", "epoch": 1, "attempt": 1,
    }}}})
}

fn fields(result: Result<(), Vec<FieldError>>) -> Vec<String> {
    let errors = result.err().unwrap_or_default();
    errors.into_iter().map(|error| error.field).collect()
}

/// A member that is changed in a sound object, its value, and the field at fault.
type Row = (&'static str, Value, &'static str);

fn check(kind: FleetKind, sound: &Value, rows: Vec<Row>) {
    assert_eq!(validate_create(kind.as_str(), sound), Ok(()));
    for (pointer, value, field) in rows {
        let mut object = sound.clone();
        let (parent, name) = pointer.rsplit_once('/').expect("a member");
        let parent = object.pointer_mut(parent).expect(pointer);
        parent[name] = value.clone();
        let found = fields(validate_create(kind.as_str(), &object));
        assert_eq!(found, [field], "{pointer} = {value}");
    }
}

/// Requirement: B22
#[test]
fn bad_environments_are_refused_with_the_field() {
    let mut sound = sound_environment();
    sound["spec"]["rollout"] = json!({});
    sound["spec"]["selector"] = json!({});
    let version = "spec.source.release.version";
    let expressions = |operator: &str, values: Value| json!([{"key": "a", "operator": operator, "values": values}]);
    let rows = vec![
        ("/spec/part", json!("sshd"), "spec"),
        ("/spec/type", json!("Service"), "spec"),
        ("/spec/unknown", json!(1), "spec"),
        ("/spec/source/release/version", json!("1.2"), version),
        ("/spec/source/release/version", json!("v1.2.3"), version),
        ("/spec/source/release/version", json!("1.2.3+x"), version),
        ("/spec/source/release/version", json!("1.2.3\n1"), version),
        ("/spec/source/release/version", json!(""), version),
        (
            "/spec/rollout/minHealthyPercent",
            json!(100),
            "spec.rollout.minHealthyPercent",
        ),
        (
            "/spec/rollout/maxInFlight",
            json!(0),
            "spec.rollout.maxInFlight",
        ),
        (
            "/spec/rollout/maxPerNode",
            json!(0),
            "spec.rollout.maxPerNode",
        ),
        (
            "/spec/rollout/trialSeconds",
            json!(5),
            "spec.rollout.trialSeconds",
        ),
        (
            "/spec/rollout/trialSeconds",
            json!(601),
            "spec.rollout.trialSeconds",
        ),
        (
            "/spec/rollout/deadlineSeconds",
            json!(1),
            "spec.rollout.deadlineSeconds",
        ),
        ("/spec/rollout/retries", json!(11), "spec.rollout.retries"),
        (
            "/spec/rollout/maxFailedPercent",
            json!(101),
            "spec.rollout.maxFailedPercent",
        ),
        ("/spec/rollout/trialSeconds", json!(-1), "spec"),
        (
            "/spec/selector/matchExpressions",
            expressions("In", json!([])),
            "spec.selector.matchExpressions[0].values",
        ),
        (
            "/spec/selector/matchExpressions",
            expressions("Exists", json!(["a"])),
            "spec.selector.matchExpressions[0].values",
        ),
    ];
    check(FleetKind::Environment, &sound, rows);
}

#[test]
fn refusal_of_a_budget_without_a_step_names_the_fix() {
    let mut object = sound_environment();
    object["spec"]["rollout"] = json!({"minHealthyPercent": 100});
    let errors = validate_create("FleetEnvironment", &object).expect_err("refused");
    assert!(errors[0].message.contains("Take 99"), "{errors:?}");
}

/// Requirement: B10
#[test]
fn bad_deployments_are_refused_with_the_field() {
    let many: Vec<String> = (0..501).map(|number| format!("vm-{number}")).collect();
    let rows = vec![
        ("/spec/environment", json!(""), "spec.environment"),
        ("/spec/environment", json!(null), "spec"),
        ("/spec/revision", json!(null), "spec"),
        ("/spec/revision", json!(""), "spec.revision"),
        ("/spec/revision", json!("other-r1"), "spec.revision"),
        ("/spec/revision", json!("m-rx"), "spec.revision"),
        ("/spec/kind", json!("Odd"), "spec"),
        ("/spec/kind", json!("Rollback"), "spec.rollbackOf"),
        ("/spec/rollbackOf", json!("d"), "spec.rollbackOf"),
        ("/spec/instances", json!(many), "spec.instances"),
    ];
    let mut sound = sound_deployment();
    sound["spec"]["kind"] = json!("User");
    // An empty name also has no revision of its own.
    let first = rows[0].clone();
    let mut object = sound.clone();
    object["spec"]["environment"] = first.1;
    let found = fields(validate_create("FleetDeployment", &object));
    assert_eq!(found, ["spec.environment", "spec.revision"]);
    check(FleetKind::Deployment, &sound, rows[1..].to_vec());
}

#[test]
fn bad_instances_are_refused_with_the_field() {
    let long = "x".repeat(1024);
    let rows = vec![
        ("/spec/parts/sshd", json!({}), "spec"),
        (
            "/spec/parts/monitor/token",
            json!(long),
            "spec.parts.monitor.token",
        ),
        (
            "/spec/parts/monitor/token",
            json!(""),
            "spec.parts.monitor.token",
        ),
        (
            "/spec/parts/monitor/sha256",
            json!("ABC"),
            "spec.parts.monitor.sha256",
        ),
        (
            "/spec/parts/monitor/version",
            json!("1"),
            "spec.parts.monitor.version",
        ),
        ("/spec/parts/monitor/epoch", json!(-1), "spec"),
    ];
    check(FleetKind::Instance, &sound_instance(), rows);
}

#[test]
fn immutable_members_stay() {
    let update = |kind: FleetKind, old: &Value, pointer: &str, value: Value| {
        let mut new = old.clone();
        let (parent, name) = pointer.rsplit_once('/').expect("a member");
        new.pointer_mut(parent).expect(pointer)[name] = value;
        fields(validate_update(kind.as_str(), old, &new))
    };
    let environment = sound_environment();
    let part = update(
        FleetKind::Environment,
        &environment,
        "/spec/part",
        json!("guestd"),
    );
    assert_eq!(part, ["spec.part"]);
    let version = json!("2.0.0");
    let path = "/spec/source/release/version";
    assert!(update(FleetKind::Environment, &environment, path, version).is_empty());

    let mut deployment = sound_deployment();
    let kind = FleetKind::Deployment;
    assert_eq!(
        update(kind, &deployment, "/spec/revision", json!("m-r2")),
        ["spec.revision"]
    );
    assert_eq!(
        update(kind, &deployment, "/spec/reason", json!("x")),
        ["spec.reason"]
    );
    assert!(update(kind, &deployment, "/spec/stop", json!(true)).is_empty());
    deployment["spec"]["stop"] = json!(true);
    assert_eq!(
        update(kind, &deployment, "/spec/stop", json!(false)),
        ["spec.stop"]
    );
}

#[test]
fn epoch_of_a_part_only_grows() {
    let old = sound_instance();
    let with = |epoch: u64| {
        let mut new = old.clone();
        new["spec"]["parts"]["monitor"]["epoch"] = json!(epoch);
        new["spec"]["parts"]["monitor"]["token"] = json!("other");
        fields(validate_update("FleetInstance", &old, &new))
    };
    assert_eq!(with(1), ["spec.parts.monitor.epoch"]);
    assert_eq!(with(0), ["spec.parts.monitor.epoch"]);
    assert!(with(2).is_empty());
}
