//! What must hold of a rollout.
//!
//! | invariant | method |
//! |---|---|
//! | F2 one deployment gives turns, and the lock names it | `one_deployment_runs` |
//! | F3 a turn leaves enough settled healthy guests | `turn_leaves_enough` |
//! | F4 a token acts once | `tokens_act_once` |
//! | F5 no trial begins outside of a window | `before_try` |
//! | F6 a guest runs programs of revisions alone | `programs_are_known` |
//! | F7 the epochs of turns grow | `after` |
//! | F8 no trial begins during a resize, a move or under pressure | `before_try` |
//! | F9 the parts of a guest do not change at once | `before_try` |
//! | F10 no trial begins beside a peer without a common version | `before_try` |
//! | F11 a release that the judge halts reaches canaries and a batch | `harm_is_bounded` |
//! | F12 what waits names its gate | `waiting_names_its_gate` |
//! | F13 a terminal deployment has no lock | `terminal_has_no_lock` |
//! | F14 a lower epoch changes nothing | `epochs_never_fall` |
//! | F15 a record that is refused does not hold the others | `after` |
//! | F16 no trial outlives its time | `trials_end` |
//! | F18 the same events bring the same actions | `Run::act` |
//! | F1, F17 at rest all run one program, and nothing is open | `at_rest` |
//! | a bad release is kept by no guest | `bad_releases_are_not_kept` |

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::permit::Gate;
use fleet_core::{Deployment, World, Write};
use protocol::fleet::{DeploymentKind, DeploymentState, TurnResult};

use super::guest::{PlayedGuest, Release};
use super::run::{Shape, TRIAL_LIMIT, TRIAL_SECONDS};
use super::store::{MOST_CANARIES, Store, labels};

/// Time before the end of a window by which trials begin, seconds.
const TAIL_SECONDS: u64 = TRIAL_SECONDS + 60;
/// Time for which a terminal deployment may have the lock, seconds.
const LOCK_SECONDS: u64 = 900;
/// Turns that may be refused in a row: one record, with pauses that double.
const MOST_REFUSED: u32 = 20;
/// Time for which a deployment may wait without a gate, seconds.
const GATE_SECONDS: u64 = 900;

#[derive(Debug, Default)]
pub(super) struct Checks {
    /// Guests that were settled and healthy in the newest world.
    healthy: BTreeSet<String>,
    all: u32,
    stuck: u64,
    idle: u64,
}

impl Checks {
    pub(super) fn saw(&mut self, world: &World) {
        let healthy = world
            .guests
            .iter()
            .filter(|(_, guest)| fleet_core::proof::health(guest) == Some(true));
        self.healthy = healthy.map(|(name, _)| name.clone()).collect();
        let groups = &world.environment.spec.rollout.groups;
        let of_group = world.guests.values().filter(|guest| {
            let group = fleet_core::groups::group_of(groups, &guest.labels);
            guest.has_left || group.is_some()
        });
        self.all = u32::try_from(of_group.count()).unwrap_or(u32::MAX);
    }

    pub(super) fn before_write(&self, store: &Store, write: &Write) -> Result<(), String> {
        match write {
            Write::Turn { guest, turn } => {
                if turn.attempt > store.rollout.retries + 1 {
                    return Err(format!("B40: attempt {} in {guest}", turn.attempt));
                }
                self.turn_leaves_enough(store, guest)
            }
            _ => Ok(()),
        }
    }

    fn in_flight(store: &Store) -> BTreeSet<&String> {
        let open = store.turns_of.iter().filter(|(_, (turn, last))| {
            let ended = last.as_ref().map(|part| &part.last.token);
            turn.as_ref().is_some_and(|turn| ended != Some(&turn.token))
        });
        open.map(|(name, _)| name).collect()
    }

    fn turn_leaves_enough(&self, store: &Store, guest: &String) -> Result<(), String> {
        let in_flight = Self::in_flight(store);
        if in_flight.contains(guest) {
            return Err(format!("F3: {guest} gets a second turn"));
        }
        let settled = self.healthy.iter().filter(|name| {
            let is_outside = store.shape == Shape::Groups && labels(store.shape, name).is_empty();
            !in_flight.contains(name) && !is_outside
        });
        let before = settled.count() as u64;
        if !self.healthy.contains(guest) {
            return Ok(());
        }
        let (n, m) = (
            u64::from(self.all),
            u64::from(store.rollout.min_healthy_percent),
        );
        let after = before.saturating_sub(1);
        let has_step = n * (100 - m) >= 100;
        let is_enough = if has_step {
            after * 100 >= n * m
        } else {
            after + 1 >= n
        };
        if is_enough {
            Ok(())
        } else {
            Err(format!(
                "F3: {after} of {n} stay healthy with {guest} away, at {m} %"
            ))
        }
    }

