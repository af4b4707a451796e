mod cron;

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
        ("/spec/type", json!("Service"), "spec.type"),
        ("/spec/type", json!("Cron"), "spec.cron"),
        ("/spec/type", json!("Job"), "spec"),
        ("/spec/service", json!({}), "spec.service"),
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

/// Requirement: B23
#[test]
fn environment_of_the_control_plane_has_its_type_and_limits() {
    let mut sound = sound_environment();
    sound["spec"]["part"] = json!("controller");
    sound["spec"]["type"] = json!("Service");
    sound["spec"]["service"] = json!({"maxActivePercent": 150, "progressSeconds": 60});
    let active = "spec.service.maxActivePercent";
    let progress = "spec.service.progressSeconds";
    let rows = vec![
        ("/spec/type", json!("Daemon"), "spec.type"),
        ("/spec/service/maxActivePercent", json!(99), active),
        ("/spec/service/maxActivePercent", json!(201), active),
        ("/spec/service/progressSeconds", json!(59), progress),
        ("/spec/service/progressSeconds", json!(3601), progress),
        ("/spec/service/other", json!(1), "spec"),
    ];
    check(FleetKind::Environment, &sound, rows);
    let object =
        json!({"spec": {"type": "Service", "part": "monitor", "source": {"channel": "c"}}});
    let refused = validate_create(FleetKind::Environment.as_str(), &object);
    assert_eq!(fields(refused), ["spec.type"]);
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

/// Requirement: R17
#[test]
fn bad_windows_and_groups_are_refused_with_the_field() {
    let window = |days: Value, start: &str, minutes: u32, zone: &str| json!([{"days": days, "start": start, "minutes": minutes, "timeZone": zone}]);
    let blackout = |from: &str, to: &str| json!([{"from": from, "to": to}]);
    let group = |name: &str| json!({"name": name});
    let many: Vec<Value> = (0..17).map(|number| group(&format!("g{number}"))).collect();
    let mut sound = sound_environment();
    sound["spec"]["rollout"] = json!({"judge": {}, "groups": [
        {"name": "a", "matchLabels": {"tier": "test"}, "canaries": 5}, {"name": "b"}]});
    sound["spec"]["critical"] = json!({"minHealthyPercent": 0});
    sound["spec"]["windows"] = window(json!(["Sat", "Sun"]), "02:00", 120, "Europe/Berlin");
    sound["spec"]["blackouts"] = blackout("2026-12-20T00:00:00Z", "2027-01-03T00:00:00Z");
    let zone = |zone: &str| window(json!(["Mon"]), "02:00", 60, zone);
    let start = |start: &str| window(json!(["Mon"]), start, 60, "UTC");
    let minutes = |minutes: u32| window(json!(["Mon"]), "02:00", minutes, "UTC");
    let windows = "/spec/windows";
    let blackouts = "/spec/blackouts";
    let judge = "/spec/rollout/judge";
    let rows = vec![
        (windows, zone("Europe/Atlantis"), "spec.windows[0].timeZone"),
        (windows, zone("../etc/passwd"), "spec.windows[0].timeZone"),
        (windows, zone(""), "spec.windows[0].timeZone"),
        (windows, zone("europe/berlin"), "spec.windows[0].timeZone"),
        (windows, start("24:00"), "spec.windows[0].start"),
        (windows, start("2:00"), "spec.windows[0].start"),
        (windows, start("+2:00"), "spec.windows[0].start"),
        (windows, start("02:60"), "spec.windows[0].start"),
        (windows, minutes(9), "spec.windows[0].minutes"),
        (windows, minutes(1441), "spec.windows[0].minutes"),
        (
            windows,
            window(json!([]), "02:00", 60, "UTC"),
            "spec.windows[0].days",
        ),
        (
            windows,
            window(json!(["Mon", "Mon"]), "02:00", 60, "UTC"),
            "spec.windows[0].days",
        ),
        (
            windows,
            window(json!(["Monday"]), "02:00", 60, "UTC"),
            "spec",
        ),
        (
            blackouts,
            blackout("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"),
            "spec.blackouts[0].to",
        ),
        (
            blackouts,
            blackout("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
            "spec.blackouts[0].to",
        ),
        (
            blackouts,
            blackout("2026-01-01T00:00:00Z", "2999-01-01T00:00:00Z"),
            "spec.blackouts[0].to",
        ),
        (blackouts, blackout("soon", "later"), "spec"),
        (
            "/spec/rollout/groups/0/canaries",
            json!(6),
            "spec.rollout.groups[0].canaries",
        ),
        (
            "/spec/rollout/groups/0/bakeSeconds",
            json!(86_401),
            "spec.rollout.groups[0].bakeSeconds",
        ),
        (
            "/spec/rollout/groups/0/name",
            json!(""),
            "spec.rollout.groups[0].name",
        ),
        (
            "/spec/rollout/groups/1/name",
            json!("a"),
            "spec.rollout.groups[1].name",
        ),
        (
            "/spec/rollout/groups/0/matchLabels",
            json!({}),
            "spec.rollout.groups[1].matchLabels",
        ),
        ("/spec/rollout/groups", json!(many), "spec.rollout.groups"),
        ("/spec/rollout/onInconclusive", json!("Maybe"), "spec"),
        (
            "/spec/critical/minHealthyPercent",
            json!(100),
            "spec.critical.minHealthyPercent",
        ),
    ];
    let bounds = [
        ("oomKills", 0),
        ("lostLinksPercent", 101),
        ("significancePpm", 0),
        ("resizePercent", 100),
        ("guestMinutes", 0),
    ];
    let of_judge: Vec<String> = bounds
        .iter()
        .map(|(name, _)| format!("spec.rollout.judge.{name}"))
        .collect();
    check(FleetKind::Environment, &sound, rows);
    for ((name, value), field) in bounds.iter().zip(&of_judge) {
        let mut object = sound.clone();
        object.pointer_mut(judge).expect("a judge")[*name] = json!(value);
        let found = fields(validate_create("FleetEnvironment", &object));
        assert_eq!(found, [field.as_str()], "{name} = {value}");
    }
}

#[test]
fn window_without_time_for_a_trial_is_refused() {
    let mut object = sound_environment();
    object["spec"]["rollout"] = json!({"trialSeconds": 600});
    object["spec"]["windows"] = json!([{"days": ["Mon"], "start": "02:00", "minutes": 11}]);
    let found = fields(validate_create("FleetEnvironment", &object));
    assert_eq!(found, ["spec.windows[0].minutes"]);
    object["spec"]["windows"][0]["minutes"] = json!(12);
    assert_eq!(validate_create("FleetEnvironment", &object), Ok(()));
}

/// Requirement: R05
#[test]
fn bad_channels_are_refused_with_the_field() {
    let root = json!({"signed": {"_type": "root"}, "signatures": []}).to_string();
    let sound =
        json!({"spec": {"url": "https://example.org/releases", "name": "stable", "root": root}});
    let url = "/spec/url";
    let long = format!("https://{}", "a".repeat(2048));
    let rows = vec![
        (url, json!("http://example.org"), "spec.url"),
        (url, json!("https://"), "spec.url"),
        (url, json!("https:///x"), "spec.url"),
        (url, json!("file://host/x"), "spec.url"),
        (url, json!("file:///"), "spec.url"),
        (url, json!("ftp://example.org"), "spec.url"),
        (url, json!("https://user@example.org"), "spec.url"),
        (url, json!("https://example.org/?x"), "spec.url"),
        (url, json!("https://example.org/#x"), "spec.url"),
        (url, json!("https://example.org/a b"), "spec.url"),
        (url, json!(long), "spec.url"),
        (url, json!(""), "spec.url"),
        ("/spec/name", json!("../x"), "spec.name"),
        ("/spec/name", json!("Stable"), "spec.name"),
        ("/spec/name", json!(""), "spec.name"),
        ("/spec/root", json!(""), "spec.root"),
        ("/spec/root", json!("<html>"), "spec.root"),
        ("/spec/root", json!("x".repeat(1 << 17)), "spec.root"),
        ("/spec/trust", json!("Blind"), "spec"),
        ("/spec/trust", json!("Local"), "spec.url"),
        ("/spec/pollSeconds", json!(9), "spec.pollSeconds"),
        ("/spec/graceSeconds", json!(31_536_001), "spec.graceSeconds"),
        ("/spec/x", json!(1), "spec"),
    ];
    for (pointer, value, field) in rows {
        let mut object = sound.clone();
        let name = pointer.trim_start_matches("/spec/");
        object["spec"][name] = value.clone();
        let found = fields(validate_create("FleetChannel", &object));
        assert!(
            found.iter().any(|it| it == field),
            "{pointer} {value}: {found:?}"
        );
    }
    assert_eq!(validate_create("FleetChannel", &sound), Ok(()));
    let local = json!({"spec": {"url": "file:///srv/x", "name": "a", "trust": "Local"}});
    assert_eq!(validate_create("FleetChannel", &local), Ok(()));
}

#[test]
fn source_is_a_release_or_a_channel() {
    let source = |source: Value| {
        let mut object = sound_environment();
        object["spec"]["source"] = source;
        fields(validate_create("FleetEnvironment", &object))
    };
    assert!(source(json!({"channel": "stable"})).is_empty());
    assert_eq!(source(json!({"channel": ""})), ["spec.source.channel"]);
    assert_eq!(source(json!({})), ["spec.source"]);
    let both = json!({"channel": "stable", "release": {"version": "1.2.3"}});
    assert_eq!(source(both), ["spec.source"]);
}
