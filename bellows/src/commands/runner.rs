//! The hidden `bellows runner`. This binary is also the runner, so that a machine needs one file
//! only.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use neonvm_runner::cli::run_detached;
use neonvm_runner::shell::input::OnCancel;

use crate::fail::{Fail, Outcome};

/// Own one VM.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunnerArgs {
    #[command(subcommand)]
    command: RunnerCommand,
}

/// The same command line as `neonvm-runner`.
#[derive(Debug, Clone, Subcommand)]
enum RunnerCommand {
    /// Run the VM of a directory, or adopt it if it runs
    Run {
        /// The directory; config.json in it says what to run
        #[arg(long)]
        rundir: PathBuf,
        /// On SIGTERM stop the guest with this grace period instead of leaving it running
        #[arg(long, value_name = "MILLISECONDS")]
        stop_on_term: Option<u64>,
    },
}

pub(crate) fn run(args: &RunnerArgs) -> Outcome<ExitCode> {
    let RunnerCommand::Run {
        rundir,
        stop_on_term,
    } = &args.command;
    let _log = daemon_kit::logging::init("runner")
        .map_err(|error| Fail::usage(daemon_kit::chain(&error)))?;
    let runtime = crate::context::runtime(false)?;
    runtime.block_on(async {
        let cancel = daemon_kit::shutdown::on_signal()
            .map_err(|error| Fail::bug(format!("signals cannot be handled: {error}")))?;
        let on_cancel =
            stop_on_term.map_or(OnCancel::Leave, |grace_ms| OnCancel::Stop { grace_ms });
        Ok(run_detached(rundir, on_cancel, cancel).await)
    })
}
