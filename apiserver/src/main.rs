//! `neonvm-apiserver`: the embedded API server alone.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use apiserver::{Config, StartError, start};
use clap::Parser;
use daemon_kit::exit::Exit;
use daemon_kit::{chain, descriptors, logging, shutdown};

/// Kubernetes-compatible API server for one machine.
#[derive(Parser)]
#[command(version = protocol::release::RELEASE)]
struct Args {
    /// Directory of the store, the kubeconfig and the certificates.
    #[arg(long, env = "BELLOWS_STATE_DIR", default_value = "/var/lib/bellows")]
    state_dir: PathBuf,
    /// Address to listen on; port 0 takes any free one.
    #[arg(long, default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// Further name in the server's certificate; may be repeated.
    #[arg(long = "name")]
    names: Vec<String>,
    /// File that a line for each call is appended to, as an Event of audit.k8s.io/v1
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match run(args).await {
        Ok(()) => Exit::Drained.into(),
        Err(error) => {
            let exit = match error.downcast_ref() {
                Some(StartError::Panicked | StartError::Documents(_)) | None => Exit::Bug,
                Some(_) => Exit::Dependency,
            };
            tracing::error!("{}", chain(error.as_ref()));
            exit.into()
        }
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the one machine-readable line of a started server"
)]
async fn run(args: Args) -> anyhow::Result<()> {
    logging::init("neonvm-apiserver")?;
    descriptors::raise_limit();
    let stop = shutdown::on_signal()?;
    let config = Config {
        state_dir: args.state_dir,
        listen: args.listen,
        names: args.names,
        seen: Vec::new(),
        audit_log: args.audit_log,
    };
    let server = start(config).await?;
    println!(
        "listening https://{} kubeconfig {}",
        server.addr,
        server.kubeconfig_path.display()
    );
    server.run(stop).await?;
    Ok(())
}
