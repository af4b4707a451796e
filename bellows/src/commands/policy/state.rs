//! `bellows policy list` and `bellows policy show`.

use clap::Args;
use hyper::http::Method;
use policy_contract::Digest;
use protocol::policy::ScalingPolicyStatus;
use serde::Serialize;
use serde_json::{Value, json};

use super::canary::Canary;
use super::conditions;
use super::object::contract_spec;
use super::sets;
use crate::api::{Api, Kind};
use crate::cluster;
use crate::context::Context;
use crate::decision::{Decisions, PolicyView, by_vm};
use crate::fail::Outcome;
use crate::output::{Format, Table, print_value};
use crate::terminal::{err, out};

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
#[derive(Debug, Clone, Default)]
pub(crate) struct Agents {
    policies: Value,
    pub(crate) decisions: Decisions,
}

impl Agents {
    pub(crate) fn new(policies: Value, decisions: Decisions) -> Self {
        Self {
            policies,
            decisions,
        }
    }

    pub(super) async fn read(context: &Context, api: &Api) -> Outcome<Self> {
        let dump = if context.asks_cluster() {
            cluster::agents(api, None).await?
        } else {
            let mut state = context.admin(Method::GET, "/v1/state", None).await?;
            state["agent"].take()
        };
        Ok(Self::new(dump["policies"].clone(), by_vm(&dump)))
    }

