//! `bellows policy list` and `bellows policy show`.

use clap::Args;
use hyper::http::Method;
use protocol::policy::ScalingPolicyStatus;
use serde_json::{Value, json};

use super::object::contract_spec;
use crate::api::{Api, Kind};
use crate::cluster;
use crate::context::Context;
use crate::decision::{Decisions, by_vm};
use crate::fail::Outcome;
use crate::output::{Format, Table, print_value};
use crate::terminal::out;

/// List the policies, and how many VMs have each.
#[derive(Debug, Clone, Args)]
pub(crate) struct ListArgs {
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// One policy, with its last answer about each VM.
#[derive(Debug, Clone, Args)]
pub(crate) struct ShowArgs {
    /// Name of the policy
    #[arg(value_name = "NAME")]
    name: String,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// State of the agents: their policies and the decisions about their VMs.
pub(super) struct Agents {
    policies: Value,
    decisions: Decisions,
}

impl Agents {
    pub(super) async fn read(context: &Context, api: &Api) -> Outcome<Self> {
        let dump = if context.asks_cluster() {
            cluster::agents(api, None).await?
        } else {
            let mut state = context.admin(Method::GET, "/v1/state", None).await?;
            state["agent"].take()
        };
        Ok(Self {
            policies: dump["policies"].clone(),
            decisions: by_vm(&dump),
        })
    }

    /// What the agent says about a policy, and about its worker.
    pub(super) fn problem(&self, name: &str) -> Option<String> {
        let known = self.policies["known"].as_array().into_iter().flatten();
        let mut own = known.filter(|one| one["name"] == name);
        let own = own.find_map(|one| one["problem"].as_str());
        let workers = &self.policies["workers"];
        let worker = ["live", "shadow"]
            .iter()
            .find_map(|role| workers[role]["problem"].as_str());
        own.or(worker).map(str::to_owned)
    }

    /// Answers and sentences about the VMs that have a policy, by VM.
    fn vms(&self, name: &str) -> Vec<(String, Value, String)> {
        let has = |policy: &crate::decision::PolicyView| policy.name.as_deref() == Some(name);
        self.decisions
            .iter()
            .filter_map(|(vm, decision)| {
                let policy = decision.policy.as_ref().filter(|policy| has(policy))?;
                let shadow = policy.shadow.as_ref();
                let answers = json!({
                    "vm": vm,
                    "answer": policy.answer,
                    "shadow": shadow.and_then(|shadow| shadow.answer.as_ref()),
                });
                Some((vm.clone(), answers, policy.sentences()))
            })
            .collect()
    }
}

fn status_of(object: &Value) -> ScalingPolicyStatus {
    ScalingPolicyStatus::of_object(object).unwrap_or_default()
}

/// The digits of a digest that people see, as `Digest::short` gives them.
pub(super) fn short(digest: &str) -> String {
    digest.chars().take(8).collect()
}

/// The version that decides, in short.
fn live_of(object: &Value) -> Option<String> {
    let status = status_of(object);
    status.deciding().map(short)
}

/// The newest version, in short, unless it decides.
fn candidate_of(object: &Value) -> Option<String> {
    let Ok(spec) = contract_spec(object) else {
        return Some("?".to_owned());
    };
    let digest = spec.digest();
    let decides = status_of(object).deciding() == Some(&*digest.to_string());
    (!decides).then(|| digest.short())
}

/// Who decides about the VMs that have the policy.
fn sentence(object: &Value) -> String {
    let status = status_of(object);
    let decides = match (live_of(object), status.is_paused()) {
        (Some(live), _) => format!("{live} decides"),
        (None, true) => "it is paused, so the built-in goal decides".to_owned(),
        (None, false) => "the built-in goal decides".to_owned(),
    };
    match candidate_of(object) {
        Some(candidate) => format!("{decides}; {candidate} is a candidate"),
        None => decides,
    }
}

pub(super) async fn list(context: &Context, args: &ListArgs) -> Outcome {
    let api = context.api().await?;
    let objects = api.list(Kind::Policy, None).await?;
    let agents = Agents::read(context, &api).await?;
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let problem = agents.problem(name);
            json!({
                "name": name,
                "scope": object["spec"]["scope"],
                "live": live_of(object),
                "candidate": candidate_of(object),
                "vms": agents.vms(name).len(),
                "problem": problem,
            })
        })
        .collect();
    if matches!(args.output, Format::Json | Format::Yaml) {
        return print_value(args.output, &json!({ "policies": rows }));
    }
    if rows.is_empty() {
        out("no policies: make one with bellows policy apply FILE");
        return Ok(());
    }
    let mut table = Table::new(&["NAME", "SCOPE", "LIVE", "CANDIDATE", "VMS", "PROBLEM"]);
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    for row in &rows {
        let cells = ["name", "scope", "live", "candidate", "vms", "problem"];
        table.row(cells.iter().map(|key| text(&row[*key]).into()).collect());
    }
    table.print(context.paint());
    Ok(())
}

pub(super) async fn show(context: &Context, args: &ShowArgs) -> Outcome {
    let api = context.api().await?;
    let object = api.get(Kind::Policy, "", &args.name).await?;
    let agents = Agents::read(context, &api).await?;
    let vms = agents.vms(&args.name);
    let problem = agents.problem(&args.name);
    if matches!(args.output, Format::Json | Format::Yaml) {
        let vms: Vec<Value> = vms.into_iter().map(|(_, answers, _)| answers).collect();
        let shown = json!({
            "name": args.name,
            "status": object["status"],
            "candidate": contract_spec(&object).map(|spec| spec.digest().to_string()).ok(),
            "spec": object["spec"],
            "problem": problem,
            "vms": vms,
        });
        return print_value(args.output, &shown);
    }
    out(&format!("Policy {}: {}.", args.name, sentence(&object)));
    if let Some(problem) = problem {
        out(&format!("Problem: {problem}."));
    }
    if vms.is_empty() {
        out("No VM has it.");
    }
    for (vm, _, sentence) in vms {
        out(&format!("{vm}: {sentence}"));
    }
    Ok(())
}
