//! One timer for the owner's deadline, on a timer descriptor.
//!
//! The runtime's own timers wake the process two or three times for each deadline (its wheel has
//! steps of 64 ms, and a nearer deadline interrupts the wait for a later one). Ten readings a
//! second, for as long as the VM lives, are most of what this process does, so each should cost one
//! wake-up.

use std::io;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use protocol::time::Timestamp;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use transport::sys::{self, Registered};

use super::clock::Clock;

/// Waits for points in time, one at a time.
#[derive(Debug)]
pub struct Alarm {
    timer: AsyncFd<Registered<TimerFd>>,
    clock: Clock,
    set_for: Option<Timestamp>,
}

impl Alarm {
    /// A timer on the current runtime.
    ///
    /// # Errors
    /// When the process may have no more descriptors.
    pub fn new(clock: Clock) -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let timer = sys::register(timer, Interest::READABLE)?;
        Ok(Self {
            timer,
            clock,
            set_for: None,
        })
    }

    /// Completes at `when` or later, never without one. May be dropped and asked again.
    ///
    /// # Errors
    /// What the kernel says to setting a timer; not expected.
    pub async fn at(&mut self, when: Option<Timestamp>) -> io::Result<()> {
        let Some(when) = when else {
            return std::future::pending().await;
        };
        while self.clock.now() < when {
            if self.set_for != Some(when) {
                self.set(when)?;
            }
            // It may still be ready from an earlier deadline, hence the loop.
            self.timer.readable().await?.clear_ready();
        }
        Ok(())
    }

    fn set(&mut self, when: Timestamp) -> io::Result<()> {
        // At least a microsecond: zero would switch the timer off.
        let left = when.since(self.clock.now()).to_duration();
        let left = left.max(std::time::Duration::from_micros(1));
        let once = Expiration::OneShot(TimeSpec::from_duration(left));
        self.timer
            .get_ref()
            .get()
            .set(once, TimerSetTimeFlags::empty())?;
        self.set_for = Some(when);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::time::Span;
    use tokio::time::{Duration, timeout};

    const DEADLINE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn never_early_and_each_time_again() {
        let clock = Clock::new();
        let mut alarm = Alarm::new(clock).expect("a timer");
        for _ in 0..5 {
            let when = clock.now() + Span::from_millis(7);
            timeout(DEADLINE, alarm.at(Some(when)))
                .await
                .expect("in time")
                .expect("set");
            assert!(clock.now() >= when);
        }
        let past = clock.now() - Span::from_millis(1);
        timeout(DEADLINE, alarm.at(Some(past)))
            .await
            .expect("at once")
            .expect("set");
    }

    #[tokio::test]
    async fn a_dropped_wait_does_not_disturb_the_next() {
        let clock = Clock::new();
        let mut alarm = Alarm::new(clock).expect("a timer");
        let soon = clock.now() + Span::from_millis(1);
        let _ = timeout(Duration::from_millis(20), alarm.at(None)).await;
        let _ = timeout(Duration::ZERO, alarm.at(Some(soon))).await;
        let later = clock.now() + Span::from_millis(30);
        timeout(DEADLINE, alarm.at(Some(later)))
            .await
            .expect("in time")
            .expect("set");
        assert!(clock.now() >= later);
    }
}
