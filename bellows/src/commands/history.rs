//! `bellows history` and `bellows why --at`: decisions about a VM and their outcome, from the
//! journal.

use clap::Args;
use protocol::time::WallTime;
use serde_json::{Value, json};

use super::people;
use crate::api::Kind;
use crate::args::VmArgs;
use crate::cluster;
use crate::context::Context;
use crate::decision;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, Table, print_value};
use crate::past::{Entry, decided};
use crate::terminal::out;

/// Decisions about a VM and what came of them, from the journal.
///
/// Below them stands what people did to the VM and its policies, and why its set made it. In a
/// cluster that is in the API server's audit log.
#[derive(Debug, Clone, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    vm: VmArgs,
    /// At most this many decisions, newest last
    #[arg(long, default_value_t = 40, value_name = "N")]
    last: usize,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// The last decisions about a VM, from the memory of its agent. Earlier ones are in the journal of
/// the agent's node.
pub(crate) async fn in_cluster(context: &Context, args: &HistoryArgs) -> Outcome {
    let (namespace, name) = args.vm.key();
    let api = context.api().await?;
    let vm = api.get(Kind::Vm, namespace, name).await?;
    let dump = cluster::agents(&api, vm["status"]["node"].as_str()).await?;
    let mut decisions = remembered(&dump, namespace, name);
    if decisions.is_empty() {
        return Err(Fail::not_so(format!(
            "the agent remembers no decision about {namespace}/{name}"
        ))
        .rule(
            "an agent remembers the last 64 of each VM it sizes, since the agent started or the VM came to its node; \
             earlier ones are in its journal: kubectl bellows journal fetch DIR",
        )
        .fix(format!(
            "see whether it is sized: kubectl bellows why {name} -n {namespace}"
        )));
    }
    decisions.drain(..decisions.len().saturating_sub(args.last));
    if matches!(args.output, Format::Json | Format::Yaml) {
        return print_value(args.output, &json!({ "decisions": decisions }));
    }
    let mut table = Table::new(&["AT", "HAD", "WANTED", "REASON", "BOUNDED BY"]);
    for decision in &decisions {
        table.row(vec![
            decision.at.clone().unwrap_or_default().into(),
            decision.current.to_string().into(),
            decision.target.to_string().into(),
            decision.reason.clone().into(),
            decision.bounded_by.join(", ").into(),
        ]);
    }
    table.print(context.paint());
    Ok(())
}

fn remembered(dump: &Value, namespace: &str, name: &str) -> Vec<decision::Decision> {
    let pods = dump["pods"].as_array().into_iter().flatten();
    let info = |pod: &&Value| pod["status"]["vmInfo"].clone();
    let of_vm = pods.filter(|pod| {
        let info = info(pod);
        info["namespace"] == namespace && info["name"] == name
    });
    let all = of_vm.flat_map(|pod| pod["decisions"].as_array().into_iter().flatten());
    all.filter_map(|one| serde_json::from_value(one.clone()).ok())
        .collect()
}

pub(crate) fn run(context: &Context, args: &HistoryArgs) -> Outcome {
    let (namespace, name) = args.vm.key();
    let key = format!("{namespace}/{name}");
    let past = decided(context, &key)?;
    let mut entries = past.entries;
    entries.drain(..entries.len().saturating_sub(args.last));
    let mut objects = past.policies.names();
    objects.insert(key);
    let mut actions = people::on(context, &objects)?;
    actions.drain(..actions.len().saturating_sub(args.last));
    if matches!(args.output, Format::Json | Format::Yaml) {
        let values: Vec<_> = entries.iter().map(Entry::value).collect();
        let actions: Vec<_> = actions.iter().map(people::Done::value).collect();
        let value = json!({ "actions": actions, "decisions": values });
        return print_value(args.output, &value);
    }
    print(context, &entries);
    if !actions.is_empty() {
        out("Actions of people and of sets:");
    }
    for action in actions {
        out(&format!("  {}", action.sentence()));
    }
    Ok(())
}

fn print(context: &Context, entries: &[Entry]) {
    let mut table = Table::new(&[
        "AT",
        "HAD",
        "WANTED",
        "REASON",
        "VOTES",
        "BOUNDED BY",
        "OUTCOME",
    ]);
    for entry in entries {
        table.row(vec![
            entry.time().into(),
            entry.size(entry.decision.cu).into(),
            entry.size(entry.target()).into(),
            entry.decision.r.clone().into(),
            entry.votes().into(),
            entry.decision.by.join(", ").into(),
            entry.outcome().into(),
        ]);
    }
    table.print(context.paint());
}

/// The decision in force at a time and its outcome, in one sentence, and what a policy answered.
pub(crate) fn why_at(
    context: &Context,
    (namespace, name): (&str, &str),
    at: WallTime,
    format: Format,
) -> Outcome {
    let key = format!("{namespace}/{name}");
    let before = |entry: &Entry| entry.unix_us() <= at.0;
    let past = decided(context, &key)?;
    let Some(entry) = past.entries.into_iter().rfind(before) else {
        return Err(Fail::not_so(format!(
            "the journal has no decision about {key} before {at}"
        )));
    };
    let policy = past.policies.at(at.0);
    if matches!(format, Format::Json | Format::Yaml) {
        let mut value = entry.value();
        if let Some(policy) = policy {
            value["policy"] = json!(policy);
        }
        return print_value(format, &value);
    }
    out(&entry.sentence(&key));
    if let Some(policy) = policy {
        out(&policy.sentences());
    }
    Ok(())
}
