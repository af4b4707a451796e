//! The node driver's next step for one pod, and the pod's status.
//!
//! ```text
//!  Fresh ──prepare──> NoRunner ──spawn──> Runner ──QEMU ends──> Ended
//!    │ image missing                        │ deletion: stop        │ deletion: finish
//!    └─> waits (Pending), tries again       └──────────────────────>┘
//! ```
//!
//! * A pod that is `Running` in the API and has no directory here lost its VM: it fails, it is not
//!   started a second time.
//! * A pod that has ended is never started again; its directory stays until the pod is deleted.
//! * A runner that is gone without a report of QEMU's end is started again, and adopts QEMU.

use protocol::runner::{ExitReason, ExitReport};
use protocol::time::WallTime;
use serde_json::{Value, json};

/// Name of the container that stands for the runner.
pub const CONTAINER: &str = "neonvm-runner";
/// Longest message in a pod's status, characters.
const MAX_MESSAGE_CHARS: usize = 1024;

/// State of the pod in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Desired {
    /// The pod exists and is not being deleted.
    Run,
    /// The pod is being deleted.
    Stop {
        /// Milliseconds that the guest has to shut down.
        grace_ms: u64,
    },
    /// The pod is missing in the API.
    Gone {
        /// Milliseconds that the guest has to shut down.
        grace_ms: u64,
    },
}

/// State of the pod on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Local {
    /// The pod's directory has neither a runner's configuration nor a report of an end.
    Fresh,
    /// A directory without a runner. QEMU may run.
    NoRunner,
    /// A runner is linked to the driver.
    Runner,
    /// A report says that the VM has ended.
    Ended,
}

/// Next action of the node driver for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Resolve the image, allot an address, write the directory.
    Prepare,
    /// Start a runner in the directory.
    Spawn,
    /// Order the runner to stop the guest.
    Stop {
        /// Milliseconds that the guest has to shut down.
        grace_ms: u64,
    },
    /// Nothing but keeping the status current.
    Watch,
    /// Report the pod as failed: its VM is lost.
    Lose,
    /// Remove the directory, free the address, and delete the pod's object.
    Finish {
        /// Whether the API still has the pod.
        in_api: bool,
    },
}

/// Chooses the next step. `phase` is the pod's phase in the API.
#[must_use]
pub fn next(desired: Desired, local: Local, phase: &str) -> Step {
    let ended_in_api = matches!(phase, "Succeeded" | "Failed");
    match (desired, local) {
        (Desired::Run, Local::Fresh) if ended_in_api => Step::Watch,
        (Desired::Run, Local::Fresh) if phase == "Running" => Step::Lose,
        (Desired::Run, Local::Fresh) => Step::Prepare,
        (_, Local::NoRunner) => Step::Spawn,
        (Desired::Run, Local::Runner | Local::Ended) => Step::Watch,
        (Desired::Stop { grace_ms } | Desired::Gone { grace_ms }, Local::Runner) => {
            Step::Stop { grace_ms }
        }
        (Desired::Stop { .. }, Local::Fresh | Local::Ended) => Step::Finish { in_api: true },
        (Desired::Gone { .. }, Local::Fresh | Local::Ended) => Step::Finish { in_api: false },
    }
}

/// State of a pod's VM for its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// The VM cannot start at present.
    Waiting {
        /// One CamelCase word, as the kubelet writes it.
        reason: String,
        /// Explanation for people of why it cannot start.
        message: String,
    },
    /// A runner runs, and with it QEMU.
    Running {
        /// Whether the guest's daemon has answered.
        ready: bool,
    },
    /// The VM has ended, with this report.
    Ended(ExitReport),
}

/// Inputs of a status beside the view.
#[derive(Debug, Clone)]
pub struct StatusInput<'a> {
    /// Status in the API, of which times are kept.
    pub existing: &'a Value,
    /// Image of the runner's container.
    pub image: &'a str,
    /// Address of the pod. `None` until it is allocated.
    pub pod_ip: Option<String>,
    /// IPv4 address of the node.
    pub host_ip: &'a str,
    /// Time of changed conditions. Unchanged conditions keep their time.
    pub now: WallTime,
}

