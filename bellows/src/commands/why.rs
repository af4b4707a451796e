//! `bellows why`: explains the last decision about a VM.

use clap::Args;
use daemon_kit::clock::Clock;
use hyper::http::Method;
use serde::Serialize;
use serde_json::Value;

use crate::api::{Api, Kind};
use crate::args::VmArgs;
use crate::cluster;
use crate::context::Context;
use crate::decision::{self, Decisions};
use crate::fail::{Fail, Outcome};
use crate::get;
use crate::instance::SCHEDULER_NAME;
use crate::output::{Format, print_value};
use crate::progress::Progress;
use crate::terminal::out;
use crate::view::vm::{Beside, VmView};
use crate::view::why::{lines, refusal};
use crate::vm_state::POLL_INTERVAL;

/// Why a VM has the size it has.
///
/// Prints the agent's last decision about it: what each signal asked for, what bounded the answer,
/// which permit is held. One that has just begun to run, or to be sized, is waited for until there
/// is a decision.
#[derive(Debug, Clone, Args)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    pub(crate) vm: VmArgs,
    /// The decision in force at that time, from the journal (RFC 3339, such as
    /// 2026-11-21T20:00:00Z)
    #[arg(long, value_name = "TIME", value_parser = protocol::time::WallTime::parse)]
    at: Option<protocol::time::WallTime>,
    /// Wait this many seconds for the first decision about a VM that runs; 0 does not wait
    #[arg(
        long,
        default_value_t = 30,
        value_name = "SECONDS",
        conflicts_with = "at"
    )]
    timeout: u64,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

pub(crate) async fn run(context: &Context, args: &WhyArgs) -> Outcome {
    let (namespace, name) = args.vm.key();
    if let Some(at) = args.at {
        return super::history::why_at(context, (namespace, name), at, args.output);
    }
    let api = context.api().await?;
    let (object, decisions) = first_decision(context, &api, args).await?;
    let answer = answer(context, &api, object, decisions).await?;
    let view = &answer.view;
    match args.output {
        Format::Json | Format::Yaml => print_value(args.output, &answer)?,
        Format::Table | Format::Wide => {
            let refused = answer.refused.iter().flat_map(refusal);
            for line in lines(view).into_iter().chain(refused) {
                out(&line);
            }
        }
    }
    if view.decision.is_none() && view.autoscaled {
        return Err(undecided(view));
    }
    Ok(())
}

/// The VM and the decision about it.
///
/// The agent gets its first metrics shortly after the VM runs or is labelled. The command waits for
/// that. It does not wait for a VM that is not running.
async fn first_decision(
    context: &Context,
    api: &Api,
    args: &WhyArgs,
) -> Outcome<(Value, Decisions)> {
    let (namespace, name) = args.vm.key();
    let mut progress = Progress::new();
    loop {
        let object = api.get(Kind::Vm, namespace, name).await?;
        let decisions = decisions(context, api, &object).await?;
        if !is_awaited(&object, &decisions) || progress.elapsed().as_secs() >= args.timeout {
            return Ok((object, decisions));
        }
        progress.say(&format!(
            "waiting for the agent's first decision about {namespace}/{name}"
        ));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The decisions of the agents that size the VM. Fails if they cannot be read.
async fn decisions(context: &Context, api: &Api, object: &Value) -> Outcome<Decisions> {
    if context.asks_cluster() {
        let dump = cluster::agents(api, object["status"]["node"].as_str()).await?;
        return Ok(decision::by_vm(&dump));
    }
    context.admin(Method::GET, "/v1/status", None).await?;
    context.decisions().await
}

fn is_awaited(object: &Value, decisions: &Decisions) -> bool {
    let beside = Beside {
        decisions: decisions.clone(),
        ..Beside::default()
    };
    let view = VmView::new(object, &beside);
    view.autoscaled && view.alive && view.decision.is_none()
}

async fn answer(
    context: &Context,
    api: &Api,
    object: Value,
    decisions: Decisions,
) -> Outcome<Explanation> {
    let namespace = object["metadata"]["namespace"].as_str();
    let pods = api.list(Kind::Pod, namespace).await?;
    let scheduler = if context.asks_cluster() {
        cluster::scheduler(api).await
    } else {
        let state = context.admin(Method::GET, "/v1/state", None).await;
        state.map_or(Value::Null, |mut state| state["scheduler"].take())
    };
    let decisions = std::future::ready(Ok(decisions));
    let now = Clock::new().wall();
    let (mut views, _) = get::vms(context, decisions, &[object], &pods, now).await;
    let view = views.remove(0);
    // The scheduler's state is optional. It lists only VMs whose last request was not granted in
    // full.
    let refused = scheduler["refused"][view.key()].clone();
    Ok(Explanation {
        view,
        refused: (!refused.is_null()).then_some(refused),
    })
}

fn undecided(view: &VmView) -> Fail {
    let (namespace, name) = (&view.namespace, &view.name);
    let fail = Fail::not_so(format!(
        "the agent has made no decision about {namespace}/{name} yet"
    ))
    .rule(format!(
        "the agent takes a VM on once it is Running, has an address and names the scheduler {SCHEDULER_NAME}"
    ));
    fail.fix(if view.alive {
        "see whether the agent is ready, and what it says: bellows status; in a cluster, kubectl bellows check".to_owned()
    } else {
        format!("wait until it runs: bellows get vms {name} -n {namespace}")
    })
}

/// Shape of `-o json`: the VM's view, and the scheduler's reason if it did not grant the last
/// increase in full.
#[derive(Serialize)]
struct Explanation {
    #[serde(flatten)]
    view: VmView,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<Value>,
}
