//! Groups of a deployment: which one goes, which guests of it, and what the judge says of a bake.
//!
//! The state of each group is in the deployment's status, so that a bake that passed stays passed
//! when the engine ends. A critical release has groups in order, without bakes.

use std::collections::BTreeSet;

use protocol::fleet::{
    DeploymentKind, DeploymentStatus, Group, GroupState, GroupStatus, OnInconclusive,
};
use protocol::time::WallTime;

use super::action::{Now, Write};
use super::standing::{Standing, bad_trial, is_member, is_of, standing, tally};
use crate::groups::{Candidate, canaries, group_of};
use crate::hash;
use crate::judge::{Bake, Judgement, LOOKS, Readings, judge};
use crate::permit::Gate;
use crate::world::{Deployment, Guest, Revision, World};

/// Guests of the control group for each changed one.
const CONTROLS: usize = 4;

/// The group that goes, and its members.
pub(super) struct Stage<'a> {
    pub(super) name: &'a str,
    index: usize,
    state: GroupState,
    group: &'a Group,
    members: Vec<(&'a str, &'a Guest, Standing)>,
    canaries: BTreeSet<&'a str>,
}

/// Whether guests go in the order of groups: what people start does.
pub(super) fn has_groups(deployment: &Deployment, revision: &Revision) -> bool {
    deployment.spec.kind == DeploymentKind::User && !revision.rollout.groups.is_empty()
}

/// Whether every group has passed.
pub(super) fn is_passed(deployment: &Deployment, revision: &Revision) -> bool {
    let groups = &deployment.status.groups;
    !has_groups(deployment, revision)
        || (groups.len() == revision.rollout.groups.len()
            && groups.iter().all(|one| one.state == GroupState::Passed))
}

/// The first group that has not passed.
pub(super) fn stage<'a>(
    world: &'a World,
    deployment: &Deployment,
    revision: &'a Revision,
) -> Option<Stage<'a>> {
    if !has_groups(deployment, revision) {
        return None;
    }
    let states = deployment.status.groups.iter().map(|one| one.state);
    let index = states
        .take_while(|state| *state == GroupState::Passed)
        .count();
    let group = revision.rollout.groups.get(index)?;
    let known = deployment.status.groups.get(index);
    let members = members(world, deployment, revision, index);
    let candidates: Vec<Candidate<'a>> = members
        .iter()
        .map(|(name, guest, standing)| (name, guest, standing, is_of(deployment, guest)))
        .filter(|(_, _, standing, is_touched)| {
            *is_touched || matches!(standing, Standing::Waiting(_))
        })
        .map(|(name, guest, _, is_touched)| Candidate {
            name,
            guest,
            is_touched,
        })
        .collect();
    Some(Stage {
        name: &group.name,
        index,
        state: known.map_or(GroupState::Waiting, |one| one.state),
        group,
        canaries: canaries(&candidates, group.canaries, &deployment.name),
        members,
    })
}

fn members<'a>(
    world: &'a World,
    deployment: &Deployment,
    revision: &Revision,
    index: usize,
) -> Vec<(&'a str, &'a Guest, Standing)> {
    let of_group = world.guests.iter().filter(|(name, guest)| {
        group_of(&revision.rollout.groups, &guest.labels) == Some(index)
            && is_member(deployment, revision, name, guest)
    });
    of_group
        .map(|(name, guest)| {
            let standing = standing(deployment, revision, name, guest);
            (name.as_str(), guest, standing)
        })
        .collect()
}

impl Stage<'_> {
    /// Gate of a waiting guest, while its group or its part of it does not go.
    pub(super) fn gate(&self, name: &str, deployment: &Deployment) -> Option<Gate> {
        if !self.members.iter().any(|(member, ..)| *member == name) {
            return Some(Gate::Group);
        }
        match self.state {
            GroupState::Canaries if self.canaries.contains(name) => None,
            GroupState::Rest => None,
            GroupState::Canaries | GroupState::Waiting | GroupState::Passed => Some(Gate::Group),
            GroupState::CanariesBake | GroupState::Bake => Some(self.bake_gate(deployment)),
        }
    }

    /// Gate of a bake. A judge without figures is another one: only a person opens it.
    pub(super) fn bake_gate(&self, deployment: &Deployment) -> Gate {
        let known = deployment.status.groups.get(self.index);
        match known.is_some_and(|one| one.judgement.starts_with(INCONCLUSIVE)) {
            true => Gate::Inconclusive,
            false => Gate::Bake,
        }
    }

    fn is_open(&self, canaries_only: bool) -> bool {
        self.members.iter().any(|(name, _, standing)| {
            let counts = !canaries_only || self.canaries.contains(name);
            counts && matches!(standing, Standing::Waiting(_) | Standing::InFlight)
        })
    }
}

