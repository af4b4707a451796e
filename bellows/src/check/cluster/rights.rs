//! Rights of the user and of the components, by access reviews of the API server.

use serde_json::{Value, json};

use super::super::finding::{Finding, INSTALL};
use crate::api::Api;
use crate::cluster::Part;

/// A right: verb, group, resource with subresource, and namespace. An empty namespace means all.
type Right = (&'static str, &'static str, &'static str, &'static str);

const VMS: &str = "vm.neon.tech";

fn attributes((verb, group, resource, namespace): Right) -> Value {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    json!({"verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace})
}

fn right_label((verb, _, resource, namespace): Right) -> String {
    let place = if namespace.is_empty() {
        String::new()
    } else {
        format!(" in {namespace}")
    };
    format!("{verb} {resource}{place}")
}

/// The rights that are denied. `None` if the API server does not answer the review.
async fn lacking(
    api: &Api,
    kind: &str,
    user: Option<&str>,
    rights: &[Right],
) -> Option<Vec<String>> {
    let path = format!(
        "/apis/authorization.k8s.io/v1/{}s",
        kind.to_ascii_lowercase()
    );
    let mut lacking = Vec::new();
    for right in rights {
        let mut spec = json!({"resourceAttributes": attributes(*right)});
        if let Some(user) = user {
            spec["user"] = user.into();
        }
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
        let answer = api.post(&path, &review).await.ok()?;
        if answer["status"]["allowed"] != true {
            lacking.push(right_label(*right));
        }
    }
    Some(lacking)
}

pub(super) async fn own_rights(api: &Api) -> Finding {
    let name = "your rights";
    let rights = [
        ("list", VMS, "virtualmachines", ""),
        ("patch", VMS, "virtualmachines", ""),
        ("create", VMS, "virtualmachinemigrations", ""),
        ("get", "", "pods/portforward", "kube-system"),
        ("create", "", "pods/portforward", "kube-system"),
    ];
    let rule = "why, top and history ask the parts at forwarded ports, which takes create since \
                Kubernetes 1.35; migrate writes an object";
    let fix = "ask whoever gives rights in this cluster for these";
    match lacking(api, "SelfSubjectAccessReview", None, &rights).await {
        Some(lacking) if lacking.is_empty() => Finding::ok(name, "VMs and the parts' state"),
        Some(lacking) => Finding::degraded(
            name,
            format!("you may not {}", lacking.join(", ")),
            rule,
            fix,
        ),
        None => Finding::degraded(name, "the cluster does not say", rule, fix),
    }
}

pub(super) async fn rights_of(api: &Api, part: Part) -> Finding {
    let (name, rights): (_, &[Right]) = match part.name {
        "autoscaler-agent" => (
            "agent's rights",
            &[
                ("watch", VMS, "virtualmachines", ""),
                ("patch", VMS, "virtualmachines", ""),
                ("list", "", "namespaces", ""),
                ("watch", "", "pods", "kube-system"),
            ],
        ),
        "autoscale-scheduler" => (
            "scheduler's rights",
            &[
                ("watch", VMS, "virtualmachines", ""),
                ("patch", VMS, "virtualmachines", ""),
                ("create", VMS, "virtualmachinemigrations", ""),
                ("watch", "", "nodes", ""),
                ("create", "", "pods/binding", ""),
            ],
        ),
        _ => (
            "controller's rights",
            &[
                ("watch", VMS, "virtualmachines", ""),
                ("patch", VMS, "virtualmachines/status", ""),
                ("create", "", "pods", ""),
                ("delete", "", "pods", ""),
                ("create", "", "secrets", ""),
            ],
        ),
    };
    let pods = part.pods(api).await.unwrap_or_default();
    let Some(pod) = pods.first() else {
        return Finding::missing(
            name,
            "it is not installed",
            "each part has an account of its own",
            INSTALL,
        );
    };
    let text = |pointer: &str| {
        pod.pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let user = format!(
        "system:serviceaccount:{}:{}",
        text("/metadata/namespace"),
        text("/spec/serviceAccountName")
    );
    match lacking(api, "SubjectAccessReview", Some(&user), rights).await {
        Some(lacking) if lacking.is_empty() => {
            Finding::ok(name, format!("{} of {user}", rights.len()))
        }
        Some(lacking) => {
            let found = format!("{user} may not {}", lacking.join(", "));
            Finding::missing(name, found, "it cannot do its work without", INSTALL)
        }
        None => Finding::degraded(
            name,
            "not looked at",
            "whether others may do something is told to administrators only",
            "ask with their rights",
        ),
    }
}
