//! `bellows history` and `bellows why --at`: decisions about a VM and their outcome, from the
//! journal.

use std::collections::BTreeSet;

use clap::Args;
use protocol::journal::{Amount, Decision, Outcome as End, Record, RequestKind};
use protocol::time::WallTime;
use protocol::units::Resources;
use serde_json::{Value, json};

use super::journal::{calendar, of_state, read};
use super::people;
use crate::api::Kind;
use crate::args::VmArgs;
use crate::cluster;
use crate::context::Context;
use crate::decision;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, Table, print_value};
use crate::terminal::out;

/// Decisions about a VM and what came of them, from the journal.
///
/// Below them stands what people did to the VM's policies. In a cluster that is in the API server's
/// audit log.
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

/// A decision and its outcome until the next decision.
struct Entry {
    at: u64,
    wall: u64,
    unit: Resources,
    decision: Decision,
    ends: Vec<End>,
}

impl Entry {
    fn size(&self, amount: Amount) -> String {
        amount.size(self.unit).to_string()
    }

    fn target(&self) -> Amount {
        self.decision.to.unwrap_or(self.decision.cu)
    }

    fn votes(&self) -> String {
        let votes: Vec<String> = self
            .decision
            .votes
            .iter()
            .map(|(name, vote)| format!("{name} {:.2}", vote.units()))
            .collect();
        votes.join(", ")
    }

    fn value(&self) -> serde_json::Value {
        json!({
            "at": calendar(self.wall, self.at),
            "current": self.decision.cu.size(self.unit),
            "target": self.target().size(self.unit),
            "goalUnits": self.decision.want,
            "reason": self.decision.r,
            "votes": self.decision.votes.iter().map(|(name, vote)| (name.clone(), json!(vote.units()))).collect::<serde_json::Map<_, _>>(),
            "boundedBy": self.decision.by,
            "warnings": self.decision.warn,
            "revision": self.decision.rev,
            "outcomes": self.ends,
        })
    }

    fn sentence(&self, name: &str) -> String {
        let decision = &self.decision;
        let bounded = if decision.by.is_empty() {
            String::new()
        } else {
            format!(", bounded by {}", decision.by.join(" and "))
        };
        let votes = if decision.votes.is_empty() {
            "nothing measured".to_owned()
        } else {
            self.votes()
        };
        let ends: Vec<String> = self.ends.iter().map(end_text).collect();
        let ends = if ends.is_empty() {
            "nothing had to be done".to_owned()
        } else {
            ends.join("; ")
        };
        format!(
            "At {} {name} had {} and should have {}, because of {} ({votes}; {} units){bounded}: {ends}.",
            calendar(self.wall, self.at),
            self.size(decision.cu),
            self.size(self.target()),
            decision.r,
            decision.want,
        )
    }
}

fn end_text(end: &End) -> String {
    let what = match end.what {
        RequestKind::Permit => "permit",
        RequestKind::Patch => "patch",
        RequestKind::Up => "monitor told",
        RequestKind::Down => "monitor asked",
        RequestKind::Verified => "guest",
    };
    let how = serde_json::to_value(end.end).unwrap_or_default();
    let how = how.as_str().unwrap_or("").replace('_', " ");
    let times: Vec<String> = end
        .ms
        .iter()
        .map(|(stage, ms)| format!("{stage} {ms} ms"))
        .collect();
    let got = end
        .got
        .map_or_else(String::new, |got| format!(" {}", Resources::from(got)));
    let times = if times.is_empty() {
        String::new()
    } else {
        format!(" ({})", times.join(", "))
    };
    format!("{what} {how}{got}{times}")
}

/// What the agent's journal has about a VM.
struct History {
    /// All decisions, oldest first.
    entries: Vec<Entry>,
    /// Names of the policies that the VM has had.
    policies: BTreeSet<String>,
}

fn history(context: &Context, key: &str) -> Outcome<History> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut policies = BTreeSet::new();
    let (mut run, mut number) = (None, None);
    for file in of_state(context)? {
        let segment = read(file)?;
        let Some(head) = segment.scan.head else {
            continue;
        };
        if run.replace(head.run) != Some(head.run) {
            number = None;
        }
        for record in segment
            .scan
            .lines
            .into_iter()
            .filter_map(|line| line.record.ok())
        {
            match record {
                Record::Checkpoint(checkpoint) if checkpoint.name == key => {
                    number = Some(checkpoint.vm)
                }
                Record::Decision(decision) if Some(decision.vm) == number => entries.push(Entry {
                    at: decision.t,
                    wall: head.wall,
                    unit: head.cu.into(),
                    decision: *decision,
                    ends: Vec::new(),
                }),
                Record::Outcome(end) if Some(end.vm) == number => {
                    if let Some(entry) = entries.last_mut() {
                        entry.ends.push(*end);
                    }
                }
                Record::Bound(bound) if Some(bound.vm) == number => policies.extend(bound.name),
                _ => {}
            }
        }
    }
    if entries.is_empty() {
        return Err(
            Fail::not_so(format!("the journal has no decision about {key}"))
                .rule("bellows up writes the journal while it runs, and keeps it for a week")
                .fix("look which VMs there are: bellows get vms -A"),
        );
    }
    Ok(History { entries, policies })
}

/// The last decisions about a VM, from its agent. In a cluster no journal is written.
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
        .rule("an agent remembers the last 64 of each VM it sizes, since the VM came to its node")
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
    let history = history(context, &format!("{namespace}/{name}"))?;
    let mut entries = history.entries;
    entries.drain(..entries.len().saturating_sub(args.last));
    let mut actions = people::on(context, &history.policies)?;
    actions.drain(..actions.len().saturating_sub(args.last));
    if matches!(args.output, Format::Json | Format::Yaml) {
        let values: Vec<_> = entries.iter().map(Entry::value).collect();
        let actions: Vec<_> = actions.iter().map(people::Done::value).collect();
        let value = json!({ "actions": actions, "decisions": values });
        return print_value(args.output, &value);
    }
    print(context, &entries);
    if !actions.is_empty() {
        out("Actions of people:");
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
        let ends: Vec<String> = entry.ends.iter().map(end_text).collect();
        table.row(vec![
            calendar(entry.wall, entry.at).into(),
            entry.size(entry.decision.cu).into(),
            entry.size(entry.target()).into(),
            entry.decision.r.clone().into(),
            entry.votes().into(),
            entry.decision.by.join(", ").into(),
            ends.join("; ").into(),
        ]);
    }
    table.print(context.paint());
}

/// The decision in force at a time and its outcome, in one sentence.
pub(crate) fn why_at(
    context: &Context,
    (namespace, name): (&str, &str),
    at: WallTime,
    format: Format,
) -> Outcome {
    let key = format!("{namespace}/{name}");
    let before = |entry: &Entry| {
        let made = i64::try_from(entry.wall.saturating_add(entry.at)).unwrap_or(i64::MAX);
        made <= at.0
    };
    let Some(entry) = history(context, &key)?.entries.into_iter().rfind(before) else {
        return Err(Fail::not_so(format!(
            "the journal has no decision about {key} before {at}"
        )));
    };
    match format {
        Format::Json | Format::Yaml => print_value(format, &entry.value()),
        Format::Table | Format::Wide => {
            out(&entry.sentence(&key));
            Ok(())
        }
    }
}
