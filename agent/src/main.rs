//! `autoscaler-agent`: reads the configuration and the environment, runs the agent until SIGTERM.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::ExitCode;

use agent::{Config, Params, RunError};
use clap::Parser;
use daemon_kit::exit::Exit;
use daemon_kit::{chain, descriptors, logging, shutdown};

/// Default of `--events-dir`.
const DEFAULT_EVENTS_DIR: &str = "/var/lib/autoscaler-agent/events";

/// Short-lived allocations of many tasks lie between long-lived ones. With the C library's
/// allocator a third of the resident memory was unused holes. Its settings are compiled in
/// (`.cargo/config.toml`).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The autoscaler agent of one Kubernetes node.
#[derive(Debug, Parser)]
#[command(name = "autoscaler-agent", version)]
struct Args {
    /// Configuration file (JSON).
    #[arg(long, env = "CONFIG_PATH")]
    config: Option<String>,
    /// Name of this node.
    #[arg(long, env = "K8S_NODE_NAME")]
    node_name: Option<String>,
    /// Address of this pod; the servers listen on it.
    #[arg(long, env = "K8S_POD_IP")]
    pod_ip: Option<String>,
    /// Listen here instead of on the pod's address.
    #[arg(long)]
    bind_ip: Option<IpAddr>,
    /// Listen on all addresses of the pod, of the family of `--pod-ip`: forwarded ports arrive at
    /// its loopback.
    #[arg(long, conflicts_with = "bind_ip")]
    all_addresses: bool,
    /// Write a decision journal into this directory.
    #[arg(long, env = "BELLOWS_JOURNAL_DIR", value_name = "DIR")]
    journal_dir: Option<PathBuf>,
    /// Keep billing and scaling events in this folder until they are received.
    #[arg(long, env = "EVENTS_DIR", default_value = DEFAULT_EVENTS_DIR)]
    events_dir: PathBuf,
    /// Check the configuration, print what is in force, and end.
    #[arg(long)]
    check_config: bool,
}

/// Exit status and error text of a program that ends early.
type Stop = (Exit, String);

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| (Exit::Dependency, chain(&error)))
        .and_then(|runtime| runtime.block_on(start(args)));
    match ended {
        Ok(()) => Exit::Drained.into(),
        Err((exit, text)) => {
            eprintln!("autoscaler-agent: {text}");
            exit.into()
        }
    }
}

/// Checks a required value. An empty one counts as missing.
fn required(name: &str, value: Option<String>) -> Result<String, Stop> {
    value
        .filter(|value| !value.is_empty())
        .ok_or_else(|| (Exit::Config, format!("{name} is not set")))
}

async fn start(args: Args) -> Result<(), Stop> {
    let path = required("CONFIG_PATH", args.config)?;
    let config = Config::from_file(&path).map_err(|error| (Exit::Config, chain(&error)))?;
    if args.check_config {
        let text = serde_json::to_string_pretty(&config).unwrap_or_default();
        let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{text}\n").as_bytes());
        return Ok(());
    }
    let node_name = required("K8S_NODE_NAME", args.node_name)?;
    let pod_ip = required("K8S_POD_IP", args.pod_ip)?;
    let bind_ip = match (args.bind_ip, pod_ip.parse()) {
        (Some(ip), _) => ip,
        (None, Ok(IpAddr::V4(_))) if args.all_addresses => Ipv4Addr::UNSPECIFIED.into(),
        (None, Ok(IpAddr::V6(_))) if args.all_addresses => Ipv6Addr::UNSPECIFIED.into(),
        (None, Ok(ip)) => ip,
        (None, Err(_)) => {
            let text = format!("K8S_POD_IP {pod_ip:?} is no address");
            return Err((Exit::Config, text));
        }
    };
    let broken = |error: &dyn std::error::Error| (Exit::Dependency, chain(error));
    let log = logging::init("autoscaler-agent").map_err(|error| (Exit::Config, chain(&error)))?;
    descriptors::raise_limit();
    // This fails only if this process has installed a provider already, which is enough.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = api_client::infer().await.map_err(|error| broken(&error))?;
    let cancel = shutdown::on_signal().map_err(|error| broken(&error))?;
    let params = Params {
        journal: args.journal_dir,
        events_folder: Some(args.events_dir),
        log: Some(log),
        ..Params::new(config, node_name, client, bind_ip)
    };
    agent::run(params, cancel).await.map_err(|error| {
        tracing::error!(error = chain(&error), "the agent ends");
        match error {
            RunError::Crashed(_) => (Exit::Bug, chain(&error)),
            _ => (Exit::Dependency, chain(&error)),
        }
    })
}