    pub(super) fn after(
        &mut self,
        store: &Store,
        guests: &BTreeMap<String, PlayedGuest>,
        second: u64,
    ) -> Result<(), String> {
        one_deployment_runs(store)?;
        self.turns_leave_enough(store)?;
        self.terminal_has_no_lock(store)?;
        self.waiting_names_its_gate(store)?;
        for (name, guest) in guests {
            tokens_act_once(name, guest)?;
            epochs_never_fall(name, guest)?;
            trials_end(name, guest, second)?;
        }
        harm_is_bounded(store)?;
        programs_are_known(store, guests)?;
        if store.has_fallen {
            return Err("F7: the epoch of a turn is not above the one before".to_owned());
        }
        if store.refused > MOST_REFUSED {
            return Err(format!("F15: {} turns in a row are refused", store.refused));
        }
        bad_releases_are_not_kept(store, guests)
    }

    /// `seconds`: that of the engine's newest world, and this one.
    pub(super) fn before_try(
        &self,
        store: &Store,
        played: &PlayedGuest,
        name: &str,
        (saw, second): (u64, u64),
    ) -> Result<(), String> {
        if played.held_since < saw && second < played.held_until {
            return Err(match played.held_by {
                Gate::PeerInFlight => format!("F9: both ends of a link change in {name}"),
                Gate::Skew => format!("F10: {name} and its peer speak no common version"),
                gate => format!("F8: a trial begins in {name} behind {gate:?}"),
            });
        }
        let open = [1000..=2200 - TAIL_SECONDS, 2500..=4900 - TAIL_SECONDS];
        let is_open = open
            .iter()
            .any(|one| one.contains(&saw) || one.contains(&second));
        let turn = store.turns_of.get(name).and_then(|(turn, _)| turn.as_ref());
        let deployment = turn.and_then(|turn| {
            let mut all = store.deployments.iter();
            all.find(|one| one.name == turn.deployment)
        });
        let is_back = deployment.is_some_and(|one| one.spec.kind == DeploymentKind::Rollback);
        let is_young = played
            .booted
            .is_some_and(|booted| saw - booted.min(saw) < 600);
        let is_urgent = is_back || is_young || !self.healthy.contains(name);
        if store.shape == Shape::Windows && !is_open && !is_urgent {
            return Err(format!("F5: a trial begins in {name} outside of a window"));
        }
        Ok(())
    }

    /// The turns of all engines together keep the limit of turns at once.
    fn turns_leave_enough(&self, store: &Store) -> Result<(), String> {
        let open = u32::try_from(Self::in_flight(store).len()).unwrap_or(u32::MAX);
        if open > store.rollout.max_in_flight {
            return Err(format!("F3: {open} turns at once"));
        }
        Ok(())
    }

    fn terminal_has_no_lock(&mut self, store: &Store) -> Result<(), String> {
        let lock = store.environment.status.lock.as_ref();
        let held = lock.and_then(|lock| {
            store
                .deployments
                .iter()
                .find(|one| one.name == lock.deployment)
        });
        let is_stuck = held.is_some_and(|one| one.status.state.is_terminal());
        self.stuck = if is_stuck { self.stuck + 1 } else { 0 };
        if self.stuck > LOCK_SECONDS {
            return Err("F13: a terminal deployment has the lock".to_owned());
        }
        Ok(())
    }

    fn waiting_names_its_gate(&mut self, store: &Store) -> Result<(), String> {
        let running = store.deployments.iter().find(|one| {
            matches!(
                one.status.state,
                DeploymentState::InProgress | DeploymentState::Blocked
            )
        });
        let is_silent = running.is_some_and(|one| one.status.blocked_by.is_none());
        let is_idle = is_silent && Self::in_flight(store).is_empty();
        self.idle = if is_idle { self.idle + 1 } else { 0 };
        let is_unnamed = running.is_some_and(|one| {
            one.status.state == DeploymentState::Blocked && one.status.blocked_by.is_none()
        });
        if is_unnamed || self.idle > GATE_SECONDS {
            return Err("F12: a deployment waits without a gate".to_owned());
        }
        Ok(())
    }

    pub(super) fn at_rest(
        &self,
        store: &Store,
        guests: &BTreeMap<String, PlayedGuest>,
    ) -> Result<(), String> {
        if let Some(name) = Self::in_flight(store).first() {
            return Err(format!("F17: {name} has an open turn"));
        }
        let open = |one: &&Deployment| !one.status.state.is_terminal() && !store.never_ends(one);
        if let Some(one) = store.deployments.iter().find(open) {
            return Err(format!("F12: {} is {:?}", one.name, one.status));
        }
        if let Some(lock) = &store.environment.status.lock {
            let mut deployments = store.deployments.iter();
            let holder = deployments.find(|one| one.name == lock.deployment);
            if !holder.is_some_and(|holder| store.never_ends(holder)) {
                return Err(format!("F17: {} has the lock", lock.deployment));
            }
        }
        one_version_runs(store, guests)?;
        let honest = guests.values().filter(|guest| !guest.has_lied);
        let of_version: BTreeSet<Release> = honest.map(|guest| guest.running).collect();
        if of_version.iter().any(|release| release.is_bad()) {
            return Err(format!("F11: a bad release runs: {of_version:?}"));
        }
        Ok(())
    }
}

