//! Waiting for a state, with a deadline that is generous because these machines are shared.

use std::future::Future;
use std::time::{Duration, Instant};

/// Polls until `check` gives a value.
///
/// # Errors
/// Names what was waited for and the last thing seen.
pub async fn wait_for<T, F, Fut>(what: &str, patience: Duration, mut check: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let began = Instant::now();
    loop {
        match check().await {
            Ok(value) => return Ok(value),
            Err(seen) if began.elapsed() > patience => {
                anyhow::bail!("{what} did not happen in {patience:?}; last seen: {seen}")
            }
            // Poll interval of a level-triggered wait, not a guess at how long something takes.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
