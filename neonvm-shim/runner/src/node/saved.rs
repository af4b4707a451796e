//! Saves the objects by which another store can adopt a guest: its VM, and the secrets and config
//! maps that its pod mounts or its VM owns. They are in `STATE/objects/NAMESPACE_POD.json`, which
//! QEMU cannot see.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Resource};
use protocol::annotations::LABEL_VM_NAME;
use protocol::object::Pod;
use protocol::vm::API_VERSION;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::warn;

use super::api::PodId;
use super::params::NodeParams;
use crate::shell::record::{private_dir, read_json, write_json};

/// Prefix of annotations that Bellows writes.
const INTERNAL: &str = "internal.";

/// Objects of a VM in a form that the API accepts for creation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    /// The VM, without its current size.
    pub(super) vm: Value,
    pub(super) secrets: Vec<Value>,
    /// Names of the secrets that the VM owns.
    pub(super) owned_secrets: Vec<String>,
    pub(super) config_maps: Vec<Value>,
}

impl Saved {
    pub(super) fn read(state_dir: &Path, dir: &Path) -> Option<Self> {
        read_json(&path(state_dir, dir)).ok().flatten()
    }
}

/// Path of the file for the pod of a directory.
pub(super) fn path(state_dir: &Path, dir: &Path) -> PathBuf {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    state_dir.join("objects").join(format!("{name}.json"))
}

/// Objects of the API, read once for all guests.
struct Objects {
    vms: Vec<Value>,
    secrets: Vec<Value>,
    config_maps: Vec<Value>,
}

/// Saves the objects of these pods' VMs if they have changed.
pub(super) async fn save(params: NodeParams, pods: Vec<Pod>) {
    let read = match read(&params.client).await {
        Ok(read) => read,
        Err(error) => {
            warn!(
                error = daemon_kit::chain(&error),
                "failed to save objects of guests, retrying"
            );
            return;
        }
    };
    for pod in pods {
        let Some(now) = of_pod(&read, &pod) else {
            continue;
        };
        let id = PodId {
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: String::new(),
        };
        let dir = params.vms_dir().join(id.dir_name());
        let is_new = Saved::read(&params.state_dir, &dir).as_ref() != Some(&now);
        if is_new && dir.exists() {
            let path = path(&params.state_dir, &dir);
            let made = path.parent().map_or(Ok(()), private_dir);
            let written = made
                .map_err(|error| error.to_string())
                .and_then(|()| write_json(&path, &now).map_err(|e| daemon_kit::chain(&e)));
            if let Err(error) = written {
                warn!(
                    pod = id.key(),
                    error, "failed to save the objects of a guest"
                );
            }
        }
    }
}

async fn read(client: &kube::Client) -> Result<Objects, kube::Error> {
    let all = ListParams::default();
    let kind = ApiResource::from_gvk(&kube::api::GroupVersionKind::gvk(
        "vm.neon.tech",
        "v1",
        "VirtualMachine",
    ));
    let vms: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let secrets: Api<Secret> = Api::all(client.clone());
    let config_maps: Api<ConfigMap> = Api::all(client.clone());
    Ok(Objects {
        vms: values(vms.list(&all).await?.items),
        secrets: values(secrets.list(&all).await?.items),
        config_maps: values(config_maps.list(&all).await?.items),
    })
}

fn values<T: Serialize>(items: Vec<T>) -> Vec<Value> {
    let values = items.into_iter().map(serde_json::to_value);
    values.filter_map(Result::ok).collect()
}

