//! The configuration file of the agent. It equals the deployed agent's file, byte for byte
//! (docs/compatibility/agent.md §5). All problems of a file are reported at once.
//!
//! Unknown keys are errors. There are no built-in defaults: an absent number is 0, an absent text
//! is empty. Keys marked as ours are optional. Among them is
//! `metrics.{system,lfc}.staleAfterSeconds`, the age from which metrics count as missing. Absent,
//! it is three periods and the time-out; 0 = never.

mod read;
mod reader;
mod sections;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use agent_events::{BillingSettings, Reporting, ScalingSettings, Settings};
use daemon_kit::clock::Clock;
use protocol::time::Span;
use serde::Serialize;
use serde_json::Value;

use crate::core::config::Problem;
use crate::core::health::HealthConfig;
use crate::core::{CoreConfig, Timers};
use reader::Reader;
pub use sections::{
    Billing, DumpState, Metrics, MetricsSource, Monitor, MonitorTls, NeonVm, PeerName, Policies,
    Rate, Scaling, ScalingEvents, Scheduler, SchedulerTls, Seconds, TlsIdentity,
};

/// Largest file read, bytes: a hundred times the size of the shipped one.
pub const FILE_LIMIT_BYTES: u64 = 256 * 1024;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("could not read {path}")]
    Read {
        /// Path of the file, as [`Config::from_file`] got it.
        path: String,
        /// Error of the operating system: the file is missing, unreadable or not UTF-8.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a JSON object, or it is too large.
    #[error("configuration is not a JSON object: {0}")]
    Syntax(String),
    /// All values that break a rule.
    #[error("configuration has {} problem{}:\n{}", .0.len(), if .0.len() == 1 { "" } else { "s" }, lines(.0))]
    Problems(Vec<Problem>),
}

