//! `bellows fleet why VM`: the last decision about the parts of a guest, with its inputs.

use std::collections::BTreeSet;

use clap::Args;
use fleet_core::counts;
use fleet_core::permit::required;
use protocol::fleet::instance_name;
use protocol::parts::PartName;
use serde_json::{Value, json};

use super::moved::Moved;
use super::objects::{INSTANCE, deployments_of, labels, list_envs};
use super::{parts, plan, world};
use crate::api::{Api, Kind};
use crate::args::VmArgs;
use crate::commands::people::{self, Done};
use crate::context::Context;
use crate::fail::Outcome;
use crate::output::{Format, print_value};
use crate::terminal::out;
use crate::view::fleet::{Env, progress_line};

mod instance;

/// Records of the journal that are shown, the newest ones.
const RECORDS: usize = 12;

/// Why a guest runs the programs that it runs.
///
/// It shows the last turn of each part with its end, the deployment that gave it, the figures that
/// a turn depends on now, and the journal's last records of the guest.
#[derive(Debug, Clone, Args)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    vm: VmArgs,
    /// The name is that of an instance, as node-NAME or deployment-NAME, and not of a VM
    #[arg(long)]
    instance: bool,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

pub(super) async fn why(context: &Context, args: &WhyArgs) -> Outcome {
    let api = context.api().await?;
    let (namespace, name) = args.vm.key();
    if args.instance {
        return instance::why(context, &api, (namespace, name), args.output).await;
    }
    let vm = api.get(Kind::Vm, namespace, name).await?;
    let instance = instance_of(&api, namespace, name).await?;
    let view = parts::instance_of(context, namespace, name, &vm).await?;
    let envs = list_envs(&api, Some(namespace)).await?;
    let mut of_parts = Vec::new();
    for part in PartName::ALL {
        let env = envs
            .iter()
            .filter(|env| env.spec.part == part && !env.spec.is_cron())
            .find(|env| env.spec.selector.matches(&labels(&vm)));
        let (turn, last) = match &instance {
            Some(object) => world::turn_of(object, part),
            None => (None, None),
        };
        let mut facts = json!({
            "part": part,
            "runs": view.parts.get(&part),
            "environment": env.map(|env| env.name.clone()),
            "turn": turn,
            "end": last,
        });
        if let Some(env) = env {
            add_decision(context, &api, env, &instance_name(name), &mut facts).await?;
        }
        of_parts.push(facts);
    }
    let records = records(context, namespace, name)?;
    let answer = json!({
        "namespace": namespace,
        "vm": name,
        "unmanaged": view.unmanaged,
        "parts": of_parts,
        "runner": instance.as_ref().map(Moved::of),
        "journal": records.iter().map(Done::value).collect::<Vec<_>>(),
    });
    if matches!(args.output, Format::Json | Format::Yaml) {
        return print_value(args.output, &answer);
    }
    for line in lines(&answer) {
        out(&line);
    }
    for line in instance.iter().flat_map(|one| Moved::of(one).lines()) {
        out(&line);
    }
    for record in records {
        out(&format!("  {}", record.sentence()));
    }
    Ok(())
}

/// What the driver did in the guest. In a cluster there is no journal of it.
fn records(context: &Context, namespace: &str, name: &str) -> Outcome<Vec<Done>> {
    if context.asks_cluster() {
        return Ok(Vec::new());
    }
    let instance = format!("{namespace}/{}", instance_name(name));
    let mut all = people::on(context, &BTreeSet::from([instance]))?;
    let older = all.len().saturating_sub(RECORDS);
    Ok(all.split_off(older))
}

async fn instance_of(api: &Api, namespace: &str, vm: &str) -> Outcome<Option<Value>> {
    named(api, namespace, &instance_name(vm)).await
}

async fn named(api: &Api, namespace: &str, name: &str) -> Outcome<Option<Value>> {
    let all = api.list(INSTANCE, Some(namespace)).await?;
    Ok(all.into_iter().find(|one| one["metadata"]["name"] == name))
}

