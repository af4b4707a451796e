//! Sections of the configuration file. Keys and units are those of docs/compatibility/agent.md
//! §5.2.

use std::path::PathBuf;

use protocol::monitor::Version;
use protocol::policy::Limits;
use protocol::time::Span;
use protocol::units::Resources;
use rustls::pki_types::ServerName;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::core::ScalingConfig;
use crate::core::health::FailureRate;

/// A whole number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct Seconds(pub u64);

impl Seconds {
    /// The same length as a [`Span`].
    #[must_use]
    pub fn span(self) -> Span {
        Span::from_secs(self.0)
    }

    /// The same length as a [`std::time::Duration`].
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

/// Section `billing`: names, periods and receivers of usage events.
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
    /// Receivers, as the file has them.
    pub clients: Value,
}

/// Section `scalingEvents`: content and receivers of events about sizes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct ScalingEvents {
    pub cu_multiplier: f64,
    pub rereport_threshold: f64,
    pub region_name: String,
    /// Receivers, as the file has them.
    pub clients: Value,
}

/// Section `monitor`: links to the monitors in the guests, and limits of their failures.
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
    /// Ours: highest version to offer; absent = the newest one.
    #[serde(rename = "highestProtocolVersion", skip_serializing_if = "is_newest")]
    pub highest_version: Version,
    /// Ours: file (mode 0600 or 0400) with the key from which the token of each VM's monitor is
    /// derived. Each connection reads it again. It may be missing.
    #[serde(rename = "keyFile", skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Ours: files for TLS; absent = no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<MonitorTls>,
}

/// Section `monitor.tls`: files in PEM form for TLS with monitors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MonitorTls {
    /// Certificate of the authority that signs the monitors' certificates.
    pub ca_file: PathBuf,
    /// Certificate chain of the agent.
    pub cert_file: PathBuf,
    /// Key of the certificate, mode 0600 or 0400.
    pub key_file: PathBuf,
    /// Name in the monitors' certificates; `None` = each has the address of its VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<PeerName>,
}

/// A host name or address in a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerName(pub ServerName<'static>);

impl Serialize for PeerName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_str())
    }
}

/// Key `maxFailedRequestRate`: with more than `threshold` failures within `interval` a VM is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct Rate {
    #[serde(rename = "intervalSeconds")]
    pub interval: Seconds,
    pub threshold: u64,
}

impl Rate {
    pub(super) fn failure_rate(self) -> FailureRate {
        let threshold = usize::try_from(self.threshold).unwrap_or(usize::MAX);
        FailureRate {
            interval: self.interval.span(),
            threshold,
        }
    }
}

/// Section `metrics`: endpoints in the guest that the agent scrapes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct Metrics {
    pub system: MetricsSource,
    pub lfc: MetricsSource,
}

/// Port and times of one endpoint in the guest.
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
    /// Age from which a sample counts as missing; `None` = never.
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

/// Section `scheduler`: permit requests to the scheduler.
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
    /// Ours: file (mode 0600 or 0400) with the token for the scheduler; absent = no token.
    #[serde(rename = "tokenFile", skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Ours: files for TLS; absent = no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<SchedulerTls>,
}

/// Section `scheduler.tls`: files in PEM form for TLS with the scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerTls {
    /// Certificate of the authority that signs the scheduler's certificate.
    pub ca_file: PathBuf,
    /// Certificate and key for a scheduler that requires a client certificate.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub identity: Option<TlsIdentity>,
    /// Name in the scheduler's certificate; `None` = it has the address of its pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<PeerName>,
}

/// Certificate of the agent and its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsIdentity {
    /// File of the certificate chain, in PEM form.
    pub cert_file: PathBuf,
    /// File of the key, mode 0600 or 0400.
    pub key_file: PathBuf,
}

/// Section `neonvm`: times and failure rate of patches of VM objects.
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

/// Section `policies`, ours: candidates beside the built-in goal; absent = none, and nothing of it
/// runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policies {
    /// Policy of VMs that choose none; absent = the built-in goal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Ceiling of every policy's own limits.
    pub limits: Limits,
    /// Ports of guests that policies may read figures from.
    pub feed_ports: Vec<u16>,
}

/// Section `dumpState`: server of the state dump; absent = no server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "keys of docs/compatibility/agent.md §5.2")]
pub struct DumpState {
    pub port: u16,
    #[serde(rename = "timeoutSeconds")]
    pub timeout: Seconds,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature is serde's"
)]
fn is_newest(version: &Version) -> bool {
    *version == Version::V2
}
