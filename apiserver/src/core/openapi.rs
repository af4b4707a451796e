//! OpenAPI v3 documents, one per group and version: what `kubectl` validates, explains and patches
//! by.

use serde_json::{Map, Value, json};

use super::kind::{Kind, Version};
use super::metadata;
use super::registry::Registry;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

/// `/openapi/v3`: where the documents are. `hash` tells states of the registry apart, so that
/// clients may cache.
#[must_use]
pub fn index(registry: &Registry, hash: impl Fn(&Value) -> String) -> Value {
    let mut paths = Map::new();
    for (group, versions) in registry.group_versions() {
        for version in versions {
            let path = prefix(&group, &version);
            let document = document(registry, &group, &version).unwrap_or(Value::Null);
            let url = format!("/openapi/v3{path}?hash={}", hash(&document));
            paths.insert(
                path.trim_start_matches('/').to_owned(),
                json!({"serverRelativeURL": url}),
            );
        }
    }
    json!({"paths": paths})
}

fn prefix(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("/api/{version}")
    } else {
        format!("/apis/{group}/{version}")
    }
}

/// OpenAPI v3 document of one group and version; `None` if no kind is served there.
#[must_use]
pub fn document(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let (mut paths, mut schemas) = (Map::new(), common_schemas());
    for (kind, served) in registry.served(group, version) {
        let name = schema_name(kind, version);
        schemas.insert(name.clone(), kind_schema(kind, served));
        schemas.insert(format!("{name}List"), list_schema(kind, version, &name));
        add_paths(&mut paths, kind, served, &name);
    }
    (!paths.is_empty()).then(|| {
        json!({
            "openapi": "3.0.0",
            "info": {"title": "Bellows", "version": env!("CARGO_PKG_VERSION")},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"BearerToken": {"type": "apiKey", "in": "header", "name": "authorization"}},
            },
        })
    })
}

/// `tech.neon.vm.v1.VirtualMachine`; core kinds as the real server names them.
fn schema_name(kind: &Kind, version: &str) -> String {
    if kind.builtin.is_some() {
        let area = match kind.group.split('.').next() {
            None | Some("") => "core",
            Some(first) => first,
        };
        return format!("io.k8s.api.{area}.{version}.{}", kind.kind);
    }
    let reversed: Vec<&str> = kind.group.rsplit('.').collect();
    format!("{}.{version}.{}", reversed.join("."), kind.kind)
}

fn group_version_kind(kind: &Kind, version: &str) -> Value {
    json!({"group": kind.group, "version": version, "kind": kind.kind})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn kind_schema(kind: &Kind, served: &Version) -> Value {
    let mut schema = served.schema_document.as_ref().clone();
    schema["x-kubernetes-group-version-kind"] = json!([group_version_kind(kind, &served.name)]);
    let properties = &mut schema["properties"];
    if !properties.is_object() {
        *properties = json!({});
    }
    let about = |text: &str| json!({"type": "string", "description": text});
    properties["apiVersion"] = about("Group and version of the form this object is in.");
    properties["kind"] = about("Kind of the object.");
    properties["metadata"] = json!({
        "description": "Names, labels, owners and what the server states.",
        "default": {},
        "allOf": [reference(OBJECT_META)],
    });
    schema
}

fn list_schema(kind: &Kind, version: &str, name: &str) -> Value {
    json!({
        "type": "object",
        "description": format!("{} is a list of {}.", kind.list_kind, kind.kind),
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"allOf": [reference(LIST_META)]},
            "items": {"type": "array", "items": reference(name)},
        },
        "x-kubernetes-group-version-kind":
            [{"group": kind.group, "version": version, "kind": kind.list_kind}],
    })
}

