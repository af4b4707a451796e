//! Reads the sections of the configuration file.

use protocol::monitor::Version;
use protocol::policy::Limits;
use protocol::units::Resources;
use rustls::pki_types::ServerName;
use serde::Deserialize as _;
use serde_json::Value;

use super::reader::Reader;
use super::sections::{
    Billing, MetricsSource, Monitor, MonitorTls, PeerName, Policies, Rate, Scaling, ScalingEvents,
    SchedulerTls, Seconds, TlsIdentity,
};
use crate::core::{ScalingConfig, ScalingOverrides};

pub(super) fn policies(r: &mut Reader<'_>) -> Policies {
    let default = r.optional_text("default");
    let limits = r.parsed(
        "limits",
        "must be an object of maxUnits, shrinkUnitsPerMinute, vmsShrunkAtOncePercent and \
         fallbackAfterSeconds",
        |value| Limits::deserialize(value).map_err(|error| error.to_string()),
    );
    let feed_ports = r.parsed("feedPorts", "must be a list of ports", |value| {
        Vec::<u16>::deserialize(value).map_err(|error| error.to_string())
    });
    Policies {
        default: (!default.is_empty()).then_some(default),
        limits: limits.unwrap_or_default(),
        feed_ports: feed_ports.unwrap_or_default(),
    }
}

pub(super) fn rate(r: &mut Reader<'_>) -> Rate {
    Rate {
        interval: r.seconds("intervalSeconds"),
        threshold: r.number("threshold"),
    }
}

pub(super) fn source(r: &mut Reader<'_>) -> MetricsSource {
    MetricsSource {
        port: r.port("port"),
        request_timeout: r.seconds("requestTimeoutSeconds"),
        between_requests: r.seconds("secondsBetweenRequests"),
        stale_after: r.optional_number("staleAfterSeconds").map(Seconds),
    }
}

pub(super) fn scaling(r: &mut Reader<'_>) -> Scaling {
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
    let default_config = r.object("defaultConfig", default_config);
    Scaling {
        compute_unit,
        default_config,
    }
}

fn default_config(r: &mut Reader<'_>) -> ScalingConfig {
    let (overrides, problems) = ScalingOverrides::read(r.members(&ScalingOverrides::KEYS));
    for problem in problems {
        r.problem(&problem.key, &problem.value, problem.rule);
    }
    for key in overrides.missing() {
        if !r.has_problem(key) {
            r.problem(key, "absent", "is required");
        }
    }
    // Absent keys are reported above. The shipped values keep `apply` from reporting them again.
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

pub(super) fn billing(r: &mut Reader<'_>) -> Billing {
    Billing {
        cpu_metric_name: r.text("cpuMetricName"),
        active_time_metric_name: r.text("activeTimeMetricName"),
        collect_every: r.seconds("collectEverySeconds"),
        accumulate_every: r.seconds("accumulateEverySeconds"),
        clients: clients(r, &["azureBlob", "http", "s3"], Prefix::Optional),
    }
}

pub(super) fn scaling_events(r: &mut Reader<'_>) -> ScalingEvents {
    ScalingEvents {
        cu_multiplier: r.positive_float("cuMultiplier"),
        rereport_threshold: r.positive_float("rereportThreshold"),
        region_name: r.text("regionName"),
        clients: clients(r, &["azureBlob", "s3"], Prefix::Required),
    }
}

/// Whether object stores must name a folder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prefix {
    Optional,
    Required,
}

/// Checks the receivers and returns their JSON unchanged.
fn clients(r: &mut Reader<'_>, kinds: &[&'static str], prefix: Prefix) -> Value {
    let raw = r.raw("clients");
    r.object_or_empty("clients", |r| {
        for kind in kinds {
            r.optional_object(kind, |r| client(r, kind, prefix));
        }
    });
    raw
}

fn client(r: &mut Reader<'_>, kind: &str, prefix: Prefix) {
    for key in [
        "pushEverySeconds",
        "pushRequestTimeoutSeconds",
        "maxBatchSize",
    ] {
        r.non_zero_number(key);
    }
    let read_prefix = |r: &mut Reader<'_>, key: &'static str| match prefix {
        Prefix::Required => r.text(key),
        Prefix::Optional => r.optional_text(key),
    };
    match kind {
        "http" => {
            let text = r.text("url");
            check_url(r, "url", &text);
        }
        "azureBlob" => {
            let text = r.text("endpoint");
            check_url(r, "endpoint", &text);
            r.text("container");
            read_prefix(r, "prefixInContainer");
        }
        _ => {
            r.text("bucket");
            r.text("region");
            let text = r.optional_text("endpoint");
            check_url(r, "endpoint", &text);
            read_prefix(r, "prefixInBucket");
        }
    }
}

/// Reports a text that is not empty and no HTTP address.
fn check_url(r: &mut Reader<'_>, key: &'static str, text: &str) {
    let is_web = |url: &hyper::Uri| {
        matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some()
    };
    if !text.is_empty() && !text.parse().as_ref().is_ok_and(is_web) {
        r.problem(key, text, "must be an http or https address");
    }
}

pub(super) fn monitor(r: &mut Reader<'_>) -> Monitor {
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
        max_failed_request_rate: r.object("maxFailedRequestRate", rate),
        highest_version: version(r),
        key_file: r.optional_path("keyFile"),
        tls: r.optional_object("tls", monitor_tls),
    }
}

pub(super) fn scheduler_tls(r: &mut Reader<'_>) -> SchedulerTls {
    const BOTH: &str = "must be there with certFile, and not without";
    let server_name = peer_name(r);
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

fn peer_name(r: &mut Reader<'_>) -> Option<PeerName> {
    const RULE: &str = "must be a host name or an address";
    r.parsed("serverName", RULE, |value| {
        let name = value.as_str().unwrap_or_default().to_owned();
        let name = ServerName::try_from(name).map_err(|error| error.to_string());
        name.map(PeerName)
    })
}

fn monitor_tls(r: &mut Reader<'_>) -> MonitorTls {
    let server_name = peer_name(r);
    MonitorTls {
        ca_file: r.text("caFile").into(),
        cert_file: r.text("certFile").into(),
        key_file: r.text("keyFile").into(),
        server_name,
    }
}

fn version(r: &mut Reader<'_>) -> Version {
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
