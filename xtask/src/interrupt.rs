//! Ctrl-C during a command that has started processes of its own: they are ended before we are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};

static IS_TOLD: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on SIGINT and SIGTERM are noted instead of ending this process; a second one ends it at
/// once.
pub(crate) fn catch() -> Result<()> {
    let flag = Arc::clone(IS_TOLD.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .context("catch signals")?;
    }
    Ok(())
}

/// An error once a signal has come. Called by everything that waits.
pub(crate) fn check() -> Result<()> {
    if IS_TOLD
        .get()
        .is_some_and(|flag| flag.load(Ordering::Acquire))
    {
        bail!("interrupted");
    }
    Ok(())
}
