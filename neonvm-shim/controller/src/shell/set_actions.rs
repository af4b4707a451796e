//! Actions of a set's core as requests to the API server.

use std::collections::BTreeMap;

use kube::api::{DeleteParams, GetParams, Patch, Preconditions};
use kube::core::Request;
use protocol::policy::{GROUP, SET_PLURAL, VERSION};
use serde_json::{Value, json};

use super::api::{KubeApi, object, patch_params, post_params};
use super::decode;
use crate::core::Refusal;
use crate::core::set::{Action, Response, SetKey};

/// Carries out an action of a set.
pub(super) async fn carry_out(
    api: &KubeApi,
    key: &SetKey,
    action: Action,
) -> Result<Response, Refusal> {
    let (namespace, set) = key;
    match action {
        Action::WriteStatus { patch } => write_status(api, namespace, set, patch).await,
        Action::WriteMembers { name, owner, data } => {
            let written = write_members(api, namespace, &name, &owner, &data).await;
            written.map(|()| Response::Members)
        }
        Action::Create { name, vm, .. } => create(api, namespace, &name, &vm).await,
        Action::Delete { name, uid, .. } => delete(api, namespace, &name, uid).await,
    }
}

fn vms(namespace: &str) -> Request {
    Request::new(format!(
        "/apis/vm.neon.tech/v1/namespaces/{namespace}/virtualmachines"
    ))
}

async fn write_status(
    api: &KubeApi,
    namespace: &str,
    set: &str,
    patch: Value,
) -> Result<Response, Refusal> {
    let sets = Request::new(format!(
        "/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{SET_PLURAL}"
    ));
    let request = sets.patch_subresource("status", set, &patch_params(), &Patch::Merge(patch));
    let written = api.send(request).await;
    object(written, |value| {
        decode::set(value).map(|set| Response::Set(Box::new(set)))
    })
}

/// Creates a VM, or reads the one that has the name.
async fn create(
    api: &KubeApi,
    namespace: &str,
    name: &str,
    vm: &Value,
) -> Result<Response, Refusal> {
    let as_vm = |value| decode::vm(value).map(|vm| Response::Vm(Box::new(vm)));
    let body = vm.to_string().into_bytes();
    match api.send(vms(namespace).create(&post_params(), body)).await {
        Err(error) if error.code() == Some(409) => {
            let read = vms(namespace).get(name, &GetParams::default());
            object(api.send(read).await, as_vm)
        }
        made => object(made, as_vm),
    }
}

/// Begins the deletion of the VM of this uid. A VM of another uid is left alone.
async fn delete(
    api: &KubeApi,
    namespace: &str,
    name: &str,
    uid: String,
) -> Result<Response, Refusal> {
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.send(vms(namespace).delete(name, &params)).await {
        Ok(_) => Ok(Response::Deleted),
        Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(Response::Deleted),
        Err(error) => Err(error.refusal()),
    }
}

/// Makes the config map say `data`. One of another owner is left alone.
async fn write_members(
    api: &KubeApi,
    namespace: &str,
    name: &str,
    owner: &Value,
    data: &BTreeMap<String, String>,
) -> Result<(), Refusal> {
    let maps = Request::new(format!("/api/v1/namespaces/{namespace}/configmaps"));
    let found = match api.send(maps.get(name, &GetParams::default())).await {
        Err(error) if error.code() == Some(404) => {
            let map = json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner]},
                "data": data,
            });
            let body = map.to_string().into_bytes();
            return match api.send(maps.create(&post_params(), body)).await {
                Ok(_) => Ok(()),
                Err(error) => Err(error.refusal()),
            };
        }
        found => found.map_err(|error| error.refusal())?,
    };
    let mut owners = found["metadata"]["ownerReferences"].as_array().into_iter();
    if !owners.any(|one| one.iter().any(|one| one["uid"] == owner["uid"])) {
        return Err(Refusal::Conflict);
    }
    if found["data"] == json!(data) {
        return Ok(());
    }
    let patch = Patch::Merge(json!({
        "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
        "data": data,
    }));
    let written = api.send(maps.patch(name, &patch_params(), &patch)).await;
    written.map(drop).map_err(|error| error.refusal())
}
