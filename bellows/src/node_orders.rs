//! Draining a node: no new VM comes to it, and each of its VMs moves to another node. The plan says
//! before what will happen, and refuses where no node could take them.

use clap::{Args, Subcommand};
use daemon_kit::clock::Clock;
use protocol::journal::Action;
use protocol::vm::MigrationSpec;
use serde_json::{Value, json};

use crate::actions;
use crate::api::{Api, Kind};
use crate::cluster::is_ready;
use crate::commands::migrate::migration_object;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::terminal::out;

/// Keep VMs away from a node, or let them come again.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum NodeCommand {
    /// Let no new VM come to a node, and move its VMs to other nodes while their guests run
    Drain(NodeArgs),
    /// Let VMs come to a node again
    Undrain(NodeArgs),
}

/// What `drain` and `undrain` take.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    name: String,
    /// Why; it stands in the history of one machine
    #[arg(long, value_name = "TEXT", value_parser = actions::reason)]
    reason: String,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// What a drain would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// VMs that move, as namespace and name.
    pub(crate) moves: Vec<(String, String)>,
    /// Nodes that may take them.
    pub(crate) targets: Vec<String>,
}

/// Whether a person keeps new VMs away from a node.
pub(crate) fn is_drained(node: &Value) -> bool {
    node["spec"]["unschedulable"] == true
}

pub(crate) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// A node, and whether it takes VMs of other nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenNode<'a> {
    pub(crate) name: &'a str,
    pub(crate) is_open: bool,
}

impl Plan {
    /// Plans for `vms`, those on the node as namespace and name.
    ///
    /// # Errors
    ///
    /// 1 if the node is not there, or no other node could take its VMs.
    pub(crate) fn new<'a>(
        node: &str,
        nodes: impl Iterator<Item = OpenNode<'a>>,
        vms: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Outcome<Self> {
        let (own, others): (Vec<_>, Vec<_>) = nodes.partition(|one| one.name == node);
        if own.is_empty() {
            return Err(Fail::not_so(format!("there is no node {node}")));
        }
        let open = others.iter().filter(|one| one.is_open);
        let moves = vms.map(|(namespace, vm)| (namespace.to_owned(), vm.to_owned()));
        let plan = Self {
            moves: moves.collect(),
            targets: open.map(|one| one.name.to_owned()).collect(),
        };
        if plan.targets.is_empty() {
            let what = match others.len() {
                0 => format!("node {node} is the only node: its VMs have no place to go"),
                count => format!("none of the {count} other nodes is ready and open for VMs"),
            };
            return Err(Fail::not_so(what)
                .rule("a drain moves each VM to another node while its guest runs")
                .fix("to end the guests of one machine: bellows down --stop-vms"));
        }
        Ok(plan)
    }

    /// The plan as sentences.
    pub(crate) fn sentences(&self, node: &str) -> Vec<String> {
        let mut lines = vec![format!("No new VM comes to node {node}.")];
        lines.push(match self.moves.len() {
            0 => "It has no VMs.".to_owned(),
            count => format!(
                "{count} of its VMs move, one by one as the controller admits them, to: {}.",
                self.targets.join(", ")
            ),
        });
        lines
    }
}

pub(crate) async fn run(context: &Context, command: NodeCommand) -> Outcome {
    let (args, is_drain) = match &command {
        NodeCommand::Drain(args) => (args, true),
        NodeCommand::Undrain(args) => (args, false),
    };
    let lines = if args.dry_run && is_drain {
        let api = context.api().await?;
        read(&api, &args.name).await?.sentences(&args.name)
    } else if args.dry_run {
        vec![format!("VMs may come to node {} again.", args.name)]
    } else if is_drain {
        drain(context, &args.name, &args.reason).await?
    } else {
        undrain(context, &args.name, &args.reason).await?
    };
    lines.iter().for_each(|line| out(line));
    Ok(())
}

