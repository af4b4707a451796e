//! Rules of environments that verify, and of hooks.

use super::*;

/// Requirement: B24
#[test]
fn environment_that_verifies_has_its_times_and_no_windows() {
    let mut sound = sound_environment();
    sound["spec"]["type"] = json!("Cron");
    sound["spec"]["cron"] = json!({"days": ["Sat", "Sun"], "start": "02:00"});
    let window = json!([{"days": ["Mon"], "start": "02:00", "minutes": 60}]);
    let rows = vec![
        ("/spec/cron", Value::Null, "spec.cron"),
        ("/spec/type", json!("Daemon"), "spec.cron"),
        ("/spec/part", json!("agent"), "spec.type"),
        ("/spec/part", json!("controller"), "spec.type"),
        ("/spec/windows", window, "spec.windows"),
        ("/spec/cron/days", json!([]), "spec.cron.days"),
        ("/spec/cron/days", json!(["Sat", "Sat"]), "spec.cron.days"),
        ("/spec/cron/days", json!(["Samstag"]), "spec"),
        ("/spec/cron/start", json!("24:00"), "spec.cron.start"),
        ("/spec/cron/start", json!("2:00"), "spec.cron.start"),
        ("/spec/cron/timeZone", json!("Mars"), "spec.cron.timeZone"),
        ("/spec/cron/verb", json!("Change"), "spec"),
        ("/spec/cron/minutes", json!(60), "spec"),
    ];
    check(FleetKind::Environment, &sound, rows);
}

/// Requirement: B24
#[test]
fn run_of_a_tick_names_its_time_and_keeps_it() {
    let mut sound = sound_deployment();
    sound["spec"]["kind"] = json!("Cron");
    sound["spec"]["tick"] = json!({"at": "2026-01-05T02:00:00Z", "missed": 2});
    let rows = vec![
        ("/spec/tick", Value::Null, "spec.tick"),
        ("/spec/kind", json!("User"), "spec.tick"),
        ("/spec/tick/at", json!("Monday"), "spec"),
        ("/spec/tick/missed", json!(-1), "spec"),
    ];
    check(FleetKind::Deployment, &sound, rows);
    let mut changed = sound.clone();
    changed["spec"]["tick"]["missed"] = json!(0);
    let found = fields(validate_update("FleetDeployment", &sound, &changed));
    assert_eq!(found, ["spec.tick"]);
}

/// Requirement: B51
#[test]
fn bad_hooks_are_refused_with_the_field() {
    let mut sound = sound_environment();
    sound["spec"]["rollout"] = json!({
        "groups": [{"name": "a"}],
        "hooks": [
            {"name": "backup", "at": "Before"},
            {"name": "smoke-2", "at": "After", "group": "a", "timeoutSeconds": 10},
        ],
    });
    let many: Vec<Value> = (0..17)
        .map(|n| json!({"name": format!("h{n}"), "at": "Before"}))
        .collect();
    let long = "x".repeat(64);
    let name = "spec.rollout.hooks[1].name";
    let mut rows = vec![
        ("/spec/rollout/hooks", json!(many), "spec.rollout.hooks"),
        (
            "/spec/rollout/hooks/1/group",
            json!("b"),
            "spec.rollout.hooks[1].group",
        ),
        (
            "/spec/rollout/hooks/1/timeoutSeconds",
            json!(9),
            "spec.rollout.hooks[1].timeoutSeconds",
        ),
        (
            "/spec/rollout/hooks/1/timeoutSeconds",
            json!(86_401),
            "spec.rollout.hooks[1].timeoutSeconds",
        ),
        ("/spec/rollout/hooks/1/at", json!("During"), "spec"),
        ("/spec/rollout/hooks/1/command", json!("/bin/true"), "spec"),
    ];
    for bad in [
        "",
        "backup",
        "Smoke",
        "a/b",
        "-a",
        "a-",
        "a.b",
        long.as_str(),
    ] {
        rows.push(("/spec/rollout/hooks/1/name", json!(bad), name));
    }
    check(FleetKind::Environment, &sound, rows);
}
