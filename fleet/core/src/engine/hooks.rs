//! Hooks: questions to the operator's programs. The answer is an annotation of the deployment.
//!
//! Only deployments of people ask, so that no hook holds a rollback or a repair up. A hook is asked
//! once, and what it allowed stays allowed. A denial counts at any time before the end.

use protocol::fleet::{
    BlockedBy, DeploymentKind, DeploymentState, GroupState, Hook, HookMoment, HookStatus,
};
use protocol::time::WallTime;

use super::action::Write;
use super::gates::leave_gate;
use crate::permit::Gate;
use crate::world::{Deployment, Revision};

/// Whether the deployment goes on.
pub(super) enum Hold {
    /// No hook holds it.
    Free,
    /// A hook that was asked has not answered.
    Waits,
    /// The question or the answer is written.
    Write(Box<Write>),
}

/// Whether a hook holds the deployment. `is_done`: no guest is left to change.
pub(super) fn hold(one: &Deployment, revision: &Revision, is_done: bool, now: WallTime) -> Hold {
    let Some(hook) = due(one, revision, is_done) else {
        return Hold::Free;
    };
    let mut status = one.status.clone();
    let known = status
        .hooks
        .iter_mut()
        .find(|asked| asked.name == hook.name);
    let may_go = matches!(answer(one, hook), Some(Ok(())));
    match known {
        Some(asked) if may_go => asked.allowed_at = Some(now),
        Some(_) if is_said(one, hook) => return Hold::Waits,
        Some(_) => {}
        None => status.hooks.push(HookStatus {
            name: hook.name.clone(),
            asked_at: now,
            allowed_at: may_go.then_some(now),
        }),
    }
    leave_gate(&mut status, now);
    status.state = DeploymentState::InProgress;
    if !may_go {
        status.state = DeploymentState::Blocked;
        status.blocked_by = Some(BlockedBy {
            gate: Gate::Hook.as_str().to_owned(),
            detail: question(hook),
            since: now,
        });
    }
    Hold::Write(Box::new(Write::Deployment {
        name: one.name.clone(),
        status,
    }))
}

fn question(hook: &Hook) -> String {
    format!(
        "{} has not answered: set the annotation {} of the deployment to allow, or to deny: REASON",
        hook.name,
        hook.key()
    )
}

fn is_said(one: &Deployment, hook: &Hook) -> bool {
    let by = one.status.blocked_by.as_ref();
    by.is_some_and(|by| by.gate == Gate::Hook.as_str() && by.detail == question(hook))
}

/// The first hook whose moment has come and that has not allowed it.
fn due<'a>(one: &Deployment, revision: &'a Revision, is_done: bool) -> Option<&'a Hook> {
    if one.spec.kind != DeploymentKind::User {
        return None;
    }
    let states = one.status.groups.iter().map(|group| group.state);
    let passed = states
        .take_while(|state| *state == GroupState::Passed)
        .count();
    let groups = &revision.rollout.groups;
    let has_come = |hook: &Hook| {
        let group = groups.iter().position(|group| group.name == hook.group);
        match (hook.at, group) {
            (HookMoment::Before, None) => true,
            (HookMoment::Before, Some(index)) => index <= passed,
            (HookMoment::After, None) => is_done,
            (HookMoment::After, Some(index)) => index < passed,
        }
    };
    let is_allowed = |hook: &Hook| {
        let mut asked = one.status.hooks.iter();
        asked.any(|asked| asked.name == hook.name && asked.allowed_at.is_some())
    };
    let mut all = revision.rollout.hooks.iter();
    all.find(|hook| has_come(hook) && !is_allowed(hook))
}

/// What the annotation says. An error is the reason of a denial. Other texts are no answer.
fn answer(one: &Deployment, hook: &Hook) -> Option<Result<(), String>> {
    let text = one.answers.get(&hook.name)?.trim();
    if text == "allow" {
        return Some(Ok(()));
    }
    let reason = text.strip_prefix("deny")?;
    let reason = match reason.strip_prefix(':') {
        Some(reason) => reason.trim(),
        None if reason.is_empty() => "",
        None => return None,
    };
    Some(Err(reason.to_owned()))
}

/// Why hooks halt the deployment.
pub(super) fn veto(one: &Deployment, revision: &Revision, now: WallTime) -> Option<String> {
    if one.spec.kind != DeploymentKind::User || one.status.state == DeploymentState::ToBeStopped {
        return None;
    }
    revision.rollout.hooks.iter().find_map(|hook| {
        if let Some(Err(reason)) = answer(one, hook) {
            return Some(match reason.as_str() {
                "" => format!("hook {} denied it", hook.name),
                _ => format!("hook {} denied it: {reason}", hook.name),
            });
        }
        let mut asked = one.status.hooks.iter();
        let asked = asked.find(|asked| asked.name == hook.name && asked.allowed_at.is_none())?;
        if answer(one, hook).is_some() {
            return None;
        }
        let waited = now.0.saturating_sub(asked.asked_at.0) / 1_000_000;
        let is_late = u64::try_from(waited).is_ok_and(|waited| waited >= hook.timeout_seconds);
        let limit = hook.timeout_seconds;
        is_late.then(|| format!("hook {} did not answer within {limit} s", hook.name))
    })
}
