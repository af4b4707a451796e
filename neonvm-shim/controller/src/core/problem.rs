//! Problems of a VM, as data. The condition `Degraded` and the events print them.

use std::fmt;

use protocol::runner::{
    BeforeSilence, DiskFull, GuestSilence, ProgramFile, ProgramFileState, ResizeProblem,
};
use protocol::time::WallTime;
use serde::Serialize;

use super::certificate::failure::CertificateFailure;
use super::certificate::wanted::TlsFault;
use super::kind::Kind;

/// Longest text of a peer that is kept, bytes.
const PEER_TEXT_LIMIT: usize = 512;

/// One thing that stands in the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Problem {
    /// The slot size is no whole number of 8 MiB blocks, or zero.
    SlotSize {
        /// Size of a memory slot in bytes.
        bytes: u64,
    },
    /// Minimum, use and maximum of a resource are not in order, or zero.
    Bounds {
        /// Which member, by its path.
        field: &'static str,
    },
    /// `spec.tls` is unusable.
    Tls {
        /// Member of `spec.tls` that is wrong, and why.
        fault: TlsFault,
    },
    /// The guest's certificate cannot be made or renewed.
    Certificate {
        /// Why there is no certificate, or no new one.
        #[serde(rename = "trouble")]
        failure: CertificateFailure,
    },
    /// The node has not allocated the pod's requests.
    RequestsPending {
        /// Name of the pod.
        pod: String,
        /// Message of the node, unchanged.
        message: String,
    },
    /// `spec.extraNetwork` is enabled where there is no overlay; the VM runs without it.
    NoOverlay,
    /// The API server refused a write or could not be reached.
    Api {
        /// Kind of the action that failed.
        action: Kind,
        /// Error of the API server, or why it could not be reached.
        message: String,
    },
    /// The runner did not take an order.
    Runner {
        /// Error of the order.
        message: String,
    },
    /// The runner of a VM that should run has not responded for a while.
    RunnerSilent {
        /// Name of the runner's pod.
        pod: String,
        /// Error of the last attempt to reach the runner.
        message: String,
    },
    /// The guest has not responded to its runner for long.
    GuestSilent {
        /// Name of the runner's pod.
        pod: String,
        /// When the silence began, and after which event.
        silence: GuestSilence,
    },
    /// The guest stands still, because the disk of its node or the claim of one of its disks is
    /// full.
    DiskFull {
        /// Name of the runner's pod.
        pod: String,
        /// Name of the node that the pod is bound to.
        node: String,
        /// Since when, and for which disks.
        full: DiskFull,
        /// Claims of the full disks; claims of all disks if QEMU does not report which disk is
        /// full.
        claims: Vec<String>,
    },
    /// A file of a program in the guest does not follow the guest's size.
    ProgramFile {
        /// The file's report, which the guest wrote.
        file: ProgramFile,
    },
    /// The runner of the pod is on another machine.
    RunnerElsewhere {
        /// The node of the pod.
        node: String,
    },
    /// The runner reports the obstacle of a resize.
    Resize {
        /// Problem that the runner reported.
        problem: ResizeProblem,
    },
    /// The pod of a VM that should run is gone.
    PodGone {
        /// Name that the pod had, from `status.podName`.
        pod: String,
    },
    /// The pod ended with a failure.
    PodFailed {
        /// Name of the pod that ended.
        pod: String,
        /// The reason it carries; empty if none.
        reason: String,
    },
    /// The pod finds no node, or one of its containers does not start.
    PodWaits {
        /// Name of the pod that cannot start.
        pod: String,
        /// Message of the scheduler or of the kubelet.
        why: String,
    },
    /// A pod with the chosen name belongs to another owner.
    NameTaken {
        /// Name chosen for the VM's pod. The controller chooses another one.
        pod: String,
    },
}

impl Problem {
    /// Label of the kind, for metrics and to report a problem once.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::SlotSize { .. } => "slot_size",
            Self::Bounds { .. } => "bounds",
            Self::Tls { .. } => "tls",
            Self::Certificate { failure } => match failure {
                CertificateFailure::Awaited { .. } => "certificate_awaited",
                CertificateFailure::Refused { .. } => "certificate_refused",
                CertificateFailure::Unfit { .. } => "certificate_unfit",
                CertificateFailure::Expired { .. } => "certificate_expired",
                CertificateFailure::Taken { .. } => "certificate_taken",
            },
            Self::RequestsPending { .. } => "requests_pending",
            Self::NoOverlay => "no_overlay",
            Self::Api { .. } => "api",
            Self::Runner { .. } => "runner",
            Self::RunnerSilent { .. } => "runner_silent",
            Self::GuestSilent { .. } => "guest_silent",
            Self::DiskFull { .. } => "disk_full",
            Self::ProgramFile { .. } => "program_file",
            Self::RunnerElsewhere { .. } => "runner_elsewhere",
            Self::PodGone { .. } => "pod_gone",
            Self::PodFailed { .. } => "pod_failed",
            Self::PodWaits { .. } => "pod_waits",
            Self::NameTaken { .. } => "name_taken",
            Self::Resize { problem } => match problem {
                ResizeProblem::Qmp { .. } => "qmp",
                ResizeProblem::MemoryStuck { .. } => "memory_stuck",
                ResizeProblem::CpuStuck { .. } => "cpu_stuck",
                ResizeProblem::GuestBlind { .. } => "guest_blind",
                ResizeProblem::OutOfRange { .. } => "out_of_range",
                ResizeProblem::Moving { .. } => "moving",
            },
        }
    }
}

