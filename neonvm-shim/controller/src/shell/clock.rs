//! The current time, and pauses.

use std::time::Duration;

use daemon_kit::clock::Clock;
use protocol::time::Timestamp;

use crate::core::Moment;

/// The current time on both clocks.
pub(super) fn moment(clock: &Clock) -> Moment {
    Moment {
        now: clock.now(),
        wall: clock.wall(),
    }
}

pub(super) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Waits until a point in time; without one, for ever.
pub(super) async fn pause_until(clock: &Clock, at: Option<Timestamp>) {
    match at {
        Some(at) => tokio::time::sleep_until(clock.instant_of(at).into()).await,
        None => std::future::pending().await,
    }
}
