//! Whether a cluster refuses invalid VM objects, and whether its API servers can call the
//! controller's webhooks.

use protocol::vm::API_VERSION;
use serde_json::{Value, json};

use super::finding::{Finding, INSTALL};
use crate::api::Api;

/// Webhook configurations of the controller, by resource and name. The manifests and the deployed
/// system use these names.
const CONFIGURATIONS: [(&str, &str); 2] = [
    (
        "mutatingwebhookconfigurations",
        "neonvm-mutating-webhook-configuration",
    ),
    (
        "validatingwebhookconfigurations",
        "neonvm-validating-webhook-configuration",
    ),
];
/// Fix if no webhook refuses an invalid VM. The controller reports it in the VM's status.
const LOOK: &str =
    "look at what you wrote: kubectl describe neonvm NAME tells in Degraded what stands in its way";
/// Fix if the API server cannot call the webhook.
const SEE: &str = "see why it does not answer: kubectl describe pods -A -l name=neonvm-controller";
/// Start of the message with which an API server reports that a webhook call failed.
const NOT_ASKED: &str = "failed calling webhook";

/// Dry-runs a VM that must be refused: its CPUs in use exceed its maximum.
pub(super) async fn trial(api: &Api) -> Finding {
    let vm = json!({"apiVersion": API_VERSION, "kind": "VirtualMachine", "metadata": {"generateName": "bellows-check-"},
        "spec": {"guest": {"cpus": {"min": 1, "use": 3, "max": 2}, "memorySlots": {"min": 1, "use": 1, "max": 1},
            "rootDisk": {"image": "none"}}}});
    let path = format!("/apis/{API_VERSION}/namespaces/default/virtualmachines?dryRun=All");
    judge_trial(api.post(&path, &vm).await)
}

fn judge_trial(answer: Result<Value, kube::Error>) -> Finding {
    let name = "admission";
    let rule = "a VM object that means nothing should be refused when it is written; else its VM fails later";
    let status = match answer {
        Ok(_) => {
            let found = "a VM that uses more than its most would be taken";
            return Finding::degraded(name, found, rule, LOOK);
        }
        Err(kube::Error::Api(status)) => status,
        Err(error) => {
            let found = format!("not tried: {}", daemon_kit::chain(&error));
            return Finding::degraded(name, found, rule, LOOK);
        }
    };
    if status.message.contains(NOT_ASKED) {
        let rule = "no VM object can be written while the controller's webhook cannot be asked";
        return Finding::missing(name, status.message, rule, SEE);
    }
    if status.reason == "Forbidden" && status.message.contains("cannot create") {
        let found = "not tried: VMs may not be created";
        return Finding::degraded(name, found, rule, "ask with more rights");
    }
    if matches!(status.code, 400 | 403 | 422) {
        return Finding::ok(name, "a VM that uses more than its most is refused");
    }
    let found = format!("not tried: {}", status.message);
    Finding::degraded(name, found, rule, LOOK)
}

/// Whether the webhook configurations exist and name an authority.
pub(super) async fn webhooks(api: &Api) -> Finding {
    let mut found = Vec::new();
    for (plural, name) in CONFIGURATIONS {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}/{name}");
        found.push((name, api.read(&path).await));
    }
    judge_webhooks(found)
}

fn judge_webhooks(found: Vec<(&str, Result<Value, kube::Error>)>) -> Finding {
    let name = "webhook";
    let rule =
        "API servers ask the controller what a VM object must keep to beside its kind's own rules";
    let mut asked = 0;
    for (configuration, answer) in found {
        let object = match answer {
            Ok(object) => object,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let found = format!("{configuration} is not there");
                return Finding::degraded(name, found, rule, INSTALL);
            }
            Err(error) => {
                let found = format!("not looked at: {}", daemon_kit::chain(&error));
                return Finding::degraded(name, found, rule, "ask with more rights");
            }
        };
        let hooks = object["webhooks"].as_array().map_or(&[][..], Vec::as_slice);
        let is_trusted = |hook: &Value| {
            let bundle = hook["clientConfig"]["caBundle"].as_str();
            bundle.is_some_and(|bundle| !bundle.is_empty())
        };
        if hooks.is_empty() || !hooks.iter().all(is_trusted) {
            let found = format!("{configuration} has no authority yet: API servers trust nobody");
            return Finding::missing(name, found, "no VM object can be written", SEE);
        }
        asked += hooks.len();
    }
    Finding::ok(name, format!("{asked} questions, all to one they trust"))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::super::finding::Severity;
    use super::*;

    fn refusal(code: u16, reason: &str, message: &str) -> kube::Error {
        let status = Status::failure(message, reason).with_code(code);
        kube::Error::Api(Box::new(status))
    }

    #[test]
    fn verdict_of_a_dry_run_depends_on_the_refusal() {
        let judge = |answer| judge_trial(answer).verdict;
        assert_eq!(judge(Ok(Value::Null)), Severity::Degraded);
        let rule = "spec.guest.cpus: Invalid value: use is above max";
        assert_eq!(judge(Err(refusal(422, "Invalid", rule))), Severity::Ok);
        let denied =
            "admission webhook \"vvirtualmachine.kb.io\" denied the request: use is above max";
        assert_eq!(judge(Err(refusal(403, "Forbidden", denied))), Severity::Ok);
        let rights = "virtualmachines is forbidden: User \"u\" cannot create resource";
        assert_eq!(
            judge(Err(refusal(403, "Forbidden", rights))),
            Severity::Degraded
        );
        let away = "Internal error occurred: failed calling webhook \"mvirtualmachine.kb.io\": connection refused";
        let finding = judge_trial(Err(refusal(500, "InternalError", away)));
        assert_eq!(
            (finding.verdict, finding.found.as_str()),
            (Severity::Missing, away)
        );
        let busy = refusal(429, "TooManyRequests", "later");
        assert_eq!(judge(Err(busy)), Severity::Degraded);
    }

    #[test]
    fn webhook_without_authority_is_reported() {
        let hook = |bundle: &str| json!({"webhooks": [{"clientConfig": {"caBundle": bundle}}]});
        let judge = |first, second| judge_webhooks(vec![("a", first), ("b", second)]);
        let well = judge(Ok(hook("LS0t")), Ok(hook("LS0t")));
        assert_eq!(
            (well.verdict, well.found.as_str()),
            (Severity::Ok, "2 questions, all to one they trust")
        );
        let early = judge(Ok(hook("LS0t")), Ok(hook("")));
        assert_eq!(early.verdict, Severity::Missing);
        assert!(early.found.starts_with("b has no authority"), "{early:?}");
        assert_eq!(
            judge(Ok(json!({})), Ok(hook("LS0t"))).verdict,
            Severity::Missing
        );
        let absent = judge(Err(refusal(404, "NotFound", "none")), Ok(hook("LS0t")));
        assert_eq!(
            (absent.verdict, absent.found.as_str()),
            (Severity::Degraded, "a is not there")
        );
        let forbidden = judge(Err(refusal(403, "Forbidden", "no")), Ok(hook("LS0t")));
        assert_eq!(forbidden.verdict, Severity::Degraded);
    }
}
