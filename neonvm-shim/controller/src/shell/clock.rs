//! The current time, and pauses.

use std::time::Duration;

use daemon_kit::clock::Clock;

use crate::core::Moment;

/// The current time on both clocks.
pub(super) fn moment(clock: &Clock) -> Moment {
    Moment {
        now: clock.now(),
        wall: clock.wall(),
    }
}

impl From<Clock> for Moment {
    fn from(clock: Clock) -> Self {
        moment(&clock)
    }
}

pub(super) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
