//! The runner as a process: `neonvm-runner run`, and the hidden subcommand with the same effect in
//! another program.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use daemon_kit::clock::Clock;
use daemon_kit::exit::Exit;
use nix::unistd::setsid;
use protocol::runner::{ExitReason, ExitReport};
use protocol::units::{Bytes, MilliCpu};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::config::AccelChoice;
use crate::core::paths::Paths;
use crate::node::{
    self, Allocatable, GuestWalls, NodeError, NodeParams, Orphans, UserRange, machine,
};
use crate::shell::inherit;
use crate::shell::input::OnCancel;
use crate::shell::record::write_json;
use crate::shell::run::{End, run};
use crate::shell::run_error::RunError;

const VM_FAILED: u8 = 1;

/// Runs the runner of a directory to its end and returns the process's exit status: 0 when the VM
/// succeeded or was left running, 1 when it failed, 64 for a directory or spec that cannot be run,
/// 69 when a program or address is missing, 75 when another runner holds the directory.
///
/// The process becomes a session leader, so that neither a terminal nor a parent ends it. If the VM
/// cannot be started, an exit report in the directory stops further attempts.
pub async fn run_detached(dir: &Path, on_cancel: OnCancel, cancel: CancellationToken) -> ExitCode {
    if let Err(error) = inherit::no_files() {
        error!(%error, "failed to keep the caller's open files from QEMU");
    }
    // Fails only if this process already leads a session.
    let _ = setsid();
    match run(dir, on_cancel, Clock::new(), cancel).await {
        Ok(End::Exited(report)) if !report.success => ExitCode::from(VM_FAILED),
        Ok(End::Exited(_) | End::Left) => Exit::Drained.into(),
        Err(problem) => {
            let text = daemon_kit::chain(&problem);
            error!(error = text, dir = %dir.display(), "cannot run");
            if !matches!(problem, RunError::Held(_)) {
                let report = ExitReport {
                    success: false,
                    reason: ExitReason::StartFailed,
                    code: None,
                    message: text,
                };
                if let Err(problem) = write_json(&Paths::new(dir).exit(), &report) {
                    error!(
                        error = daemon_kit::chain(&problem),
                        "failed to write the report of the failure"
                    );
                }
            }
            exit_code(&problem).into()
        }
    }
}

fn exit_code(problem: &RunError) -> Exit {
    match problem {
        RunError::Held(_) => Exit::TryAgain,
        RunError::Disk(_)
        | RunError::RootDisk(_)
        | RunError::Claim(_)
        | RunError::Drives(_)
        | RunError::Bridge(_)
        | RunError::Overlay(_)
        | RunError::Qemu(..)
        | RunError::Bind(..) => Exit::Dependency,
        _ => Exit::Config,
    }
}

/// Options of `neonvm-runner node`.
#[derive(Debug, clap::Args)]
pub struct NodeArgs {
    /// Name of the Node object; the host's name by default.
    #[arg(long)]
    node_name: Option<String>,
    /// Directory of the node's state, which holds a directory per pod.
    #[arg(long, env = "BELLOWS_STATE_DIR", default_value = "/var/lib/bellows")]
    state_dir: PathBuf,
    /// Directory of the image store, filled by `bellows image`.
    #[arg(long)]
    store_dir: PathBuf,
    /// Identity of the API's store. Guests of pods from a store of another identity are left alone.
    #[arg(long, default_value = "external")]
    store_id: String,
    /// N of the loopback block 127.N.0.0/16 that pods get addresses of.
    #[arg(long, default_value_t = 88, value_parser = clap::value_parser!(u8).range(1..))]
    loopback: u8,
    /// Accelerator of the VMs: `auto` takes KVM if a probe guest boots with it, else TCG.
    #[arg(long, value_enum, default_value = "auto")]
    accel: AccelChoice,
    /// CPU quota in per cent of a VM's CPU limit.
    #[arg(long, default_value_t = 100)]
    cpu_quota_percent: u32,
    /// Cgroup under which VMs get theirs.
    #[arg(long, default_value = "bellows")]
    cgroup_parent: String,
    /// CPU withheld from pods, in milli-CPU.
    #[arg(long, default_value_t = 0)]
    reserve_milli_cpu: u32,
    /// Memory withheld from pods, in MiB.
    #[arg(long, default_value_t = 512)]
    reserve_mib: u64,
    /// Most pods that the node accepts.
    #[arg(long, default_value_t = 110)]
    max_pods: u32,
}

/// Runs the node driver alone, against the API of `KUBECONFIG` or the cluster it is in, with this
/// program as runner.
///
/// # Errors
/// [`CliError`]: no API is configured, or the driver cannot begin.
pub async fn run_node(args: NodeArgs, cancel: CancellationToken) -> Result<(), CliError> {
    let host = || {
        nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
    };
    let node_name = args.node_name.or_else(host).ok_or(CliError::NoName)?;
    let client = api_client::infer()
        .await
        .map_err(|error| CliError::Api(Box::new(error)))?;
    let program = std::env::current_exe().map_err(CliError::Program)?;
    let has = machine();
    let allocatable = Allocatable {
        cpu: MilliCpu(has.cpu.0.saturating_sub(args.reserve_milli_cpu)),
        memory: Bytes(has.memory.0.saturating_sub(args.reserve_mib << 20)),
        pods: args.max_pods,
    };
    let params = NodeParams {
        store_id: args.store_id,
        orphans: Orphans::default(),
        client,
        node_name,
        state_dir: args.state_dir,
        store_dir: args.store_dir,
        loopback: [127, args.loopback],
        runner_command: vec![program.into(), "run".into()],
        programs: None,
        accel: args.accel,
        cpu_quota_percent: args.cpu_quota_percent,
        cgroup_parent: Some(args.cgroup_parent),
        walls: GuestWalls::Walled(
            rustix::process::geteuid()
                .is_root()
                .then(|| UserRange::of_block(args.loopback)),
        ),
        ssh_public_key: None,
        monitor_key: None,
        allocatable,
        clock: Clock::new(),
    };
    node::run(params, cancel).await.map_err(CliError::Node)
}

/// Errors before the node driver runs.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The host has no name, and no `--node-name` was given.
    #[error("this host has no name; give one with --node-name")]
    NoName,
    /// No client could be made from `KUBECONFIG` or the cluster that the program is in.
    #[error("no Kubernetes API is configured (KUBECONFIG)")]
    Api(#[source] Box<kube::Error>),
    /// The path of this program, which is also the runner, could not be read.
    #[error("cannot read the path of this program")]
    Program(#[source] std::io::Error),
    /// The node driver failed at its start.
    #[error("the node driver cannot begin")]
    Node(#[source] NodeError),
}
