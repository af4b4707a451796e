//! The configuration file, byte for byte the deployed agent's (docs/compatibility/agent.md §5),
//! read so that every problem is reported at once.
//!
//! Unknown keys are fatal and there are no built-in defaults: an absent number is 0, an absent text
//! is empty. One key is ours and may be left out: `metrics.{system,lfc}.staleAfterSeconds`, the age
//! from which metrics count as missing (absent: three periods and the time-out; 0: never).

use std::path::PathBuf;

use agent_events::{BillingSettings, Reporting, ScalingSettings, Settings};
use daemon_kit::clock::Clock;
use protocol::monitor::Version;
use protocol::time::Span;
use protocol::units::Resources;
use rustls::pki_types::ServerName;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::reader::Reader;
use crate::core::config::Problem;
use crate::core::health::{FailureRate, HealthConfig};
use crate::core::{CoreConfig, ScalingConfig, ScalingOverrides, Timers};

/// Largest file read, bytes: a hundred times the shipped one.
pub const FILE_LIMIT_BYTES: u64 = 256 * 1024;

/// Why there is no configuration.
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
    /// Not JSON, or not an object.
    #[error("configuration is not a JSON object: {0}")]
    Syntax(String),
    /// Values that break rules, all of them.
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

/// The effective configuration. Serialises to the file's own form.
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
}

/// A whole number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct Seconds(pub u64);

impl Seconds {
    /// As a length of time.
    #[must_use]
    pub fn span(self) -> Span {
        Span::from_secs(self.0)
    }

    /// As the standard library's type.
    #[must_use]
    pub fn duration(self) -> std::time::Duration {
        self.span().to_duration()
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

/// Section `scaling`: the compute unit, and settings of VMs without their own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct Scaling {
    pub compute_unit: Resources,
    pub default_config: ScalingConfig,
}

/// Section `billing`: names and periods of usage events, and who receives them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct Billing {
    pub cpu_metric_name: String,
    pub active_time_metric_name: String,
    #[serde(rename = "collectEverySeconds")]
    pub collect_every: Seconds,
    #[serde(rename = "accumulateEverySeconds")]
    pub accumulate_every: Seconds,
    /// Clients as configured.
    pub clients: Value,
}

/// Section `scalingEvents`: what events of size changes hold, and who receives them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct ScalingEvents {
    pub cu_multiplier: f64,
    pub rereport_threshold: f64,
    pub region_name: String,
    /// Clients as configured.
    pub clients: Value,
}

/// Section `monitor`: how monitors in the guests are dialled, and when one counts as failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct Monitor {
    #[serde(rename = "serverPort")]
    pub server_port: u16,
    #[serde(rename = "responseTimeoutSeconds")]
    pub response_timeout: Seconds,
    #[serde(rename = "connectionTimeoutSeconds")]
    pub connection_timeout: Seconds,
    #[serde(rename = "connectionRetryMinWaitSeconds")]
    pub connection_retry_min_wait: Seconds,
    #[serde(rename = "unhealthyAfterSilenceDurationSeconds")]
    pub unhealthy_after_silence: Seconds,
    #[serde(rename = "unhealthyStartupGracePeriodSeconds")]
    pub unhealthy_startup_grace: Seconds,
    #[serde(rename = "maxHealthCheckSequentialFailuresSeconds")]
    pub max_health_check_failures: Seconds,
    #[serde(rename = "retryDeniedDownscaleSeconds")]
    pub retry_denied_downscale: Seconds,
    #[serde(rename = "requestedUpscaleValidSeconds")]
    pub requested_upscale_valid: Seconds,
    #[serde(rename = "retryFailedRequestSeconds")]
    pub retry_failed_request: Seconds,
    #[serde(rename = "maxFailedRequestRate")]
    pub max_failed_request_rate: Rate,
    /// Ours, and absent from the deployed files: the newest there is.
    #[serde(rename = "highestProtocolVersion", skip_serializing_if = "is_newest")]
    pub highest_version: Version,
    /// Ours, and absent from the deployed files: a file (mode 0600 or 0400) with the key from which
    /// the token of each VM's monitor is derived. The file may be missing, and is read for each
    /// connection.
    #[serde(rename = "keyFile", skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Ours, and absent from the deployed files: no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<MonitorTls>,
}

