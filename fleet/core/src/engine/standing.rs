//! Standing of each guest in a deployment, from the objects and the guest's report alone.

use protocol::fleet::{DeploymentKind, Progress, TurnResult, TurnVerb};
use protocol::parts::{PartPhase, PartSource, PartState};

use crate::groups::group_of;
use crate::world::{Deployment, Guest, Observed, Revision, World};

/// Longest pause between two turns of a guest.
pub(super) const LONGEST_PAUSE_SECONDS: u64 = 1800;

/// Standing of a guest in a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Does not take part.
    Outside,
    /// Runs the program, settled.
    Done,
    /// Its trials ended badly, and no attempt is left.
    Failed,
    /// Was left as it is.
    Skipped,
    /// Has a turn.
    InFlight,
    /// Waits behind a gate of its own for so long that the deployment goes on without it.
    Deferred,
    /// May have a turn. The number is that of the attempt.
    Waiting(u32),
}

/// Figures of a deployment.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) progress: Progress,
    pub(super) waiting: u32,
    /// One line for each guest in which a trial ended badly.
    pub(super) bad: Vec<String>,
}

pub(super) fn is_member(
    deployment: &Deployment,
    revision: &Revision,
    name: &str,
    guest: &Guest,
) -> bool {
    let named = &deployment.spec.instances;
    let is_named = named.is_empty() || named.iter().any(|one| one == name);
    let belongs = if guest.has_left {
        deployment.spec.kind == DeploymentKind::GroupChange
    } else {
        group_of(&revision.rollout.groups, &guest.labels).is_some()
    };
    guest.takes_part() && belongs && is_named
}

/// What a turn of the guest does: those that left the environment return to their image's program.
pub(super) const fn verb_of(guest: &Guest) -> TurnVerb {
    if guest.has_left {
        TurnVerb::Back
    } else {
        TurnVerb::Try
    }
}

/// Whether the guest runs a program that no turn brought.
pub(super) fn is_back(part: &PartState) -> bool {
    matches!(part.from, PartSource::Image | PartSource::Package) && part.phase != PartPhase::Trial
}

pub(super) fn standing(
    deployment: &Deployment,
    revision: &Revision,
    name: &str,
    guest: &Guest,
) -> Standing {
    match of_objects(deployment, revision, name, guest) {
        Standing::Waiting(_) if guest.is_deferred => Standing::Deferred,
        standing => standing,
    }
}

fn of_objects(deployment: &Deployment, revision: &Revision, name: &str, guest: &Guest) -> Standing {
    if guest.is_in_flight() {
        let is_own = is_of(deployment, guest);
        return if is_own || is_member(deployment, revision, name, guest) {
            Standing::InFlight
        } else {
            Standing::Outside
        };
    }
    if !is_member(deployment, revision, name, guest) {
        return Standing::Outside;
    }
    let seen = match &guest.observed {
        Observed::Seen(part) => Some(&part.state),
        _ => None,
    };
    let runs_it = seen.is_some_and(|part| match verb_of(guest) {
        TurnVerb::Back => is_back(part),
        TurnVerb::Try => part.sha256 == revision.program.sha256 && part.phase != PartPhase::Trial,
    });
    if runs_it {
        return Standing::Done;
    }
    let Some((turn, last)) = guest.turn.as_ref().zip(guest.last.as_ref()) else {
        return Standing::Waiting(1);
    };
    if !is_of(deployment, guest) || turn.verb != verb_of(guest) {
        return Standing::Waiting(1);
    }
    match last.last.result {
        // The report may be older than the end of the turn.
        TurnResult::Good if seen.is_none_or(|part| part.token == turn.token) => Standing::Done,
        TurnResult::Good => Standing::Waiting(1),
        TurnResult::Skip => Standing::Skipped,
        TurnResult::Wait => Standing::Waiting(turn.attempt),
        TurnResult::Bad if turn.attempt > revision.rollout.retries => Standing::Failed,
        TurnResult::Bad => Standing::Waiting(turn.attempt.saturating_add(1)),
    }
}

pub(super) fn is_of(deployment: &Deployment, guest: &Guest) -> bool {
    let of_turn = guest.turn.as_ref().map(|turn| turn.deployment.as_str());
    of_turn == Some(deployment.name.as_str())
}

/// Reason of the last bad trial of a guest in this deployment, unless it runs the program by now.
pub(super) fn bad_trial(
    deployment: &Deployment,
    guest: &Guest,
    standing: Standing,
) -> Option<String> {
    if standing == Standing::Done || !is_of(deployment, guest) {
        return None;
    }
    // While a turn is open, the last end is that of a turn before, perhaps of another deployment.
    let last = guest.last.as_ref().map(|part| &part.last);
    let ended_badly = last.filter(|last| last.result == TurnResult::Bad && !guest.is_in_flight());
    let is_repeated = guest.turn.as_ref().is_some_and(|turn| turn.attempt > 1);
    match ended_badly {
        Some(last) => Some(last.reason.clone()),
        None => is_repeated.then(|| "an attempt before ended badly".to_owned()),
    }
}

pub(super) fn tally(world: &World, deployment: &Deployment, revision: &Revision) -> Tally {
    let mut tally = Tally::default();
    for (name, guest) in &world.guests {
        let standing = standing(deployment, revision, name, guest);
        if standing == Standing::Outside {
            continue;
        }
        tally.progress.total += 1;
        match standing {
            Standing::Done => tally.progress.done += 1,
            Standing::Skipped => tally.progress.skipped += 1,
            Standing::InFlight => tally.progress.in_flight += 1,
            Standing::Waiting(_) => tally.waiting += 1,
            Standing::Deferred => tally.progress.deferred += 1,
            Standing::Failed | Standing::Outside => {}
        }
        if let Some(reason) = bad_trial(deployment, guest, standing) {
            tally.progress.failed += 1;
            tally.bad.push(format!("{name}: {reason}"));
        }
    }
    tally
}

/// Guests whose trials may end badly.
pub(super) fn allowed_bad(total: u32, revision: &Revision) -> u32 {
    let share = u64::from(total) * u64::from(revision.rollout.max_failed_percent) / 100;
    u32::try_from(share).unwrap_or(u32::MAX)
}
