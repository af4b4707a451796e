//! What may happen next, and what must hold of every state.

use std::time::Instant;

use fleet_core::{Action, Event, Outcome, Write};
use protocol::core::Core as _;
use protocol::fleet::{DeploymentState, EnvironmentStatus};
use stateright::{Checker, HasDiscoveries, Model, Property};

use super::state::{Bounds, Late, Running, State};

/// Length of a step of the time: a trial is over, and has not ended by itself.
const TICK_SECONDS: u64 = 25;

/// How a write or a call fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Answered,
    /// It is carried out, and its answer is lost.
    Lost,
    /// It does not arrive.
    Refused,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// An engine gets the newest world.
    Look(usize),
    /// The write of an engine arrives.
    Land(usize, Ending),
    /// A call of an engine arrives.
    Carry(usize, usize, Ending),
    /// Something of an engine that has ended arrives.
    Arrive(usize),
    /// An engine ends, and another one begins.
    Crash(usize),
    Tick,
    Stop,
    Start,
}

pub(crate) struct Engines(pub(crate) Bounds);

impl Model for Engines {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.0)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let left = &state.left;
        let fates = [
            Some(Ending::Answered),
            (left.lost > 0).then_some(Ending::Lost),
            (left.refused > 0).then_some(Ending::Refused),
        ];
        let fates: Vec<Ending> = fates.into_iter().flatten().collect();
        for (index, running) in state.engines.iter().enumerate() {
            match running.write {
                Some(_) => steps.extend(fates.iter().map(|fate| Step::Land(index, *fate))),
                None if is_old(state, running) => steps.push(Step::Look(index)),
                None => {}
            }
            for call in 0..running.calls.len() {
                steps.extend(fates.iter().map(|fate| Step::Carry(index, call, *fate)));
            }
            if left.crashes > 0 {
                steps.push(Step::Crash(index));
            }
        }
        steps.extend((0..state.late.len()).map(Step::Arrive));
        // Time passes while nothing is under way.
        let rests = steps.iter().all(|step| matches!(step, Step::Crash(_)));
        let of_people = [
            (left.ticks > 0 && rests).then_some(Step::Tick),
            left.stops.then_some(Step::Stop),
            left.starts.then_some(Step::Start),
        ];
        steps.extend(of_people.into_iter().flatten());
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Look(index) => look(&mut state, index),
            Step::Land(index, fate) => land(&mut state, index, fate),
            Step::Carry(index, call, fate) => carry(&mut state, index, call, fate),
            Step::Arrive(index) => arrive(&mut state, index),
            Step::Crash(index) => crash(&mut state, index),
            Step::Tick => {
                state.left.ticks -= 1;
                state.second += TICK_SECONDS;
                let second = state.second;
                for guest in state.guests.values_mut() {
                    guest.tick(second);
                }
            }
            Step::Stop => {
                state.left.stops = false;
                state.objects.stop();
            }
            Step::Start => {
                state.left.starts = false;
                state.objects.start("d2", "m-r2");
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::<Self>::always("F2: one deployment runs, and the lock names it", |_, it| {
                one_runs(it)
            }),
            Property::<Self>::always("F4: a token begins one trial", |_, it| {
                let mut guests = it.guests.values();
                guests.all(|guest| guest.tries.values().all(|times| *times == 1))
            }),
            Property::<Self>::always("F13: a turn is of a deployment that began", |_, it| {
                it.fault.is_none()
            }),
            Property::<Self>::always("F13: at rest a terminal deployment has no lock", |_, it| {
                !is_at_rest(it) || has_no_rest(it)
            }),
            Property::<Self>::always("F14: no guest takes a lower epoch", |_, it| {
                it.guests.values().all(|guest| !guest.took_lower)
            }),
        ];
        all.push(Property::<Self>::sometimes(COMPLETE, |_, it| {
            has_end(it, DeploymentState::Complete)
        }));
        all.push(Property::<Self>::sometimes(STOPPED, |_, it| {
            has_end(it, DeploymentState::Stopped)
        }));
        all
    }
}

const COMPLETE: &str = "a deployment is complete";
const STOPPED: &str = "a deployment is stopped";

