//! States of a deployment: what does each event do in each of them?

use protocol::fleet::{DeploymentKind, DeploymentState};

/// Something that happened to a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeploymentEvent {
    /// The environment's lock names the deployment.
    LockWon,
    /// The lock names another deployment.
    LockRefused,
    /// Another engine leads.
    LeadLost,
    /// A person started a newer deployment.
    NewerUser,
    /// A person ended the deployment.
    Stop,
    /// The environment is to be deleted.
    EnvironmentDeleted,
    /// A guest keeps the program.
    StepGood,
    /// A trial ended badly, within the limits.
    StepBad,
    /// Trials ended badly, beyond the limits.
    Halt,
    /// No guest is left to change.
    AllSettled,
    /// The deployment takes too long.
    Deadline,
    /// Every remaining guest waits for a gate.
    GateClosed,
    /// A guest may go.
    GateOpened,
    /// A guest joined, left or was relabelled.
    GuestsChanged,
    /// No turn is in flight.
    InFlightSettled,
}

impl DeploymentEvent {
    /// Every event, in the order of the columns of the table.
    pub const ALL: [Self; 15] = [
        Self::LockWon,
        Self::LockRefused,
        Self::LeadLost,
        Self::NewerUser,
        Self::Stop,
        Self::EnvironmentDeleted,
        Self::StepGood,
        Self::StepBad,
        Self::Halt,
        Self::AllSettled,
        Self::Deadline,
        Self::GateClosed,
        Self::GateOpened,
        Self::GuestsChanged,
        Self::InFlightSettled,
    ];
}

/// Consequence of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// The event has no meaning here.
    Ignored,
    /// The state stays; what the event names is done.
    Stay,
    /// The engine leaves the deployment to another one, and writes nothing.
    Quit,
    /// The next state.
    To(DeploymentState),
    /// Gives no more turns; the state follows when none is in flight.
    StopFor(DeploymentState),
    /// The state that an earlier event announced.
    End,
    /// The state stays, and another deployment takes the guests back.
    RollBack,
}

enum Phase {
    Pending,
    InProgress,
    Blocked,
    ToBeStopped,
    Terminal,
}

const fn phase(state: DeploymentState) -> Phase {
    match state {
        DeploymentState::Pending => Phase::Pending,
        DeploymentState::InProgress => Phase::InProgress,
        DeploymentState::Blocked => Phase::Blocked,
        DeploymentState::ToBeStopped => Phase::ToBeStopped,
        DeploymentState::Stopped
        | DeploymentState::Complete
        | DeploymentState::Canceled
        | DeploymentState::Unhealthy
        | DeploymentState::TimedOut => Phase::Terminal,
    }
}

/// What an event does to a deployment of a kind in a state.
#[must_use]
pub const fn next(state: DeploymentState, kind: DeploymentKind, event: DeploymentEvent) -> Move {
    match phase(state) {
        Phase::Pending => pending(kind, event),
        Phase::InProgress => in_progress(kind, event),
        Phase::Blocked => blocked(kind, event),
        Phase::ToBeStopped => to_be_stopped(event),
        Phase::Terminal => terminal(state, kind, event),
    }
}

const fn pending(kind: DeploymentKind, event: DeploymentEvent) -> Move {
    use DeploymentEvent as On;
    match event {
        On::LockWon => Move::To(DeploymentState::InProgress),
        On::NewerUser if matches!(kind, DeploymentKind::User) => {
            Move::To(DeploymentState::Canceled)
        }
        On::Stop => Move::To(DeploymentState::Stopped),
        On::EnvironmentDeleted => Move::To(DeploymentState::Canceled),
        On::Deadline => Move::To(DeploymentState::TimedOut),
        On::LockRefused | On::LeadLost | On::NewerUser | On::GuestsChanged => Move::Stay,
        On::StepGood
        | On::StepBad
        | On::Halt
        | On::AllSettled
        | On::GateClosed
        | On::GateOpened
        | On::InFlightSettled => Move::Ignored,
    }
}

const fn in_progress(kind: DeploymentKind, event: DeploymentEvent) -> Move {
    use DeploymentEvent as On;
    match event {
        On::LeadLost => Move::Quit,
        On::Stop => Move::StopFor(DeploymentState::Stopped),
        On::EnvironmentDeleted if kind.is_of_monitor() => Move::StopFor(DeploymentState::Canceled),
        On::Halt => Move::StopFor(DeploymentState::Unhealthy),
        On::AllSettled => Move::To(DeploymentState::Complete),
        On::Deadline => Move::StopFor(DeploymentState::TimedOut),
        On::GateClosed => Move::To(DeploymentState::Blocked),
        On::LockWon
        | On::NewerUser
        | On::EnvironmentDeleted
        | On::StepGood
        | On::StepBad
        | On::GuestsChanged
        | On::InFlightSettled => Move::Stay,
        On::LockRefused | On::GateOpened => Move::Ignored,
    }
}