/// `monitor.tls`: files in PEM form. Monitors are dialled by TLS where this is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MonitorTls {
    /// Authority that has signed the monitors' certificates.
    pub ca_file: PathBuf,
    /// The agent's certificate.
    pub cert_file: PathBuf,
    /// Its key, mode 0600 or 0400.
    pub key_file: PathBuf,
    /// The name in the monitors' certificates; without one, each has to bear its VM's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<PeerName>,
}

/// A name that certificates can bear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerName(pub ServerName<'static>);

impl Serialize for PeerName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_str())
    }
}

/// Key `maxFailedRequestRate`: a VM with more failures than `threshold` within `interval` is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct Rate {
    #[serde(rename = "intervalSeconds")]
    pub interval: Seconds,
    pub threshold: u64,
}

impl Rate {
    fn failure_rate(self) -> FailureRate {
        let threshold = usize::try_from(self.threshold).unwrap_or(usize::MAX);
        FailureRate {
            interval: self.interval.span(),
            threshold,
        }
    }
}

/// Section `metrics`: the guest's endpoints that the agent scrapes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct Metrics {
    pub system: MetricsSource,
    pub lfc: MetricsSource,
}

/// One of the endpoints in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct MetricsSource {
    pub port: u16,
    #[serde(rename = "requestTimeoutSeconds")]
    pub request_timeout: Seconds,
    #[serde(rename = "secondsBetweenRequests")]
    pub between_requests: Seconds,
    #[serde(rename = "staleAfterSeconds", skip_serializing_if = "Option::is_none")]
    pub stale_after: Option<Seconds>,
}

impl MetricsSource {
    /// The age from which a sample counts as missing.
    #[must_use]
    pub fn max_age(&self) -> Option<Span> {
        match self.stale_after {
            Some(Seconds(0)) => None,
            Some(age) => Some(age.span()),
            None => Some(Span::from_secs(
                self.between_requests
                    .0
                    .saturating_mul(3)
                    .saturating_add(self.request_timeout.0),
            )),
        }
    }
}

/// Section `scheduler`: which scheduler the agent asks for permits, and how often.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct Scheduler {
    #[serde(rename = "schedulerName")]
    pub scheduler_name: String,
    #[serde(rename = "requestTimeoutSeconds")]
    pub request_timeout: Seconds,
    #[serde(rename = "requestAtLeastEverySeconds")]
    pub request_at_least_every: Seconds,
    #[serde(rename = "retryFailedRequestSeconds")]
    pub retry_failed_request: Seconds,
    #[serde(rename = "retryDeniedUpscaleSeconds")]
    pub retry_denied_upscale: Seconds,
    #[serde(rename = "requestPort")]
    pub request_port: u16,
    #[serde(rename = "maxFailedRequestRate")]
    pub max_failed_request_rate: Rate,
    /// Ours, and absent from the deployed files: a file (mode 0600 or 0400) with the token to show
    /// to the scheduler.
    #[serde(rename = "tokenFile", skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Ours, and absent from the deployed files: no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<SchedulerTls>,
}

/// `scheduler.tls`: files in PEM form. The scheduler is asked by TLS where this is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerTls {
    /// Authority that has signed the scheduler's certificate.
    pub ca_file: PathBuf,
    /// What is shown to a scheduler that asks for a certificate.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub identity: Option<TlsIdentity>,
    /// The name in the scheduler's certificate; without one, it has to bear its pod's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<PeerName>,
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsIdentity {
    /// File of the certificate chain that the agent shows, in PEM form.
    pub cert_file: PathBuf,
    /// Its key, mode 0600 or 0400.
    pub key_file: PathBuf,
}

