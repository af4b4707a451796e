//! What the driver has done, as one value for log, journal and metrics.

use fleet_core::cause::EndCause;
use fleet_core::{Call, Outcome, World, Write};
use protocol::fleet::{
    DeploymentKind, DeploymentSpec, DeploymentState, DeploymentStatus, EnvironmentStatus,
    InstancePart, TurnResult, TurnSpec,
};

/// Namespace and name of an environment.
pub(crate) type Key = (String, String);

/// Digits of a digest in a text.
const SHORT_DIGEST: usize = 12;

/// Name of a change: one word of the journal and of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ChangeKind {
    Lock,
    Create,
    State,
    Gate,
    Group,
    Turn,
    End,
    Push,
    Try,
    Keep,
    Back,
    Move,
    Channel,
    Revision,
    Refuse,
    Schedule,
}

impl ChangeKind {
    pub(crate) const ALL: [Self; 16] = [
        Self::Lock,
        Self::Create,
        Self::State,
        Self::Gate,
        Self::Group,
        Self::Turn,
        Self::End,
        Self::Push,
        Self::Try,
        Self::Keep,
        Self::Back,
        Self::Move,
        Self::Channel,
        Self::Revision,
        Self::Refuse,
        Self::Schedule,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Create => "create",
            Self::State => "state",
            Self::Gate => "gate",
            Self::Group => "group",
            Self::Turn => "turn",
            Self::End => "end",
            Self::Push => "push",
            Self::Try => "try",
            Self::Keep => "keep",
            Self::Back => "back",
            Self::Move => "move",
            Self::Channel => "channel",
            Self::Revision => "revision",
            Self::Refuse => "refuse",
            Self::Schedule => "schedule",
        }
    }
}

/// Label of a cause: one word of metrics.
pub(crate) const fn cause_label(cause: EndCause) -> &'static str {
    match cause {
        EndCause::Kept => "kept",
        EndCause::Degraded => "degraded",
        EndCause::Page => "page",
        EndCause::Agent => "agent",
        EndCause::Memory => "memory",
        EndCause::Ended => "ended",
        EndCause::Busy => "busy",
        EndCause::Unanswered => "unanswered",
        EndCause::Stopped => "stopped",
        EndCause::Other => "other",
    }
}

/// A change of an object, or an order to a guest, with its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) kind: ChangeKind,
    /// `namespace/name` of the object: an environment, a deployment, an instance, a channel or a
    /// revision.
    pub(crate) on: String,
    /// What it has now.
    pub(crate) to: String,
    /// What the decision rested on.
    pub(crate) why: String,
    /// Text of the failure, if the change was not made.
    pub(crate) failure: Option<String>,
    /// Result and cause of a turn that ended.
    pub(crate) end: Option<(TurnResult, EndCause)>,
}

/// Changes that a write makes to a world. Figures alone are no change.
pub(crate) fn of_write(key: &Key, world: &World, write: &Write, outcome: &Outcome) -> Vec<Change> {
    let on = |name: &str| format!("{}/{name}", key.0);
    let mut changes = match write {
        // It guards the environment's deletion, and decides nothing about a rollout.
        Write::Finalizer(_) => Vec::new(),
        Write::Environment(status) => lock(&world.environment.status, status, on(&key.1)),
        Write::Deployment { name, status } => {
            let before = world.deployments.iter().find(|one| one.name == *name);
            before.map_or_else(Vec::new, |one| deployment(&one.status, status, &on(name)))
        }
        Write::Create { name, spec } => vec![created(spec, on(name))],
        Write::Turn { guest, turn } => vec![turn_of(world, turn, on(guest))],
        Write::End { guest, cause, part } => {
            let turn = world.guests.get(guest).and_then(|one| one.turn.as_ref());
            vec![end(part, *cause, turn, on(guest))]
        }
    };
    for change in &mut changes {
        change.failure = failure(outcome);
    }
    changes
}

/// An order that a guest's daemon has taken or refused.
pub(crate) fn of_call(key: &Key, guest: &str, call: &Call, outcome: &Outcome) -> Change {
    let (kind, to, token) = match call {
        Call::Push(turn) => (ChangeKind::Push, program(turn), &turn.token),
        Call::Try { token, seconds, .. } => (ChangeKind::Try, format!("for {seconds} s"), token),
        Call::Keep { token } => (ChangeKind::Keep, String::new(), token),
        Call::Back { token } => (ChangeKind::Back, String::new(), token),
    };
    Change {
        failure: failure(outcome),
        ..change(
            kind,
            format!("{}/{guest}", key.0),
            to,
            format!("turn {token}"),
        )
    }
}

