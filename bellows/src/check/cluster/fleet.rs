//! Check of the fleet controller. A cluster without rollouts needs none.

use fleet_core::permit::Gate;
use protocol::fleet::{DeploymentState, FleetKind};
use serde_json::Value;

use super::super::finding::{Finding, Severity};
use super::leases::with_leader;
use super::nodes;
use crate::api::{Api, Kind};
use crate::cluster::{FLEET_CONTROLLER, is_ready};

const NAME: &str = "fleet controller";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/bellows-fleet";
const RULE: &str = "it carries new versions to guests, agents and runners, and takes bad ones back";
const INSTALL: &str = "set the chart's value fleet.enabled: docs/fleet.md";
const SEE: &str = "see why: kubectl logs -n kube-system -l name=bellows-fleet --prefix --tail=50";
const WHY: &str = "see which gate holds it: kubectl bellows fleet status";

pub(super) async fn controller(api: &Api) -> Finding {
    let deployments = Kind::Fleet(FleetKind::Deployment);
    let Ok(deployments) = api.list(deployments, None).await else {
        return Finding::ok(NAME, "rollouts are not installed, or may not be listed");
    };
    let pods = match FLEET_CONTROLLER.pods(api).await {
        Ok(pods) => pods,
        Err(fail) => return Finding::degraded(NAME, fail.what(), RULE, SEE),
    };
    let finding = judge(&deployments, &pods);
    if finding.verdict != Severity::Ok || pods.is_empty() {
        return finding;
    }
    with_leader(api, finding, LEASE, SEE).await
}

fn judge(deployments: &[Value], pods: &[Value]) -> Finding {
    let state = |deployment: &Value| {
        let state = deployment["status"]["state"].clone();
        serde_json::from_value::<DeploymentState>(state).unwrap_or_default()
    };
    let under_way = || deployments.iter().filter(|one| !state(one).is_terminal());
    // A window opens and a bake ends by themselves.
    let waits = |one: &Value| {
        let gate = one["status"]["blockedBy"]["gate"].as_str();
        [Gate::Window, Gate::Bake]
            .map(Gate::as_str)
            .contains(&gate.unwrap_or_default())
    };
    let blocked = under_way().filter(|one| state(one) == DeploymentState::Blocked && !waits(one));
    let blocked: Vec<String> = blocked
        .filter_map(|one| Some(one["metadata"]["name"].as_str()?.to_owned()))
        .collect();
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    match (pods.len(), under_way().count()) {
        (0, 0) => Finding::ok(NAME, "not installed, and no rollout needs it"),
        (0, count) => {
            let found = format!("not installed, and rollouts under way: {count}");
            Finding::degraded(NAME, found, RULE, INSTALL)
        }
        (all, _) if ready == 0 => {
            Finding::degraded(NAME, format!("none of {all} pods is ready"), RULE, SEE)
        }
        _ if !blocked.is_empty() => {
            let found = format!("a gate holds {}", nodes::list(&blocked));
            Finding::degraded(
                NAME,
                found,
                "no instance gets the new version meanwhile",
                WHY,
            )
        }
        (all, count) => Finding::ok(
            NAME,
            format!("{ready} of {all} pods ready, rollouts under way: {count}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rollouts_that_nothing_carries_on_are_reported() {
        let pod = |ready: &str| {
            let condition = json!({"type": "Ready", "status": ready});
            json!({"status": {"conditions": [condition]}})
        };
        let rollout =
            |state: &str| json!({"metadata": {"name": "m-1"}, "status": {"state": state}});
        let cases = [
            (vec![], vec![], Severity::Ok),
            (vec![rollout("Complete")], vec![], Severity::Ok),
            (vec![rollout("InProgress")], vec![], Severity::Degraded),
            (vec![json!({})], vec![], Severity::Degraded),
            (vec![], vec![pod("False")], Severity::Degraded),
            (vec![rollout("InProgress")], vec![pod("True")], Severity::Ok),
            (
                vec![rollout("Blocked")],
                vec![pod("True")],
                Severity::Degraded,
            ),
        ];
        for (rollouts, pods, expected) in cases {
            let finding = judge(&rollouts, &pods);
            assert_eq!(finding.verdict, expected, "{finding:?}");
        }
        let mut waits = rollout("Blocked");
        waits["status"]["blockedBy"] = json!({"gate": "window"});
        assert_eq!(judge(&[waits], &[pod("True")]).verdict, Severity::Ok);
        let held = judge(&[rollout("Blocked")], &[pod("True")]);
        assert_eq!(held.found, "a gate holds m-1");
    }
}
