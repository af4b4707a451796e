//! The runner's private control link: HTTP/1.1 with JSON over the unix socket
//! `<rundir>/control.sock`, mode 0600.
//!
//! | route | body | answer |
//! |---|---|---|
//! | `GET /v1/state` | – | 200 [`RunnerState`] at once |
//! | `GET /v1/state?after=GEN&wait_ms=MS` | – | 200 [`RunnerState`] as soon as its generation is above GEN, or after MS |
//! | `PUT /v1/size` | [`SizeOrder`] | 200 [`RunnerState`]: the order is held and worked on; a newer order replaces it |
//! | `PUT /v1/size?over=N` | [`SizeOrder`] | the same where [`RunnerState::orders`] is N, or the order is held already; else 412 with why: a newer one has overtaken it. Runners without that number take it up in any case |
//! | `PUT /v1/ahead` | [`CpusAhead`] | 200 [`RunnerState`]: CPUs are plugged before the order for them comes, where [`CpuState::ahead`] says that it can be |
//! | `POST /v1/stop` | [`StopOrder`] | 202: power-down has begun |
//! | `…/outgoing`, `…/incoming` | | see [`crate::migration`] |
//! | any other | – | 404 or 405 with a plain text |
//!
//! The runner is level-triggered: it keeps the newest order and drives the guest towards it;
//! progress is read from the state, never from an answer to an order.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::migration::{DISK_PORT, IncomingReport, OutgoingReport, STREAM_PORT};
use crate::parts::{PartName, PartState};
use crate::trace::{Stage, TraceId};
use crate::units::{Bytes, MilliCpu};

/// Name of the control socket in a runner's directory.
pub const CONTROL_SOCKET: &str = "control.sock";

/// Control socket of a pod's runner on one machine.
#[must_use]
pub fn control_socket(state_dir: &Path, namespace: &str, pod: &str) -> PathBuf {
    let runner = state_dir.join("vms").join(format!("{namespace}_{pod}"));
    runner.join(CONTROL_SOCKET)
}

/// Environment of a runner's container: the quota of QEMU's CPU time in per cent of the VM's
/// milli-CPU, as `100`; 0 for none. Ours.
pub const CPU_QUOTA_PERCENT: &str = "CPU_QUOTA_PERCENT";

/// Environment of a runner's container: how its guest's first device is connected to the pod,
/// [`GUEST_NETWORKS`]. Ours.
pub const GUEST_NETWORK: &str = "GUEST_NETWORK";
/// By a bridge and a tap, its packets translated by the kernel (docs/compatibility/neonvm.md §3.4);
/// or by QEMU itself, which takes connections at the pod's address and makes them again to the
/// guest, TCP and UDP alone.
pub const GUEST_NETWORKS: [&str; 2] = ["bridge", "user"];

/// Environment of a runner's container: [`NO_PRIVILEGES`] where it has only the privileges that Pod
/// Security level `baseline` admits. The controller makes the target of a migration like its
/// source. Ours.
pub const RUNNER_PRIVILEGES: &str = "RUNNER_PRIVILEGES";
/// Value of [`RUNNER_PRIVILEGES`] for a runner without privileges.
pub const NO_PRIVILEGES: &str = "none";

/// Environment of a runner's container: [`MONITOR_OPEN`] where the guest's monitor takes any agent,
/// by the VM's annotation. Ours.
pub const RUNNER_MONITOR: &str = "RUNNER_MONITOR";
/// Value of [`RUNNER_MONITOR`] that opens the monitor to any agent.
pub const MONITOR_OPEN: &str = "open";
/// The token that an agent shows to the monitor of a VM's guest: a key of the secret that holds the
/// token of its runners, and a file beside that.
pub const MONITOR_TOKEN: &str = "monitor.token";