fn has_end(state: &State, end: DeploymentState) -> bool {
    let mut all = state.objects.deployments.iter();
    all.any(|one| one.status.state == end)
}

fn look(state: &mut State, index: usize) {
    let (now, world) = (state.now(), Box::new(state.world()));
    let versions = state.objects.versions.clone();
    let running = &mut state.engines[index];
    running.read = versions;
    let basis = running.engine.basis();
    running.engine.handle(now, Event::World { basis, world });
    act(state, index);
}

/// The engine acts at once after each event, until it waits for an answer or wants nothing.
fn act(state: &mut State, index: usize) {
    let now = state.now();
    loop {
        let running = &mut state.engines[index];
        match running.engine.poll_action(now) {
            None => return,
            Some(Action::Call { id, guest, call }) => running.calls.push((id, guest, call)),
            Some(Action::Write { id, write }) => {
                running.write = Some((id, write));
                if !is_figure(state, index) {
                    continue;
                }
                let Some((id, write)) = state.engines[index].write.take() else {
                    return;
                };
                state.objects.show(write);
                let running = &mut state.engines[index];
                let outcome = Outcome::Done;
                running.engine.handle(now, Event::Done { id, outcome });
            }
        }
    }
}

/// Whether the engine's world differs from the present one.
fn is_old(state: &State, running: &Running) -> bool {
    running.engine.world() != Some(&state.world())
}

/// Whether a write changes neither a lock nor a state. It arrives at once, and overtakes nothing:
/// figures are for people.
fn is_figure(state: &State, index: usize) -> bool {
    match &state.engines[index].write {
        Some((_, Write::Environment(status))) => status.lock == state.objects.status.lock,
        Some((_, Write::Deployment { name, status })) => {
            let mut all = state.objects.deployments.iter();
            let known = all.find(|one| one.name == *name);
            known.is_some_and(|one| one.status.state == status.state)
        }
        _ => false,
    }
}

fn spend(state: &mut State, fate: Ending) {
    match fate {
        Ending::Answered => {}
        Ending::Lost => state.left.lost -= 1,
        Ending::Refused => state.left.refused -= 1,
    }
}

fn land(state: &mut State, index: usize, fate: Ending) {
    spend(state, fate);
    let (now, is_blind) = (state.now(), state.left.is_blind);
    let Some((id, write)) = state.engines[index].write.take() else {
        return;
    };
    let mut read = std::mem::take(&mut state.engines[index].read);
    let written = match fate {
        Ending::Refused => Outcome::Transient("the store is away".to_owned()),
        Ending::Answered | Ending::Lost => {
            notice(state, &write, &read);
            state.objects.write(write, &mut read, is_blind)
        }
    };
    let outcome = match fate {
        Ending::Lost => Outcome::Transient("the answer was lost".to_owned()),
        Ending::Answered | Ending::Refused => written,
    };
    let running = &mut state.engines[index];
    running.read = read;
    running.engine.handle(now, Event::Done { id, outcome });
    act(state, index);
}

/// Looks at a turn before it is written.
fn notice(state: &mut State, write: &Write, read: &super::objects::Versions) {
    let Write::Turn { guest, turn } = write else {
        return;
    };
    if state.objects.versions.get(&format!("instance {guest}"))
        != read.get(&format!("instance {guest}"))
    {
        return;
    }
    let mut all = state.objects.deployments.iter();
    let of_turn = all.find(|one| one.name == turn.deployment);
    if of_turn.is_none_or(|one| one.status.started_at.is_none()) {
        state.fault = Some("a deployment that did not begin gave a turn");
    }
    let before = state.objects.turns.get(guest);
    let before = before.and_then(|(turn, _)| turn.as_ref());
    if before.is_some_and(|before| before.epoch >= turn.epoch) {
        state.fault = Some("an epoch fell");
    }
}

fn carry(state: &mut State, index: usize, call: usize, fate: Ending) {
    spend(state, fate);
    let (now, second) = (state.now(), state.second);
    let (id, guest, call) = state.engines[index].calls.remove(call);
    let carried = match (fate, state.guests.get_mut(&guest)) {
        (Ending::Refused, _) | (_, None) => Outcome::Transient("no connection".to_owned()),
        (_, Some(played)) => played.take(&call, second),
    };
    let outcome = match fate {
        Ending::Lost => Outcome::Transient("the answer was lost".to_owned()),
        Ending::Answered | Ending::Refused => carried,
    };
    let running = &mut state.engines[index];
    running.engine.handle(now, Event::Done { id, outcome });
    act(state, index);
}

