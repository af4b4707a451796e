//! `cargo xtask histories`: long histories of clients of the API server under faults, checked as
//! versioned registers.

use anyhow::Result;
use clap::Args;

use crate::shell;

/// Options of `histories`.
#[derive(Args)]
pub(crate) struct Options {
    /// Calls of all clients of both histories together
    #[arg(long, alias = "steps", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1000..))]
    calls: u32,
}

/// Runs `apiserver/tests/histories.rs` with so many calls.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut command = shell::cargo()?;
    command.args(["test", "--profile", "sim", "--locked"]);
    command.args(["--package", "apiserver", "--test", "histories"]);
    command.args(["--", "--nocapture", "history_under"]);
    command.env("BELLOWS_HISTORY_CALLS", options.calls.to_string());
    let what = format!("histories of {} calls", options.calls);
    shell::run(&what, &mut command)
}