/// Environment of a runner's container: how orders come to its pod's address. [`ORDERS_BY_TLS`], or
/// not there: then nobody has said that this runner knows TLS. Ours.
pub const RUNNER_ORDERS: &str = "RUNNER_ORDERS";
/// By TLS, on the port that plain HTTP is spoken on too.
pub const ORDERS_BY_TLS: &str = "tls";
/// The certificate and the key, in PEM form, of all runners of a VM: keys of the secret that holds
/// their token, and files beside it.
pub const ORDERS_IDENTITY: [&str; 2] = ["tls.crt", "tls.key"];
/// The name in that certificate. It signs itself, and whoever gives orders trusts it alone.
pub const ORDERS_NAME: &str = "runner";

/// Port of the daemon in the guest (docs/compatibility/neonvm.md §3.7).
pub const GUESTD_PORT: u16 = 25183;
/// Where it appears at the pod's address; its own number is taken there by the runner's HTTP
/// server. Ours.
pub const GUESTD_FORWARD: u16 = 25184;

/// The TCP ports at a VM's pod's address that are not its guest's: of its daemon, of migrations,
/// and the spec's `runnerPort`.
#[must_use]
pub fn pods_own_ports(runner_port: i64) -> [i64; 5] {
    let [daemon, forward, stream, disk] =
        [GUESTD_PORT, GUESTD_FORWARD, STREAM_PORT, DISK_PORT].map(i64::from);
    [daemon, forward, stream, disk, runner_port]
}

/// Desired size of a VM, as the controller orders it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeOrder {
    /// CPU, milli-CPU. The runner plugs or onlines whole cores and limits the rest by a quota.
    pub cpu: MilliCpu,
    /// Memory, bytes, boot memory included. A multiple of the slot size.
    pub memory: Bytes,
    /// The resize that the order belongs to.
    pub trace: TraceId,
}

/// CPUs to plug ahead of an order that may not be given yet. Nothing else changes: the quota stays
/// what the order before allows, so that the guest has no more of its node's time, but it need not
/// wait for its kernel when the order comes.
///
/// It ends with the next order, or half a minute later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpusAhead {
    /// The CPU that will be ordered; no more than now takes back what was plugged ahead.
    pub cpu: MilliCpu,
}

/// Order to stop a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopOrder {
    /// Milliseconds between the power button and the kill.
    pub grace_ms: u64,
}

/// Phase of a runner's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunnerPhase {
    /// QEMU starts, or the guest daemon has not responded.
    Booting,
    /// The runner waits for a guest that runs on another runner.
    Receiving,
    /// The guest daemon responds.
    Running,
    /// The runner has pressed the power button.
    Stopping,
    /// QEMU has ended. [`RunnerState::exit`] says how.
    Exited,
}

/// Result and cause of QEMU's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitReport {
    /// Whether the VM counts as succeeded (guest powered off by itself or on request).
    pub success: bool,
    /// Cause of the end.
    pub reason: ExitReason,
    /// QEMU's exit status, if it was our child.
    pub code: Option<i32>,
    /// Last lines of QEMU's own messages, at most 2 KiB.
    pub message: String,
}

/// Causes of QEMU's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// The guest powered off by itself.
    GuestShutdown,
    /// The guest powered off after our power button.
    Requested,
    /// The grace period ran out and QEMU was ended.
    Killed,
    /// The kernel of the guest panicked.
    GuestPanic,
    /// The guest reset itself, which ends QEMU under `-no-reboot`.
    GuestReset,
    /// QEMU failed to start.
    StartFailed,
    /// QEMU ended without an order or a shutdown of the guest.
    QemuDied,
    /// The guest has migrated to another runner.
    Moved,
}

/// CPUs of the VM, as host, QEMU and guest report them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuState {
    /// CPU quota in force, milli-CPU.
    pub limit: MilliCpu,
    /// Number of vCPUs that QEMU has plugged.
    pub plugged: u32,
    /// Number of CPUs online in the guest. `None` until its daemon responds.
    pub guest_online: Option<u32>,
    /// For what CPU there are some plugged ahead of an order ([`CpusAhead`]), 0 without any; `None`
    /// where that is not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<MilliCpu>,
}