/// Objects to save for a pod; `None` if its VM is missing.
fn of_pod(api: &Objects, pod: &Pod) -> Option<Saved> {
    let namespace = pod.metadata.namespace.as_str();
    let name = pod.metadata.labels.get(LABEL_VM_NAME)?;
    let is = |object: &Value, name: &str| {
        object["metadata"]["namespace"] == namespace && object["metadata"]["name"] == name
    };
    let vm = api.vms.iter().find(|vm| is(vm, name))?;
    let uid = &vm["metadata"]["uid"];
    let volumes = pod.spec.volumes.iter();
    let secrets: BTreeSet<&str> = volumes
        .clone()
        .filter_map(|volume| Some(volume.secret.as_ref()?.secret_name.as_str()))
        .collect();
    let config_maps: BTreeSet<&str> = volumes
        .filter_map(|volume| Some(volume.config_map.as_ref()?.name.as_str()))
        .collect();
    let is_owned = |object: &Value| {
        let mut owners = object["metadata"]["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten();
        owners.any(|owner| owner["uid"] == *uid)
    };
    let chosen = |all: &[Value], names: &BTreeSet<&str>, kind: &str| {
        let is_chosen = |object: &&Value| {
            let in_namespace = object["metadata"]["namespace"] == namespace;
            in_namespace && (is_owned(object) || names.iter().any(|name| is(object, name)))
        };
        let chosen = all.iter().filter(is_chosen);
        chosen.map(|object| plain(object, "v1", kind)).collect()
    };
    let owned = api
        .secrets
        .iter()
        .filter(|secret| is_owned(secret))
        .filter_map(|secret| secret["metadata"]["name"].as_str());
    Some(Saved {
        owned_secrets: owned.map(str::to_owned).collect(),
        vm: plain_vm(vm),
        secrets: chosen(&api.secrets, &secrets, Secret::kind(&()).as_ref()),
        config_maps: chosen(
            &api.config_maps,
            &config_maps,
            ConfigMap::kind(&()).as_ref(),
        ),
    })
}

/// An object for creation: without the API server's members, and without owners of this store.
fn plain(object: &Value, api_version: &str, kind: &str) -> Value {
    let mut plain = object.clone();
    let old = &object["metadata"];
    let mut metadata = json!({"namespace": old["namespace"], "name": old["name"]});
    for key in ["labels", "annotations"] {
        if let Some(map) = old[key].as_object() {
            let mut map = map.clone();
            map.retain(|name, _| !name.starts_with(INTERNAL));
            metadata[key] = Value::Object(map);
        }
    }
    plain["metadata"] = metadata;
    plain["apiVersion"] = json!(api_version);
    plain["kind"] = json!(kind);
    if let Some(members) = plain.as_object_mut() {
        members.remove("status");
    }
    plain
}

/// A VM without its current size, which changes often and is known by its runner.
fn plain_vm(vm: &Value) -> Value {
    let mut plain = plain(vm, API_VERSION, "VirtualMachine");
    let spec = &mut plain["spec"];
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("targetRevision");
    }
    for size in ["cpus", "memorySlots"] {
        if let Some(size) = spec["guest"][size].as_object_mut() {
            size.remove("use");
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api() -> Objects {
        let meta = |name: &str, namespace: &str, owner: Option<&str>| {
            let owners: Vec<Value> = owner.iter().map(|uid| json!({"uid": uid})).collect();
            json!({"name": name, "namespace": namespace, "uid": format!("uid-{name}"), "resourceVersion": "7",
                "ownerReferences": owners, "labels": {"a": "b"},
                "annotations": {"internal.autoscaling.neon.tech/resources-approved": "{}", "note": "x"}})
        };
        let vm = json!({"metadata": meta("pg", "default", None), "status": {"phase": "Running"},
            "spec": {"targetRevision": {"value": 1}, "guest": {
                "cpus": {"min": 1, "use": 2, "max": 3}, "memorySlots": {"min": 1, "use": 2, "max": 3}}}});
        let secret = |name: &str, namespace: &str, owner: Option<&str>| json!({"metadata": meta(name, namespace, owner), "type": "Opaque", "data": {"k": "djE="}});
        Objects {
            vms: vec![vm],
            secrets: vec![
                secret("ssh-neonvm-pg", "default", Some("uid-pg")),
                secret("mounted", "default", None),
                secret("mounted", "other", None),
                secret("foreign", "default", Some("uid-x")),
            ],
            config_maps: vec![
                json!({"metadata": meta("maps", "default", None), "data": {"k": "v"}}),
            ],
        }
    }

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "pg-x", "namespace": "default", "labels": {LABEL_VM_NAME: "pg"}},
            "spec": {"volumes": [
                {"name": "s", "secret": {"secretName": "mounted"}}, {"name": "m", "configMap": {"name": "maps"}}]},
        }))
        .unwrap()
    }

    #[test]
    fn objects_of_a_guest_are_its_vm_and_what_that_owns_or_mounts() {
        let saved = of_pod(&api(), &pod()).unwrap();
        let names = |objects: &[Value]| -> Vec<String> {
            let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
            objects.iter().map(name).collect()
        };
        assert_eq!(names(&saved.secrets), ["ssh-neonvm-pg", "mounted"]);
        assert_eq!(saved.owned_secrets, ["ssh-neonvm-pg"]);
        assert_eq!(names(&saved.config_maps), ["maps"]);
        assert_eq!(
            saved.vm["metadata"],
            json!({"name": "pg", "namespace": "default", "labels": {"a": "b"}, "annotations": {"note": "x"}})
        );
        assert!(saved.vm.get("status").is_none());
        assert_eq!(
            saved.vm["spec"],
            json!({"guest": {"cpus": {"min": 1, "max": 3}, "memorySlots": {"min": 1, "max": 3}}})
        );
        assert_eq!(saved.secrets[0]["data"], json!({"k": "djE="}));
        assert_eq!(saved.secrets[0]["kind"], "Secret");
    }

    #[test]
    fn resize_changes_nothing_that_is_saved() {
        let (before, mut grown) = (api(), api());
        grown.vms[0]["spec"]["guest"]["cpus"]["use"] = json!(3);
        grown.vms[0]["metadata"]["resourceVersion"] = json!("8");
        assert_eq!(of_pod(&before, &pod()), of_pod(&grown, &pod()));
    }
}
