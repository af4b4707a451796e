//! `neonvm-vxlan-controller`: one node's part of the overlay network. See the library's
//! documentation.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use daemon_kit::admin::{Admin, serve};
use daemon_kit::connections::ConnectionCounters;
use daemon_kit::exit::Exit;
use daemon_kit::{logging, shutdown};
use neonvm_vxlan::args::Args;
use neonvm_vxlan::shell::{Context, Kernel, Metrics, StateHandle, remove, run};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(asked) => {
            // Help and version are no errors; everything else is a usage error.
            let exit = if asked.use_stderr() {
                Exit::Config
            } else {
                Exit::Drained
            };
            let _ = asked.print();
            return exit.into();
        }
    };
    match start(args).await {
        Ok(()) => Exit::Drained.into(),
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "stopped");
            Exit::Dependency.into()
        }
    }
}

async fn start(args: Args) -> anyhow::Result<()> {
    let log = logging::init("neonvm-vxlan-controller").context("logging")?;
    let cancel = shutdown::on_signal().context("signals")?;
    let kernel = Kernel::open(args.exempt.0.map(|_| args.iptables.clone()));
    let kernel = kernel.context("cannot open the kernel's netlink")?;
    if args.delete {
        return Ok(remove(&kernel).await?);
    }
    let local = args.node_ip.context("--node-ip is required")?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = api_client::infer()
        .await
        .context("no API server is configured")?;
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let connections = ConnectionCounters::register(&mut registry).server("metrics");
    let state = StateHandle::default();
    let (shown, asked) = (state.clone(), state.clone());
    let admin = Admin::new(Arc::new(registry), connections)
        .program("neonvm_vxlan_controller")
        .log(log)
        .state(move || shown.dump())
        .ready(move || asked.ready());
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("could not listen on {}", args.listen))?;
    tracing::info!(address = %listener.local_addr()?, "admin server listens");
    let server = tokio::spawn(serve(listener, admin, cancel.clone()));
    let params = Context {
        client,
        kernel,
        local,
        exempt: args.exempt.0,
        metrics,
        state,
    };
    run(params, cancel).await?;
    server.await?;
    Ok(())
}