async fn read(api: &Api, node: &str) -> Outcome<Plan> {
    let nodes = api.list(Kind::Node, None).await?;
    let vms = api.list(Kind::Vm, None).await?;
    let nodes = nodes.iter().map(|one| OpenNode {
        name: name_of(one),
        is_open: is_ready(one) && !is_drained(one),
    });
    let vms = vms.iter().filter(|vm| vm["status"]["node"] == node);
    let vms = vms.map(|vm| {
        let namespace = vm["metadata"]["namespace"].as_str();
        (namespace.unwrap_or_default(), name_of(vm))
    });
    Plan::new(node, nodes, vms)
}

fn action(what: &str, node: &str, reason: &str) -> Action {
    Action {
        what: what.to_owned(),
        on: Some(node.to_owned()),
        why: Some(reason.to_owned()),
        ..Action::default()
    }
}

/// Keeps new VMs away from a node, and writes a migration for each of its VMs.
pub(crate) async fn drain(context: &Context, node: &str, reason: &str) -> Outcome<Vec<String>> {
    let api = context.api().await?;
    let plan = read(&api, node).await?;
    let action = action("node drain", node, reason);
    let carry_out = async {
        set_unschedulable(&api, node, true).await?;
        move_all(&api, &plan.moves).await
    };
    let mut lines = vec![format!("Node {node}: no new VM comes to it.")];
    lines.extend(actions::recorded(context, action, carry_out).await?);
    Ok(lines)
}

/// Lets VMs come to a node again. Those that moved away stay where they are.
pub(crate) async fn undrain(context: &Context, node: &str, reason: &str) -> Outcome<Vec<String>> {
    let api = context.api().await?;
    let action = action("node undrain", node, reason);
    let written = set_unschedulable(&api, node, false);
    actions::recorded(context, action, written).await?;
    Ok(vec![format!("Node {node}: VMs may come to it again.")])
}

async fn set_unschedulable(api: &Api, node: &str, is_closed: bool) -> Outcome {
    let value = if is_closed { json!(true) } else { Value::Null };
    let patch = json!({"spec": {"unschedulable": value}});
    api.merge(Kind::Node, "", node, &patch).await.map(drop)
}

/// Writes the migrations. One that cannot be written does not keep the others back.
async fn move_all(api: &Api, moves: &[(String, String)]) -> Outcome<Vec<String>> {
    let mut lines = Vec::new();
    for (namespace, vm) in moves {
        let migration = format!("{vm}-{:x}", Clock::new().wall().0 / 1000);
        let spec = MigrationSpec {
            vm_name: vm.clone(),
            ..MigrationSpec::default()
        };
        let object = migration_object(namespace, &migration, &spec);
        let made = api.create(Kind::Migration, namespace, &migration, &object, false);
        lines.push(match made.await {
            Ok(_) => format!("VM {namespace}/{vm}: migration {migration} is written."),
            Err(fail) => format!("VM {namespace}/{vm} stays: {}.", fail.what()),
        });
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes<'a>(all: &'a [(&'a str, bool)]) -> impl Iterator<Item = OpenNode<'a>> {
        let all = all.iter().copied();
        all.map(|(name, is_open)| OpenNode { name, is_open })
    }

    #[test]
    fn plan_names_the_vms_and_where_they_may_go() {
        let all = [("a", true), ("b", true), ("c", false)];
        let vms = [("default", "pg")];
        let plan = Plan::new("a", nodes(&all), vms.into_iter()).expect("a plan");
        assert_eq!(plan.moves, [("default".to_owned(), "pg".to_owned())]);
        assert_eq!(plan.targets, ["b"]);
        let lines = plan.sentences("a");
        assert!(lines[1].contains("1 of its VMs move"), "{lines:?}");
        assert!(Plan::new("e", nodes(&all), vms.into_iter()).is_err());
    }

    #[test]
    fn node_without_another_is_not_drained_and_the_reason_is_said() {
        let refused = |all: &[(&str, bool)]| {
            Plan::new("a", nodes(all), std::iter::empty()).expect_err("refused")
        };
        let only = refused(&[("a", true)]);
        assert!(only.what().contains("the only node"), "{only}");
        let closed = refused(&[("a", true), ("b", false)]);
        assert!(closed.what().contains("other nodes"), "{closed}");
    }
}