/// Members of the status that the driver owns. Lists are complete, as they replace those in the
/// API. Without a change the result equals the existing status.
#[must_use]
pub fn status(view: &View, input: &StatusInput<'_>) -> Value {
    let now = input.now.to_string();
    let old = input.existing;
    let container = &old["containerStatuses"][0];
    let began = [
        &container["state"]["running"]["startedAt"],
        &container["state"]["terminated"]["startedAt"],
    ]
    .into_iter()
    .find_map(Value::as_str)
    .unwrap_or(&now);
    let (phase, ready, state) = match view {
        View::Waiting { reason, message } => (
            "Pending",
            false,
            json!({ "waiting": { "reason": reason, "message": cut(message) } }),
        ),
        View::Running { ready } => (
            "Running",
            *ready,
            json!({ "running": { "startedAt": began } }),
        ),
        View::Ended(report) => {
            let phase = if report.success {
                "Succeeded"
            } else {
                "Failed"
            };
            let ended = container["state"]["terminated"]["finishedAt"]
                .as_str()
                .unwrap_or(&now);
            (
                phase,
                false,
                json!({ "terminated": terminated(report, began, ended) }),
            )
        }
    };
    let started = phase == "Running";
    let mut status = json!({
        "phase": phase,
        "hostIP": input.host_ip,
        "hostIPs": [{ "ip": input.host_ip }],
        "startTime": old["startTime"].as_str().unwrap_or(&now),
        "conditions": conditions(old, view, ready, &now),
        "containerStatuses": [{
            "name": CONTAINER,
            "image": input.image,
            "imageID": "",
            "ready": ready,
            "started": started,
            "restartCount": 0,
            "state": state,
        }],
    });
    if let Some(ip) = &input.pod_ip {
        status["podIP"] = json!(ip);
        status["podIPs"] = json!([{ "ip": ip }]);
    }
    if let View::Ended(report) = view {
        status["message"] = json!(summary(report));
        status["reason"] = json!(label(report.reason));
    }
    status
}

fn terminated(report: &ExitReport, began: &str, ended: &str) -> Value {
    let code = match (report.success, report.code) {
        (true, _) => 0,
        // QEMU ends with 0 even when its guest panicked; a failure must not look like a success.
        (false, None | Some(0)) => 1,
        (false, Some(code)) => code,
    };
    json!({
        "exitCode": code,
        "reason": if report.success { "Completed" } else { label(report.reason) },
        "message": cut(&report.message),
        "startedAt": began,
        "finishedAt": ended,
    })
}

/// Conditions of the driver behind those of others, in the kubelet's order.
fn conditions(old: &Value, view: &View, ready: bool, now: &str) -> Vec<Value> {
    let existing = old["conditions"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let of = |kind: &str| existing.iter().find(|condition| condition["type"] == kind);
    let initialized = !matches!(view, View::Waiting { .. });
    let ours = [
        ("Initialized", initialized),
        ("Ready", ready),
        ("ContainersReady", ready),
    ];
    let foreign = existing
        .iter()
        .filter(|condition| ours.iter().all(|(kind, _)| condition["type"] != *kind))
        .cloned();
    let made = ours.iter().map(|(kind, holds)| {
        let status = if *holds { "True" } else { "False" };
        let since = of(kind)
            .filter(|condition| condition["status"] == status)
            .and_then(|condition| condition["lastTransitionTime"].as_str())
            .unwrap_or(now);
        json!({ "type": kind, "status": status, "lastTransitionTime": since })
    });
    foreign.chain(made).collect()
}

/// Reason of an end for a pod's status, in CamelCase.
#[must_use]
pub fn label(reason: ExitReason) -> &'static str {
    match reason {
        ExitReason::GuestShutdown => "GuestShutdown",
        ExitReason::Requested => "Requested",
        ExitReason::Killed => "Killed",
        ExitReason::GuestPanic => "GuestPanic",
        ExitReason::GuestReset => "GuestReset",
        ExitReason::StartFailed => "StartFailed",
        ExitReason::QemuDied => "QemuDied",
        ExitReason::Moved => "Moved",
    }
}

/// One line for people about an end.
#[must_use]
pub fn summary(report: &ExitReport) -> String {
    let what = match report.reason {
        ExitReason::GuestShutdown => "the guest powered off",
        ExitReason::Requested => "the guest powered off on request",
        ExitReason::Killed => "the guest did not power off in time and was ended",
        ExitReason::GuestPanic => "the guest's kernel panicked",
        ExitReason::GuestReset => "the guest reset itself",
        ExitReason::StartFailed => "the VM could not be started",
        ExitReason::QemuDied => "QEMU died",
        ExitReason::Moved => "the guest runs elsewhere",
    };
    // A start failure keeps its whole message. Other ends keep the last line, and a panic the
    // first.
    let mut lines = report
        .message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let telling = match report.reason {
        ExitReason::StartFailed => lines.collect::<Vec<_>>().join(" "),
        ExitReason::QemuDied => lines.next_back().unwrap_or_default().to_owned(),
        ExitReason::GuestPanic => lines.next().unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    if telling.is_empty() {
        what.to_owned()
    } else {
        cut(&format!("{what}: {telling}"))
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_MESSAGE_CHARS).collect()
}

#[cfg(test)]
mod tests;
