//! Watches deletions of VM objects: the object of a VM with a root disk here goes once the disk was
//! moved aside or kept.

use std::collections::BTreeMap;
use std::time::Duration;

use api_client::watch::{self as api_watch, Config, Event, Retry};
use futures::StreamExt;
use kube::api::{DynamicObject, Patch, PatchParams};
use protocol::annotations::{FINALIZER, FINALIZER_ROOT_DISK};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::params::NodeParams;
use super::root_disks::{LetGo, let_go, vms};

/// Pause between two attempts at a deletion that waits for a runner's end.
const RETRY: Duration = Duration::from_millis(500);

pub(super) async fn follow(params: NodeParams, cancel: CancellationToken) {
    let all = vms(&params.client, None);
    let mut events = api_watch::objects(all, Config::default(), Retry::Patient);
    let mut leaving: BTreeMap<String, DynamicObject> = BTreeMap::new();
    loop {
        let retry = async {
            if leaving.is_empty() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(RETRY).await;
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            event = events.next() => match event {
                Some(Ok(event)) => take(event, &mut leaving),
                Some(Err(error)) => {
                    debug!(error = daemon_kit::chain(&error), "watch of VMs failed, retrying");
                    continue;
                }
                None => return,
            },
            () = retry => {}
        }
        let mut waiting = BTreeMap::new();
        for (key, vm) in std::mem::take(&mut leaving) {
            if !settle(&params, &key, &vm).await {
                waiting.insert(key, vm);
            }
        }
        leaving = waiting;
    }
}

/// Records VMs whose deletion waits for this node alone.
fn take(event: Event<DynamicObject>, leaving: &mut BTreeMap<String, DynamicObject>) {
    use Event::{Apply, Delete, Init, InitApply, InitDone};
    let key = |vm: &DynamicObject| {
        let meta = &vm.metadata;
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("{}/{}", part(&meta.namespace), part(&meta.name))
    };
    match event {
        Apply(vm) | InitApply(vm) => {
            let finalizers = vm.metadata.finalizers.as_deref().unwrap_or_default();
            let has = |name: &str| finalizers.iter().any(|one| one == name);
            let is_leaving = vm.metadata.deletion_timestamp.is_some()
                && has(FINALIZER_ROOT_DISK)
                && !has(FINALIZER);
            if is_leaving {
                leaving.insert(key(&vm), vm);
            }
        }
        Delete(vm) => {
            leaving.remove(&key(&vm));
        }
        Init | InitDone => {}
    }
}

/// Releases a VM's disk and removes the finalizer of its object. Returns whether that is done.
async fn settle(params: &NodeParams, key: &str, vm: &DynamicObject) -> bool {
    let now = params.clock.wall();
    match let_go(&params.state_dir, &params.vms_dir(), vm, now) {
        Ok(LetGo::InUse) => return false,
        Ok(LetGo::Nothing) => {}
        Ok(LetGo::Kept(dir)) => info!(vm = key, dir = %dir.display(), "root disk kept"),
        Ok(LetGo::Aside(dir)) => {
            info!(vm = key, dir = %dir.display(), "root disk moved aside for a week");
        }
        Err(error) => {
            warn!(
                vm = key,
                error = daemon_kit::chain(&error),
                "failed to release the root disk"
            );
            return false;
        }
    }
    let meta = &vm.metadata;
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    finalizers.retain(|one| one != FINALIZER_ROOT_DISK);
    let patch = json!({"metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers,
    }});
    let name = meta.name.as_deref().unwrap_or_default();
    let vms = vms(&params.client, meta.namespace.as_deref());
    let patched = vms
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    match patched {
        Ok(_) => true,
        // Gone, or changed since: the watch reports it.
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => true,
        Err(error) => {
            warn!(vm = key, error = daemon_kit::chain(&error), "VM not let go");
            false
        }
    }
}