pub(crate) fn change(kind: ChangeKind, on: String, to: String, why: String) -> Change {
    Change {
        kind,
        on,
        to,
        why,
        failure: None,
        end: None,
    }
}

pub(crate) fn failure(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Done => None,
        Outcome::Conflict => Some("the object has changed, or a newer order was seen".to_owned()),
        Outcome::NothingStaged => Some("the guest does not have the program".to_owned()),
        Outcome::Transient(text)
        | Outcome::Busy(text)
        | Outcome::Refused(text)
        | Outcome::GoneBack(text) => Some(text.clone()),
    }
}

fn lock(before: &EnvironmentStatus, now: &EnvironmentStatus, on: String) -> Vec<Change> {
    if before.lock == now.lock {
        return Vec::new();
    }
    let why = |status: &EnvironmentStatus| {
        let lock = status.lock.as_ref();
        lock.map_or_else(String::new, |lock| {
            format!("{:?}, epoch {}", lock.kind, lock.epoch)
        })
    };
    let holder = now.lock.as_ref().map(|lock| lock.deployment.clone());
    let to = holder.unwrap_or_else(|| "free".to_owned());
    let why = if now.lock.is_some() {
        why(now)
    } else {
        "its deployment has ended".to_owned()
    };
    vec![change(ChangeKind::Lock, on, to, why)]
}

fn deployment(before: &DeploymentStatus, now: &DeploymentStatus, on: &str) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut add =
        |kind, to: String, why: String| changes.push(change(kind, on.to_owned(), to, why));
    if before.state != now.state {
        let is_stop = now.state == DeploymentState::ToBeStopped;
        let ending = now.ending.filter(|_| is_stop);
        let to = match ending {
            Some(ending) => format!("{:?}, then {ending:?}", now.state),
            None => format!("{:?}", now.state),
        };
        let progress = now.progress;
        let new = now.evidence.get(before.evidence.len()..).unwrap_or(&[]);
        let why = if new.is_empty() {
            format!("{} of {} done", progress.done, progress.total)
        } else {
            new.join("; ")
        };
        add(ChangeKind::State, to, why);
    }
    let gate = |status: &DeploymentStatus| status.blocked_by.as_ref().map(|by| by.gate.clone());
    if gate(before) != gate(now) && now.state == DeploymentState::Blocked {
        let detail = now.blocked_by.as_ref().map(|by| by.detail.clone());
        add(
            ChangeKind::Gate,
            gate(now).unwrap_or_default(),
            detail.unwrap_or_default(),
        );
    }
    for group in &now.groups {
        let known = before.groups.iter().find(|one| one.name == group.name);
        let is_same = known
            .is_some_and(|known| known.state == group.state && known.judgement == group.judgement);
        if !is_same {
            let to = format!("{} {:?}", group.name, group.state);
            add(ChangeKind::Group, to, group.judgement.clone());
        }
    }
    changes
}

fn created(spec: &DeploymentSpec, on: String) -> Change {
    let why = match spec.kind {
        DeploymentKind::Rollback => format!("takes {} back", spec.rollback_of),
        DeploymentKind::Cron => match spec.reason.as_str() {
            "" => "verifies".to_owned(),
            missed => format!("verifies; {missed}"),
        },
        kind => format!("{kind:?} of {} guests", spec.instances.len()),
    };
    change(ChangeKind::Create, on, spec.revision.clone(), why)
}

fn turn_of(world: &World, turn: &TurnSpec, on: String) -> Change {
    let fleet = fleet_core::counts::fleet(
        world.guests.values(),
        &world.environment.spec.rollout.groups,
    );
    let why = format!(
        "{}, attempt {}, token {}: {} of {} settled and healthy, {} in a turn",
        turn.deployment,
        turn.attempt,
        turn.token,
        fleet.settled_healthy,
        fleet.matches,
        fleet.in_flight
    );
    change(ChangeKind::Turn, on, program(turn), why)
}

fn end(part: &InstancePart, cause: EndCause, turn: Option<&TurnSpec>, on: String) -> Change {
    let deployment = turn.map_or_else(String::new, |turn| format!("{}: ", turn.deployment));
    let reason = &part.last.reason;
    let text = if reason.is_empty() {
        cause_label(cause)
    } else {
        reason
    };
    let to = format!("{:?}", part.last.result).to_ascii_lowercase();
    Change {
        end: Some((part.last.result, cause)),
        ..change(ChangeKind::End, on, to, format!("{deployment}{text}"))
    }
}

fn program(turn: &TurnSpec) -> String {
    let digest: String = turn.sha256.chars().take(SHORT_DIGEST).collect();
    format!("{} sha256:{digest}", turn.version)
}

#[cfg(test)]
pub(crate) mod tests;
