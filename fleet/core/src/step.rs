//! States of one guest in a deployment: what does each event do in each of them?

/// How far the turn of a guest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Has no turn.
    Wait,
    /// Has a turn, and the program is not on trial.
    Push,
    /// The program is on trial.
    Trial,
    /// The turn ended for good.
    Ended,
}

/// Something that happened to a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepEvent {
    /// The permit allows the turn.
    Granted,
    /// The permit refuses the turn.
    Refused,
    /// The program is in the guest, and the gates are open.
    Pushed,
    /// The program is in the guest, and a gate closed meanwhile.
    PushedBehindGate,
    /// The part cannot change now.
    Busy,
    /// The trial is over, and the proof was whole.
    Proven,
    /// The proof is broken, or the program ended.
    Broken,
    /// The guest began again.
    BootChanged,
    /// The trial ended because the host did not keep the program in time.
    Expired,
    /// No connection, no room, no time.
    Transient,
    /// The program cannot run in this guest.
    Permanent,
    /// The deployment ends, or the guest was opted out.
    Stop {
        /// Whether a trial may go on to its end.
        may_finish: bool,
    },
}

/// Consequence of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepMove {
    /// The event has no meaning here.
    Ignored,
    /// The state stays.
    Stay,
    /// The program is brought.
    Push,
    /// The trial begins.
    Try,
    /// The program is kept, and the turn ends well.
    Keep,
    /// The program is taken back, and the turn ends badly.
    BackBad,
    /// The turn ends badly.
    Bad,
    /// The turn is given back. It is not counted as an attempt.
    Release,
    /// The program is taken back, and the turn is given back.
    BackRelease,
    /// The guest is left as it is.
    Skip,
    /// The program is taken back, and the guest is left as it is.
    BackSkip,
}

/// What an event does to a guest.
#[must_use]
pub const fn next(step: Step, event: StepEvent) -> StepMove {
    match step {
        Step::Wait => wait(event),
        Step::Push => push(event),
        Step::Trial => trial(event),
        Step::Ended => StepMove::Ignored,
    }
}

const fn wait(event: StepEvent) -> StepMove {
    use StepEvent as On;
    match event {
        On::Granted => StepMove::Push,
        On::Stop { .. } => StepMove::Skip,
        On::Refused | On::BootChanged | On::Transient => StepMove::Stay,
        On::Pushed
        | On::PushedBehindGate
        | On::Busy
        | On::Proven
        | On::Broken
        | On::Expired
        | On::Permanent => StepMove::Ignored,
    }
}

const fn push(event: StepEvent) -> StepMove {
    use StepEvent as On;
    match event {
        On::Pushed => StepMove::Try,
        On::PushedBehindGate | On::Busy | On::BootChanged | On::Transient | On::Expired => {
            StepMove::Release
        }
        On::Broken | On::Permanent => StepMove::Bad,
        On::Stop { .. } => StepMove::Skip,
        On::Granted => StepMove::Stay,
        On::Refused | On::Proven => StepMove::Ignored,
    }
}

const fn trial(event: StepEvent) -> StepMove {
    use StepEvent as On;
    match event {
        On::Proven => StepMove::Keep,
        On::Broken => StepMove::BackBad,
        On::BootChanged | On::Expired => StepMove::Release,
        On::Transient => StepMove::BackRelease,
        On::Stop { may_finish: true } | On::Granted | On::Pushed => StepMove::Stay,
        On::Stop { may_finish: false } => StepMove::BackSkip,
        On::Refused | On::PushedBehindGate | On::Busy | On::Permanent => StepMove::Ignored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [StepEvent; 13] = [
        StepEvent::Granted,
        StepEvent::Refused,
        StepEvent::Pushed,
        StepEvent::PushedBehindGate,
        StepEvent::Busy,
        StepEvent::Proven,
        StepEvent::Broken,
        StepEvent::BootChanged,
        StepEvent::Expired,
        StepEvent::Transient,
        StepEvent::Permanent,
        StepEvent::Stop { may_finish: true },
        StepEvent::Stop { may_finish: false },
    ];

    /// Requirement: B26
    #[test]
    fn faults_of_network_and_clock_never_make_a_release_bad() {
        let faults = [
            StepEvent::Busy,
            StepEvent::BootChanged,
            StepEvent::Expired,
            StepEvent::Transient,
        ];
        for step in [Step::Wait, Step::Push, Step::Trial, Step::Ended] {
            for event in faults {
                let to = next(step, event);
                assert!(
                    !matches!(to, StepMove::Bad | StepMove::BackBad),
                    "{step:?} {event:?}"
                );
            }
        }
    }

    #[test]
    fn program_is_kept_from_its_trial_alone_and_an_ended_turn_stays() {
        for event in EVENTS {
            assert_eq!(next(Step::Ended, event), StepMove::Ignored);
            for step in [Step::Wait, Step::Push] {
                assert_ne!(next(step, event), StepMove::Keep, "{event:?}");
            }
        }
        assert_eq!(next(Step::Trial, StepEvent::Proven), StepMove::Keep);
    }

    #[test]
    fn stop_takes_a_trial_back_unless_it_may_finish() {
        let stop = |may_finish| StepEvent::Stop { may_finish };
        assert_eq!(next(Step::Trial, stop(true)), StepMove::Stay);
        assert_eq!(next(Step::Trial, stop(false)), StepMove::BackSkip);
        assert_eq!(next(Step::Push, stop(true)), StepMove::Skip);
        assert_eq!(next(Step::Wait, stop(true)), StepMove::Skip);
    }
}