/// First word of the text of a judge without figures.
const INCONCLUSIVE: &str = "inconclusive";

/// Why the groups halt the deployment.
pub(super) fn harm(
    world: &World,
    deployment: &Deployment,
    revision: &Revision,
    now: WallTime,
) -> Option<Vec<String>> {
    let stage = stage(world, deployment, revision)?;
    let of_canaries = stage.members.iter().filter(|(name, ..)| {
        stage.canaries.contains(name) && stage.state <= GroupState::CanariesBake
    });
    let bad: Vec<String> = of_canaries
        .filter_map(|(name, guest, standing)| {
            let reason = bad_trial(deployment, guest, *standing)?;
            Some(format!("{name}: {reason}"))
        })
        .collect();
    if bad.len() > 1 || (bad.len() == 1 && stage.canaries.len() == 1) {
        return Some(bad);
    }
    match judged(world, deployment, &stage, revision, now)? {
        Judgement::Halt(reason) => Some(vec![format!("group {}: {reason}", stage.name)]),
        Judgement::Pass | Judgement::Wait(_) | Judgement::Inconclusive(_) => None,
    }
}

/// What the judge says of the bake that runs.
fn judged(
    world: &World,
    deployment: &Deployment,
    stage: &Stage<'_>,
    revision: &Revision,
    now: WallTime,
) -> Option<Judgement> {
    let status = deployment.status.groups.get(stage.index)?;
    let baked = seconds_since(status.baking_since?, now);
    let changed = stage
        .members
        .iter()
        .filter(|(_, guest, standing)| is_of(deployment, guest) && *standing == Standing::Done);
    let changed: Vec<&Readings> = changed
        .filter_map(|(_, guest, _)| guest.readings.as_ref())
        .collect();
    let control = control(world, deployment, revision, changed.len());
    let stages = revision.rollout.groups.iter();
    let bakes: u32 = stages
        .map(|group| if group.canaries > 0 { 2 } else { 1 })
        .sum();
    let bake = Bake {
        changed: &changed,
        control: &control,
        matches: tally(world, deployment, revision).progress.total,
        baked,
        bake_seconds: stage.group.bake_seconds,
        is_look: look(stage.group, baked) > status.looks,
        bakes,
    };
    Some(judge(&bake, &revision.rollout.judge))
}

/// Guests of the release before, the same ones at each look.
fn control<'a>(
    world: &'a World,
    deployment: &Deployment,
    revision: &Revision,
    changed: usize,
) -> Vec<&'a Readings> {
    let all = waiting(world, deployment, revision).into_iter();
    let with_readings = all.filter_map(|(_, guest)| guest.readings.as_ref());
    with_readings.take(changed.max(1) * CONTROLS).collect()
}

/// Guests that wait for their turn, in the order in which they are of the control group.
fn waiting<'a>(
    world: &'a World,
    deployment: &Deployment,
    revision: &Revision,
) -> Vec<(&'a String, &'a Guest)> {
    let waits = |name: &str, guest: &Guest| {
        let standing = standing(deployment, revision, name, guest);
        matches!(standing, Standing::Waiting(_))
    };
    let all = world.guests.iter();
    let mut all: Vec<_> = all.filter(|(name, guest)| waits(name, guest)).collect();
    all.sort_by_key(|(name, _)| hash::of(&["control", &deployment.name, name]));
    all
}

/// Guests whose readings a judge compares now: those that the deployment with the lock has changed,
/// and its control group. Empty if the deployment has no groups.
#[must_use]
pub fn watched(world: &World) -> BTreeSet<String> {
    let lock = world.environment.status.lock.as_ref();
    let of_lock = |one: &&Deployment| lock.is_some_and(|lock| lock.deployment == one.name);
    let Some(deployment) = world.deployments.iter().find(of_lock) else {
        return BTreeSet::new();
    };
    let revision = world.revisions.get(&deployment.spec.revision);
    let Some(revision) = revision.filter(|revision| has_groups(deployment, revision)) else {
        return BTreeSet::new();
    };
    let is_changed = |name: &str, guest: &Guest| {
        is_of(deployment, guest) && standing(deployment, revision, name, guest) == Standing::Done
    };
    let changed = world.guests.iter();
    let changed = changed.filter(|(name, guest)| is_changed(name, guest));
    let mut watched: BTreeSet<String> = changed.map(|(name, _)| name.clone()).collect();
    let controls = watched.len().max(1) * CONTROLS;
    let waiting = waiting(world, deployment, revision).into_iter();
    watched.extend(waiting.take(controls).map(|(name, _)| name.clone()));
    watched
}

