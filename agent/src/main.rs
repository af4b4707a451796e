//! `autoscaler-agent`: reads the configuration and the environment, runs the agent until SIGTERM.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use agent::{Config, Params, RunError};
use clap::Parser;
use daemon_kit::exit::Exit;
use daemon_kit::journal::Retention;
use daemon_kit::{chain, descriptors, logging, shutdown, state_folder};
use protocol::units::Bytes;

/// Default of `--events-dir`.
const DEFAULT_EVENTS_DIR: &str = "/var/lib/autoscaler-agent/events";

/// Short-lived allocations of many tasks lie between long-lived ones. With the C library's
/// allocator a third of the resident memory was unused holes. Its settings are compiled in
/// (`.cargo/config.toml`).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The autoscaler agent of one Kubernetes node.
#[derive(Debug, Parser)]
#[command(name = "autoscaler-agent", version = protocol::release::RELEASE)]
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
    /// Keep at most this much of the journal, such as 4Gi. The last two hours are kept in any case.
    #[arg(long, default_value = "4Gi", value_name = "SIZE", value_parser = size)]
    journal_max_size: Bytes,
    /// Keep the journal for this many days, 1 to 14.
    #[arg(
        long,
        default_value_t = 7,
        value_name = "DAYS",
        value_parser = clap::value_parser!(u64).range(1..=14)
    )]
    journal_max_days: u64,
    /// Keep billing and scaling events in this folder until they are received.
    #[arg(long, env = "EVENTS_DIR", default_value = DEFAULT_EVENTS_DIR)]
    events_dir: PathBuf,
    /// Publish in this namespace whether the agent may be restarted, as the `ConfigMap`
    /// `autoscaler-agent-schedule-NODE`.
    #[arg(long, value_name = "NAMESPACE")]
    schedule_namespace: Option<String>,
    /// Check the configuration, print what is in force, and end.
    #[arg(long)]
    check_config: bool,
    /// Make this folder, or give an empty one of this process's user, to the user of the agent, and
    /// end. A folder of another user, or with content, is refused.
    #[arg(long, value_name = "DIR", requires = "state_user")]
    prepare_state: Option<PathBuf>,
    /// Number of the user and the group that the agent will run as.
    #[arg(long, value_name = "UID", requires = "prepare_state")]
    state_user: Option<u32>,
}

/// Exit status and error text of a program that ends early.
type Stop = (Exit, String);

fn size(text: &str) -> Result<Bytes, String> {
    let size = Bytes::from_json(&text.into()).map_err(|error| chain(&error))?;
    Some(size)
        .filter(|size| size.0 > 0)
        .ok_or_else(|| "must be above 0".to_owned())
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let (Some(folder), Some(user)) = (&args.prepare_state, args.state_user) {
        return exit_code(prepare(folder, user));
    }
    let ended = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| (Exit::Dependency, chain(&error)))
        .and_then(|runtime| runtime.block_on(start(args)));
    exit_code(ended)
}

fn prepare(folder: &Path, user: u32) -> Result<(), Stop> {
    state_folder::prepare(folder, user).map_err(|error| (Exit::Config, chain(&error)))
}

fn exit_code(ended: Result<(), Stop>) -> ExitCode {
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
        journal_retention: Retention {
            age: Duration::from_secs(args.journal_max_days * 86_400),
            bytes: args.journal_max_size.0,
            ..Retention::default()
        },
        events_folder: Some(args.events_dir),
        log: Some(log),
        schedule_namespace: args.schedule_namespace,
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
