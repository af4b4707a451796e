//! `neonvm-runner`: one VM's runner, and the accelerator probe. See the library's documentation.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use daemon_kit::exit::Exit;
use neonvm_runner::accel;
use neonvm_runner::cli::{NodeArgs, run_detached, run_node};
use neonvm_runner::container;
use neonvm_runner::shell::input::OnCancel;

/// Runs one virtual machine.
#[derive(Debug, Parser)]
#[command(name = "neonvm-runner", version = protocol::release::RELEASE)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the VM of a directory. If its QEMU is running, adopt it.
    Run {
        /// Directory with the `config.json` of the VM.
        #[arg(long)]
        rundir: PathBuf,
        /// On SIGTERM stop the guest with this grace period instead of leaving it running.
        #[arg(long, value_name = "MILLISECONDS")]
        stop_on_term: Option<u64>,
    },
    /// Run the VMs of the pods that are bound to this node.
    Node(NodeArgs),
    /// Find out whether KVM boots a guest here.
    Probe {
        /// QEMU to run the probe guest with.
        #[arg(long, default_value = "qemu-system-x86_64")]
        qemu: PathBuf,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let argv: Vec<String> = std::env::args().collect();
    if container::is_container(&argv) {
        let _logs = daemon_kit::logging::init("runner")?;
        let cancel = daemon_kit::shutdown::on_signal()?;
        return Ok(container::run(&argv, cancel).await);
    }
    let args = Args::parse();
    let _logs = daemon_kit::logging::init("runner")?;
    let cancel = daemon_kit::shutdown::on_signal()?;
    match args.command {
        Command::Probe { qemu } => {
            let verdict = accel::probe(&qemu, None).await;
            #[expect(clippy::print_stdout, reason = "the command's answer")]
            {
                println!("{}", verdict.reason());
            }
            Ok(Exit::Drained.into())
        }
        Command::Node(args) => match run_node(args, cancel).await {
            Ok(()) => Ok(Exit::Drained.into()),
            Err(problem) => {
                tracing::error!(error = daemon_kit::chain(&problem), "cannot run");
                Ok(Exit::Dependency.into())
            }
        },
        Command::Run {
            rundir,
            stop_on_term,
        } => {
            let on_cancel =
                stop_on_term.map_or(OnCancel::Leave, |grace_ms| OnCancel::Stop { grace_ms });
            Ok(run_detached(&rundir, on_cancel, cancel).await)
        }
    }
}
