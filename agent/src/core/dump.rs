//! The core's state in the deployed agent's dump form (docs/compatibility/agent.md §4.4). Names
//! here are those of the dump. No decision uses it.
//!
//! The caller passes a function that formats times, because the core has no calendar.

use protocol::revision::Revision;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use serde::{Serialize, Serializer};

use super::config::{ScalingConfig, Timers};
use super::event::UpscaleRequest;
use super::machine::Core;
use super::monitor::Kind;
use super::revision::StampedRevision;
use super::vm::VmInfo;
use super::warnings::FaultCounts;

/// A calendar time as text.
pub type TimeText = String;

/// Value of `executorState` in the state dump: the whole state of one VM's core.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §4.4")]
pub struct StateDump {
    pub config: ConfigDump,
    pub debug: bool,
    #[serde(rename = "VM")]
    pub vm: VmInfo,
    pub plugin: PluginDump,
    pub monitor: MonitorDump,
    #[serde(rename = "NeonVM")]
    pub neonvm: NeonVmDump,
    pub metrics: Option<MetricsDump>,
    #[serde(rename = "LFCMetrics")]
    pub lfc_metrics: Option<LfcDump>,
    pub target_revision: RevisionDump,
    pub last_desired_resources: Option<Resources>,
    /// Ours: violated invariants.
    pub faults: FaultCounts,
}

/// Value of `Config`: the settings that the core runs with, with waits in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §4.4")]
pub struct ConfigDump {
    pub compute_unit: Resources,
    pub default_scaling_config: ScalingConfig,
    #[serde(rename = "NeonVMRetryWait", serialize_with = "nanos")]
    pub vm_patch_retry_wait: Span,
    #[serde(rename = "PluginRequestTick", serialize_with = "nanos")]
    pub permit_request_tick: Span,
    #[serde(rename = "PluginRetryWait", serialize_with = "nanos")]
    pub permit_retry_wait: Span,
    #[serde(rename = "PluginDeniedRetryWait", serialize_with = "nanos")]
    pub permit_denied_retry_wait: Span,
    #[serde(serialize_with = "nanos")]
    pub monitor_denied_downscale_cooldown: Span,
    #[serde(serialize_with = "nanos")]
    pub monitor_requested_upscale_valid_period: Span,
    #[serde(serialize_with = "nanos")]
    pub monitor_retry_wait: Span,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn nanos<S: Serializer>(span: &Span, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(span.0.saturating_mul(1_000))
}

/// A revision and the time it was set; `null` = never.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §4.4")]
pub struct RevisionDump {
    pub revision: Revision,
    #[serde(rename = "updatedAt")]
    pub updated_at: Option<TimeText>,
}

/// Value of `Plugin`: permit requests to the scheduler and the newest permit.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §4.4")]
pub struct PluginDump {
    pub ongoing_request: bool,
    pub last_request: Option<LastRequestDump>,
    pub last_failure_at: Option<TimeText>,
    pub permit: Option<Resources>,
    pub current_revision: Revision,
    /// Ours: since when an announced migration holds the size.
    pub migrating_since: Option<TimeText>,
}

/// Value of `Plugin.LastRequest`: the newest permit request; `null` before the first.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §4.4")]
pub struct LastRequestDump {
    pub at: TimeText,
    pub resources: Resources,
}

/// Value of `Monitor`: requests to the monitor, its own request and its refusal.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §4.4")]
pub struct MonitorDump {
    pub ongoing_request: Option<OngoingDump>,
    pub requested_upscale: Option<RequestedUpscaleDump>,
    pub denied_downscale: Option<DeniedDownscaleDump>,
    pub approved: Option<Resources>,
    pub downscale_failure_at: Option<TimeText>,
    pub upscale_failure_at: Option<TimeText>,
    pub current_revision: Revision,
}

/// Value of `Monitor.OngoingRequest`: the request in flight.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §4.4")]
pub struct OngoingDump {
    pub kind: &'static str,
    pub requested: Resources,
}

/// Value of `Monitor.RequestedUpscale`: the monitor's newest request to grow.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §4.4")]
pub struct RequestedUpscaleDump {
    pub at: TimeText,
    pub base: Resources,
    pub requested: MoreResources,
    #[serde(flatten)]
    pub request: UpscaleRequest,
}

/// Resources that an upscale request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §4.4")]
pub struct MoreResources {
    pub cpu: bool,
    pub memory: bool,
}

/// Value of `Monitor.DeniedDownscale`: the shrink that the monitor refused last.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §4.4")]
pub struct DeniedDownscaleDump {
    pub at: TimeText,
    pub current: Resources,
    pub requested: Resources,
    /// Ours: the smallest size that the monitor would approve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smallest: Option<Resources>,
}

/// Value of `NeonVM`: patches of the VM object and the revisions it has reached.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §4.4")]
pub struct NeonVmDump {
    pub last_success: Option<TimeText>,
    pub ongoing_requested: Option<Resources>,
    pub request_failed_at: Option<TimeText>,
    pub target_revision: RevisionDump,
    pub current_revision: Revision,
}

/// Value of `Metrics`: the newest system metrics of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §4.4")]
pub struct MetricsDump {
    #[serde(rename = "LoadAverage1Min")]
    pub load1: f64,
    #[serde(rename = "LoadAverage5Min")]
    pub load5: f64,
    pub memory_usage_bytes: f64,
    pub memory_cached_bytes: f64,
}

/// Value of `LFCMetrics`: the newest file cache metrics of the guest.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §4.4")]
pub struct LfcDump {
    pub cache_hits_total: f64,
    pub cache_misses_total: f64,
    pub cache_writes_total: f64,
    #[serde(rename = "ApproximateworkingSetSizeBuckets")]
    pub working_set_buckets: Vec<f64>,
}

impl Core {
    /// Dump of the whole state. `text` turns a time of the core's clock into a calendar time.
    #[must_use]
    pub fn snapshot(&self, text: &dyn Fn(Timestamp) -> TimeText) -> StateDump {
        let stamp = |at: Option<Timestamp>| at.map(text);
        let revision = |stamped: &StampedRevision| RevisionDump {
            revision: stamped.revision,
            updated_at: (stamped.at != Timestamp::default()).then(|| text(stamped.at)),
        };
        StateDump {
            config: self.config_dump(),
            debug: false,
            vm: self.vm.clone(),
            plugin: PluginDump {
                ongoing_request: self.scheduler.ongoing.is_some(),
                last_request: self.scheduler.last_request.map(|last| LastRequestDump {
                    at: text(last.at),
                    resources: last.resources,
                }),
                last_failure_at: stamp(self.scheduler.last_failure_at),
                permit: self.scheduler.permit,
                current_revision: self.scheduler.current_revision,
                migrating_since: stamp(self.scheduler.migrating_since),
            },
            monitor: self.monitor_dump(text),
            neonvm: NeonVmDump {
                last_success: stamp(self.vm_patch.last_success),
                ongoing_requested: self.vm_patch.ongoing.map(|(_, size)| size),
                request_failed_at: stamp(self.vm_patch.request_failed_at),
                target_revision: revision(&self.vm_patch.target_revision),
                current_revision: self.vm_patch.current_revision,
            },
            metrics: self.system.as_ref().map(|timed| MetricsDump {
                load1: timed.value.load1,
                load5: timed.value.load5,
                memory_usage_bytes: timed.value.memory_usage_bytes,
                memory_cached_bytes: timed.value.memory_cached_bytes,
            }),
            lfc_metrics: self.lfc.as_ref().map(|timed| LfcDump {
                cache_hits_total: timed.value.hits,
                cache_misses_total: timed.value.misses,
                cache_writes_total: timed.value.writes,
                working_set_buckets: timed.value.working_set_pages.clone(),
            }),
            target_revision: revision(&self.target_revision),
            last_desired_resources: self.last_desired,
            faults: self.faults,
        }
    }

