//! Stops a guest: presses the power button every second until the guest shuts down, sends `quit` at
//! the end of the grace period, and kills QEMU if it does not exit.

use protocol::core::Core;
use protocol::time::{Span, Timestamp};

/// Pause between two presses: a guest that boots ignores the button.
pub const PRESS_EVERY: Span = Span::from_secs(1);
/// Time that QEMU has to exit after `quit` and after each kill.
pub const QUIT_ALLOWANCE: Span = Span::from_secs(2);
/// Longest grace period. A longer one is cut to it.
pub const MAX_GRACE: Span = Span::from_secs(24 * 3600);

/// Next command to QEMU or its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopAction {
    /// Press the guest's power button: QMP `system_powerdown`.
    Press,
    /// Send QMP `quit`, as the grace period is over.
    Quit,
    /// Send SIGKILL to QEMU, which has not exited after `quit`.
    Kill,
}

/// Something that changes a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopEvent {
    /// A further order, with its grace period. The earlier end counts.
    Order(Span),
    /// The guest shuts down: the button is not pressed again.
    ShutsDown,
}

/// State of a stop in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopping {
    end: Timestamp,
    next_press: Timestamp,
    next_force: Timestamp,
    quit: bool,
    going: bool,
}

impl Stopping {
    /// A stop that begins `now` with this grace period.
    #[must_use]
    pub fn new(now: Timestamp, grace: Span) -> Self {
        let end = now + grace.min(MAX_GRACE);
        Self {
            end,
            next_press: now,
            next_force: end,
            quit: false,
            going: false,
        }
    }

    /// Whether QEMU had to be killed.
    #[must_use]
    pub fn forced(&self) -> bool {
        self.quit
    }
}

impl Core for Stopping {
    type Time = Timestamp;
    type Event = StopEvent;
    type Action = StopAction;

    fn handle(&mut self, now: Timestamp, event: StopEvent) {
        match event {
            StopEvent::Order(grace) => {
                let end = now + grace.min(MAX_GRACE);
                if end < self.end && !self.quit {
                    self.end = end;
                    self.next_force = end;
                }
            }
            StopEvent::ShutsDown => self.going = true,
        }
    }

    fn poll_action(&mut self, now: Timestamp) -> Option<StopAction> {
        if now >= self.next_force {
            self.next_force = now + QUIT_ALLOWANCE;
            let action = if self.quit {
                StopAction::Kill
            } else {
                StopAction::Quit
            };
            self.quit = true;
            return Some(action);
        }
        if !self.going && !self.quit && now >= self.next_press {
            self.next_press = now + PRESS_EVERY;
            return Some(StopAction::Press);
        }
        None
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        let press = (!self.going && !self.quit).then_some(self.next_press);
        press.into_iter().chain([self.next_force]).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Timestamp = Timestamp(5_000_000);

    fn at(ms: u64) -> Timestamp {
        T0 + Span::from_millis(ms)
    }

    #[test]
    fn button_is_pressed_each_second_and_then_qemu_is_killed() {
        let mut stop = Stopping::new(T0, Span::from_millis(2500));
        let mut seen = Vec::new();
        let mut now = T0;
        while now < at(8000) {
            while let Some(action) = stop.poll_action(now) {
                seen.push(((now.since(T0)).as_millis(), action));
            }
            now = stop.poll_deadline().expect("a deadline");
        }
        use StopAction::{Kill, Press, Quit};
        let expected = [
            (0, Press),
            (1000, Press),
            (2000, Press),
            (2500, Quit),
            (4500, Kill),
            (6500, Kill),
        ];
        assert_eq!(seen, expected);
        assert!(stop.forced());
    }

    #[test]
    fn guest_that_shuts_down_gets_no_more_presses() {
        let mut stop = Stopping::new(T0, Span::from_secs(10));
        assert_eq!(stop.poll_action(T0), Some(StopAction::Press));
        stop.handle(T0, StopEvent::ShutsDown);
        assert_eq!(stop.poll_action(at(1000)), None);
        assert_eq!(stop.poll_deadline(), Some(at(10_000)));
        assert!(!stop.forced());
    }

    #[test]
    fn zero_grace_skips_the_button_and_a_second_order_only_shortens() {
        let mut stop = Stopping::new(T0, Span(0));
        assert_eq!(stop.poll_action(T0), Some(StopAction::Quit));
        let mut slow = Stopping::new(T0, Span::from_secs(10));
        slow.handle(at(1000), StopEvent::Order(Span::from_secs(1)));
        slow.handle(at(1000), StopEvent::Order(Span::from_secs(60)));
        assert_eq!(slow.poll_action(at(2000)), Some(StopAction::Quit));
    }
}
