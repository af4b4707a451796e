//! The driver: the loop that owns a core. It passes inputs to the core, carries out the core's
//! actions and sleeps until the core's deadline.
//!
//! ```text
//! ┌─► prepare ─► actions until there is none ─► settle ─► sleep ─┬─► cancelled: the end
//! │                                                              ├─► input: take ─┐
//! │                                                              └─► deadline ────┤
//! └───────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::pin::pin;
use std::time::{Duration, Instant};

use protocol::core::Core;
use protocol::time::Timestamp;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

/// What a [`Shell`] does with its core's turn at an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Sleep until an input or a deadline.
    Sleep,
    /// The core has new events: begin the next turn at once.
    Again,
}

/// The part of a driver that differs between cores.
pub trait Shell: Send {
    /// The core that is driven.
    type Core: Core<Time: From<Clock>>;
    /// What ends a sleep before its deadline.
    type Input: Send;

    /// The core that this shell drives.
    fn core(&mut self) -> &mut Self::Core;

    /// The clock of the core's time and deadlines.
    fn clock(&self) -> Clock;

    /// Waits for the next input. `None` ends the driver. The future may be dropped at each await
    /// without the loss of an input.
    fn input(&mut self) -> impl Future<Output = Option<Self::Input>> + Send;

    /// Passes an input to the core.
    fn take(&mut self, input: Self::Input);

    /// Carries out an action, or starts it.
    fn act(&mut self, action: <Self::Core as Core>::Action);

    /// Runs at the beginning of a turn.
    fn prepare(&mut self) {}

    /// Runs once the core has no more actions, and publishes its state.
    fn settle(&mut self) -> Settled {
        Settled::Sleep
    }

    /// End of a sleep for the shell's own sake.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// Drives the core of `shell` until `cancel`, or until there are no more inputs.
pub async fn drive<S: Shell>(shell: &mut S, cancel: &CancellationToken) {
    let mut alarm = pin!(tokio::time::sleep(Duration::ZERO));
    loop {
        shell.prepare();
        let mut now = shell.clock().into();
        while let Some(action) = shell.core().poll_action(now) {
            shell.act(action);
            now = shell.clock().into();
        }
        if shell.settle() == Settled::Again {
            continue;
        }
        let clock = shell.clock();
        let core = shell.core().poll_deadline();
        let due = core.map(|at| clock.instant_of(at));
        let wake = due.into_iter().chain(shell.deadline()).min();
        let wake = wake.map(tokio::time::Instant::from);
        if let Some(at) = wake
            && at != alarm.deadline()
        {
            alarm.as_mut().reset(at);
        }
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            input = shell.input() => match input {
                Some(input) => shell.take(input),
                None => return,
            },
            () = alarm.as_mut(), if wake.is_some() => {}
        }
    }
}

/// Passes events to a core until it has an action. `None`: no more events come.
pub async fn next_action<C: Core<Time = Timestamp>>(
    core: &mut C,
    clock: Clock,
    events: &mut mpsc::Receiver<C::Event>,
) -> Option<C::Action> {
    loop {
        if let Some(action) = core.poll_action(clock.now()) {
            return Some(action);
        }
        let deadline = core.poll_deadline();
        tokio::select! {
            event = events.recv() => core.handle(clock.now(), event?),
            () = sleep_until(clock, deadline) => {}
        }
    }
}

/// Sleeps until a deadline; without one, for ever.
pub async fn sleep_until(clock: Clock, deadline: Option<Timestamp>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(clock.instant_of(at).into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use protocol::time::Span;

    use super::*;

    /// Returns each number a moment after it came, and then the same number less one at once.
    #[derive(Default)]
    struct Echo {
        due: Option<(Timestamp, u32)>,
    }

    impl Core for Echo {
        type Time = Timestamp;
        type Event = u32;
        type Action = u32;

        fn handle(&mut self, now: Timestamp, event: u32) {
            self.due = Some((now + Span::from_millis(1), event));
        }

        fn poll_action(&mut self, now: Timestamp) -> Option<u32> {
            let (_, number) = self.due.take_if(|(at, _)| *at <= now)?;
            self.due = number.checked_sub(1).map(|next| (now, next));
            Some(number)
        }

        fn poll_deadline(&self) -> Option<Timestamp> {
            self.due.map(|(at, _)| at)
        }
    }

    struct Recorder {
        core: Echo,
        clock: Clock,
        inbox: mpsc::Receiver<u32>,
        acted: Vec<u32>,
        settled: usize,
    }

    impl Shell for Recorder {
        type Core = Echo;
        type Input = u32;

        fn core(&mut self) -> &mut Echo {
            &mut self.core
        }

        fn clock(&self) -> Clock {
            self.clock
        }

        async fn input(&mut self) -> Option<u32> {
            // The end of the inputs waits for the last action.
            if self.core.due.is_some() && self.inbox.is_closed() {
                return std::future::pending().await;
            }
            self.inbox.recv().await
        }

        fn take(&mut self, input: u32) {
            self.core.handle(self.clock.now(), input);
        }

        fn act(&mut self, action: u32) {
            self.acted.push(action);
        }

        fn settle(&mut self) -> Settled {
            self.settled += 1;
            Settled::Sleep
        }
    }

    fn recorder(inputs: &[u32]) -> Recorder {
        let (sender, inbox) = mpsc::channel(8);
        for input in inputs {
            sender.try_send(*input).expect("there is space");
        }
        Recorder {
            core: Echo::default(),
            clock: Clock::new(),
            inbox,
            acted: Vec::new(),
            settled: 0,
        }
    }

    #[tokio::test]
    async fn actions_of_a_deadline_are_carried_out_in_one_turn() {
        let mut shell = recorder(&[2]);
        drive(&mut shell, &CancellationToken::new()).await;
        assert_eq!(shell.acted, [2, 1, 0]);
        assert_eq!(
            shell.settled, 3,
            "before the input, after it, and at the end"
        );
    }

    #[tokio::test]
    async fn cancelled_driver_takes_no_input_and_settles_once() {
        let mut shell = recorder(&[1]);
        let cancel = CancellationToken::new();
        cancel.cancel();
        drive(&mut shell, &cancel).await;
        assert_eq!((shell.acted, shell.settled), (Vec::new(), 1));
    }

    #[tokio::test]
    async fn next_action_waits_for_an_event_and_its_deadline() {
        let (sender, mut inbox) = mpsc::channel(8);
        sender.try_send(0).expect("there is space");
        let (mut core, clock) = (Echo::default(), Clock::new());
        assert_eq!(next_action(&mut core, clock, &mut inbox).await, Some(0));
        drop(sender);
        assert_eq!(next_action(&mut core, clock, &mut inbox).await, None);
    }
}