/// Adds the deployment, the budget and the guest's gate.
async fn add_decision(
    context: &Context,
    api: &Api,
    env: &Env,
    instance: &str,
    facts: &mut Value,
) -> Outcome {
    let world = world::read(context, api, env).await?;
    let deployments = deployments_of(api, (&env.namespace, &env.name)).await?;
    let by_turn = facts["turn"]["deployment"].as_str();
    let newest = || {
        deployments
            .iter()
            .find(|one| !one.spec.kind.is_of_monitor())
    };
    let deployment = deployments
        .iter()
        .find(|one| Some(one.name.as_str()) == by_turn)
        .or_else(newest);
    let Some(deployment) = deployment else {
        return Ok(());
    };
    facts["deployment"] = json!({
        "name": deployment.name,
        "status": deployment.status,
        "line": progress_line(deployment),
    });
    let revision = world.revisions.get(&deployment.spec.revision);
    let groups = revision.map_or(&[][..], |one| &one.rollout.groups);
    let fleet = counts::fleet(world.guests.values(), groups);
    facts["inputs"] = json!({
        "matches": fleet.matches,
        "settledHealthy": fleet.settled_healthy,
        "inFlight": fleet.in_flight,
        "required": revision.map(|one| required(fleet.matches, one.rollout.min_healthy_percent)),
    });
    facts["gate"] = json!(plan::gate_of(world, &deployment.spec.revision, instance));
    Ok(())
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    let text = value.pointer(path).and_then(Value::as_str);
    text.unwrap_or_default()
}

/// The answer in sentences.
fn lines(answer: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(reason) = answer["unmanaged"].as_str() {
        lines.push(format!("Its parts are unknown: {reason}."));
    }
    for facts in answer["parts"].as_array().into_iter().flatten() {
        let part = text(facts, "/part");
        match facts["runs"]["version"].as_str() {
            Some(version) => lines.push(format!("{part} {version} runs.")),
            None => lines.push(format!("{part}: the running program is unknown.")),
        }
        if facts["environment"].is_null() {
            lines.push(format!("  No environment has the {part} of this VM."));
            continue;
        }
        lines.push(turn_line(facts));
        lines.extend(decision_lines(facts));
    }
    lines
}

fn turn_line(facts: &Value) -> String {
    if facts["turn"].is_null() {
        return format!(
            "  Environment {} gave it no turn.",
            text(facts, "/environment")
        );
    }
    let turn = format!(
        "  Turn {} to {} {}, attempt {}",
        text(facts, "/turn/token"),
        text(facts, "/turn/revision"),
        text(facts, "/turn/version"),
        facts["turn"]["attempt"]
    );
    if facts["turn"]["token"] != facts["end"]["last"]["token"] {
        return format!("{turn}: not over.");
    }
    let result = text(facts, "/end/last/result").to_ascii_lowercase();
    let at = text(facts, "/end/last/at");
    match text(facts, "/end/last/reason") {
        "" => format!("{turn}: {result} at {at}."),
        reason => format!("{turn}: {result} at {at}: {reason}."),
    }
}

fn decision_lines(facts: &Value) -> Vec<String> {
    if facts["deployment"].is_null() {
        return vec!["  Nothing was started in its environment.".to_owned()];
    }
    let mut lines = vec![format!("  {}", text(facts, "/deployment/line"))];
    let evidence = facts["deployment"]["status"]["evidence"].as_array();
    let evidence = evidence.into_iter().flatten().filter_map(Value::as_str);
    lines.extend(evidence.map(|line| format!("    {line}")));
    let inputs = &facts["inputs"];
    lines.push(format!(
        "  Budget: {} of {} guests are settled and healthy, {} must stay so, {} are in a turn.",
        inputs["settledHealthy"], inputs["matches"], inputs["required"], inputs["inFlight"]
    ));
    let gate = &facts["gate"];
    if let (Some(gate), Some(detail)) = (gate["gate"].as_str(), gate["detail"].as_str()) {
        lines.push(format!("  A turn now: {gate}: {detail}."));
    } else {
        lines.push("  A turn now: no gate holds it.".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_that_ended_badly_is_told_with_its_reason() {
        let facts = json!({
            "part": "monitor", "environment": "m", "runs": {"version": "1.0.0"},
            "turn": {"token": "d-5", "revision": "m-r2", "version": "1.1.0", "attempt": 3},
            "end": {"last": {"token": "d-5", "result": "Bad", "at": "T", "reason": "it ended"}},
        });
        let lines = lines(&json!({"unmanaged": null, "parts": [facts]}));
        let expected = [
            "monitor 1.0.0 runs.",
            "  Turn d-5 to m-r2 1.1.0, attempt 3: bad at T: it ended.",
            "  Nothing was started in its environment.",
        ];
        assert_eq!(lines, expected);
    }
}
