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

/// Why the last increase was not granted in full, by resource. Empty if it was.
fn refusal(refused: &Value) -> Vec<String> {
    use crate::view::units::{cores, memory};
    let limits = refused["limits"].as_array().map(Vec::as_slice);
    let node = refused["decision"]["node"].as_str().unwrap_or("?");
    let line = |limit: &Value| {
        let resource = limit[0].as_str()?;
        let verdict = &refused["decision"]["verdicts"][resource];
        let amount = |of: &str| {
            let amount = verdict[of].as_u64()?;
            Some(match resource {
                "cpu" => format!("{} CPU", cores(u32::try_from(amount).unwrap_or(u32::MAX))),
                _ => memory(amount),
            })
        };
        let (asked, permit, room) = (amount("asked")?, amount("permit")?, amount("room")?);
        let why = match limit[1].as_str()? {
            "no_room" => format!("node {node} has room for {room} more"),
            "fair_share" => format!("others on node {node} want what is left too, and are smaller"),
            "priority" => format!("VMs of a higher priority on node {node} want what is left"),
            "growth_rate" => "it or its node grew as fast as it may".into(),
            "migrating" => "it is being moved to another node".into(),
            "vm_max" => "that is the VM's own largest size".into(),
            "claim" => "its agent says it was permitted more than is written".into(),
            "node_missing" => format!("node {node} is not known any more"),
            other => other.replace('_', " "),
        };
        Some(format!(
            "The scheduler was asked for {asked} and permitted {permit}: {why}."
        ))
    };
    limits.unwrap_or_default().iter().filter_map(line).collect()
}

/// The answer for people.
fn lines(view: &VmView) -> Vec<String> {
    use crate::view::units::{cores, memory};
    let now = |cpu: Option<u32>, mem: Option<u64>| {
        format!(
            "{} CPU / {}",
            cpu.map_or_else(|| "?".into(), cores),
            mem.map_or_else(|| "?".into(), memory)
        )
    };
    let mut lines = vec![format!(
        "{} has {}, should have {} CPU / {}, may have {} CPU / {} to {} CPU / {}.",
        view.key(),
        now(view.cpu_milli.now, view.memory_bytes.now),
        cores(view.cpu_milli.want),
        memory(view.memory_bytes.want),
        cores(view.cpu_milli.min),
        memory(view.memory_bytes.min),
        cores(view.cpu_milli.max),
        memory(view.memory_bytes.max),
    )];
    if let Some(problem) = &view.problem {
        lines.push(format!("Problem: {problem}."));
    }
    match &view.decision {
        Some(decision) => lines.extend(decision.sentences()),
        None if !view.autoscaled => lines.push(format!(
            "Nobody sizes it: it does not carry the label {}=true.",
            protocol::annotations::LABEL_ENABLED
        )),
        None => {}
    }
    if let Some(resize) = &view.last_resize {
        let state = if resize.complete {
            "took"
        } else {
            "is under way since"
        };
        lines.push(format!(
            "Its last resize ({}) began {} ago and {state} {} ms.",
            if resize.change.is_empty() {
                "sizes unknown"
            } else {
                &resize.change
            },
            crate::output::age(resize.age_s),
            crate::output::millis(resize.total_us),
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn partial_grant_is_explained_by_resource() {
        let verdict = |asked: u64, permit: u64, room: u64| json!({"asked": asked, "held": permit, "permit": permit, "room": room});
        let refused = json!({"limits": [["cpu", "no_room"], ["mem", "growth_rate"]],
            "decision": {"node": "n1", "verdicts": {"cpu": verdict(5_000, 3_500, 500),
                "mem": verdict(8 << 30, 4 << 30, 64 << 30)}}});
        assert_eq!(
            refusal(&refused),
            [
                "The scheduler was asked for 5 CPU and permitted 3.5 CPU: node n1 has room for 0.5 CPU more.",
                "The scheduler was asked for 8Gi and permitted 4Gi: it or its node grew as fast as it may.",
            ]
        );
        assert_eq!(refusal(&Value::Null), [""; 0]);
        let odd = json!({"limits": [["cpu"], 7, ["mem", "no_room"]], "decision": 3});
        assert_eq!(refusal(&odd), [""; 0], "what cannot be read is left out");
    }
}
