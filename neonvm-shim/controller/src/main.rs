//! `neonvm-controller`: the controller alone. `bellows up` runs the same in one process with the other parts.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use axum::Json;
use axum::routing::get;
use clap::Parser;
use neonvm_controller::{Metrics, Params, Settings, StateHandle};
use prometheus_client::registry::Registry;
use protocol::vm::CpuScalingMode;
use telemetry::admin::Admin;
use telemetry::clock::Clock;
use telemetry::exit::Exit;
use telemetry::{StageLog, logging, shutdown};
use tokio::net::TcpListener;

/// Resize stages kept.
const STAGES_KEPT: usize = 4096;

/// Controller of VirtualMachine objects. Finds its API server by KUBECONFIG or, in a pod, by its service account.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Directory in which runners keep `vms/<namespace>_<pod>/control.sock`.
    #[arg(long, default_value = "/var/lib/bellows")]
    state_dir: PathBuf,
    /// Address of / (state), /metrics, /healthz, /readyz and /debug/state; port 0 picks one.
    #[arg(long, default_value = "127.0.0.1:7778")]
    listen: std::net::SocketAddr,
    /// Only runners of pods on this node are reached.
    #[arg(long)]
    node_name: Option<String>,
    /// Mode of VMs that name none: `QmpScaling` or `SysfsScaling`.
    #[arg(long, default_value = "QmpScaling", value_parser = mode)]
    default_cpu_scaling_mode: CpuScalingMode,
    /// Image of runner pods; its presence selects the settings for a cluster.
    #[arg(long, env = "VM_RUNNER_IMAGE")]
    runner_image: Option<String>,
    /// Runners leave cgroups alone.
    #[arg(long)]
    disable_runner_cgroup: bool,
    /// Restart a VM only once its old pod is gone.
    #[arg(long)]
    at_most_one_pod: bool,
    /// Drive options of runners.
    #[arg(long)]
    qemu_disk_cache_settings: Option<String>,
    /// Share of movable memory among hot-plugged memory.
    #[arg(long)]
    memhp_auto_movable_ratio: Option<String>,
}

fn mode(text: &str) -> Result<CpuScalingMode, String> {
    serde_json::from_value(text.into()).map_err(|_| "QmpScaling or SysfsScaling".into())
}

impl Args {
    fn settings(&self) -> Settings {
        let mut settings = match &self.runner_image {
            Some(image) => Settings::cluster(image),
            None => Settings::one_machine(),
        };
        settings.default_cpu_scaling_mode = self.default_cpu_scaling_mode;
        settings.local_node.clone_from(&self.node_name);
        settings.skip_cgroup_management |= self.disable_runner_cgroup;
        settings.at_most_one_pod |= self.at_most_one_pod;
        if let Some(cache) = &self.qemu_disk_cache_settings {
            settings.qemu_disk_cache_settings.clone_from(cache);
        }
        if let Some(ratio) = &self.memhp_auto_movable_ratio {
            settings.memhp_auto_movable_ratio.clone_from(ratio);
        }
        settings
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match run(args).await {
        Ok(()) => Exit::Drained.into(),
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "stopped");
            Exit::Dependency.into()
        }
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    let log = logging::init("neonvm-controller").context("logging")?;
    let cancel = shutdown::on_signal().context("signals")?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = kube::Client::try_default()
        .await
        .context("no API server is configured")?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("could not listen on {}", args.listen))?;
    tracing::info!(address = %listener.local_addr()?, "admin server listens");
    let (clock, mut registry) = (Clock::new(), Registry::default());
    let metrics = Metrics::register(&mut registry);
    let state = StateHandle::new(clock);
    let (shown, synced, root) = (state.clone(), state.clone(), state.clone());
    let admin = Admin::new(Arc::new(registry))
        .log(log)
        .state(move || shown.dump())
        .ready(move || {
            if synced.is_synced() {
                Ok(())
            } else {
                Err("lists are not synced".into())
            }
        });
    let router = admin
        .router()
        .route("/", get(async move || Json(root.dump())));
    let stop = cancel.clone().cancelled_owned();
    let server = tokio::spawn(
        axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .into_future(),
    );
    let settings = args.settings();
    let params = Params {
        client,
        state_dir: args.state_dir,
        settings,
        clock,
        stages: StageLog::new(STAGES_KEPT),
        metrics,
        state,
    };
    neonvm_controller::run(params, cancel).await?;
    server.await??;
    Ok(())
}