fn arrive(state: &mut State, index: usize) {
    let second = state.second;
    let is_blind = state.left.is_blind;
    match state.late.remove(index) {
        Late::Write(write, mut read) => {
            notice(state, &write, &read);
            state.objects.write(*write, &mut read, is_blind);
        }
        Late::Call(guest, call) => {
            if let Some(played) = state.guests.get_mut(&guest) {
                played.take(&call, second);
            }
        }
    }
}

fn crash(state: &mut State, index: usize) {
    state.left.crashes -= 1;
    state.runs += 1;
    let new = Running::new(state.runs);
    let ended = std::mem::replace(&mut state.engines[index], new);
    let write = ended
        .write
        .map(|(_, write)| Late::Write(Box::new(write), ended.read));
    state.late.extend(write);
    let calls = ended.calls.into_iter();
    state
        .late
        .extend(calls.map(|(_, guest, call)| Late::Call(guest, call)));
}

fn one_runs(state: &State) -> bool {
    let mut running = state.objects.deployments.iter().filter(|one| {
        one.status.state != DeploymentState::Pending && !one.status.state.is_terminal()
    });
    let EnvironmentStatus { lock, .. } = &state.objects.status;
    match (running.next(), running.next()) {
        (None, _) => true,
        (Some(one), None) => lock
            .as_ref()
            .is_some_and(|lock| lock.deployment == one.name),
        (Some(_), Some(_)) => false,
    }
}

/// Whether every deployment has ended, nothing is on its way, and both engines have seen that.
fn is_at_rest(state: &State) -> bool {
    let is_over = |one: &fleet_core::Deployment| one.status.state.is_terminal();
    let wants_nothing = |index: usize| {
        let mut after = state.clone();
        look(&mut after, index);
        let running = &after.engines[index];
        running.write.is_none() && running.calls.is_empty()
    };
    state.objects.deployments.iter().all(is_over)
        && state.late.is_empty()
        && state
            .engines
            .iter()
            .all(|one| one.write.is_none() && one.calls.is_empty())
        && (0..state.engines.len()).all(wants_nothing)
}

/// Neither a lock nor an open turn is left.
fn has_no_rest(state: &State) -> bool {
    let mut turns = state.objects.turns.values();
    state.objects.status.lock.is_none()
        && turns.all(|(turn, last)| !fleet_core::is_open(turn.as_ref(), last.as_ref()))
}

/// Checks every reachable state. Returns the number of states.
pub(crate) fn check(bounds: Bounds) -> usize {
    let (found, states) = explored(bounds, HasDiscoveries::All);
    let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
    for (name, path) in &found {
        assert!([COMPLETE, STOPPED].contains(name), "{name}: {path}");
    }
    let is_complete = names.contains(&COMPLETE);
    assert_eq!(is_complete, bounds.ticks >= bounds.guests, "{bounds:?}");
    assert_eq!(names.contains(&STOPPED), bounds.stops, "{bounds:?}");
    states
}

/// The first property that does not hold.
pub(crate) fn violated(bounds: Bounds) -> Vec<&'static str> {
    let names = explored(bounds, HasDiscoveries::AnyFailures)
        .0
        .into_iter()
        .map(|(name, _)| name);
    names
        .filter(|name| ![COMPLETE, STOPPED].contains(name))
        .collect()
}

fn explored(bounds: Bounds, until: HasDiscoveries) -> (Vec<(&'static str, String)>, usize) {
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = Engines(bounds)
        .checker()
        .threads(threads)
        .finish_when(until)
        .spawn_bfs()
        .join();
    let found = checker.discoveries();
    let found = found
        .into_iter()
        .map(|(name, path)| (name, format!("{:?}", path.into_actions())));
    let states = checker.unique_state_count();
    eprintln!(
        "{bounds:?}: {states} states, {} steps, {:.1} s",
        checker.state_count(),
        began.elapsed().as_secs_f64()
    );
    (found.collect(), states)
}
