//! `bellows vmset why`: which answers and orders a set's number rests on.

use std::collections::BTreeSet;

use clap::Args;
use protocol::policy::{KEY_POLICY, Role, VmSet};
use protocol::time::WallTime;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::api::Kind;
use crate::args::SetArgs;
use crate::commands::people::{self, Done};
use crate::commands::policy::set_answers::{self, SetLine, Standing, standing};
use crate::commands::policy::sets;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, print_value};
use crate::terminal::out;

/// Changes of the set that are shown.
const CHANGES: usize = 5;

/// Why a set has its number of members.
///
/// Names what its policy wants and since when, what a candidate would want, and the last changes.
/// In a cluster it has the last answers alone: controllers keep no journal there.
#[derive(Debug, Clone, Args)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    set: SetArgs,
    /// As it was at that time, from the journal (RFC 3339, such as 2026-11-21T20:00:00Z)
    #[arg(long, value_name = "TIME", value_parser = WallTime::parse)]
    at: Option<WallTime>,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// What is known of a set at a time.
#[derive(Debug, Default)]
struct Explanation {
    key: String,
    /// Count now. Absent for a time in the past.
    count: Option<u32>,
    policy: Option<String>,
    standings: Vec<Standing>,
    /// Sentences from the policy's status, where there is no journal.
    status: Vec<String>,
    changes: Vec<Done>,
}

pub(super) async fn why(context: &Context, args: &WhyArgs) -> Outcome {
    let explanation = match args.at {
        Some(at) => before(context, args.set.key(), at)?,
        None => now(context, args.set.key()).await?,
    };
    if matches!(args.output, Format::Json | Format::Yaml) {
        return print_value(args.output, &explanation.value());
    }
    explanation.lines().iter().for_each(|line| out(line));
    Ok(())
}

async fn now(context: &Context, (namespace, name): (&str, &str)) -> Outcome<Explanation> {
    let api = context.api().await?;
    let object = api.get(Kind::VmSet, namespace, name).await?;
    let set = VmSet::deserialize(&object).unwrap_or_default();
    let policy = set.metadata.annotations.get(KEY_POLICY).cloned();
    let mut explanation = Explanation {
        key: format!("{namespace}/{name}"),
        count: Some(set.spec.replicas),
        ..Explanation::default()
    };
    if context.asks_cluster() {
        if let Some(policy) = &policy {
            let object = api.get(Kind::Policy, "", policy).await?;
            explanation.status = sets::about(&object, &explanation.key);
        }
    } else {
        let lines = set_answers::all(context)?;
        explanation.take(&lines, policy.as_deref(), (namespace, name));
        explanation.changes = changes(context, &explanation.key, None)?;
    }
    explanation.policy = policy;
    Ok(explanation)
}

/// As it was at a time. Only the journal knows that.
fn before(
    context: &Context,
    (namespace, name): (&str, &str),
    at: WallTime,
) -> Outcome<Explanation> {
    let key = format!("{namespace}/{name}");
    if context.asks_cluster() {
        return Err(Fail::missing(format!("what set {key} rested on at {at}"))
            .rule("controllers of a cluster keep no journal")
            .fix(format!(
                "ask without --at: kubectl bellows vmset why {name}"
            )));
    }
    let mut lines = set_answers::all(context)?;
    lines.retain(|line| line.at <= at.0);
    let names_it =
        |line: &&SetLine| line.record.ns == namespace && line.record.sets.contains_key(name);
    let policy = lines.iter().rev().find(names_it);
    let policy = policy.map(|line| line.record.name.clone());
    let mut explanation = Explanation {
        changes: changes(context, &key, Some(at))?,
        key,
        ..Explanation::default()
    };
    explanation.take(&lines, policy.as_deref(), (namespace, name));
    explanation.policy = policy;
    if explanation.policy.is_none() && explanation.changes.is_empty() {
        return Err(Fail::not_so(format!(
            "the journal has nothing about set {} before {at}",
            explanation.key
        )));
    }
    Ok(explanation)
}

/// Changes of the set by its controller and by people, the newest last.
fn changes(context: &Context, key: &str, until: Option<WallTime>) -> Outcome<Vec<Done>> {
    let mut changes = people::on(context, &BTreeSet::from([key.to_owned()]))?;
    changes.retain(|done| until.is_none_or(|until| done.is_before(until)));
    changes.drain(..changes.len().saturating_sub(CHANGES));
    Ok(changes)
}

impl Explanation {
    fn take(&mut self, lines: &[SetLine], policy: Option<&str>, set: (&str, &str)) {
        let Some(policy) = policy else { return };
        let roles = [Role::Live, Role::Shadow].into_iter();
        self.standings = roles
            .filter_map(|role| standing(lines, role, set, policy))
            .collect();
    }

    fn value(&self) -> Value {
        let standings: Vec<Value> = self.standings.iter().map(Standing::value).collect();
        let changes: Vec<Value> = self.changes.iter().map(Done::value).collect();
        json!({
            "set": self.key,
            "count": self.count,
            "policy": self.policy,
            "answers": standings,
            "status": self.status,
            "changes": changes,
        })
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(count) = self.count {
            lines.push(format!("Set {} should have {count} members.", self.key));
        }
        match &self.policy {
            None => lines.push("No policy decides about it.".to_owned()),
            Some(policy) if self.standings.is_empty() && self.status.is_empty() => {
                lines.push(format!("Policy {policy} has not answered about it."));
            }
            Some(_) => {}
        }
        lines.extend(self.standings.iter().map(Standing::sentence));
        lines.extend(self.status.iter().cloned());
        if !self.changes.is_empty() {
            lines.push("Changes:".to_owned());
        }
        let changes = self.changes.iter();
        lines.extend(changes.map(|done| format!("  {}", done.sentence())));
        lines
    }
}