    fn config_dump(&self) -> ConfigDump {
        let Timers {
            permit_request_tick,
            permit_retry_wait,
            permit_denied_retry_wait,
            vm_patch_retry_wait,
            monitor_retry_wait,
            monitor_denied_downscale_cooldown,
            monitor_requested_upscale_valid_period,
            migration_hold: _,
        } = self.config.timers;
        ConfigDump {
            compute_unit: self.config.compute_unit,
            default_scaling_config: self.config.default_scaling,
            vm_patch_retry_wait,
            permit_request_tick,
            permit_retry_wait,
            permit_denied_retry_wait,
            monitor_denied_downscale_cooldown,
            monitor_requested_upscale_valid_period,
            monitor_retry_wait,
        }
    }

    fn monitor_dump(&self, text: &dyn Fn(Timestamp) -> TimeText) -> MonitorDump {
        let monitor = &self.monitor;
        MonitorDump {
            ongoing_request: monitor.ongoing.map(|ongoing| OngoingDump {
                kind: match ongoing.kind {
                    Kind::Upscale => "upscale",
                    Kind::Downscale => "downscale",
                },
                requested: ongoing.resources,
            }),
            requested_upscale: monitor
                .requested_upscale
                .map(|upscale| RequestedUpscaleDump {
                    at: text(upscale.at),
                    base: upscale.base,
                    requested: MoreResources {
                        cpu: false,
                        memory: true,
                    },
                    request: upscale.request,
                }),
            denied_downscale: monitor.denied_downscale.map(|denial| DeniedDownscaleDump {
                at: text(denial.at),
                current: denial.denied.current,
                requested: denial.denied.requested,
                smallest: denial.denied.smallest,
            }),
            approved: monitor.approved.map(|approved| approved.high),
            downscale_failure_at: monitor.downscale_failure_at.map(text),
            upscale_failure_at: monitor.upscale_failure_at.map(text),
            current_revision: monitor.current_revision,
        }
    }
}