/// Memory of the VM, as QEMU and guest report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryState {
    /// Boot memory, bytes.
    pub base: Bytes,
    /// Hot-plugged memory that QEMU reports, bytes.
    pub plugged: Bytes,
    /// Hot-plugged memory that the runner has requested, bytes.
    pub requested: Bytes,
    /// `MemTotal` of the guest, bytes. `None` until its daemon responds.
    pub guest_total: Option<Bytes>,
}

/// One finished stage of a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageStamp {
    /// The stage that this record measures.
    pub stage: Stage,
    /// Begin of the stage, microseconds since 1970.
    pub start_unix_us: i64,
    /// Length of the stage, microseconds.
    pub duration_us: u64,
}

/// Progress of the newest order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeReport {
    /// The newest order.
    pub order: SizeOrder,
    /// Whether both QEMU and guest have the size.
    pub done: bool,
    /// Stages that have finished, in the order of time.
    pub stages: Vec<StageStamp>,
    /// Cause of a delay. `None`: the order makes progress or is done.
    pub problem: Option<ResizeProblem>,
}

/// Causes that stop a resize.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ResizeProblem {
    /// QEMU refused a QMP command.
    Qmp {
        /// Name of the QMP command.
        command: String,
        /// Error text from QEMU.
        message: String,
    },
    /// The guest has not given back this many bytes for a while.
    MemoryStuck {
        /// Bytes still to be given back.
        missing: Bytes,
    },
    /// The guest has not released CPUs for a while.
    CpuStuck {
        /// Number of CPUs that the guest has not released.
        missing: u32,
    },
    /// QEMU and guest disagree: the guest does not see what was plugged.
    GuestBlind {
        /// Size that the guest should see, as text.
        expected: String,
        /// Size that the guest reports, as text.
        seen: String,
    },
    /// The guest migrates to another runner. Orders wait until the end.
    Moving {
        /// Uid of the migration's object.
        id: String,
    },
    /// The order is outside the range of this VM.
    OutOfRange {
        /// Text of the rule that the order breaks.
        rule: String,
    },
}

/// State of a runner, its QEMU and its guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerState {
    /// Grows with every change of anything below.
    pub generation: u64,
    /// Phase of the runner.
    pub phase: RunnerPhase,
    /// Process id of QEMU. `None` while it does not run.
    pub qemu_pid: Option<u32>,
    /// Version of QEMU, as `"10.0.2"`. `None` until it responds.
    pub qemu_version: Option<String>,
    /// Accelerator of QEMU: `"kvm"` or `"tcg"`.
    pub accel: String,
    /// Boot id of the guest, from `/proc/sys/kernel/random/boot_id`. `None` until its daemon
    /// responds.
    pub boot_id: Option<String>,
    /// Kernel release of the guest. `None` until its daemon responds.
    pub guest_kernel: Option<String>,
    /// Milliseconds from QEMU's start to the first response of the guest daemon.
    pub boot_ms: Option<u64>,
    /// CPUs of the VM.
    pub cpus: CpuState,
    /// Memory of the VM.
    pub memory: MemoryState,
    /// Progress of the newest order. `None` before the first.
    pub resize: Option<ResizeReport>,
    /// How many orders of a size it has taken up for this guest, for `?over=` of the next; not
    /// there: it does not compare.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orders: Option<u64>,
    /// End of QEMU. `None` while it runs.
    pub exit: Option<ExitReport>,
    /// Whether the CPU limit is enforced on this host.
    #[serde(default)]
    pub quota: QuotaState,
    /// Migration by which this guest leaves. `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outgoing: Option<OutgoingReport>,
    /// Migration by which this guest arrived or is to arrive. `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incoming: Option<IncomingReport>,
    /// That the daemon in the guest has not answered for long, if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_silent: Option<GuestSilence>,
    /// That QEMU has stopped the guest because a disk of its host has no room for what it writes,
    /// if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_full: Option<DiskFull>,
    /// Files of programs in the guest that do not follow its size, at most 8. The guest wrote the
    /// texts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<ProgramFile>,
    /// Parts of the guest that can be replaced while it runs, as its daemon reported them last.
    /// The guest wrote the texts. Empty if its daemon does not know parts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub guest_parts: BTreeMap<PartName, PartState>,
}

