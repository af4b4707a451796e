//! Pauses, deadlines, and the times at which frames arrive.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

/// Longest time for a response.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Lets time pass.
#[expect(
    clippy::disallowed_methods,
    reason = "the pace of a benchmark is part of what it measures"
)]
pub(super) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// A channel on which one thread passes on each frame with the time it came.
pub(super) fn relay(
    mut read: impl FnMut() -> Result<Value> + Send + 'static,
) -> Receiver<(Instant, Value)> {
    let (to, from) = channel();
    std::thread::spawn(move || {
        while let Ok(frame) = read() {
            if to.send((Instant::now(), frame)).is_err() {
                return;
            }
        }
    });
    from
}
