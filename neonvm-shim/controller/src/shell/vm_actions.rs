//! Actions of a VM's core as requests to the API server.

use kube::api::{GetParams, Patch};
use kube::core::Request;
use serde_json::Value;

use super::api::{Found, KubeApi, object, patch_params};
use super::certificate;
use super::context::Context;
use super::decode;
use super::overlay::Pools;
use super::secret::{is_key_pair_of, ssh_secret};
use crate::core::{Action, ActionResponse, Refusal};

/// Carries out an action on the VM `namespace/name`.
pub(super) async fn carry_out(
    context: &Context,
    namespace: &str,
    vm: &str,
    action: Action,
) -> Result<ActionResponse, Refusal> {
    let api = &*context.api;
    match action {
        action @ (Action::PatchVm { .. } | Action::WriteStatus { .. } | Action::ReadVm) => {
            on_vm(api, namespace, vm, action).await
        }
        Action::ReadMigration { name, .. } => read_claiming_migration(api, namespace, &name).await,
        Action::EnsureSshSecret { name, owner } => {
            let make = || ssh_secret(namespace, &name, &owner);
            let fits = |secret: &Value| is_key_pair_of(secret, &owner);
            api.ensure_secret(namespace, &name, make, fits).await?;
            Ok(ActionResponse::SecretReady)
        }
        Action::EnsureRunnerSecret { name, owner } => {
            api.ensure_runner_secret(namespace, &name, &owner).await?;
            Ok(ActionResponse::SecretReady)
        }
        action @ (Action::ReadPod { .. }
        | Action::CreatePod { .. }
        | Action::PatchPodMetadata { .. }
        | Action::PatchPodCounted { .. }
        | Action::ResizePod { .. }
        | Action::DeletePod { .. }
        | Action::OrphanPod { .. }) => on_pod(api, namespace, action).await,
        Action::TakeAddress { holder } => pools(context)?.take(api, &holder).await,
        Action::ReleaseAddress { holder } => pools(context)?.give_back(api, &holder).await,
        Action::Certificate { step, order } => {
            let client = certificate::CertificateClient::new(api, namespace, vm, &order);
            client.take(&step).await
        }
        Action::SetSize { .. } | Action::PlugAhead { .. } => Err(misrouted()),
    }
}

/// Refusal of an action that another function carries out: a defect.
fn misrouted() -> Refusal {
    Refusal::Failed {
        message: "the action does not go to this peer".into(),
        permanent: true,
    }
}

async fn on_vm(
    api: &KubeApi,
    namespace: &str,
    vm: &str,
    action: Action,
) -> Result<ActionResponse, Refusal> {
    let vms = Request::new(format!(
        "/apis/vm.neon.tech/v1/namespaces/{namespace}/virtualmachines"
    ));
    let params = patch_params();
    let as_vm = |value| decode::vm(value).map(|vm| ActionResponse::Vm(Box::new(vm)));
    match action {
        Action::PatchVm { patch, .. } => {
            let request = vms.patch(vm, &params, &Patch::Merge(patch));
            let written = api.send(request).await;
            object(api.disown(&vms, vm, written).await, as_vm)
        }
        Action::WriteStatus { patch, .. } => {
            let patch = Patch::Merge(patch);
            let request = vms.patch_subresource("status", vm, &params, &patch);
            let written = api.send(request).await;
            object(api.disown(&vms, vm, written).await, as_vm)
        }
        Action::ReadVm => {
            let request = vms.get(vm, &GetParams::default());
            object(api.send(request).await, as_vm)
        }
        _ => Err(misrouted()),
    }
}

async fn on_pod(api: &KubeApi, namespace: &str, action: Action) -> Result<ActionResponse, Refusal> {
    match action {
        Action::ReadPod { name } => pod_response(api.read_pod(namespace, &name).await, name),
        Action::CreatePod { name, pod } => {
            pod_response(api.create_pod(namespace, &name, &pod).await, name)
        }
        Action::PatchPodMetadata { name, ops } | Action::PatchPodCounted { name, ops } => {
            pod_response(api.sync_pod(namespace, &name, &ops).await, name)
        }
        Action::ResizePod { name, ops } => {
            pod_response(api.resize_pod(namespace, &name, &ops).await, name)
        }
        Action::DeletePod { name, uid, grace_s } => {
            let left = api.delete_pod(namespace, &name, uid, grace_s).await;
            pod_response(left, name)
        }
        Action::OrphanPod { name, uid } => {
            pod_response(api.orphan_pod(namespace, &name, &uid).await, name)
        }
        _ => Err(misrouted()),
    }
}

fn pools(context: &Context) -> Result<&Pools, Refusal> {
    context.pools.as_deref().ok_or_else(|| Refusal::Failed {
        message: "no overlay is configured, so no address can be given: set NAD_IPAM_NAME".into(),
        permanent: true,
    })
}

/// The uid of the migration of that name, if there is one.
async fn read_claiming_migration(
    api: &KubeApi,
    namespace: &str,
    name: &str,
) -> Result<ActionResponse, Refusal> {
    let migrations = Request::new(format!(
        "/apis/vm.neon.tech/v1/namespaces/{namespace}/virtualmachinemigrations"
    ));
    match api.send(migrations.get(name, &GetParams::default())).await {
        Ok(found) => {
            let uid = found["metadata"]["uid"].as_str();
            Ok(ActionResponse::MigrationClaim(uid.map(str::to_owned)))
        }
        Err(error) if error.code() == Some(404) => Ok(ActionResponse::MigrationClaim(None)),
        Err(error) => Err(error.refusal()),
    }
}

fn pod_response(found: Found, name: String) -> Result<ActionResponse, Refusal> {
    Ok(found?.map_or_else(|| ActionResponse::PodGone(name), ActionResponse::Pod))
}