/// A guest that stands still until its host's disk has room. Its runner lets it go on as soon as
/// there is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskFull {
    /// Microseconds since 1970: when this was first seen.
    pub since_unix_us: i64,
    /// The disks whose writes found no room: names of the spec's disks, `rootdisk`, `swapdisk`.
    /// QEMU may not say.
    #[serde(default)]
    pub disks: Vec<String>,
}

/// A guest whose daemon has not answered for long. Nothing is done about it: it may be at work all
/// the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSilence {
    /// Begin of the silence, microseconds since 1970.
    pub since_unix_us: i64,
    /// Last event before the silence.
    pub after: BeforeSilence,
}

/// Last event of a guest before its daemon fell silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BeforeSilence {
    /// The guest began to boot. Its daemon has never responded.
    Boot,
    /// The guest arrived by a migration. Its daemon has not responded since.
    Move,
    /// A new runner took the guest over. The daemon has not responded since.
    Adoption,
    /// The daemon responded.
    Answer,
}

/// Whether a cgroup of the host limits QEMU to its milli-CPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum QuotaState {
    /// The runner has written no quota so far.
    #[default]
    Unset,
    /// The quota in force, in thousandths of a core; above the limit while the guest boots.
    Enforced {
        /// Quota in force, milli-CPU.
        milli: u32,
    },
    /// The runner cannot use the host's cgroups. Only the number of CPUs limits the guest.
    Unavailable {
        /// Error of the attempt, as text.
        reason: String,
    },
}

/// What the guest daemon reports on `GET /v1/state` (ours, beside the routes of NeonVM).
///
/// With `?after=GEN&wait_ms=MS` the answer waits until the generation is above GEN, at most for MS.
/// With `&settle_ms=MS` as well (at most 250) it then waits until nothing has changed for so long,
/// unless the number of CPUs online changes; daemons that do not know this answer at the first
/// change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestState {
    /// Number of the state. It grows with each change below.
    pub generation: u64,
    /// Number of CPUs online.
    pub cpus_online: u32,
    /// Number of CPUs present, online or not.
    pub cpus_present: u32,
    /// Highest number of CPUs that the kernel can bring up (`/sys/devices/system/cpu/possible`).
    pub cpus_possible: u32,
    /// `MemTotal` from `/proc/meminfo`, bytes.
    pub mem_total: Bytes,
    /// `MemAvailable` at the last change or at most a second ago, bytes.
    pub mem_available: Bytes,
    /// Boot id of the guest, from `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Release of the guest's kernel, as `uname -r` prints it.
    pub kernel: String,
    /// Time since the boot, whole seconds.
    pub uptime_s: u64,
    /// Files of programs that follow the guest's size, by name. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<ProgramFile>,
    /// Parts that can be replaced while the guest runs, `monitor` and `guestd`. Empty if the daemon
    /// does not know them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<PartName, PartState>,
}

/// A file or folder of the guest that follows its size (docs/guest-programs.md).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramFile {
    /// Name of its unit in the guest.
    pub name: String,
    /// Result of the last attempt to bring it up to date.
    pub state: ProgramFileState,
    /// Broken rule, error, or last line of the check's output. The guest wrote it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// Results of an attempt to bring a file of a program up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramFileState {
    /// No attempt has ended, or the program is being signalled.
    Waiting,
    /// It is up to date, and its program has been signalled.
    Current,
    /// The unit breaks a rule, or its destination or owner cannot be used. Nothing is written.
    Refused,
    /// The template gives no text. The old file is in place.
    TemplateFailed,
    /// The check refused the new file. The old file is in place.
    CheckFailed,
    /// A step failed. It is tried again.
    Failed,
    /// The new file is in place, and its program could not be signalled for half a minute. That is
    /// tried again.
    SignalOwed,
    /// A word of a newer daemon.
    #[serde(other)]
    Unknown,
}
