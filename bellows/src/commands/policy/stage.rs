//! `bellows policy promote`, `demote`, `pause` and `resume`: what a person decides about which
//! version of a policy decides.

use clap::Args;
use daemon_kit::clock::Clock;
use policy_contract::Spec;
use protocol::journal::Action;
use protocol::policy::{KEY_POLICY, REVISION_NAMESPACE, ScalingPolicyStatus, revision_name};
use protocol::time::WallTime;
use serde_json::{Value, json};

use super::object::contract_spec;
use super::state::{Agents, short};
use crate::actions;
use crate::api::{Api, Kind};
use crate::context::Context;
use crate::fail::{Fail, Outcome};

/// What `promote`, `demote` and `pause` take.
#[derive(Debug, Clone, Args)]
pub(crate) struct StageArgs {
    /// Name of the policy
    #[arg(value_name = "NAME")]
    name: String,
    /// Why; it stands in the policy's conditions and in the history
    #[arg(long, value_name = "TEXT", value_parser = actions::reason)]
    reason: String,
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

/// Lets the newest version decide.
pub(crate) async fn promote(context: &Context, order: &StageOrder<'_>) -> Outcome<Vec<String>> {
    let (name, reason) = (order.policy, order.reason.unwrap_or_default());
    let mut read = Read::of(context, name).await?;
    let spec = contract_spec(&read.object).map_err(Fail::bug)?;
    if let Some(problem) = Agents::read(context, &read.api).await?.problem(name) {
        return Err(Fail::not_so(format!("policy {name}: {problem}"))
            .rule("a version with a fault never decides")
            .fix("mend it, then: bellows policy check FILE and bellows policy apply FILE"));
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
    if !read.status.promote(&digest.to_string(), now()) {
        return Ok(vec![format!(
            "policy {name}: {} decides already",
            digest.short()
        )]);
    }
    let action = action("policy promote", name, Some(digest.short()), Some(reason));
    let carry_out = async {
        keep_revision(&read.api, name, &spec).await?;
        read.write(name).await
    };
    actions::recorded(context, action, carry_out).await?;
    Ok(vec![
        format!(
            "policy {name}: {} decides now about the VMs that have it, within its limits.",
            digest.short()
        ),
        format!("Take it back: bellows policy demote {name} --reason TEXT"),
    ])
}

/// Keeps the source of a version that decides, so that agents find it when the spec has moved on.
async fn keep_revision(api: &Api, policy: &str, spec: &Spec) -> Outcome {
    let name = revision_name(policy, &spec.digest().to_string());
    let known = api.list(Kind::Revision, Some(REVISION_NAMESPACE)).await?;
    if known.iter().any(|one| one["metadata"]["name"] == *name) {
        return Ok(());
    }
    let numbers = known.iter().filter_map(|one| one["revision"].as_i64());
    let revision = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": REVISION_NAMESPACE,
            "labels": {KEY_POLICY: policy},
        },
        "data": spec,
        "revision": numbers.max().unwrap_or(0).saturating_add(1),
    });
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
