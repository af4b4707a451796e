//! Does the driver get on? A thread looks, because a task cannot see that its runtime is blocked.

use std::time::Duration;

use fleet::Pulses;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Starts a thread that calls `on_stuck` once a task has been in one step for longer than `limit`.
/// The thread then ends.
///
/// # Errors
/// The thread cannot be started.
pub fn start(
    pulses: Pulses,
    limit: Duration,
    on_stuck: impl FnOnce(Duration) + Send + 'static,
) -> std::io::Result<()> {
    let look = move || {
        let step = loop {
            let step = pulses.longest_step();
            if step > limit {
                break step;
            }
            std::thread::park_timeout(LOOK_EVERY);
        };
        on_stuck(step);
    };
    let thread = std::thread::Builder::new().name("watchdog".to_owned());
    thread.spawn(look).map(drop)
}