fn common_schemas() -> Map<String, Value> {
    let mut schemas = Map::new();
    schemas.insert(OBJECT_META.to_owned(), metadata::schema_document());
    let text = || json!({"type": "string"});
    let list_meta = json!({"type": "object", "properties": {"continue": text(), "resourceVersion": text(),
        "remainingItemCount": {"type": "integer", "format": "int64"}}});
    schemas.insert(LIST_META.to_owned(), list_meta);
    let status = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
        "status": text(), "reason": text(), "message": text(), "code": {"type": "integer", "format": "int32"}}});
    schemas.insert(STATUS.to_owned(), status);
    let delete = json!({"type": "object", "properties": {
        "apiVersion": text(), "kind": text(),
        "gracePeriodSeconds": {"type": "integer", "format": "int64"},
        "propagationPolicy": text(),
        "dryRun": {"type": "array", "items": {"type": "string"}},
        "preconditions": {"type": "object", "properties": {"uid": text(), "resourceVersion": text()}}}});
    schemas.insert(DELETE_OPTIONS.to_owned(), delete);
    schemas.insert(PATCH.to_owned(), json!({"type": "object"}));
    schemas
}

fn query(name: &str, value_type: &str) -> Value {
    json!({"name": name, "in": "query", "uniqueItems": true, "schema": {"type": value_type, "uniqueItems": true}})
}

fn path_parameter(name: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}})
}

/// One operation of a path.
struct Operation<'a> {
    action: &'a str,
    verb: &'a str,
    queries: &'a [&'a str],
    body: Option<(&'a str, &'a [&'a str])>,
    answer: &'a str,
}

const LIST_QUERIES: [&str; 10] = [
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
const PATCH_QUERIES: [&str; 4] = ["dryRun", "fieldManager", "fieldValidation", "force"];
const WRITE_QUERIES: [&str; 3] = ["dryRun", "fieldManager", "fieldValidation"];
const DELETE_QUERIES: [&str; 3] = ["dryRun", "gracePeriodSeconds", "propagationPolicy"];
const JSON_YAML: [&str; 2] = ["application/json", "application/yaml"];
const PATCH_TYPES: [&str; 3] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
];
const BUILTIN_PATCH_TYPES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

impl Operation<'_> {
    fn to_json(&self, kind: &Kind, version: &str) -> Value {
        let media = |types: &[&str], name: &str| -> Value {
            types
                .iter()
                .map(|one| ((*one).to_owned(), json!({"schema": reference(name)})))
                .collect::<Map<_, _>>()
                .into()
        };
        let scope = if kind.namespaced { "Namespaced" } else { "" };
        let mut operation = json!({
            "operationId": format!("{}{scope}{}{}", self.verb, kind.kind, self.action),
            "x-kubernetes-action": self.action,
            "x-kubernetes-group-version-kind": group_version_kind(kind, version),
            "parameters": self.queries.iter().map(|name| {
                let value_type = match *name {
                    "force" | "watch" | "allowWatchBookmarks" | "sendInitialEvents" => "boolean",
                    "limit" | "timeoutSeconds" | "gracePeriodSeconds" => "integer",
                    _ => "string",
                };
                query(name, value_type)
            }).collect::<Value>(),
            "responses": {
                "200": {"description": "OK", "content": media(&JSON_YAML, self.answer)},
                "401": {"description": "Unauthorized"},
            },
        });
        if let Some((name, types)) = self.body {
            operation["requestBody"] = json!({"required": true, "content": media(types, name)});
        }
        operation
    }
}

fn add_paths(paths: &mut Map<String, Value>, kind: &Kind, served: &Version, name: &str) {
    let root = prefix(&kind.group, &served.name);
    let within = if kind.namespaced {
        "/namespaces/{namespace}"
    } else {
        ""
    };
    let one = Paths {
        kind,
        version: &served.name,
        name,
    };
    if kind.namespaced {
        paths.insert(
            format!("{root}/{}", kind.resource),
            json!({"get": one.list()}),
        );
    }
    let collection = format!("{root}{within}/{}", kind.resource);
    paths.insert(format!("{collection}/{{name}}"), one.single(true));
    if served.has_status {
        paths.insert(format!("{collection}/{{name}}/status"), one.single(false));
    }
    paths.insert(collection, one.collection());
}

