//! `bellows fleet`: versions of the programs that run in the guests. It reads and changes nothing.

use clap::{Args, Subcommand};
use futures::StreamExt as _;
use serde_json::json;

use crate::api::Kind;
use crate::args::NamespaceArgs;
use crate::context::Context;
use crate::fail::Outcome;
use crate::guests;
use crate::output::{Format, print_value};
use crate::places::StateDir;
use crate::terminal::err;
use crate::view::parts::{self, InstanceView, Unmanaged};
use crate::view::vm::VmView;

/// Runners that are asked concurrently.
const AT_ONCE: usize = 16;

/// Versions of the programs that run in the guests.
///
/// Without a command it counts the guests by part and version. A part is a program of ours in the
/// guest: the monitor or the guest's daemon.
#[derive(Debug, Clone, Args)]
pub(crate) struct FleetArgs {
    #[command(subcommand)]
    command: Option<FleetCommand>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Clone, Subcommand)]
enum FleetCommand {
    /// List each guest's parts: version, origin and progress of a change
    Instances(ListArgs),
}

/// Guests to read, and how to print them.
#[derive(Debug, Clone, Args)]
struct ListArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

pub(crate) async fn run(context: &Context, args: &FleetArgs) -> Outcome {
    match &args.command {
        Some(FleetCommand::Instances(list)) => instances(context, list).await,
        None => versions(context, &args.list).await,
    }
}

async fn instances(context: &Context, list: &ListArgs) -> Outcome {
    let instances = read(context, list).await?;
    match list.output {
        Format::Json | Format::Yaml => print_value(list.output, &json!({"items": instances})),
        Format::Table | Format::Wide => {
            if instances.is_empty() {
                err("no VM runs");
            } else {
                let with_namespace = list.namespace.chosen().is_none();
                let wide = list.output == Format::Wide;
                parts::table(&instances, with_namespace, wide).print(context.paint());
            }
            Ok(())
        }
    }
}

async fn versions(context: &Context, list: &ListArgs) -> Outcome {
    let counts = parts::Counts::of(&read(context, list).await?);
    match list.output {
        Format::Json | Format::Yaml => print_value(list.output, &counts),
        Format::Table | Format::Wide => {
            counts.table().print(context.paint());
            Ok(())
        }
    }
}

/// The guests of all VMs that have a pod.
async fn read(context: &Context, list: &ListArgs) -> Outcome<Vec<InstanceView>> {
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
