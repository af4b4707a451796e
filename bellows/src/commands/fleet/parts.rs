//! Reading of the programs that run in the guests, from their runners.

use fleet_store::Unmanaged;
use futures::StreamExt as _;
use serde_json::Value;

use super::args::ListArgs;
use crate::api::Kind;
use crate::context::Context;
use crate::fail::Outcome;
use crate::guests;
use crate::places::StateDir;
use crate::view::parts::InstanceView;
use crate::view::vm::VmView;

/// Runners that are asked concurrently.
const AT_ONCE: usize = 16;

/// The guests of all VMs that have a pod.
pub(super) async fn read(context: &Context, list: &ListArgs) -> Outcome<Vec<InstanceView>> {
    let api = context.api().await?;
    let objects = api.list(Kind::Vm, list.namespace.chosen()).await?;
    let state = local_state(context)?;
    // Collected first: a stream of a closure's futures is not `Send` for every lifetime.
    let read: Vec<_> = objects
        .iter()
        .filter_map(|object| {
            let text = |path: &str| object.pointer(path)?.as_str().filter(|it| !it.is_empty());
            let key = (text("/metadata/namespace")?, text("/metadata/name")?);
            Some((key, text("/status/podName")?))
        })
        .map(|(key, pod)| instance(state.as_ref(), key, pod))
        .collect();
    let mut instances: Vec<InstanceView> = futures::stream::iter(read)
        .buffered(AT_ONCE)
        .collect()
        .await;
    instances.sort_by(|one, other| one.key().cmp(&other.key()));
    Ok(instances)
}

/// The directory whose runners can be asked. `None` in a cluster.
fn local_state(context: &Context) -> Outcome<Option<StateDir>> {
    if context.asks_cluster() {
        return Ok(None);
    }
    context.state().map(Some)
}

async fn instance(
    state: Option<&StateDir>,
    (namespace, vm): (&str, &str),
    pod: &str,
) -> InstanceView {
    let Some(state) = state else {
        return InstanceView::unmanaged(namespace, vm, Unmanaged::InCluster);
    };
    match guests::runner_state(state, namespace, pod).await {
        Some(answer) => InstanceView::of(namespace, vm, &answer),
        None => InstanceView::unmanaged(namespace, vm, Unmanaged::NoRunner),
    }
}

/// Adds the versions of the monitors to views of VMs. In a cluster they stay unknown.
pub(crate) async fn add_monitor_versions(context: &Context, vms: &mut [VmView]) {
    let Ok(Some(state)) = local_state(context) else {
        return;
    };
    for vm in vms {
        if let Some(pod) = &vm.pod {
            let instance = instance(Some(&state), (&vm.namespace, &vm.name), pod).await;
            vm.monitor_version = instance.monitor_version();
        }
    }
}

/// The parts of one VM's guest.
pub(super) async fn instance_of(
    context: &Context,
    namespace: &str,
    name: &str,
    vm: &Value,
) -> Outcome<InstanceView> {
    let state = local_state(context)?;
    let pod = vm["status"]["podName"].as_str();
    Ok(match pod.filter(|pod| !pod.is_empty()) {
        Some(pod) => instance(state.as_ref(), (namespace, name), pod).await,
        None => InstanceView::unmanaged(namespace, name, Unmanaged::NoRunner),
    })
}
