//! Kinds that other components install.

use serde_json::json;

/// Definition of a foreign kind. Its schema accepts any object. The names are the kind, its plural
/// and its singular.
#[must_use]
pub fn foreign_kind(
    group: &str,
    [kind, plural, singular]: [&str; 3],
    has_status: bool,
) -> serde_json::Value {
    let mut version = json!({
        "name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        }},
    });
    if has_status {
        version["subresources"] = json!({"status": {}});
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular,
            },
            "versions": [version],
        },
    })
}

/// The kind that multus brings, whose objects name networks.
#[must_use]
pub fn attachment_kind() -> serde_json::Value {
    let names = [
        "NetworkAttachmentDefinition",
        "network-attachment-definitions",
        "network-attachment-definition",
    ];
    foreign_kind("k8s.cni.cncf.io", names, false)
}
