//! Check of the policy controller. A cluster without policies needs none.

use serde_json::Value;

use super::super::finding::{Finding, Severity};
use super::leases::with_leader;
use crate::api::{Api, Kind};
use crate::cluster::{POLICY_CONTROLLER, is_ready};

const NAME: &str = "policy controller";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/bellows-policy";
const RULE: &str =
    "it lets candidates on by their evidence, and takes a version back that does harm";
const INSTALL: &str = "set the chart's value policyController.enabled: docs/policies.md";
const SEE: &str =
    "see why: kubectl logs -n kube-system -l name=policy-controller --prefix --tail=50";

pub(super) async fn controller(api: &Api) -> Finding {
    let Ok(policies) = api.list(Kind::Policy, None).await else {
        return Finding::ok(NAME, "policies are not installed, or may not be listed");
    };
    let pods = match POLICY_CONTROLLER.pods(api).await {
        Ok(pods) => pods,
        Err(fail) => return Finding::degraded(NAME, fail.what(), RULE, SEE),
    };
    let finding = judge(policies.len(), &pods);
    if finding.verdict != Severity::Ok || pods.is_empty() {
        return finding;
    }
    with_leader(api, finding, LEASE, SEE).await
}

fn judge(policies: usize, pods: &[Value]) -> Finding {
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    match (pods.len(), policies) {
        (0, 0) => Finding::ok(NAME, "not installed, and no policy needs it"),
        (0, count) => {
            let found = format!("not installed, and policies: {count}");
            Finding::degraded(NAME, found, RULE, INSTALL)
        }
        (all, _) if ready == 0 => {
            Finding::degraded(NAME, format!("none of {all} pods is ready"), RULE, SEE)
        }
        (all, count) => Finding::ok(
            NAME,
            format!("{ready} of {all} pods ready, policies: {count}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn policies_without_a_working_controller_are_reported() {
        let pod = |ready: &str| {
            let condition = json!({"type": "Ready", "status": ready});
            json!({"status": {"conditions": [condition]}})
        };
        let cases = [
            (0, vec![], Severity::Ok),
            (2, vec![], Severity::Degraded),
            (2, vec![pod("False")], Severity::Degraded),
            (0, vec![pod("False")], Severity::Degraded),
            (2, vec![pod("False"), pod("True")], Severity::Ok),
        ];
        for (policies, pods, expected) in cases {
            let finding = judge(policies, &pods);
            assert_eq!(finding.verdict, expected, "{finding:?}");
        }
        let missing = judge(2, &[]);
        let fix = missing.fix.unwrap_or_default();
        assert!(fix.contains("policyController.enabled"), "{fix}");
    }
}
