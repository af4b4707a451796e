//! `bellows policy promote`, `demote`, `pause` and `resume`: what a person decides about which
//! version of a policy decides.

use clap::Args;
use daemon_kit::clock::Clock;
use policy_contract::Spec;
use policy_controller::core::gate::Stage;
use policy_controller::core::reconcile::{PROMOTABLE, READY, next_stage, scope_of};
use policy_controller::core::revisions::{is_kept, revision_of};
use policy_controller::core::words::FAULTS;
use protocol::journal::Action;
use protocol::policy::{
    PolicyVersion, REVISION_NAMESPACE, ScalingPolicyStatus, Scope, canary_percent, revision_name,
};
use protocol::time::WallTime;
use serde_json::Value;

use super::object::contract_spec;
use super::sets;
use super::state::{Agents, short};
use crate::actions;
use crate::api::{Api, Kind};
use crate::context::Context;
use crate::fail::{Fail, Outcome};

/// Writes of one order, where each meets a conflict.
const ATTEMPTS: usize = 5;
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
        Self::by(context.api().await?, name).await
    }

    async fn by(api: Api, name: &str) -> Outcome<Self> {
        let object = api.get(Kind::Policy, "", name).await?;
        let status = ScalingPolicyStatus::of_object(&object)
            .map_err(|error| Fail::not_so(format!("policy {name}: its status: {error}")))?;
        Ok(Self {
            api,
            object,
            status,
        })
    }

    /// Changes the status and writes it. The policy controller writes it too: after a conflict the
    /// object is read and changed again.
    async fn write(self, name: &str, change: impl Fn(&mut Self) -> Outcome) -> Outcome {
        let attempt = |read: Self| read.write_once(name);
        write_over(name, self, change, attempt).await
    }

    /// Writes the status. Returns the newer object, if somebody has changed it since.
    async fn write_once(mut self, name: &str) -> Outcome<Option<Self>> {
        self.status.observed_generation = self.object["metadata"]["generation"].as_i64();
        self.object["status"] =
            serde_json::to_value(&self.status).map_err(|error| Fail::bug(error.to_string()))?;
        let api = &self.api;
        let written = api.replace_status_if_unchanged(Kind::Policy, "", name, &self.object);
        if written.await? {
            return Ok(None);
        }
        Self::by(self.api, name).await.map(Some)
    }

    /// What the gate says of the newest version: `Ready`, or the cause and what is missing.
    fn ruling(&self, digest: &str) -> (&str, &str) {
        let is_it = |version: &PolicyVersion| version.digest == digest;
        let condition = self.status.condition_of(PROMOTABLE);
        let of_it = condition.filter(|_| self.status.candidate.as_ref().is_some_and(is_it));
        of_it.map_or(("Unknown", NOT_LOOKED_AT), |one| {
            (one.reason.as_str(), one.message.as_str())
        })
    }

    /// Refuses an order about a version that is not the newest any more.
    fn still_has(&self, name: &str, digest: &str) -> Outcome {
        let spec = contract_spec(&self.object).map_err(Fail::bug)?;
        if spec.digest().to_string() == digest {
            return Ok(());
        }
        Err(overtaken(name))
    }
}

fn overtaken(name: &str) -> Fail {
    Fail::try_again(format!("policy {name}: its versions changed meanwhile"))
        .rule("an order is carried out about the version that was looked at")
        .fix(format!(
            "look: bellows policy show {name}; then give the order again"
        ))
}

