use super::*;

const NOW: WallTime = WallTime(1_704_164_645_000_000);

fn input(existing: &Value) -> StatusInput<'_> {
    StatusInput {
        existing,
        image: "runner:1",
        pod_ip: Some("127.77.1.2".into()),
        host_ip: "127.77.0.1",
        now: NOW,
    }
}

fn report(reason: ExitReason, success: bool, message: &str) -> ExitReport {
    ExitReport {
        success,
        reason,
        code: Some(0),
        message: message.into(),
    }
}

#[test]
fn every_state_has_its_step() {
    use Desired::{Gone, Run, Stop};
    use Local::{Ended, Fresh, NoRunner, Runner};
    let (stop, gone) = (Stop { grace_ms: 7 }, Gone { grace_ms: 7 });
    for (desired, local, phase, step) in [
        (Run, Fresh, "", Step::Prepare),
        (Run, Fresh, "Pending", Step::Prepare),
        (Run, Fresh, "Running", Step::Lose),
        (Run, Fresh, "Failed", Step::Watch),
        (Run, Fresh, "Succeeded", Step::Watch),
        (Run, NoRunner, "Running", Step::Spawn),
        (Run, Runner, "Running", Step::Watch),
        (Run, Ended, "Running", Step::Watch),
        (stop, Runner, "Running", Step::Stop { grace_ms: 7 }),
        (gone, Runner, "", Step::Stop { grace_ms: 7 }),
        (stop, NoRunner, "Running", Step::Spawn),
        (gone, NoRunner, "", Step::Spawn),
        (stop, Ended, "Running", Step::Finish { in_api: true }),
        (stop, Fresh, "Pending", Step::Finish { in_api: true }),
        (gone, Ended, "", Step::Finish { in_api: false }),
    ] {
        assert_eq!(
            next(desired, local, phase),
            step,
            "{desired:?} {local:?} {phase}"
        );
    }
}

#[test]
fn ready_pod_keeps_conditions_of_others() {
    let existing = json!({
        "conditions": [
            { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2024-01-01T00:00:00Z" },
            { "type": "Ready", "status": "False", "lastTransitionTime": "2024-01-01T00:00:01Z" },
        ],
        "startTime": "2024-01-01T00:00:01Z",
    });
    let status = status(&View::Running { ready: true }, &input(&existing));
    assert_eq!(status["phase"], "Running");
    assert_eq!(
        (&status["podIP"], &status["hostIP"]),
        (&json!("127.77.1.2"), &json!("127.77.0.1"))
    );
    assert_eq!(status["conditions"][0]["type"], "PodScheduled");
    let ready = status["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["type"] == "Ready")
        .unwrap();
    assert_eq!(
        (&ready["status"], &ready["lastTransitionTime"]),
        (&json!("True"), &json!("2024-01-02T03:04:05Z"))
    );
    assert_eq!(status["containerStatuses"][0]["ready"], true);
    assert_eq!(status["startTime"], "2024-01-01T00:00:01Z");
}

#[test]
fn same_view_later_changes_nothing() {
    for view in [
        View::Waiting {
            reason: "ErrImageNeverPull".into(),
            message: "m".into(),
        },
        View::Running { ready: false },
        View::Running { ready: true },
        View::Ended(report(ExitReason::GuestPanic, false, "p")),
    ] {
        let first = status(&view, &input(&Value::Null));
        let later = StatusInput {
            now: WallTime(NOW.0 + 9_000_000),
            ..input(&first)
        };
        assert_eq!(status(&view, &later), first, "{view:?}");
    }
}

#[test]
fn missing_image_waits_with_the_kubelets_reason() {
    let view = View::Waiting {
        reason: "ErrImageNeverPull".into(),
        message: "build it".into(),
    };
    let status = status(
        &view,
        &StatusInput {
            pod_ip: None,
            ..input(&Value::Null)
        },
    );
    assert_eq!(status["phase"], "Pending");
    let waiting = &status["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(
        waiting,
        &json!({ "reason": "ErrImageNeverPull", "message": "build it" })
    );
    assert!(status.get("podIP").is_none());
}

#[test]
fn panic_is_a_failure_although_qemu_exits_with_zero() {
    let ended = View::Ended(report(
        ExitReason::GuestPanic,
        false,
        "[1] Kernel panic - not syncing: x\nstack",
    ));
    let status = status(&ended, &input(&Value::Null));
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("GuestPanic"))
    );
    assert_eq!(
        status["message"],
        "the guest's kernel panicked: [1] Kernel panic - not syncing: x"
    );
    assert_eq!(
        status["containerStatuses"][0]["state"]["terminated"]["exitCode"],
        1
    );
}

#[test]
fn power_off_is_a_success() {
    let ended = View::Ended(report(ExitReason::Requested, true, ""));
    let status = status(&ended, &input(&Value::Null));
    assert_eq!(status["phase"], "Succeeded");
    assert_eq!(
        status["containerStatuses"][0]["state"]["terminated"]["reason"],
        "Completed"
    );
}
