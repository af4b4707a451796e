//! The report of a demo, the content of `--report FILE`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Accelerator: `tcg` or `kvm`.
    pub(crate) accel: String,
    pub(crate) qemu_version: String,
    pub(crate) guest_kernel: String,
    /// Seconds from QEMU's start to the guest daemon's first answer.
    pub(crate) boot_s: f64,
    pub(crate) cu: ComputeUnits,
    pub(crate) resizes: Vec<Resize>,
    pub(crate) pgbench: Vec<Progress>,
    pub(crate) samples: Vec<Sample>,
    /// Number of the monitor's `UpscaleRequest`s.
    pub(crate) upscale_requests: u64,
    /// Number of shrinks that the monitor refused.
    pub(crate) denied_downscales: u64,
    /// Runner restarts plus changes of the guest's boot id.
    pub(crate) guest_restarts: u64,
    /// Number of events of `kubectl get neonvm -w`.
    #[serde(default)]
    pub(crate) kubectl_watch_events: u64,
    /// Answers of the policy that decided. `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<Compared>,
    /// Reasons why the run failed. Empty if it passed.
    pub(crate) failures: Vec<String>,
}

/// Recorded answers of a policy beside the built-in goal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Compared {
    /// Answers that were compared.
    pub(crate) answers: u64,
    /// Those that asked for what the built-in goal asked for.
    pub(crate) equal: u64,
    pub(crate) faults: u64,
    /// Answers that decided.
    pub(crate) decided: u64,
}

/// Sizes in compute units of 0.25 CPU and 1 GiB, by the larger of the two resources.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ComputeUnits {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) peak: f64,
    pub(crate) r#final: f64,
}

/// One resize and where its time went.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Resize {
    pub(crate) revision: i64,
    /// Seconds since the demo began.
    pub(crate) t: f64,
    #[serde(default)]
    pub(crate) change: String,
    /// Milliseconds by stage: decision, permit, patch, `monitor_approval`, controller, qmp,
    /// `guest_visible`, status.
    pub(crate) stages_ms: BTreeMap<String, f64>,
}

/// One progress line of pgbench.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Seconds since the demo began.
    pub(crate) t: f64,
    pub(crate) clients: u32,
    pub(crate) tps: f64,
    pub(crate) latency_ms: f64,
    pub(crate) failed: u64,
}

/// One look at the VM.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Seconds since the demo began.
    pub(crate) t: f64,
    pub(crate) phase: String,
    pub(crate) cpu_want: f64,
    pub(crate) cpu_now: f64,
    pub(crate) mem_want_gib: f64,
    pub(crate) mem_now_gib: f64,
    /// The approved permit on the VM, cores; absent before the first.
    pub(crate) permit_cpu: Option<f64>,
    /// The approved permit on the VM, GiB.
    pub(crate) permit_mem_gib: Option<f64>,
    /// One-minute load of the guest, as its kernel counts it.
    pub(crate) load1: Option<f64>,
    /// The same of runnable tasks only, less our own shrink: what the agent goes by, from a minute
    /// after the boot on.
    #[serde(default)]
    pub(crate) runnable_load1: Option<f64>,
}

impl Sample {
    /// Compute units now, by the larger resource.
    pub(crate) fn cu(&self) -> f64 {
        (self.cpu_now / 0.25).max(self.mem_now_gib)
    }
}
