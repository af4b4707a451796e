//! Discovery documents: which groups, versions and resources there are.

use serde_json::{Value, json};

use super::kind::{Kind, Version};
use super::registry::Registry;

/// Verbs of every kind.
const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
/// Verbs of `/status`.
const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

/// Answer to `GET /api`: the versions of the core group.
#[must_use]
pub fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// Answer to `GET /apis`: every group but the core one, with its versions.
#[must_use]
pub fn groups(registry: &Registry) -> Value {
    let versions = registry.group_versions();
    let groups = versions.iter().filter(|(group, _)| !group.is_empty());
    json!({
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": groups.map(|(group, versions)| group_entry(group, versions)).collect::<Value>(),
    })
}

/// Answer to `GET /apis/GROUP`; `None` for the core group and for a group without kinds.
#[must_use]
pub fn group(registry: &Registry, name: &str) -> Option<Value> {
    let versions = registry.group_versions();
    let mut entry = group_entry(name, versions.get(name).filter(|_| !name.is_empty())?);
    entry["kind"] = json!("APIGroup");
    entry["apiVersion"] = json!("v1");
    Some(entry)
}

fn group_entry(group: &str, versions: &[String]) -> Value {
    let entry = |version: &String| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({
        "name": group,
        "versions": versions.iter().map(entry).collect::<Value>(),
        "preferredVersion": versions.first().map(entry),
    })
}

/// Answer to `GET /api/VERSION` and `GET /apis/GROUP/VERSION`: the kinds served there; `group` is
/// empty for core.
#[must_use]
pub fn resources(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    for (kind, served) in registry.served(group, version) {
        let mut entry = json!({
            "name": kind.resource,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": VERBS,
        });
        if !kind.short_names.is_empty() {
            entry["shortNames"] = json!(kind.short_names);
        }
        if !kind.categories.is_empty() {
            entry["categories"] = json!(kind.categories);
        }
        list.push(entry);
        for (name, response, verbs) in subresources(kind, served) {
            list.push(json!({
                "name": format!("{}/{name}", kind.resource),
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": response,
                "verbs": verbs,
            }));
        }
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    (!list.is_empty()).then(|| {
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list})
    })
}

fn subresources(kind: &Kind, version: &Version) -> Vec<(String, String, Vec<&'static str>)> {
    let mut list = Vec::new();
    if version.has_status {
        list.push((
            "status".to_owned(),
            kind.kind.clone(),
            STATUS_VERBS.to_vec(),
        ));
    }
    for name in kind
        .extras()
        .into_iter()
        .flat_map(|extras| &extras.subresources)
    {
        list.push((name.clone(), "Binding".to_owned(), vec!["create"]));
    }
    list
}

/// The aggregated form of `/api` (`core`) or `/apis`: everything in one document.
#[must_use]
pub fn aggregated(registry: &Registry, core: bool) -> Value {
    let mut items = Vec::new();
    for (group, versions) in registry.group_versions() {
        if group.is_empty() != core {
            continue;
        }
        let entry = |version: &String| {
            let resources = registry.served(&group, version);
            json!({
                "version": version,
                "freshness": "Current",
                "resources": resources.map(|(kind, served)| aggregated_resource(kind, served, version)).collect::<Value>(),
            })
        };
        items.push(json!({
            "metadata": {"name": group, "creationTimestamp": null},
            "versions": versions.iter().map(entry).collect::<Value>(),
        }));
    }
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn aggregated_resource(kind: &Kind, served: &Version, version: &str) -> Value {
    let own = json!({"group": kind.group, "version": version, "kind": kind.kind});
    let mut entry = json!({
        "resource": kind.resource,
        "responseKind": own,
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": VERBS,
    });
    if !kind.short_names.is_empty() {
        entry["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = json!(kind.categories);
    }
    let subresources: Vec<Value> = subresources(kind, served)
        .into_iter()
        .map(|(name, response, verbs)| {
            let response = json!({"group": kind.group, "version": version, "kind": response});
            json!({"subresource": name, "responseKind": response, "verbs": verbs})
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = Value::from(subresources);
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;

    #[test]
    fn resources_carry_names_scope_and_subresources() {
        let registry = builtin().expect("documents are sound");
        let core = resources(&registry, "", "v1").expect("served");
        let list = core["resources"].as_array().expect("list");
        let names: Vec<&str> = list
            .iter()
            .filter_map(|entry| entry["name"].as_str())
            .collect();
        for name in [
            "pods",
            "pods/status",
            "pods/binding",
            "nodes",
            "secrets",
            "configmaps",
            "events",
            "namespaces",
        ] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        assert!(resources(&registry, "", "v2").is_none());
        assert!(group(&registry, "coordination.k8s.io").is_some());
        assert!(group(&registry, "").is_none());
        let all = aggregated(&registry, false);
        assert_eq!(all["items"][0]["metadata"]["name"], "apiextensions.k8s.io");
        assert_eq!(
            aggregated(&registry, true)["items"]
                .as_array()
                .map(Vec::len),
            Some(1)
        );
    }
}
