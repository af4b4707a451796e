//! `neonvm-runner`: one VM's runner, and the accelerator probe. See the library's documentation.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use neonvm_runner::accel;
use neonvm_runner::shell::run::{End, RunError, run};
use neonvm_runner::shell::supervisor::OnCancel;
use telemetry::clock::Clock;
use telemetry::exit::Exit;
use tracing::error;

/// Runs one virtual machine.
#[derive(Debug, Parser)]
#[command(name = "neonvm-runner", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the VM of a directory, or adopt it if it runs.
    Run {
        /// The directory; `config.json` in it says what to run.
        #[arg(long)]
        rundir: PathBuf,
        /// On SIGTERM stop the guest with this grace period instead of leaving it running.
        #[arg(long, value_name = "MILLISECONDS")]
        stop_on_term: Option<u64>,
    },
    /// Find out whether KVM boots a guest here.
    Probe {
        /// QEMU.
        #[arg(long, default_value = "qemu-system-x86_64")]
        qemu: PathBuf,
    },
}

/// Exit status of a VM that failed, as pods know it.
const VM_FAILED: u8 = 1;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let _logs = telemetry::logging::init("runner")?;
    let cancel = telemetry::shutdown::on_signal()?;
    match args.command {
        Command::Probe { qemu } => {
            let verdict = accel::probe(&qemu, None).await;
            #[expect(clippy::print_stdout, reason = "the command's answer")]
            {
                println!("{}", verdict.reason());
            }
            Ok(Exit::Drained.into())
        }
        Command::Run {
            rundir,
            stop_on_term,
        } => {
            let on_cancel =
                stop_on_term.map_or(OnCancel::Leave, |grace_ms| OnCancel::Stop { grace_ms });
            match run(&rundir, on_cancel, Clock::new(), cancel).await {
                Ok(End::Exited(report)) if report.success => Ok(Exit::Drained.into()),
                Ok(End::Exited(_)) => Ok(ExitCode::from(VM_FAILED)),
                Ok(End::Left) => Ok(Exit::Drained.into()),
                Err(problem) => {
                    error!(error = telemetry::chain(&problem), "cannot run");
                    Ok(exit_code(&problem).into())
                }
            }
        }
    }
}

fn exit_code(problem: &RunError) -> Exit {
    match problem {
        RunError::Held(_) => Exit::TryAgain,
        RunError::Disk(_) | RunError::Qemu(..) | RunError::Bind(..) => Exit::Dependency,
        _ => Exit::Config,
    }
}