fn lines(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(|problem| format!("  {problem}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The effective configuration. Its JSON has the form of the file.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct Config {
    #[serde(rename = "refereshStateIntervalSeconds")]
    pub refresh_state_interval: Seconds,
    pub scaling: Scaling,
    pub billing: Billing,
    pub scaling_events: ScalingEvents,
    pub monitor: Monitor,
    pub metrics: Metrics,
    pub scheduler: Scheduler,
    pub neonvm: NeonVm,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dump_state: Option<DumpState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<Policies>,
}

impl Config {
    /// Reads a file of at most [`FILE_LIMIT_BYTES`].
    ///
    /// # Errors
    /// [`ConfigError`], with all problems of the file.
    pub fn from_file(path: &str) -> Result<Self, ConfigError> {
        let fail = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let length = std::fs::metadata(path).map_err(fail)?.len();
        if length > FILE_LIMIT_BYTES {
            let text = format!("the file has {length} bytes, more than {FILE_LIMIT_BYTES}");
            return Err(ConfigError::Syntax(text));
        }
        Self::from_json(&std::fs::read_to_string(path).map_err(fail)?)
    }

    /// The configuration of the one-machine mode, which is compiled in.
    ///
    /// # Errors
    /// Never; a test reads the compiled file.
    pub fn one_machine() -> Result<Self, ConfigError> {
        Self::from_json(include_str!("../../config/one-machine.json"))
    }

    /// Reads the content of a file.
    ///
    /// # Errors
    /// [`ConfigError`], with all problems of the content.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| ConfigError::Syntax(error.to_string()))?;
        let Value::Object(object) = &value else {
            return Err(ConfigError::Syntax("the top level is no object".into()));
        };
        let mut problems = Vec::new();
        let config = Self::read(&mut Reader::new(object, &mut problems));
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError::Problems(problems))
        }
    }

    fn read(r: &mut Reader<'_>) -> Self {
        let config = Self {
            refresh_state_interval: r.seconds("refereshStateIntervalSeconds"),
            scaling: r.object("scaling", read::scaling),
            billing: r.object("billing", read::billing),
            scaling_events: r.object("scalingEvents", read::scaling_events),
            monitor: r.object("monitor", read::monitor),
            metrics: r.object("metrics", |r| Metrics {
                system: r.object("system", read::source),
                lfc: r.object("lfc", read::source),
            }),
            scheduler: r.object("scheduler", |r| Scheduler {
                scheduler_name: r.text("schedulerName"),
                request_timeout: r.seconds("requestTimeoutSeconds"),
                request_at_least_every: r.seconds("requestAtLeastEverySeconds"),
                retry_failed_request: r.seconds("retryFailedRequestSeconds"),
                retry_denied_upscale: r.seconds("retryDeniedUpscaleSeconds"),
                request_port: r.port("requestPort"),
                max_failed_request_rate: r.object("maxFailedRequestRate", read::rate),
                token_file: r.optional_path("tokenFile"),
                tls: r.optional_object("tls", read::scheduler_tls),
            }),
            neonvm: r.object("neonvm", |r| NeonVm {
                request_timeout: r.seconds("requestTimeoutSeconds"),
                retry_failed_request: r.seconds("retryFailedRequestSeconds"),
                max_failed_request_rate: r.object("maxFailedRequestRate", read::rate),
            }),
            dump_state: r.optional_object("dumpState", |r| DumpState {
                port: r.port("port"),
                timeout: r.seconds("timeoutSeconds"),
            }),
            policies: r.optional_object("policies", read::policies),
        };
        r.finish();
        config
    }

    /// Settings of billing and scaling events. `folder` keeps the events.
    #[must_use]
    pub fn events(&self, folder: Option<PathBuf>, clock: Clock) -> Settings {
        let (billing, scaling) = (&self.billing, &self.scaling_events);
        Settings {
            folder,
            clock,
            billing: BillingSettings {
                cpu_metric_name: billing.cpu_metric_name.clone(),
                active_time_metric_name: billing.active_time_metric_name.clone(),
                collect_every: billing.collect_every.duration(),
                accumulate_every: billing.accumulate_every.duration(),
                clients: billing.clients.clone(),
            },
            scaling: ScalingSettings {
                reporting: Reporting {
                    region: scaling.region_name.clone(),
                    multiplier: scaling.cu_multiplier,
                    threshold: scaling.rereport_threshold,
                },
                compute_unit: self.scaling.compute_unit,
                clients: scaling.clients.clone(),
            },
        }
    }

    /// Configuration of a VM's core. The heartbeat is shorter by `tick_jitter`.
    #[must_use]
    pub fn core(&self, tick_jitter: Span) -> CoreConfig {
        let tick = self.scheduler.request_at_least_every.span();
        CoreConfig {
            compute_unit: self.scaling.compute_unit,
            default_scaling: self.scaling.default_config,
            timers: Timers {
                permit_request_tick: Span(tick.0.saturating_sub(tick_jitter.0)),
                permit_retry_wait: self.scheduler.retry_failed_request.span(),
                permit_denied_retry_wait: self.scheduler.retry_denied_upscale.span(),
                vm_patch_retry_wait: self.neonvm.retry_failed_request.span(),
                monitor_retry_wait: self.monitor.retry_failed_request.span(),
                monitor_denied_downscale_cooldown: self.monitor.retry_denied_downscale.span(),
                monitor_requested_upscale_valid_period: self.monitor.requested_upscale_valid.span(),
                migration_hold: Timers::default().migration_hold,
            },
            system_max_age: self.metrics.system.max_age(),
            lfc_max_age: self.metrics.lfc.max_age(),
        }
    }

    /// Limits from which a VM counts as stuck.
    #[must_use]
    pub fn health(&self) -> HealthConfig {
        HealthConfig {
            unhealthy_after_silence: self.monitor.unhealthy_after_silence.span(),
            unhealthy_startup_grace: self.monitor.unhealthy_startup_grace.span(),
            monitor: self.monitor.max_failed_request_rate.failure_rate(),
            scheduler: self.scheduler.max_failed_request_rate.failure_rate(),
            vm_patch: self.neonvm.max_failed_request_rate.failure_rate(),
        }
    }
}
