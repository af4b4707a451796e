//! Checks of Leases: of several replicas of a component, the one that holds its Lease works.

use daemon_kit::clock::Clock;
use protocol::time::WallTime;
use serde_json::Value;

use super::super::finding::{Finding, Severity};
use crate::api::Api;
use crate::cluster::Part;

/// Tolerated difference between the clocks of this machine and of a Lease's holder, in seconds.
const SKEW_S: i64 = 10;

pub(super) async fn held(
    api: &Api,
    name: &'static str,
    part: Part,
    (namespace, lease): (&str, &str),
) -> Finding {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{lease}");
    let object = api.read(&path).await.unwrap_or_default();
    let fix = format!(
        "see why none does: kubectl logs -n {namespace} -l name={} --prefix --tail=50",
        part.name
    );
    judge_lease(name, &object, Clock::new().wall(), &fix)
}

/// A good finding about an optional controller, and whether one of its replicas holds the Lease.
pub(super) async fn with_leader(api: &Api, finding: Finding, lease: &str, fix: &str) -> Finding {
    let lease = api.read(lease).await.unwrap_or_default();
    let led = judge_lease(finding.name, &lease, Clock::new().wall(), fix);
    match led.verdict {
        Severity::Ok => Finding::ok(finding.name, format!("{}; {}", finding.found, led.found)),
        Severity::Degraded | Severity::Missing => Finding {
            verdict: Severity::Degraded,
            ..led
        },
    }
}

fn judge_lease(name: &'static str, lease: &Value, now: WallTime, fix: &str) -> Finding {
    let spec = &lease["spec"];
    let holder = spec["holderIdentity"].as_str().unwrap_or_default();
    let renewed = spec["renewTime"]
        .as_str()
        .and_then(|text| WallTime::parse(text).ok());
    let lasts = spec["leaseDurationSeconds"].as_i64().unwrap_or(15) + SKEW_S;
    let age = renewed.map(|at| now.0.saturating_sub(at.0) / 1_000_000);
    let rule = "of several replicas the one that holds it works";
    match age {
        _ if holder.is_empty() => Finding::missing(name, "nobody holds it", rule, fix),
        Some(age) if age <= lasts => Finding::ok(name, format!("held by {holder}")),
        _ => Finding::missing(name, format!("{holder} has let it lapse"), rule, fix),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lease_is_held_while_it_is_renewed() {
        let now = WallTime::parse("2026-01-02T03:04:30Z").unwrap();
        let lease = |holder: &str, at: &str| json!({"spec": {"holderIdentity": holder, "renewTime": at, "leaseDurationSeconds": 15}});
        let judge = |lease: &Value| judge_lease("lease", lease, now, "").verdict;
        assert_eq!(
            judge(&lease("a", "2026-01-02T03:04:20.000000Z")),
            Severity::Ok
        );
        assert_eq!(
            judge(&lease("a", "2026-01-02T03:04:00.000000Z")),
            Severity::Missing
        );
        assert_eq!(
            judge(&lease("", "2026-01-02T03:04:20.000000Z")),
            Severity::Missing
        );
        assert_eq!(judge(&Value::Null), Severity::Missing);
    }
}
