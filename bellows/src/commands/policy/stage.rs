//! `bellows policy promote`, `demote`, `pause` and `resume`: what a person decides about which
//! version of a policy decides.

use clap::Args;
use daemon_kit::clock::Clock;
use policy_contract::Spec;
use policy_controller::core::gate::Stage;
use policy_controller::core::reconcile::{PROMOTABLE, READY, next_stage};
use policy_controller::core::revisions::{is_kept, revision_of};
use policy_controller::core::words::FAULTS;
use protocol::journal::Action;
use protocol::policy::{
    PolicyVersion, REVISION_NAMESPACE, ScalingPolicyStatus, canary_percent, revision_name,
};
use protocol::time::WallTime;
use serde_json::Value;

use super::object::contract_spec;
use super::state::{Agents, short};
use crate::actions;
use crate::api::{Api, Kind};
use crate::context::Context;
use crate::fail::{Fail, Outcome};

/// What a person reads before the controller has looked at a version.
const NOT_LOOKED_AT: &str =
    "the policy controller has not looked at its newest version; it does once a minute";

/// What `demote` and `pause` take.
#[derive(Debug, Clone, Args)]
pub(crate) struct StageArgs {
    /// Name of the policy
    #[arg(value_name = "NAME")]
    name: String,
    /// Why; it stands in the policy's conditions and in the history
    #[arg(long, value_name = "TEXT", value_parser = actions::reason)]
    reason: String,
}

/// What `promote` takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct PromoteArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// Pass the gate: let it decide about all VMs at once. A version with a fault is refused all
    /// the same
    #[arg(long)]
    force: bool,
}

/// What `resume` takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct ResumeArgs {
    /// Name of the policy
    #[arg(value_name = "NAME")]
    name: String,
}

/// What a person wants of a policy's versions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StageOrder<'a> {
    /// Name of the policy.
    pub(crate) policy: &'a str,
    /// Why. Every order but the end of a pause has one.
    pub(crate) reason: Option<&'a str>,
    /// First digits of the version that the person has seen. Another newest version is refused.
    pub(crate) seen: Option<&'a str>,
}

impl StageArgs {
    pub(super) fn order(&self) -> StageOrder<'_> {
        StageOrder {
            policy: &self.name,
            reason: Some(&self.reason),
            seen: None,
        }
    }
}

impl PromoteArgs {
    pub(super) async fn run(&self, context: &Context) -> Outcome<Vec<String>> {
        let order = self.stage.order();
        if self.force {
            promote_past_gate(context, &order).await
        } else {
            promote(context, &order).await
        }
    }
}

impl ResumeArgs {
    pub(super) fn order(&self) -> StageOrder<'_> {
        StageOrder {
            policy: &self.name,
            reason: None,
            seen: None,
        }
    }
}

/// A policy's object with its status.
struct Read {
    api: Api,
    object: Value,
    status: ScalingPolicyStatus,
}

impl Read {
    async fn of(context: &Context, name: &str) -> Outcome<Self> {
        let api = context.api().await?;
        let object = api.get(Kind::Policy, "", name).await?;
        let status = ScalingPolicyStatus::of_object(&object)
            .map_err(|error| Fail::not_so(format!("policy {name}: its status: {error}")))?;
        Ok(Self {
            api,
            object,
            status,
        })
    }

    /// Writes the status, unless somebody has changed the object since.
    async fn write(mut self, name: &str) -> Outcome {
        self.status.observed_generation = self.object["metadata"]["generation"].as_i64();
        self.object["status"] =
            serde_json::to_value(&self.status).map_err(|error| Fail::bug(error.to_string()))?;
        let written = self
            .api
            .replace_status(Kind::Policy, "", name, &self.object);
        written.await.map(drop)
    }
}

fn action(what: &str, policy: &str, to: Option<String>, why: Option<&str>) -> Action {
    Action {
        what: what.to_owned(),
        on: Some(policy.to_owned()),
        to,
        why: why.map(str::to_owned),
        ..Action::default()
    }
}

fn now() -> WallTime {
    Clock::new().wall()
}

/// The newest version of a policy, which has no fault that agents report.
struct Newest {
    read: Read,
    spec: Spec,
    digest: String,
}

impl Newest {
    async fn of(context: &Context, order: &StageOrder<'_>) -> Outcome<Self> {
        let name = order.policy;
        let read = Read::of(context, name).await?;
        let spec = contract_spec(&read.object).map_err(Fail::bug)?;
        if let Some(problem) = Agents::read(context, &read.api).await?.problem(name) {
            return Err(faulty(name, &problem));
        }
        let digest = spec.digest();
        if order.seen.is_some_and(|seen| seen != digest.short()) {
            return Err(Fail::not_so(format!(
                "policy {name}: its newest version is {} now",
                digest.short()
            ))
            .rule("only the version that was looked at is promoted")
            .fix("look at the new version, then decide"));
        }
        let digest = digest.to_string();
        Ok(Self { read, spec, digest })
    }

    /// What the gate says of it: `Ready`, or the cause and what is missing.
    fn ruling(&self) -> (&str, &str) {
        let status = &self.read.status;
        let is_it = |version: &PolicyVersion| version.digest == self.digest;
        let condition = status.condition_of(PROMOTABLE);
        let of_it = condition.filter(|_| status.candidate.as_ref().is_some_and(is_it));
        of_it.map_or(("Unknown", NOT_LOOKED_AT), |one| {
            (one.reason.as_str(), one.message.as_str())
        })
    }

