use protocol::vm::Condition;

use super::*;

fn running() -> VmStatus {
    VmStatus {
        phase: VmPhase::Running,
        ..VmStatus::default()
    }
}

const PAGE: &str =
    "# TYPE x gauge\nhost_memory_total_bytes 1073741824\nvm_monitor_agent_connected 1\n";

#[test]
fn page_without_memory_readings_does_not_count_as_an_answer() {
    let good = Ok(PAGE.to_owned());
    let facts_of = |page: Option<&Result<String, String>>| facts(page, true);
    assert_eq!(facts_of(Some(&good)).page_answers, Some(true));
    assert_eq!(facts_of(Some(&good)).agent_connected, Some(true));
    let empty = Ok(String::new());
    assert_eq!(facts_of(Some(&empty)).page_answers, Some(false));
    let refused = Err("refused".to_owned());
    assert_eq!(facts_of(Some(&refused)).page_answers, Some(false));
    assert_eq!(facts_of(None), Facts::default());
}

#[test]
fn monitor_without_its_agent_is_noticed_only_where_an_agent_is_expected() {
    let deaf = Ok(PAGE.replace("connected 1", "connected 0"));
    let expected = facts(Some(&deaf), true);
    assert_eq!(expected.agent_connected, Some(false));
    let unexpected = facts(Some(&deaf), false);
    assert_eq!(unexpected.agent_connected, None);
}

#[test]
fn degraded_vm_is_noticed() {
    let mut status = running();
    status.conditions.push(Condition {
        kind: "Degraded".to_owned(),
        status: "True".to_owned(),
        message: "the pod is stuck".to_owned(),
        last_transition_time: Some(WallTime(7)),
        ..Condition::default()
    });
    let expected = |in_resize| Degradation {
        message: "the pod is stuck".to_owned(),
        since: Some(WallTime(7)),
        in_resize,
    };
    assert_eq!(degraded(&status, None), Some(expected(false)));
    status.phase = VmPhase::Scaling;
    assert_eq!(degraded(&status, None), Some(expected(true)));
    status.conditions[0].status = "False".to_owned();
    assert_eq!(degraded(&status, None), None);
}

#[test]
fn guest_gets_no_turn_while_its_vm_moves_scales_or_does_not_run() {
    let rows = [
        (VmPhase::Running, None),
        (VmPhase::Scaling, Some(Gate::Resizing)),
        (VmPhase::Migrating, Some(Gate::Migrating)),
        (VmPhase::PreMigrating, Some(Gate::Migrating)),
        (VmPhase::Pending, Some(Gate::NotRunning)),
        (VmPhase::Failed, Some(Gate::NotRunning)),
    ];
    for (phase, expected) in rows {
        let status = VmStatus {
            phase,
            ..VmStatus::default()
        };
        assert_eq!(gate(&status, None, WallTime(0)), expected, "{phase:?}");
    }
}

/// Requirement: B51
#[test]
fn health_check_of_the_operator_is_an_annotation_with_its_reason() {
    let of = |text: Option<&str>| {
        let mut vm = serde_json::json!({"metadata": {"name": "pg", "namespace": "default"}, "spec": {"guest": {
            "cpus": {"min": 1, "use": 1, "max": 1}, "memorySlots": {"min": 1, "use": 1, "max": 1},
            "rootDisk": {"image": "app"},
        }}});
        if let Some(text) = text {
            vm["metadata"]["annotations"] = serde_json::json!({KEY_UNHEALTHY: text});
        }
        check(&serde_json::from_value(vm).expect("a VM"))
    };
    assert_eq!(of(None), None);
    assert_eq!(of(Some(" \n")), None);
    assert_eq!(of(Some("late\n")), Some("late".to_owned()));
    assert_eq!(
        of(Some(&"x".repeat(4096))).map(|text| text.len()),
        Some(200)
    );
}
