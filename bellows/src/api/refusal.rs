//! Refusals of the API server as failures of a command, with exit code, rule and fix.

use protocol::fleet::FleetKind;

use super::kind::{ApiOwner, Kind};
use crate::fail::Fail;

/// What Kubernetes says of a quota.
const EXCEEDED: &str = "exceeded quota";

/// The failure of a command for a refusal of the API server. `name` is empty for a list.
pub(super) fn explain_status(
    kind: Kind,
    name: &str,
    status: &kube::core::Status,
    owner: ApiOwner,
) -> Fail {
    let thing = format!("{} {name}", kind.label());
    let thing = thing.trim_end();
    match status.code {
        404 if !name.is_empty() => {
            let list = match kind {
                Kind::Migration => "kubectl get neonvmm".to_owned(),
                Kind::Policy => {
                    return Fail::not_so(format!("{thing} does not exist"))
                        .fix("see what there is: bellows policy list");
                }
                Kind::VmSet => "vmset list".to_owned(),
                Kind::Fleet(FleetKind::Instance) => "fleet instances".to_owned(),
                Kind::Fleet(FleetKind::Channel) => "fleet channel list".to_owned(),
                Kind::Fleet(_) => "fleet env list".to_owned(),
                Kind::ConfigMap => {
                    return Fail::not_so(format!("{thing} does not exist"))
                        .fix("see what there is: kubectl get configmaps -A");
                }
                kind => format!("get {}s", kind.label().to_ascii_lowercase()),
            };
            Fail::not_so(format!("{thing} does not exist"))
                .fix(format!("see what there is: bellows {list} -A"))
        }
        // The server returns 404 for a list of a kind that it does not serve.
        404 if matches!(kind, Kind::Fleet(_)) => {
            Fail::missing(format!("the API server does not know {}s", kind.label()))
                .rule("the kinds of fleet.bellows.dev/v1alpha1 must be installed")
                .fix("install them: docs/install-cluster.md")
        }
        404 if matches!(kind, Kind::Policy | Kind::VmSet) => Fail::missing(format!(
            "the API server does not know the kind of a {}",
            kind.label()
        ))
        .rule("the kinds of policy.bellows.dev/v1alpha1 must be installed")
        .fix("install them: docs/install-cluster.md"),
        404 => Fail::missing(format!("the API server does not know {}s", kind.label()))
            .rule("the kinds of vm.neon.tech/v1 must be installed")
            .fix("install them: docs/install-cluster.md; then: kubectl bellows check"),
        403 if status.message.contains(EXCEEDED) => over_quota(thing, name, &status.message),
        401 | 403 => refused(thing, &status.message, owner),
        409 => Fail::not_so(format!("{thing}: {}", status.message)),
        400 | 422 => {
            let causes: Vec<String> = status
                .details
                .iter()
                .flat_map(|details| &details.causes)
                .map(|cause| format!("{}: {}", cause.field, cause.message))
                .collect();
            let fail = Fail::usage(format!("{thing} is refused: {}", status.message));
            if causes.is_empty() {
                fail
            } else {
                fail.rule(causes.join("\n"))
            }
        }
        503 | 429 => Fail::try_again(format!("{thing}: {}", status.message)),
        code => Fail::bug(format!(
            "{thing}: the API server answered {code}: {}",
            status.message
        )),
    }
}

/// A quota of Kubernetes refuses with the code of a missing right.
fn over_quota(thing: &str, name: &str, message: &str) -> Fail {
    let namespace = name
        .split_once('/')
        .map_or("default", |(namespace, _)| namespace);
    Fail::not_so(format!("{thing} is refused: {message}"))
        .rule("a ResourceQuota says how much a namespace may have")
        .fix(format!(
            "delete what is not needed, or ask the cluster's administrator for more; see: kubectl \
             describe quota -n {namespace}"
        ))
}

fn refused(thing: &str, message: &str, owner: ApiOwner) -> Fail {
    let fail = Fail::usage(format!("{thing}: the API server refuses us: {message}"));
    match owner {
        ApiOwner::Up => fail
            .rule("the token in the kubeconfig must be the server's")
            .fix("use the kubeconfig that bellows up wrote: bellows kubeconfig"),
        ApiOwner::Cluster => fail
            .rule("whom the kubeconfig names needs the right")
            .fix("see which you have: kubectl auth can-i --list; ask the cluster's administrator for the one that is missing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, message: &str) -> kube::core::Status {
        serde_json::from_value(serde_json::json!({
            "status": "Failure", "code": code, "message": message, "reason": "x",
            "details": {"causes": [{"field": "spec.guest.cpus.use", "message": "is above max", "reason": "FieldValueInvalid"}]}
        }))
        .unwrap()
    }

    #[test]
    fn refusals_keep_their_meaning_as_exit_codes() {
        for (code, exit) in [
            (404, 1),
            (409, 1),
            (401, 64),
            (403, 64),
            (422, 64),
            (400, 64),
            (503, 75),
            (500, 70),
        ] {
            let fail = explain_status(Kind::Vm, "default/pg", &status(code, "no"), ApiOwner::Up);
            assert_eq!(fail.exit() as u8, exit, "{code}: {fail}");
            assert!(fail.what().contains("VM default/pg"), "{fail}");
        }
        let text = "x is forbidden: exceeded quota: fleet, requested: count/x=1, used: count/x=50";
        let fail = explain_status(Kind::Vm, "a/x", &status(403, text), ApiOwner::Cluster);
        assert_eq!(fail.exit() as u8, 1, "{fail}");
        assert!(fail.to_string().contains("describe quota -n a"), "{fail}");
        let fail = explain_status(Kind::Vm, "", &status(404, "no"), ApiOwner::Cluster);
        assert_eq!(fail.exit() as u8, 69, "a cluster without the kind: {fail}");
        let fail = explain_status(Kind::Vm, "", &status(403, "no"), ApiOwner::Cluster);
        assert!(!fail.to_string().contains("bellows up"), "{fail}");
        let fail = explain_status(Kind::Vm, "default/pg", &status(422, "no"), ApiOwner::Up);
        assert!(
            fail.to_string()
                .contains("rule: spec.guest.cpus.use: is above max"),
            "{fail}"
        );
    }
}