fn seconds_since(since: WallTime, now: WallTime) -> u64 {
    u64::try_from(now.0.saturating_sub(since.0)).unwrap_or(0) / 1_000_000
}

/// Number of the look that is due: one each quarter of the bake.
fn look(group: &Group, baked: u64) -> u32 {
    let quarters = baked.saturating_mul(4) / group.bake_seconds.max(1);
    u32::try_from(quarters).unwrap_or(u32::MAX).min(LOOKS)
}

/// The write that takes the groups a step further.
pub(super) fn next(
    world: &World,
    deployment: &Deployment,
    revision: &Revision,
    now: Now,
) -> Option<Write> {
    let stage = stage(world, deployment, revision)?;
    let mut groups = figures(world, deployment, revision);
    let known = groups.get_mut(stage.index)?;
    let before = known.clone();
    advance(known, &stage, world, deployment, revision, now.wall);
    let is_new = deployment.status.groups.len() != groups.len();
    if !is_new && groups.get(stage.index) == Some(&before) {
        return None;
    }
    Some(Write::Deployment {
        name: deployment.name.clone(),
        status: DeploymentStatus {
            groups,
            ..deployment.status.clone()
        },
    })
}

/// Groups with their present numbers.
pub(super) fn figures(
    world: &World,
    deployment: &Deployment,
    revision: &Revision,
) -> Vec<GroupStatus> {
    if !has_groups(deployment, revision) {
        return Vec::new();
    }
    let groups = revision.rollout.groups.iter().enumerate();
    groups
        .map(|(index, group)| {
            let known = deployment.status.groups.get(index);
            let members = members(world, deployment, revision, index);
            let done = members
                .iter()
                .filter(|(_, _, standing)| *standing == Standing::Done);
            let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            GroupStatus {
                name: group.name.clone(),
                state: known.map_or(GroupState::Waiting, |one| one.state),
                done: count(done.count()),
                total: count(members.len()),
                judgement: known.map_or_else(String::new, |one| one.judgement.clone()),
                looks: known.map_or(0, |one| one.looks),
                baking_since: known.and_then(|one| one.baking_since),
            }
        })
        .collect()
}

fn advance(
    status: &mut GroupStatus,
    stage: &Stage<'_>,
    world: &World,
    deployment: &Deployment,
    revision: &Revision,
    now: WallTime,
) {
    let is_touched = stage
        .members
        .iter()
        .any(|(_, guest, _)| is_of(deployment, guest));
    let bakes = stage.group.bake_seconds > 0 && !world.is_critical && is_touched;
    let baking = |status: &mut GroupStatus, state| {
        status.state = state;
        status.baking_since = Some(now);
        status.looks = 0;
        status.judgement.clear();
    };
    match status.state {
        GroupState::Waiting if stage.canaries.is_empty() => status.state = GroupState::Rest,
        GroupState::Waiting => status.state = GroupState::Canaries,
        GroupState::Canaries if stage.is_open(true) => {}
        GroupState::Canaries if bakes => baking(status, GroupState::CanariesBake),
        GroupState::Canaries => status.state = GroupState::Rest,
        GroupState::Rest if stage.is_open(false) => {}
        GroupState::Rest if bakes => baking(status, GroupState::Bake),
        GroupState::Rest => status.state = GroupState::Passed,
        GroupState::CanariesBake | GroupState::Bake if !bakes => passed(status),
        GroupState::CanariesBake | GroupState::Bake => {
            let judgement = judged(world, deployment, stage, revision, now);
            let baked = status
                .baking_since
                .map_or(0, |since| seconds_since(since, now));
            status.looks = status.looks.max(look(stage.group, baked));
            // A person may change the environment to let the deployment go on.
            let proceeds = [&revision.rollout, &world.environment.spec.rollout]
                .iter()
                .any(|rollout| rollout.on_inconclusive == OnInconclusive::Proceed);
            match judgement {
                Some(Judgement::Inconclusive(text)) if !proceeds => {
                    status.judgement = format!("{INCONCLUSIVE}: {text}");
                }
                Some(Judgement::Pass | Judgement::Inconclusive(_)) => passed(status),
                Some(Judgement::Wait(_) | Judgement::Halt(_)) | None => {}
            }
        }
        GroupState::Passed => {}
    }
}

fn passed(status: &mut GroupStatus) {
    "passed".clone_into(&mut status.judgement);
    status.baking_since = None;
    status.state = match status.state {
        GroupState::CanariesBake => GroupState::Rest,
        _ => GroupState::Passed,
    };
}
