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

use serde::{Deserialize, Serialize};

use crate::migration::{DISK_PORT, IncomingReport, OutgoingReport, STREAM_PORT};
use crate::trace::{Stage, TraceId};
use crate::units::{Bytes, MilliCpu};

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
/// The value of [`RUNNER_PRIVILEGES`].
pub const NO_PRIVILEGES: &str = "none";

/// Environment of a runner's container: [`MONITOR_OPEN`] where the guest's monitor takes any agent,
/// by the VM's annotation. Ours.
pub const RUNNER_MONITOR: &str = "RUNNER_MONITOR";
/// The value of [`RUNNER_MONITOR`].
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

/// The size a VM should have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeOrder {
    /// CPU; whole cores are plugged or onlined, the rest is a quota.
    pub cpu: MilliCpu,
    /// All memory, boot memory included; a multiple of the slot size.
    pub memory: Bytes,
    /// Which resize this is.
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

/// How to stop a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopOrder {
    /// Milliseconds between the power button and the end by force.
    pub grace_ms: u64,
}

/// Where a runner is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunnerPhase {
    /// QEMU is starting, or the guest daemon has not answered yet.
    Booting,
    /// There is no guest yet: it waits for one that runs elsewhere.
    Receiving,
    /// The guest daemon answers.
    Running,
    /// The power button was pressed.
    Stopping,
    /// QEMU has ended: see [`RunnerState::exit`].
    Exited,
}

/// How QEMU ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitReport {
    /// Whether the VM counts as succeeded (guest powered off by itself or on request).
    pub success: bool,
    /// Why it ended.
    pub reason: ExitReason,
    /// QEMU's exit status, if it was our child.
    pub code: Option<i32>,
    /// Last lines of QEMU's own messages, at most 2 KiB.
    pub message: String,
}

/// The reasons a QEMU ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// The guest powered off by itself.
    GuestShutdown,
    /// The guest powered off after our power button.
    Requested,
    /// The grace period ran out and QEMU was ended.
    Killed,
    /// The guest's kernel panicked.
    GuestPanic,
    /// The guest reset itself, which ends QEMU under `-no-reboot`.
    GuestReset,
    /// QEMU could not start.
    StartFailed,
    /// QEMU died.
    QemuDied,
    /// The guest has moved and runs elsewhere.
    Moved,
}

/// CPUs as everyone sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuState {
    /// The milli-CPU in force (quota).
    pub limit: MilliCpu,
    /// vCPUs QEMU has plugged.
    pub plugged: u32,
    /// CPUs the guest has online; `None` until its daemon answered.
    pub guest_online: Option<u32>,
    /// For what CPU there are some plugged ahead of an order ([`CpusAhead`]), 0 without any; `None`
    /// where that is not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<MilliCpu>,
}

/// Memory as everyone sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryState {
    /// Boot memory.
    pub base: Bytes,
    /// Hot-plugged memory by QEMU's account.
    pub plugged: Bytes,
    /// The hot-plugged memory asked for.
    pub requested: Bytes,
    /// MemTotal in the guest; `None` until its daemon answered.
    pub guest_total: Option<Bytes>,
}

/// One finished stage of a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageStamp {
    /// Which.
    pub stage: Stage,
    /// Microseconds since 1970 at its begin.
    pub start_unix_us: i64,
    /// Microseconds it took.
    pub duration_us: u64,
}

/// What became of the newest order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeReport {
    /// The order.
    pub order: SizeOrder,
    /// Whether QEMU and guest both have it.
    pub done: bool,
    /// Stages finished so far.
    pub stages: Vec<StageStamp>,
    /// What stands in the way, if anything.
    pub problem: Option<ResizeProblem>,
}

/// Why a resize does not go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ResizeProblem {
    /// QEMU refused a command.
    Qmp {
        /// The command.
        command: String,
        /// QEMU's words.
        message: String,
    },
    /// The guest has not given back this many bytes for a while.
    MemoryStuck {
        /// Bytes still to be given back.
        missing: Bytes,
    },
    /// A CPU did not leave.
    CpuStuck {
        /// CPUs still to go.
        missing: u32,
    },
    /// QEMU and guest disagree: the guest does not see what was plugged.
    GuestBlind {
        /// What the guest should see.
        expected: String,
        /// What it sees.
        seen: String,
    },
    /// The guest moves to another runner: sizes wait until it has.
    Moving {
        /// Which migration.
        id: String,
    },
    /// The order cannot be carried out by this VM.
    OutOfRange {
        /// The rule.
        rule: String,
    },
}

/// Everything the runner knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerState {
    /// Grows with every change of anything below.
    pub generation: u64,
    /// Where it is in its life.
    pub phase: RunnerPhase,
    /// Process id of QEMU, if it runs.
    pub qemu_pid: Option<u32>,
    /// QEMU's version, `"10.0.2"`, once it answered.
    pub qemu_version: Option<String>,
    /// `"kvm"` or `"tcg"`.
    pub accel: String,
    /// The guest's `/proc/sys/kernel/random/boot_id`.
    pub boot_id: Option<String>,
    /// The guest's kernel release.
    pub guest_kernel: Option<String>,
    /// Milliseconds from QEMU's start to the guest daemon's first answer.
    pub boot_ms: Option<u64>,
    /// CPUs.
    pub cpus: CpuState,
    /// Memory.
    pub memory: MemoryState,
    /// The newest order, if any came.
    pub resize: Option<ResizeReport>,
    /// How many orders of a size it has taken up for this guest, for `?over=` of the next; not
    /// there: it does not compare.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orders: Option<u64>,
    /// How it ended, if it did.
    pub exit: Option<ExitReport>,
    /// Whether the CPU limit is enforced on this host.
    #[serde(default)]
    pub quota: QuotaState,
    /// The migration this guest leaves by, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outgoing: Option<OutgoingReport>,
    /// The migration this guest came, or is to come, by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incoming: Option<IncomingReport>,
    /// That the daemon in the guest has not answered for long, if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_silent: Option<GuestSilence>,
    /// That QEMU has stopped the guest because a disk of its host has no room for what it writes,
    /// if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_full: Option<DiskFull>,
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
    /// Microseconds since 1970: since when.
    pub since_unix_us: i64,
    /// What was then.
    pub after: BeforeSilence,
}

/// What a guest did last before it was silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BeforeSilence {
    /// It began to boot, and has never answered.
    Boot,
    /// It went on here after a migration, and has not answered since.
    Move,
    /// Its runner began again, and has not heard of it since.
    Adoption,
    /// It answered.
    Answer,
}

/// Whether a cgroup of the host holds QEMU to its milli-CPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum QuotaState {
    /// Nothing was written yet.
    #[default]
    Unset,
    /// The quota in force, in thousandths of a core; above the limit while the guest boots.
    Enforced {
        /// Thousandths of a core.
        milli: u32,
    },
    /// The host's cgroups cannot be used: only the number of CPUs limits the guest.
    Unavailable {
        /// Why.
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
    /// Grows with every change below.
    pub generation: u64,
    /// CPUs online.
    pub cpus_online: u32,
    /// CPUs present.
    pub cpus_present: u32,
    /// CPUs the kernel could ever bring up (`/sys/devices/system/cpu/possible`).
    pub cpus_possible: u32,
    /// MemTotal.
    pub mem_total: Bytes,
    /// MemAvailable at the time of the last change or at most a second ago.
    pub mem_available: Bytes,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Kernel release.
    pub kernel: String,
    /// Seconds since boot.
    pub uptime_s: u64,
}