    /// Keeps its source and writes the status.
    async fn write(self, context: &Context, order: &StageOrder<'_>) -> Outcome {
        let (name, short) = (order.policy, short(&self.digest));
        let action = action("policy promote", name, Some(short), order.reason);
        let carry_out = async {
            keep_revision(&self.read.api, name, &self.spec).await?;
            self.read.write(name).await
        };
        actions::recorded(context, action, carry_out).await
    }
}

fn faulty(name: &str, problem: &str) -> Fail {
    Fail::not_so(format!("policy {name}: {problem}"))
        .rule("a version with a fault never decides")
        .fix("mend it, then: bellows policy check FILE and bellows policy apply FILE")
}

/// Begins the next stage of the newest version, if the gate has nothing against it.
pub(crate) async fn promote(context: &Context, order: &StageOrder<'_>) -> Outcome<Vec<String>> {
    let name = order.policy;
    let mut newest = Newest::of(context, order).await?;
    let shown = short(&newest.digest);
    if newest.read.status.deciding() == Some(&*newest.digest) {
        return Ok(vec![format!("policy {name}: {shown} decides already")]);
    }
    let (reason, text) = newest.ruling();
    if reason != READY {
        return Err(Fail::not_so(format!("policy {name}: {text}"))
            .rule("the gate lets a version on when its evidence is complete")
            .fix(format!(
                "wait, or pass the gate: bellows policy promote {name} --force --reason TEXT"
            )));
    }
    let stage = newest
        .read
        .status
        .candidate
        .as_ref()
        .and_then(|one| one.stage);
    let about = match next_stage(stage) {
        Stage::Live => {
            newest.read.status.promote(&newest.digest, now());
            "the VMs that have it".to_owned()
        }
        Stage::Canary | Stage::Shadow => {
            newest.read.status.begin_canary(&newest.digest, now());
            format!(
                "{} % of the VMs that have it",
                canary_percent(&newest.read.object)
            )
        }
    };
    newest.write(context, order).await?;
    Ok(promoted(name, &shown, &about))
}

/// Lets the newest version decide, unless it has a fault.
async fn promote_past_gate(context: &Context, order: &StageOrder<'_>) -> Outcome<Vec<String>> {
    let name = order.policy;
    let mut newest = Newest::of(context, order).await?;
    if let (FAULTS, text) = newest.ruling() {
        return Err(faulty(name, text));
    }
    let shown = short(&newest.digest);
    if !newest.read.status.promote(&newest.digest, now()) {
        return Ok(vec![format!("policy {name}: {shown} decides already")]);
    }
    newest.write(context, order).await?;
    Ok(promoted(name, &shown, "the VMs that have it"))
}

fn promoted(name: &str, shown: &str, about: &str) -> Vec<String> {
    vec![
        format!("policy {name}: {shown} decides now about {about}, within its limits."),
        format!("Take it back: bellows policy demote {name} --reason TEXT"),
    ]
}

/// Keeps the source of a version that decides, so that agents find it when the spec has moved on.
async fn keep_revision(api: &Api, policy: &str, spec: &Spec) -> Outcome {
    let known = api.list(Kind::Revision, Some(REVISION_NAMESPACE)).await?;
    if is_kept(policy, spec, &known) {
        return Ok(());
    }
    let revision = revision_of(policy, spec, &known);
    let name = revision_name(policy, &spec.digest().to_string());
    let made = api.create(Kind::Revision, REVISION_NAMESPACE, &name, &revision, false);
    made.await.map(drop)
}

/// Lets the version before decide again, or the built-in goal.
pub(crate) async fn demote(context: &Context, order: &StageOrder<'_>) -> Outcome<Vec<String>> {
    let (name, reason) = (order.policy, order.reason.unwrap_or_default());
    let mut read = Read::of(context, name).await?;
    if !read.status.demote(reason, now()) {
        return Err(Fail::not_so(format!(
            "policy {name}: no version of it decides"
        )));
    }
    let decides = read.status.deciding();
    let decides = decides.map_or_else(|| "the built-in goal".to_owned(), short);
    let action = action("policy demote", name, None, Some(reason));
    actions::recorded(context, action, read.write(name)).await?;
    Ok(vec![format!("policy {name}: {decides} decides again.")])
}

/// Lets the built-in goal decide until `resume`.
pub(crate) async fn pause(context: &Context, order: &StageOrder<'_>) -> Outcome<Vec<String>> {
    let (name, reason) = (order.policy, order.reason.unwrap_or_default());
    let mut read = Read::of(context, name).await?;
    if !read.status.pause(reason, now()) {
        return Ok(vec![format!("policy {name} is paused already")]);
    }
    let action = action("policy pause", name, None, Some(reason));
    actions::recorded(context, action, read.write(name)).await?;
    Ok(vec![format!(
        "policy {name} is paused: the built-in goal decides. End it: bellows policy resume {name}"
    )])
}

/// Ends a pause.
pub(crate) async fn resume(context: &Context, order: &StageOrder<'_>) -> Outcome<Vec<String>> {
    let name = order.policy;
    let mut read = Read::of(context, name).await?;
    if !read.status.resume() {
        return Err(Fail::not_so(format!("policy {name} is not paused")));
    }
    let action = action("policy resume", name, None, order.reason);
    actions::recorded(context, action, read.write(name)).await?;
    Ok(vec![format!("policy {name} goes on.")])
}