    /// As [`Self::read`]. Where no agent of a cluster shows its state, the objects still say which
    /// version decides.
    async fn read_if_shown(context: &Context, api: &Api) -> Outcome<Option<Self>> {
        match Self::read(context, api).await {
            Err(fail) if context.asks_cluster() => {
                err(&format!("warning: without the agents' state: {fail}"));
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// What the agents say about a policy, and about their workers.
    pub(crate) fn problem(&self, name: &str) -> Option<String> {
        let known = self.policies["known"].as_array().into_iter().flatten();
        let mut own = known.filter(|one| one["name"] == name);
        let own = own.find_map(|one| one["problem"].as_str());
        own.map(str::to_owned).or_else(|| self.worker_problem())
    }

    /// As [`Self::problem`], without what is about another version alone. A live version that was
    /// set aside does not keep a newer one from its place.
    pub(super) fn problem_of_version(&self, name: &str, digest: &str) -> Option<String> {
        let known = self.policies["known"].as_array().into_iter().flatten();
        let is_about_it = |one: &&Value| {
            let aside = one["setAside"].as_array().map_or(&[][..], Vec::as_slice);
            aside.is_empty() || aside.iter().any(|version| version["digest"] == digest)
        };
        let mut own = known.filter(|one| one["name"] == name).filter(is_about_it);
        let own = own.find_map(|one| one["problem"].as_str());
        own.map(str::to_owned).or_else(|| self.worker_problem())
    }

    fn worker_problem(&self) -> Option<String> {
        let workers = &self.policies["workers"];
        let mut roles = ["live", "shadow"].iter();
        let problem = roles.find_map(|role| workers[role]["problem"].as_str());
        problem.map(str::to_owned)
    }

    /// The VMs that have a policy, with what is known of it there.
    fn having(&self, name: &str) -> impl Iterator<Item = (&String, &PolicyView)> {
        self.decisions.iter().filter_map(move |(vm, decision)| {
            let policy = decision.policy.as_ref()?;
            (policy.name.as_deref() == Some(name)).then_some((vm, policy))
        })
    }

    /// Answers and sentences about the VMs that have a policy, by VM.
    pub(crate) fn vms(&self, name: &str) -> Vec<(String, Value, String)> {
        self.having(name)
            .map(|(vm, policy)| {
                let shadow = policy.shadow.as_ref();
                let answers = json!({
                    "vm": vm,
                    "answer": policy.answer,
                    "shadow": shadow.and_then(|shadow| shadow.answer.as_ref()),
                });
                (vm.clone(), answers, policy.sentences())
            })
            .collect()
    }
}

fn status_of(object: &Value) -> ScalingPolicyStatus {
    ScalingPolicyStatus::of_object(object).unwrap_or_default()
}

/// The digits of a digest that people see, as `Digest::short` gives them.
pub(crate) fn short(digest: &str) -> String {
    digest.chars().take(8).collect()
}

/// The version that decides, in short.
pub(crate) fn live_of(object: &Value) -> Option<String> {
    let status = status_of(object);
    status.deciding().map(short)
}

/// The newest version, in short, unless it decides.
pub(crate) fn candidate_of(object: &Value) -> Option<String> {
    match contract_spec(object) {
        Ok(spec) => undecided(object, spec.digest()).map(|digest| digest.short()),
        Err(_) => Some("?".to_owned()),
    }
}

/// The digest, unless its version decides.
fn undecided(object: &Value, digest: Digest) -> Option<Digest> {
    let decides = status_of(object).deciding() == Some(&*digest.to_string());
    (!decides).then_some(digest)
}

/// Who decides about the VMs that have the policy.
pub(crate) fn sentence(object: &Value) -> String {
    let status = status_of(object);
    let is_of_sets = object["spec"]["scope"] == "set";
    let decides = match (live_of(object), status.is_paused()) {
        (Some(live), _) => format!("{live} decides"),
        (None, _) if is_of_sets => "no version decides, so sets keep their counts".to_owned(),
        (None, true) => "it is paused, so the built-in goal decides".to_owned(),
        (None, false) => "the built-in goal decides".to_owned(),
    };
    match candidate_of(object) {
        Some(candidate) => format!("{decides}; {candidate} is a candidate"),
        None => decides,
    }
}

/// A policy in a list.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PolicyRow {
    pub(crate) name: String,
    pub(crate) scope: Value,
    /// First digits of the version that decides.
    pub(crate) live: Option<String>,
    /// First digits of the newest version, unless it decides.
    pub(crate) candidate: Option<String>,
    /// Number of VMs that have it. Absent where no agent shows its state.
    pub(crate) vms: Option<usize>,
    pub(crate) problem: Option<String>,
}

pub(crate) fn rows(objects: &[Value], agents: Option<&Agents>) -> Vec<PolicyRow> {
    let row = |object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        PolicyRow {
            name: name.to_owned(),
            scope: object["spec"]["scope"].clone(),
            live: live_of(object),
            candidate: candidate_of(object),
            vms: agents.map(|agents| agents.having(name).count()),
            problem: agents.and_then(|agents| agents.problem(name)),
        }
    };
    objects.iter().map(row).collect()
}

pub(super) async fn list(context: &Context, args: &ListArgs) -> Outcome {
    let api = context.api().await?;
    let objects = api.list(Kind::Policy, None).await?;
    let agents = Agents::read_if_shown(context, &api).await?;
    let rows = rows(&objects, agents.as_ref());
    if matches!(args.output, Format::Json | Format::Yaml) {
        return print_value(args.output, &json!({ "policies": rows }));
    }
    if rows.is_empty() {
        out("no policies: make one with bellows policy apply FILE");
        return Ok(());
    }
    let mut table = Table::new(&["NAME", "SCOPE", "LIVE", "CANDIDATE", "VMS", "PROBLEM"]);
    for row in rows {
        table.row(vec![
            row.name.into(),
            row.scope.as_str().unwrap_or_default().into(),
            row.live.unwrap_or_default().into(),
            row.candidate.unwrap_or_default().into(),
            row.vms
                .map(|vms| vms.to_string())
                .unwrap_or_default()
                .into(),
            row.problem.unwrap_or_default().into(),
        ]);
    }
    table.print(context.paint());
    Ok(())
}

pub(super) async fn show(context: &Context, args: &ShowArgs) -> Outcome {
    let api = context.api().await?;
    let object = api.get(Kind::Policy, "", &args.name).await?;
    let agents = Agents::read_if_shown(context, &api).await?;
    let vms = agents.as_ref().map(|agents| agents.vms(&args.name));
    let problem = agents.and_then(|agents| agents.problem(&args.name));
    if matches!(args.output, Format::Json | Format::Yaml) {
        let answers = |vms: Vec<(String, Value, String)>| -> Vec<Value> {
            vms.into_iter().map(|(_, answers, _)| answers).collect()
        };
        let vms = vms.map(answers);
        let newest = contract_spec(&object).ok();
        let candidate = newest.and_then(|spec| undecided(&object, spec.digest()));
        let shown = json!({
            "name": args.name,
            "status": object["status"],
            "candidate": candidate.map(|digest| digest.to_string()),
            "spec": object["spec"],
            "problem": problem,
            "canary": Canary::of(&object),
            "vms": vms,
        });
        return print_value(args.output, &shown);
    }
    out(&format!("Policy {}: {}.", args.name, sentence(&object)));
    for condition in conditions::sentences(&object, candidate_of(&object).as_deref()) {
        out(&condition);
    }
    if let Some(problem) = problem {
        out(&format!("Problem: {problem}."));
    }
    if let Some(canary) = Canary::of(&object) {
        canary.print(context.paint());
    }
    if let Some(reports) = sets::reports(&object) {
        let lines = sets::lines(&reports);
        let lines = lines.into_iter().chain(sets::figures(&object));
        lines.for_each(|line| out(&line));
        return Ok(());
    }
    if vms.as_ref().is_some_and(Vec::is_empty) {
        out("No VM has it.");
    }
    for (vm, _, sentence) in vms.into_iter().flatten() {
        out(&format!("{vm}: {sentence}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_of_the_live_version_does_not_keep_a_newer_one_from_its_place() {
        let aside = json!([{"digest": "aa", "role": "live", "fault": "steps", "text": "t"}]);
        let known =
            json!({"known": [{"name": "db", "problem": "aa: steps: t", "setAside": aside}]});
        let agents = Agents::new(known, Decisions::default());
        assert_eq!(agents.problem_of_version("db", "bb"), None);
        let own = agents.problem_of_version("db", "aa");
        assert_eq!(own.as_deref(), Some("aa: steps: t"));
        assert_eq!(agents.problem("db"), own, "people see it all the same");
        let missing = json!({"known": [{"name": "db", "problem": "feed jobs", "setAside": []}],
            "workers": {"live": {"problem": "no program"}}});
        let agents = Agents::new(missing, Decisions::default());
        let problem = |name| agents.problem_of_version(name, "bb");
        assert_eq!(problem("db").as_deref(), Some("feed jobs"));
        assert_eq!(problem("other").as_deref(), Some("no program"));
    }
}