/// The paths of one kind and version.
struct Paths<'a> {
    kind: &'a Kind,
    version: &'a str,
    /// Of its schema.
    name: &'a str,
}

impl Paths<'_> {
    fn operation(&self, operation: &Operation<'_>) -> Value {
        operation.to_json(self.kind, self.version)
    }

    fn parameters(&self, with_name: bool) -> Value {
        let namespace = self.kind.namespaced.then(|| path_parameter("namespace"));
        let name = with_name.then(|| path_parameter("name"));
        namespace.into_iter().chain(name).collect()
    }

    fn list(&self) -> Value {
        let answer = format!("{}List", self.name);
        self.operation(&Operation {
            action: "list",
            verb: "list",
            queries: &LIST_QUERIES,
            body: None,
            answer: &answer,
        })
    }

    /// An operation that sends and answers an object.
    fn write(&self, action: &str, verb: &str) -> Value {
        self.operation(&Operation {
            action,
            verb,
            queries: &WRITE_QUERIES,
            body: Some((self.name, &JSON_YAML)),
            answer: self.name,
        })
    }

    fn delete(&self, action: &str, queries: &[&str]) -> Value {
        self.operation(&Operation {
            action,
            verb: "delete",
            queries,
            body: Some((DELETE_OPTIONS, &JSON_YAML)),
            answer: STATUS,
        })
    }

    fn collection(&self) -> Value {
        json!({
            "parameters": self.parameters(false),
            "get": self.list(),
            "post": self.write("post", "create"),
            "delete": self.delete("deletecollection", &LIST_QUERIES),
        })
    }

    fn single(&self, with_delete: bool) -> Value {
        let patch_types: &[&str] = if self.kind.builtin.is_some() {
            &BUILTIN_PATCH_TYPES
        } else {
            &PATCH_TYPES
        };
        let patch = Operation {
            action: "patch",
            verb: "patch",
            queries: &PATCH_QUERIES,
            body: Some((PATCH, patch_types)),
            answer: self.name,
        };
        let get = Operation {
            action: "get",
            verb: "read",
            queries: &[],
            body: None,
            answer: self.name,
        };
        let mut path = json!({
            "parameters": self.parameters(true),
            "get": self.operation(&get),
            "put": self.write("put", "replace"),
            "patch": self.operation(&patch),
        });
        if with_delete {
            path["delete"] = self.delete("delete", &DELETE_QUERIES);
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{builtin, definitions};

    #[test]
    fn every_reference_leads_somewhere_and_patches_know_field_validation() {
        let mut registry = builtin().expect("documents");
        for definition in definitions().expect("documents") {
            registry
                .insert(Kind::parse(&definition, false).expect("valid"))
                .expect("free names");
        }
        for (group, versions) in registry.group_versions() {
            for version in versions {
                let document = document(&registry, &group, &version).expect("served");
                let text = document.to_string();
                for name in text
                    .split("#/components/schemas/")
                    .skip(1)
                    .filter_map(|rest| rest.split('"').next())
                {
                    assert!(
                        document["components"]["schemas"].get(name).is_some(),
                        "{group} {name}"
                    );
                }
                for (path, item) in document["paths"].as_object().expect("paths") {
                    if let Some(patch) = item.get("patch") {
                        let names = patch["parameters"].as_array().expect("parameters");
                        assert!(
                            names.iter().any(|one| one["name"] == "fieldValidation"),
                            "{path}"
                        );
                    }
                }
            }
        }
        let vm = document(&registry, "vm.neon.tech", "v1").expect("served");
        assert!(
            vm["paths"]
                .get("/apis/vm.neon.tech/v1/namespaces/{namespace}/virtualmachines/{name}/status")
                .is_some()
        );
        let index = index(&registry, |_| "h".to_owned());
        assert_eq!(
            index["paths"]["api/v1"]["serverRelativeURL"],
            "/openapi/v3/api/v1?hash=h"
        );
    }
}