const fn blocked(kind: DeploymentKind, event: DeploymentEvent) -> Move {
    use DeploymentEvent as On;
    match event {
        On::NewerUser => Move::StopFor(DeploymentState::Stopped),
        On::GateOpened => Move::To(DeploymentState::InProgress),
        On::GateClosed => Move::Stay,
        On::LeadLost
        | On::Stop
        | On::EnvironmentDeleted
        | On::Halt
        | On::AllSettled
        | On::Deadline
        | On::LockWon
        | On::StepGood
        | On::StepBad
        | On::GuestsChanged
        | On::InFlightSettled
        | On::LockRefused => in_progress(kind, event),
    }
}

const fn to_be_stopped(event: DeploymentEvent) -> Move {
    use DeploymentEvent as On;
    match event {
        On::LeadLost => Move::Quit,
        On::Halt => Move::StopFor(DeploymentState::Unhealthy),
        On::AllSettled | On::InFlightSettled | On::Deadline => Move::End,
        On::LockWon
        | On::NewerUser
        | On::Stop
        | On::EnvironmentDeleted
        | On::StepGood
        | On::StepBad
        | On::GateClosed
        | On::GateOpened
        | On::GuestsChanged => Move::Stay,
        On::LockRefused => Move::Ignored,
    }
}

/// A release that fails soon after its end is taken back. The deployment stays as it ended.
const fn terminal(state: DeploymentState, kind: DeploymentKind, event: DeploymentEvent) -> Move {
    match (state, kind, event) {
        (DeploymentState::Complete, DeploymentKind::User, DeploymentEvent::Halt) => Move::RollBack,
        _ => Move::Ignored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn letter(to: Move) -> char {
        match to {
            Move::Ignored => '.',
            Move::Stay => '=',
            Move::Quit => 'q',
            Move::To(DeploymentState::InProgress) => 'P',
            Move::To(DeploymentState::Blocked) => 'B',
            Move::To(DeploymentState::Complete) => 'C',
            Move::To(DeploymentState::Canceled) => 'X',
            Move::To(DeploymentState::Stopped) => 'S',
            Move::To(DeploymentState::TimedOut) => 'T',
            Move::To(_) => '?',
            Move::StopFor(DeploymentState::Stopped) => 's',
            Move::StopFor(DeploymentState::Canceled) => 'x',
            Move::StopFor(DeploymentState::Unhealthy) => 'u',
            Move::StopFor(DeploymentState::TimedOut) => 't',
            Move::StopFor(_) => '!',
            Move::End => 'E',
            Move::RollBack => 'r',
        }
    }

    fn row(state: DeploymentState, kind: DeploymentKind) -> String {
        let moves = DeploymentEvent::ALL.map(|event| letter(next(state, kind, event)));
        moves.into_iter().collect()
    }

    /// Columns are the events in their order.
    ///
    /// Requirement: B26
    #[test]
    fn every_cell_of_the_table_is_as_written() {
        use DeploymentKind::{NewInstance, User};
        let rows = [
            (DeploymentState::Pending, User, "P==XSX....T..=."),
            (DeploymentState::Pending, NewInstance, "P===SX....T..=."),
            (DeploymentState::InProgress, User, "=.q=s===uCtB.=="),
            (DeploymentState::InProgress, NewInstance, "=.q=sx==uCtB.=="),
            (DeploymentState::Blocked, User, "=.qss===uCt=P=="),
            (DeploymentState::Blocked, NewInstance, "=.qssx==uCt=P=="),
            (DeploymentState::ToBeStopped, User, "=.q=====uEE===E"),
            (DeploymentState::Complete, User, "........r......"),
            (DeploymentState::Complete, NewInstance, "..............."),
            (DeploymentState::Unhealthy, User, "..............."),
        ];
        for (state, kind, expected) in rows {
            assert_eq!(row(state, kind), expected, "{state:?} {kind:?}");
        }
    }

    /// Requirement: B26
    #[test]
    fn no_event_leaves_a_terminal_state() {
        for state in DeploymentState::ALL {
            let stays = DeploymentEvent::ALL.iter().all(|event| {
                let to = next(state, DeploymentKind::User, *event);
                matches!(to, Move::Ignored | Move::RollBack)
            });
            assert_eq!(stays, state.is_terminal(), "{state:?}");
        }
    }
}
