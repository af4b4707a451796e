//! The hidden `bellows runner`: this binary is also the runner, so that one file is enough on a machine.

use std::ffi::OsString;

use clap::Args;

use crate::fail::Outcome;

/// Own one VM.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunnerArgs {
    /// Arguments of the runner
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(args: &RunnerArgs) -> Outcome {
    let _ = &args.arguments;
    Ok(())
}
