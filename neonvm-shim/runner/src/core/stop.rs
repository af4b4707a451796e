//! Ending a guest: power button, once a second until the guest is heard to shut down; at the end of
//! the grace period by `quit`, and by force if QEMU does not go.

use protocol::time::{Span, Timestamp};

/// A guest that boots ignores the button, so it is pressed again.
pub const PRESS_EVERY: Span = Span::from_secs(1);
/// How long QEMU has to go after `quit` and after each kill.
pub const QUIT_ALLOWANCE: Span = Span::from_secs(2);
/// Longest grace period taken at its word.
pub const MAX_GRACE: Span = Span::from_secs(24 * 3600);

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopAction {
    /// Press the guest's power button: QMP `system_powerdown`.
    Press,
    /// Send QMP `quit`, as the grace period is over.
    Quit,
    /// Send SIGKILL to QEMU, which has not gone after `quit`.
    Kill,
}

/// A stop under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopping {
    end: Timestamp,
    next_press: Timestamp,
    next_force: Timestamp,
    quit: bool,
    going: bool,
}

impl Stopping {
    /// A stop that began `now`.
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

    /// A second order: the earlier end counts.
    pub fn hurry(&mut self, now: Timestamp, grace: Span) {
        let end = now + grace.min(MAX_GRACE);
        if end < self.end && !self.quit {
            self.end = end;
            self.next_force = end;
        }
    }

    /// The guest was heard to shut down: no more pressing.
    pub fn heard(&mut self) {
        self.going = true;
    }

    /// Whether force was used.
    #[must_use]
    pub fn forced(&self) -> bool {
        self.quit
    }

    /// The next action that is due.
    pub fn poll_action(&mut self, now: Timestamp) -> Option<StopAction> {
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

    /// When to ask again.
    #[must_use]
    pub fn poll_deadline(&self) -> Timestamp {
        if self.going || self.quit {
            self.next_force
        } else {
            self.next_press.min(self.next_force)
        }
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
    fn the_button_is_pressed_each_second_then_force_is_used() {
        let mut stop = Stopping::new(T0, Span::from_millis(2500));
        let mut seen = Vec::new();
        let mut now = T0;
        while now < at(8000) {
            while let Some(action) = stop.poll_action(now) {
                seen.push(((now.since(T0)).as_millis(), action));
            }
            now = stop.poll_deadline();
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
    fn a_guest_that_goes_is_not_pressed_again() {
        let mut stop = Stopping::new(T0, Span::from_secs(10));
        assert_eq!(stop.poll_action(T0), Some(StopAction::Press));
        stop.heard();
        assert_eq!(stop.poll_action(at(1000)), None);
        assert_eq!(stop.poll_deadline(), at(10_000));
        assert!(!stop.forced());
    }

    #[test]
    fn no_grace_is_no_button_and_a_second_order_only_hurries() {
        let mut stop = Stopping::new(T0, Span(0));
        assert_eq!(stop.poll_action(T0), Some(StopAction::Quit));
        let mut slow = Stopping::new(T0, Span::from_secs(10));
        slow.hurry(at(1000), Span::from_secs(1));
        slow.hurry(at(1000), Span::from_secs(60));
        assert_eq!(slow.poll_action(at(2000)), Some(StopAction::Quit));
    }
}