/// Section `neonvm`: waits and failure rate of patches of VM objects.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct NeonVm {
    #[serde(rename = "requestTimeoutSeconds")]
    pub request_timeout: Seconds,
    #[serde(rename = "retryFailedRequestSeconds")]
    pub retry_failed_request: Seconds,
    #[serde(rename = "maxFailedRequestRate")]
    pub max_failed_request_rate: Rate,
}

/// Section `dumpState`: server of the state dump; without the section there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct DumpState {
    pub port: u16,
    #[serde(rename = "timeoutSeconds")]
    pub timeout: Seconds,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`] with everything that is wrong.
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

    /// The configuration of the one-machine mode.
    ///
    /// # Errors
    /// Never with the file this was built with; a test holds that.
    pub fn one_machine() -> Result<Self, ConfigError> {
        Self::from_json(include_str!("../../config/one-machine.json"))
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`ConfigError`] with everything that is wrong.
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
            scaling: r.object("scaling", read_scaling),
            billing: r.object("billing", read_billing),
            scaling_events: r.object("scalingEvents", read_scaling_events),
            monitor: r.object("monitor", read_monitor),
            metrics: r.object("metrics", |r| Metrics {
                system: r.object("system", read_source),
                lfc: r.object("lfc", read_source),
            }),
            scheduler: r.object("scheduler", |r| Scheduler {
                scheduler_name: r.text("schedulerName"),
                request_timeout: r.seconds("requestTimeoutSeconds"),
                request_at_least_every: r.seconds("requestAtLeastEverySeconds"),
                retry_failed_request: r.seconds("retryFailedRequestSeconds"),
                retry_denied_upscale: r.seconds("retryDeniedUpscaleSeconds"),
                request_port: r.port("requestPort"),
                max_failed_request_rate: r.object("maxFailedRequestRate", read_rate),
                token_file: r.optional_path("tokenFile"),
                tls: r.optional_object("tls", read_scheduler_tls),
            }),
            neonvm: r.object("neonvm", |r| NeonVm {
                request_timeout: r.seconds("requestTimeoutSeconds"),
                retry_failed_request: r.seconds("retryFailedRequestSeconds"),
                max_failed_request_rate: r.object("maxFailedRequestRate", read_rate),
            }),
            dump_state: r.optional_object("dumpState", |r| DumpState {
                port: r.port("port"),
                timeout: r.seconds("timeoutSeconds"),
            }),
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

    /// What a VM's core is made with. `tick_jitter` is taken off the heartbeat.
    #[must_use]
    pub fn core(&self, tick_jitter: Span) -> CoreConfig {
        let tick = self.scheduler.request_at_least_every.span();
        CoreConfig {
            compute_unit: self.scaling.compute_unit,
            default_scaling: self.scaling.default_config,
            timers: Timers {
                plugin_request_tick: Span(tick.0.saturating_sub(tick_jitter.0)),
                plugin_retry_wait: self.scheduler.retry_failed_request.span(),
                plugin_denied_retry_wait: self.scheduler.retry_denied_upscale.span(),
                neonvm_retry_wait: self.neonvm.retry_failed_request.span(),
                monitor_retry_wait: self.monitor.retry_failed_request.span(),
                monitor_denied_downscale_cooldown: self.monitor.retry_denied_downscale.span(),
                monitor_requested_upscale_valid_period: self.monitor.requested_upscale_valid.span(),
                migration_hold: Timers::default().migration_hold,
            },
            system_max_age: self.metrics.system.max_age(),
            lfc_max_age: self.metrics.lfc.max_age(),
        }
    }

    /// When a VM counts as stuck.
    #[must_use]
    pub fn health(&self) -> HealthConfig {
        HealthConfig {
            unhealthy_after_silence: self.monitor.unhealthy_after_silence.span(),
            unhealthy_startup_grace: self.monitor.unhealthy_startup_grace.span(),
            monitor: self.monitor.max_failed_request_rate.failure_rate(),
            scheduler: self.scheduler.max_failed_request_rate.failure_rate(),
            neonvm: self.neonvm.max_failed_request_rate.failure_rate(),
        }
    }
}

fn read_rate(r: &mut Reader<'_>) -> Rate {
    Rate {
        interval: r.seconds("intervalSeconds"),
        threshold: r.number("threshold"),
    }
}

fn read_source(r: &mut Reader<'_>) -> MetricsSource {
    MetricsSource {
        port: r.port("port"),
        request_timeout: r.seconds("requestTimeoutSeconds"),
        between_requests: r.seconds("secondsBetweenRequests"),
        stale_after: r.optional_number("staleAfterSeconds").map(Seconds),
    }
}

fn read_scaling(r: &mut Reader<'_>) -> Scaling {
    let compute_unit = r.parsed(
        "computeUnit",
        "must be like {\"vCPUs\":0.25,\"mem\":\"1Gi\"}",
        |value| {
            serde_json::from_value::<Resources>(value.clone()).map_err(|error| error.to_string())
        },
    );
    let compute_unit = compute_unit.unwrap_or_default();
    if let Some(field) = compute_unit.zero_field() {
        r.problem(&format!("computeUnit.{field}"), "0", "must not be 0");
    }
    let default_config = r.object("defaultConfig", read_default_config);
    Scaling {
        compute_unit,
        default_config,
    }
}

fn read_default_config(r: &mut Reader<'_>) -> ScalingConfig {
    let (overrides, problems) = ScalingOverrides::read(r.members(&ScalingOverrides::KEYS));
    for problem in problems {
        r.problem(&problem.key, &problem.value, problem.rule);
    }
    for key in overrides.missing() {
        if !r.has_problem(key) {
            r.problem(key, "absent", "is required");
        }
    }
    // What is missing is reported already; the shipped value keeps its rule from being reported
    // twice.
    match overrides.apply(&ScalingConfig::default()) {
        Ok(config) => config,
        Err(problems) => {
            for problem in problems {
                r.problem(&problem.key, &problem.value, problem.rule);
            }
            ScalingConfig::default()
        }
    }
}

fn read_billing(r: &mut Reader<'_>) -> Billing {
    Billing {
        cpu_metric_name: r.text("cpuMetricName"),
        active_time_metric_name: r.text("activeTimeMetricName"),
        collect_every: r.seconds("collectEverySeconds"),
        accumulate_every: r.seconds("accumulateEverySeconds"),
        clients: read_clients(r, &["azureBlob", "http", "s3"], false),
    }
}

fn read_scaling_events(r: &mut Reader<'_>) -> ScalingEvents {
    ScalingEvents {
        cu_multiplier: r.positive_float("cuMultiplier"),
        rereport_threshold: r.positive_float("rereportThreshold"),
        region_name: r.text("regionName"),
        clients: read_clients(r, &["azureBlob", "s3"], true),
    }
}

/// Checks the clients and keeps them as they are.
fn read_clients(r: &mut Reader<'_>, kinds: &[&'static str], needs_prefix: bool) -> Value {
    let raw = r.raw("clients");
    r.object_or_empty("clients", |r| {
        for kind in kinds {
            r.optional_object(kind, |r| read_client(r, kind, needs_prefix));
        }
    });
    raw
}

fn read_client(r: &mut Reader<'_>, kind: &str, needs_prefix: bool) {
    for key in [
        "pushEverySeconds",
        "pushRequestTimeoutSeconds",
        "maxBatchSize",
    ] {
        r.non_zero_number(key);
    }
    let prefix = |r: &mut Reader<'_>, key: &'static str| {
        if needs_prefix {
            r.text(key);
        } else {
            r.optional_text(key);
        }
    };
    match kind {
        "http" => read_url(r, "url", false),
        "azureBlob" => {
            read_url(r, "endpoint", false);
            r.text("container");
            prefix(r, "prefixInContainer");
        }
        _ => {
            r.text("bucket");
            r.text("region");
            read_url(r, "endpoint", true);
            prefix(r, "prefixInBucket");
        }
    }
}

/// A web address that a client can ask.
fn read_url(r: &mut Reader<'_>, key: &'static str, is_optional: bool) {
    let text = if is_optional {
        r.optional_text(key)
    } else {
        r.text(key)
    };
    let is_web = |url: &hyper::Uri| {
        matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some()
    };
    if !text.is_empty() && !text.parse().as_ref().is_ok_and(is_web) {
        r.problem(key, &text, "must be an http or https address");
    }
}

fn read_monitor(r: &mut Reader<'_>) -> Monitor {
    Monitor {
        server_port: r.port("serverPort"),
        response_timeout: r.seconds("responseTimeoutSeconds"),
        connection_timeout: r.seconds("connectionTimeoutSeconds"),
        connection_retry_min_wait: r.seconds("connectionRetryMinWaitSeconds"),
        unhealthy_after_silence: r.seconds("unhealthyAfterSilenceDurationSeconds"),
        unhealthy_startup_grace: r.seconds("unhealthyStartupGracePeriodSeconds"),
        max_health_check_failures: r.seconds("maxHealthCheckSequentialFailuresSeconds"),
        retry_denied_downscale: r.seconds("retryDeniedDownscaleSeconds"),
        requested_upscale_valid: r.seconds("requestedUpscaleValidSeconds"),
        retry_failed_request: r.seconds("retryFailedRequestSeconds"),
        max_failed_request_rate: r.object("maxFailedRequestRate", read_rate),
        highest_version: read_version(r),
        key_file: r.optional_path("keyFile"),
        tls: r.optional_object("tls", read_monitor_tls),
    }
}

fn read_scheduler_tls(r: &mut Reader<'_>) -> SchedulerTls {
    const BOTH: &str = "must be there with certFile, and not without";
    let server_name = read_peer_name(r);
    let (cert, key) = (r.optional_path("certFile"), r.optional_path("keyFile"));
    if cert.is_some() != key.is_some() {
        r.problem(
            "keyFile",
            if key.is_some() { "there" } else { "absent" },
            BOTH,
        );
    }
    SchedulerTls {
        ca_file: r.text("caFile").into(),
        identity: cert.zip(key).map(|(cert_file, key_file)| TlsIdentity {
            cert_file,
            key_file,
        }),
        server_name,
    }
}

fn read_peer_name(r: &mut Reader<'_>) -> Option<PeerName> {
    const RULE: &str = "must be a host name or an address";
    r.parsed("serverName", RULE, |value| {
        let name = value.as_str().unwrap_or_default().to_owned();
        let name = ServerName::try_from(name).map_err(|error| error.to_string());
        name.map(PeerName)
    })
}

fn read_monitor_tls(r: &mut Reader<'_>) -> MonitorTls {
    let server_name = read_peer_name(r);
    MonitorTls {
        ca_file: r.text("caFile").into(),
        cert_file: r.text("certFile").into(),
        key_file: r.text("keyFile").into(),
        server_name,
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature is serde's"
)]
fn is_newest(version: &Version) -> bool {
    *version == Version::V2
}

fn read_version(r: &mut Reader<'_>) -> Version {
    const KEY: &str = "highestProtocolVersion";
    match r.optional_number(KEY) {
        None | Some(2) => Version::V2,
        Some(1) => Version::V1,
        Some(other) => {
            r.problem(KEY, &other.to_string(), "must be 1 or 2");
            Version::V2
        }
    }
}
