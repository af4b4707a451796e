//! Waiting for a state. The first wait for a step is bounded generously, because these machines are
//! shared; later ones by what the step took in the same run ([`test_records::wait`]).

use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

use test_records::wait;

/// Poll interval of a level-triggered wait, not a guess at how long something takes.
const POLL: Duration = Duration::from_millis(20);

/// Polls until `check` gives a value, at most for `patience`. A step that was waited for before in
/// this run, at the same place, has at most [`wait::FACTOR`] times as long as it took then.
///
/// # Errors
/// Names what was waited for, the bound, where it comes from and the last thing seen.
#[track_caller]
pub fn wait_for<T, F, Fut>(
    what: &str,
    patience: Duration,
    mut check: F,
) -> impl Future<Output = anyhow::Result<T>>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let step = wait::step(Location::caller(), what);
    async move {
        let (bound, longest) = wait::bound(&step, patience);
        let began = Instant::now();
        let mut was_seen_missing = false;
        loop {
            match check().await {
                Ok(value) => {
                    // A state that held already tells nothing of how long the step takes.
                    if was_seen_missing {
                        wait::happened(step, began.elapsed(), bound);
                    }
                    return Ok(value);
                }
                Err(seen) if began.elapsed() > bound => {
                    let why = longest
                        .map(|it| format!(" ({} times the longest before, {it:?})", wait::FACTOR))
                        .unwrap_or_default();
                    anyhow::bail!("{what} did not happen in {bound:?}{why}; last seen: {seen}")
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
            was_seen_missing = true;
        }
    }
}
