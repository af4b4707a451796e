//! `bellows get`: VMs, nodes and pods in a table or as data.

use clap::{Args, ValueEnum};
use daemon_kit::clock::Clock;
use protocol::time::WallTime;
use serde::Serialize;
use serde_json::Value;

use crate::api::{Api, Kind};
use crate::args::NamespaceArgs;
use crate::commands::fleet;
use crate::context::Context;
use crate::decision::Decisions;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, Table, print_value};
use crate::terminal::err;
use crate::view::{node, vm};

/// Kinds of objects that `bellows get` lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Resource {
    /// VMs with their sizes and the last decision about each.
    #[default]
    #[value(alias = "vm", alias = "neonvm", alias = "virtualmachines")]
    Vms,
    /// Nodes with what their pods take of them.
    #[value(alias = "node")]
    Nodes,
    /// Pods, those of VMs and others.
    #[value(alias = "pod")]
    Pods,
}

/// List VMs, nodes or pods.
///
/// Sizes are now/want/max: what the guest has, what it should have, what it may have at most. The
/// reason is the agent's last decision.
#[derive(Debug, Clone, Args)]
pub(crate) struct GetArgs {
    /// What to list
    #[arg(value_enum, default_value_t, hide_default_value = false)]
    resource: Resource,
    /// One of them only
    name: Option<String>,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// A list in JSON and YAML: `{"items":[…]}`.
#[derive(Debug, Serialize)]
struct Items<T> {
    items: Vec<T>,
}

pub(crate) async fn run(context: &Context, args: &GetArgs) -> Outcome {
    let api = context.api().await?;
    let namespace = args.namespace.chosen();
    let now = Clock::new().wall();
    match args.resource {
        Resource::Vms => {
            let objects = fetch(&api, Kind::Vm, namespace, args.name.as_deref()).await?;
            let pods = api.list(Kind::Pod, namespace).await?;
            let (mut vms, undecided) =
                vms(context, context.decisions(), &objects, &pods, now).await;
            if args.output != Format::Table {
                fleet::add_monitor_versions(context, &mut vms).await;
            }
            if let Some(fail) = undecided {
                err(&no_reasons(&fail));
            }
            let table = || vm::table(&vms, namespace.is_none(), args.output == Format::Wide);
            print(context, args, &vms, table)
        }
        Resource::Pods => {
            let objects = fetch(&api, Kind::Pod, namespace, args.name.as_deref()).await?;
            let pods = node::pods(&objects, now);
            print(context, args, &pods, || {
                node::pod_table(&pods, namespace.is_none())
            })
        }
        Resource::Nodes => {
            let objects = fetch(&api, Kind::Node, None, args.name.as_deref()).await?;
            let pods = node::pods(&api.list(Kind::Pod, None).await?, now);
            let nodes = node::nodes(&objects, &pods, now);
            print(context, args, &nodes, || node::node_table(&nodes))
        }
    }
}

async fn fetch(
    api: &Api,
    kind: Kind,
    namespace: Option<&str>,
    name: Option<&str>,
) -> Outcome<Vec<Value>> {
    match (name, namespace) {
        (None, _) => api.list(kind, namespace).await,
        (Some(name), Some(namespace)) => Ok(vec![api.get(kind, namespace, name).await?]),
        (Some(name), None) if kind == Kind::Node => Ok(vec![api.get(kind, "", name).await?]),
        (Some(name), None) => Err(Fail::usage(format!(
            "{name} cannot be looked up in all namespaces at once"
        ))
        .rule("a name is unique in one namespace only")
        .fix("give -n NAMESPACE instead of -A")),
    }
}

/// Line of text above a list of VMs without decisions.
pub(crate) fn no_reasons(fail: &Fail) -> String {
    format!(
        "no reasons to show, see kubectl bellows why: {}",
        fail.what()
    )
}

/// Views of VM objects with decisions and, on one machine, resizes. The second value says why
/// decisions are missing.
pub(crate) async fn vms(
    context: &Context,
    decisions: impl Future<Output = Outcome<Decisions>>,
    objects: &[Value],
    pods: &[Value],
    now: WallTime,
) -> (Vec<vm::VmView>, Option<Fail>) {
    let (decisions, resizes) = tokio::join!(decisions, context.admin_if_there("/v1/resizes"));
    let (decisions, undecided) = match decisions {
        Ok(decisions) => (decisions, None),
        Err(fail) => (Decisions::new(), Some(fail)),
    };
    let beside = vm::Beside {
        decisions,
        resizes: serde_json::from_value(resizes["resizes"].clone()).unwrap_or_default(),
        waiting: node::waiting(pods),
        now,
    };
    (vm::views(objects, &beside), undecided)
}

fn print<T: Serialize + Clone>(
    context: &Context,
    args: &GetArgs,
    items: &[T],
    table: impl FnOnce() -> Table,
) -> Outcome {
    match args.output {
        // An object that is selected by name is printed without the list, as kubectl does.
        Format::Json | Format::Yaml => match (items, &args.name) {
            ([one], Some(_)) => print_value(args.output, one),
            _ => print_value(
                args.output,
                &Items {
                    items: items.to_vec(),
                },
            ),
        },
        Format::Table | Format::Wide => {
            if items.is_empty() {
                let place = args
                    .namespace
                    .chosen()
                    .map_or_else(String::new, |name| format!(" in namespace {name}"));
                err(&format!("nothing found{place}"));
            } else {
                table().print(context.paint());
            }
            Ok(())
        }
    }
}