/// Text of a peer, cut to a length that fits into an object or a log line.
#[must_use]
pub fn peer_text(text: &str) -> String {
    let mut end = text.len().min(PEER_TEXT_LIMIT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SlotSize { bytes } => write!(
                f,
                ".spec.guest.memorySlotSize: must be a multiple of 8Mi above zero, is {bytes} bytes"
            ),
            Self::Bounds { field } => {
                write!(f, "{field}: must hold 0 < min <= use <= max")
            }
            Self::Tls { fault } => fault.fmt(f),
            Self::Certificate { failure } => failure.fmt(f),
            Self::NoOverlay => f.write_str(
                ".spec.extraNetwork: the VM runs without it, because the controller has no overlay network",
            ),
            Self::RequestsPending { pod, message } => write!(
                f,
                "the node has not allocated the requests of pod {pod}: {message}"
            ),
            Self::Api { action, message } => write!(f, "failed to {action}: {message}"),
            Self::Runner { message } => write!(f, "failed to set the size by the runner: {message}"),
            Self::RunnerSilent { pod, message } => {
                write!(f, "runner of pod {pod} does not respond: {message}")
            }
            Self::GuestSilent { pod, silence } => guest_silent(f, pod, silence),
            Self::DiskFull {
                pod,
                node,
                full,
                claims,
            } => disk_full(f, (pod, node), full, claims),
            Self::ProgramFile { file } => program_file(f, file),
            Self::RunnerElsewhere { node } => write!(
                f,
                "the pod runs on node {node}, and this controller reaches runners of its own node only"
            ),
            Self::Resize { problem } => resize(f, problem),
            Self::PodGone { pod } => write!(f, "pod {pod} is gone"),
            Self::PodFailed { pod, reason } if reason.is_empty() => {
                write!(f, "pod {pod} failed")
            }
            Self::PodFailed { pod, reason } => write!(f, "pod {pod} failed: {reason}"),
            Self::PodWaits { pod, why } => write!(f, "pod {pod} cannot start: {why}"),
            Self::NameTaken { pod } => write!(f, "pod {pod} belongs to another owner"),
        }
    }
}

fn guest_silent(f: &mut fmt::Formatter<'_>, pod: &str, silence: &GuestSilence) -> fmt::Result {
    let since = WallTime(silence.since_unix_us);
    write!(f, "the guest of pod {pod} has not answered since ")?;
    match silence.after {
        BeforeSilence::Boot => write!(
            f,
            "it was started at {since}: its kernel or its init hangs, or its image has no neonvmd that its pod can reach"
        ),
        BeforeSilence::Move => write!(f, "it moved here at {since}: it hangs"),
        BeforeSilence::Adoption => {
            write!(
                f,
                "its runner restarted at {since}: it hangs, or its neonvmd has ended"
            )
        }
        BeforeSilence::Answer => write!(f, "{since}: it hangs, or its neonvmd has ended"),
    }
}

fn program_file(f: &mut fmt::Formatter<'_>, file: &ProgramFile) -> fmt::Result {
    let what = match file.state {
        ProgramFileState::Refused => "its unit is refused",
        ProgramFileState::TemplateFailed | ProgramFileState::CheckFailed => "the old file stays",
        ProgramFileState::SignalOwed => "its program could not be signalled",
        _ => "it is tried again",
    };
    let (name, detail) = (&file.name, peer_text(&file.detail));
    write!(
        f,
        "the guest's file {name} does not follow its size, {what}: {detail}"
    )
}

fn disk_full(
    f: &mut fmt::Formatter<'_>,
    (pod, node): (&str, &str),
    full: &DiskFull,
    claims: &[String],
) -> fmt::Result {
    let since = WallTime(full.since_unix_us);
    let names = claims.join(", ");
    let full_part = if claims.is_empty() {
        format!("the disk of node {node} is full")
    } else if claims.len() == full.disks.len() {
        format!("PersistentVolumeClaim {names} is full")
    } else {
        format!("the disk of node {node} or a PersistentVolumeClaim ({names}) is full")
    };
    write!(
        f,
        "the guest of pod {pod} is stopped since {since}: {full_part}"
    )?;
    if !full.disks.is_empty() {
        write!(
            f,
            ", so writes to {} wait",
            peer_text(&full.disks.join(", "))
        )?;
    }
    f.write_str("; it resumes by itself once space is free")
}

fn resize(f: &mut fmt::Formatter<'_>, problem: &ResizeProblem) -> fmt::Result {
    match problem {
        ResizeProblem::Qmp { command, message } => {
            write!(f, "QEMU refused {command}: {}", peer_text(message))
        }
        ResizeProblem::MemoryStuck { missing } => {
            write!(f, "the guest has not released {missing} of memory")
        }
        ResizeProblem::CpuStuck { missing } => {
            write!(f, "the guest has not released {missing} CPUs")
        }
        ResizeProblem::GuestBlind { expected, seen } => {
            write!(f, "the guest sees {seen} instead of {expected}")
        }
        ResizeProblem::Moving { .. } => {
            f.write_str("the guest is migrating to another pod; the resize follows the migration")
        }
        ResizeProblem::OutOfRange { rule } => {
            write!(f, "the size is impossible for this VM: {}", peer_text(rule))
        }
    }
}