/// Changes a state and writes it. `attempt` returns a newer state after a conflict; it is changed
/// and written in its turn.
async fn write_over<S, F>(
    name: &str,
    mut state: S,
    change: impl Fn(&mut S) -> Outcome,
    attempt: impl Fn(S) -> F,
) -> Outcome
where
    F: Future<Output = Outcome<Option<S>>>,
{
    for _ in 0..ATTEMPTS {
        change(&mut state)?;
        match attempt(state).await? {
            None => return Ok(()),
            Some(newer) => state = newer,
        }
    }
    Err(Fail::try_again(format!(
        "policy {name}: it was changed by others {ATTEMPTS} times meanwhile"
    ))
    .rule("an order is written over the state that it was decided on")
    .fix("give the order again"))
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
        let digest = spec.digest();
        let agents = Agents::read(context, &read.api).await?;
        if let Some(problem) = agents.problem_of_version(name, &digest.to_string()) {
            return Err(faulty(name, &problem));
        }
        if let Some(problem) = sets::problem(&read.object, &digest) {
            return Err(faulty(name, &problem));
        }
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

    /// Keeps its source, and changes and writes the status.
    async fn write(
        self,
        context: &Context,
        order: &StageOrder<'_>,
        change: impl Fn(&mut Read, &str) -> Outcome,
    ) -> Outcome {
        let (name, short) = (order.policy, short(&self.digest));
        let action = action("policy promote", name, Some(short), order.reason);
        let digest = self.digest;
        let carry_out = async {
            keep_revision(&self.read.api, name, &self.spec).await?;
            let change = |read: &mut Read| {
                read.still_has(name, &digest)?;
                change(read, &digest)
            };
            self.read.write(name, change).await
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
    let newest = Newest::of(context, order).await?;
    let shown = short(&newest.digest);
    if newest.read.status.deciding() == Some(&*newest.digest) {
        return Ok(vec![format!("policy {name}: {shown} decides already")]);
    }
    let (reason, text) = newest.read.ruling(&newest.digest);
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
    let scope = scope_of(&newest.read.object);
    let next = next_stage(scope, stage);
    let about = match next {
        Stage::Live => all_of(scope).to_owned(),
        Stage::Canary | Stage::Shadow => {
            let share = canary_percent(&newest.read.object);
            format!("{share} % of the VMs that have it")
        }
    };
    let change = |read: &mut Read, digest: &str| {
        let is_as_seen = read.status.candidate.as_ref().and_then(|one| one.stage) == stage;
        if !is_as_seen || read.ruling(digest).0 != READY {
            return Err(overtaken(name));
        }
        match next {
            Stage::Live => {
                read.status.promote(digest, now());
            }
            Stage::Canary | Stage::Shadow => read.status.begin_canary(digest, now()),
        }
        Ok(())
    };
    newest.write(context, order, change).await?;
    Ok(promoted(name, &shown, &about))
}

/// Lets the newest version decide, unless it has a fault.
async fn promote_past_gate(context: &Context, order: &StageOrder<'_>) -> Outcome<Vec<String>> {
    let name = order.policy;
    let newest = Newest::of(context, order).await?;
    if let (FAULTS, text) = newest.read.ruling(&newest.digest) {
        return Err(faulty(name, text));
    }
    let shown = short(&newest.digest);
    if !newest.read.status.clone().promote(&newest.digest, now()) {
        return Ok(vec![format!("policy {name}: {shown} decides already")]);
    }
    let about = all_of(scope_of(&newest.read.object));
    let change = |read: &mut Read, digest: &str| {
        if let (FAULTS, text) = read.ruling(digest) {
            return Err(faulty(name, text));
        }
        read.status.promote(digest, now());
        Ok(())
    };
    newest.write(context, order, change).await?;
    Ok(promoted(name, &shown, about))
}

/// Everything that a version decides about once it is live.
fn all_of(scope: Scope) -> &'static str {
    match scope {
        Scope::Vm => "the VMs that have it",
        Scope::Set => "the sets that have it",
    }
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
    let read = Read::of(context, name).await?;
    let seen = read.status.clone();
    let mut after = seen.clone();
    if !after.demote(reason, now()) {
        return Err(Fail::not_so(format!(
            "policy {name}: no version of it decides"
        )));
    }
    let decides = after.deciding();
    let decides = decides.map_or_else(|| "the built-in goal".to_owned(), short);
    let action = action("policy demote", name, None, Some(reason));
    let change = |read: &mut Read| {
        // The controller may have taken the version back. The one before it is not meant.
        if !decides_as(&read.status, &seen) {
            return Err(overtaken(name));
        }
        read.status.demote(reason, now());
        Ok(())
    };
    actions::recorded(context, action, read.write(name, change)).await?;
    Ok(vec![format!("policy {name}: {decides} decides again.")])
}

/// Whether the same versions decide by both.
fn decides_as(one: &ScalingPolicyStatus, other: &ScalingPolicyStatus) -> bool {
    one.deciding() == other.deciding() && one.canary() == other.canary()
}

/// Lets the built-in goal decide until `resume`.
pub(crate) async fn pause(context: &Context, order: &StageOrder<'_>) -> Outcome<Vec<String>> {
    let (name, reason) = (order.policy, order.reason.unwrap_or_default());
    let read = Read::of(context, name).await?;
    if !read.status.clone().pause(reason, now()) {
        return Ok(vec![format!("policy {name} is paused already")]);
    }
    let action = action("policy pause", name, None, Some(reason));
    let change = |read: &mut Read| {
        read.status.pause(reason, now());
        Ok(())
    };
    actions::recorded(context, action, read.write(name, change)).await?;
    Ok(vec![format!(
        "policy {name} is paused: the built-in goal decides. End it: bellows policy resume {name}"
    )])
}

/// Ends a pause.
pub(crate) async fn resume(context: &Context, order: &StageOrder<'_>) -> Outcome<Vec<String>> {
    let name = order.policy;
    let read = Read::of(context, name).await?;
    if !read.status.clone().resume() {
        return Err(Fail::not_so(format!("policy {name} is not paused")));
    }
    let action = action("policy resume", name, None, order.reason);
    let change = |read: &mut Read| {
        read.status.resume();
        Ok(())
    };
    actions::recorded(context, action, read.write(name, change)).await?;
    Ok(vec![format!("policy {name} goes on.")])
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use daemon_kit::exit::Exit;

    use super::*;

    /// Writes over an object that others change before the first `conflicts` writes. Returns the
    /// states that were tried.
    async fn written(
        conflicts: usize,
        change: impl Fn(&mut Vec<u8>) -> Outcome,
    ) -> (Outcome, Vec<Vec<u8>>) {
        let tried = RefCell::new(Vec::new());
        let attempt = |state: Vec<u8>| {
            tried.borrow_mut().push(state);
            let count = tried.borrow().len();
            let newer = vec![u8::try_from(count).unwrap()];
            std::future::ready(Ok((count <= conflicts).then_some(newer)))
        };
        let outcome = write_over("db", vec![0], change, attempt).await;
        (outcome, tried.into_inner())
    }

    #[tokio::test]
    async fn order_that_meets_a_conflict_is_carried_out_over_the_newer_state() {
        let change = |state: &mut Vec<u8>| {
            state.push(9);
            Ok(())
        };
        let (outcome, tried) = written(2, change).await;
        assert_eq!(outcome, Ok(()));
        assert_eq!(tried, [[0, 9], [1, 9], [2, 9]]);
        let (outcome, tried) = written(ATTEMPTS, change).await;
        assert_eq!(outcome.unwrap_err().exit(), Exit::TryAgain);
        assert_eq!(tried.len(), ATTEMPTS, "it is bounded");
    }

    #[tokio::test]
    async fn order_that_the_newer_state_refuses_is_not_written() {
        let change = |state: &mut Vec<u8>| {
            if *state == [0] {
                return Ok(());
            }
            Err(overtaken("db"))
        };
        let (outcome, tried) = written(1, change).await;
        assert_eq!(outcome, Err(overtaken("db")));
        assert_eq!(tried, [[0]]);
    }
}
