//! What the node driver does about one pod, and what it says about it.
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
//! * A runner that is gone while nothing says that QEMU ended is started again, and adopts.

use protocol::runner::{ExitReason, ExitReport};
use protocol::time::WallTime;
use serde_json::{Value, json};

/// Name of the container that stands for the runner.
pub const CONTAINER: &str = "neonvm-runner";
/// Longest message in a pod's status, characters.
const MAX_MESSAGE_CHARS: usize = 1024;

/// What the API wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Desired {
    /// The pod shall run.
    Run,
    /// Its deletion was asked; it has this long.
    Stop {
        /// Milliseconds that the guest has to shut down.
        grace_ms: u64,
    },
    /// It is not in the API any more.
    Gone {
        /// Milliseconds its guest still gets.
        grace_ms: u64,
    },
}

/// What is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Local {
    /// The pod's directory has neither a runner's configuration nor a report of an end.
    Fresh,
    /// A directory, no runner; QEMU may or may not run.
    NoRunner,
    /// A runner was started or found, and its link is not over.
    Runner,
    /// The VM has ended.
    Ended,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Resolve the image, allot an address, write the directory.
    Prepare,
    /// Start a runner.
    Spawn,
    /// Order the runner to stop the guest.
    Stop {
        /// Milliseconds it has.
        grace_ms: u64,
    },
    /// Nothing; the status says it all.
    Watch,
    /// The pod's VM is lost: say so.
    Lose,
    /// Remove the directory, free the address, and delete the pod for good if it is still there.
    Finish {
        /// Whether it is.
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

/// What is to be told about the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// It cannot start yet.
    Waiting {
        /// One word, as the kubelet's.
        reason: String,
        /// Explanation for people of why it cannot start.
        message: String,
    },
    /// The runner is there.
    Running {
        /// Whether the guest answers.
        ready: bool,
    },
    /// The VM has ended.
    Ended(ExitReport),
}

/// What a status is made from beside the view.
#[derive(Debug, Clone)]
pub struct StatusInput<'a> {
    /// The status the API has.
    pub existing: &'a Value,
    /// Image of the runner's container.
    pub image: &'a str,
    /// Address, once allotted.
    pub pod_ip: Option<String>,
    /// The node's address.
    pub host_ip: &'a str,
    /// Time for what has changed. What has not changed keeps the time that the API has.
    pub now: WallTime,
}

/// The members of the status that are ours, complete: lists replace those in the API. Equal to what
/// the API has if there is no news: times are kept from there.
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
        status["reason"] = json!(word(report.reason));
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
        "reason": if report.success { "Completed" } else { word(report.reason) },
        "message": cut(&report.message),
        "startedAt": began,
        "finishedAt": ended,
    })
}

/// Conditions that are ours, after those that are not, in the kubelet's order.
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

/// One word for a reason, as in a pod's status.
#[must_use]
pub fn word(reason: ExitReason) -> &'static str {
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

/// One line for people.
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
    // A start failure is told whole; of a death the last line tells, of a panic the first.
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