/// If the newest deployment of all guests is complete, they run its program. Guests in which the
/// program failed, and guests in no group, do not.
fn one_version_runs(store: &Store, guests: &BTreeMap<String, PlayedGuest>) -> Result<(), String> {
    let started = store
        .deployments
        .iter()
        .filter(|one| !one.spec.kind.is_of_monitor() && one.status.started_at.is_some());
    let newest = started.max_by_key(|one| one.created);
    let Some(newest) = newest.filter(|one| {
        one.status.state == DeploymentState::Complete
            && one.spec.kind == DeploymentKind::User
            && !one.spec.stop
    }) else {
        return Ok(());
    };
    if store.shape == Shape::Windows {
        return Ok(());
    }
    let wanted = store
        .revisions
        .get(&newest.spec.revision)
        .map(|one| &one.program.sha256);
    for (name, guest) in guests {
        let last = store.turns_of.get(name).and_then(|(_, last)| last.as_ref());
        let has_failed = last.is_some_and(|last| last.last.result == TurnResult::Bad);
        let is_outside = store.shape == Shape::Groups && labels(store.shape, name).is_empty();
        if guest.has_lied || store.poison.as_ref() == Some(name) {
            continue;
        }
        if !guest.matches {
            left_runs_its_image(name, guest)?;
            continue;
        }
        if !has_failed && !is_outside && wanted != Some(&guest.running.sha256()) {
            let running = guest.running;
            return Err(format!("F1: {name} runs {running:?} after {}", newest.name));
        }
    }
    Ok(())
}

/// A guest that left the environment runs its image's program at rest.
fn left_runs_its_image(name: &str, guest: &PlayedGuest) -> Result<(), String> {
    match guest.running {
        Release::Image => Ok(()),
        running => Err(format!("B16: {name} has left and runs {running:?}")),
    }
}

/// A deployment of a release that passes its trials and does harm ends at the canaries.
fn harm_is_bounded(store: &Store) -> Result<(), String> {
    let mut reached: BTreeMap<&str, u32> = BTreeMap::new();
    let turns = store
        .turns_of
        .values()
        .filter_map(|(turn, _)| turn.as_ref());
    for turn in turns.filter(|turn| Release::of(&turn.sha256) == Release::Harms) {
        *reached.entry(&turn.deployment).or_default() += 1;
    }
    let most = MOST_CANARIES + store.rollout.max_in_flight;
    match reached.iter().find(|(_, count)| **count > most) {
        Some((name, count)) => Err(format!("F11: {name} does harm to {count} guests")),
        None => Ok(()),
    }
}

fn one_deployment_runs(store: &Store) -> Result<(), String> {
    let running: Vec<&str> = store
        .deployments
        .iter()
        .filter(|one| {
            one.status.state != DeploymentState::Pending && !one.status.state.is_terminal()
        })
        .map(|one| one.name.as_str())
        .collect();
    let lock = store.environment.status.lock.as_ref();
    let named = lock.map(|lock| lock.deployment.as_str());
    match running[..] {
        [] => Ok(()),
        [one] if named == Some(one) => Ok(()),
        _ => Err(format!("F2: {running:?} run, and the lock names {named:?}")),
    }
}

fn tokens_act_once(name: &str, guest: &PlayedGuest) -> Result<(), String> {
    match guest.tries.iter().find(|(_, times)| **times > 1) {
        Some((token, times)) => Err(format!("F4: {token} began {times} trials in {name}")),
        None => Ok(()),
    }
}

fn epochs_never_fall(name: &str, guest: &PlayedGuest) -> Result<(), String> {
    if guest.took_lower {
        return Err(format!("F14: {name} carried out an order of a lower epoch"));
    }
    Ok(())
}

fn trials_end(name: &str, guest: &PlayedGuest, second: u64) -> Result<(), String> {
    match guest.trial_age(second) {
        Some(age) if age > TRIAL_LIMIT.as_millis() / 1000 => {
            Err(format!("F16: the trial in {name} lasts {age} s"))
        }
        _ => Ok(()),
    }
}

/// What runs was named by a revision, or came with the image.
fn programs_are_known(store: &Store, guests: &BTreeMap<String, PlayedGuest>) -> Result<(), String> {
    let known: BTreeSet<&String> = store
        .revisions
        .values()
        .map(|one| &one.program.sha256)
        .collect();
    for (name, guest) in guests {
        let running = guest.running;
        if running != Release::Image && !known.contains(&running.sha256()) {
            return Err(format!(
                "F6: {name} runs {running:?}, which no revision names"
            ));
        }
    }
    Ok(())
}

fn bad_releases_are_not_kept(
    store: &Store,
    guests: &BTreeMap<String, PlayedGuest>,
) -> Result<(), String> {
    let is_liar = |name: &String| guests.get(name).is_some_and(|guest| guest.has_lied);
    for (name, (_, last)) in store.turns_of.iter().filter(|(name, _)| !is_liar(name)) {
        let Some(part) = last else { continue };
        if part.last.result == TurnResult::Good && Release::of(&part.sha256).is_bad() {
            return Err(format!("F11: {name} keeps a bad release"));
        }
    }
    Ok(())
}
