//! `autoscaler-agent`: reads the configuration and the environment, runs the agent until SIGTERM.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use agent::{Config, Params, RunError};
use clap::Parser;
use telemetry::exit::Exit;
use telemetry::{chain, logging, shutdown};

/// What many tasks allocate for a moment lies between what they keep: with the C library's allocator a third of the memory held is
/// holes. Its settings are compiled in (`.cargo/config.toml`).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The autoscaler agent of one Kubernetes node.
#[derive(Debug, Parser)]
#[command(name = "autoscaler-agent", version)]
struct Args {
    /// Configuration file (JSON).
    #[arg(
        long,
        env = "CONFIG_PATH",
        default_value = "",
        hide_default_value = true
    )]
    config: String,
    /// Name of this node.
    #[arg(
        long,
        env = "K8S_NODE_NAME",
        default_value = "",
        hide_default_value = true
    )]
    node_name: String,
    /// Address of this pod; the servers listen on it.
    #[arg(
        long,
        env = "K8S_POD_IP",
        default_value = "",
        hide_default_value = true
    )]
    pod_ip: String,
    /// Listen here instead of on the pod's address.
    #[arg(long)]
    bind_ip: Option<IpAddr>,
    /// Write a decision journal into this directory.
    #[arg(long, env = "BELLOWS_JOURNAL_DIR", value_name = "DIR")]
    journal_dir: Option<PathBuf>,
    /// Keep billing and scaling events in this folder until they are received.
    #[arg(
        long,
        env = "EVENTS_DIR",
        default_value = "/var/lib/autoscaler-agent/events"
    )]
    events_dir: PathBuf,
    /// Check the configuration, print what is in force, and end.
    #[arg(long)]
    check_config: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(Exit::Dependency, &chain(&error)),
    };
    runtime.block_on(start(args))
}

fn fail(exit: Exit, text: &str) -> ExitCode {
    eprintln!("autoscaler-agent: {text}");
    exit.into()
}

async fn start(args: Args) -> ExitCode {
    if args.config.is_empty() {
        return fail(Exit::Config, "CONFIG_PATH is not set");
    }
    let config = match Config::from_file(&args.config) {
        Ok(config) => config,
        Err(error) => return fail(Exit::Config, &chain(&error)),
    };
    if args.check_config {
        let text = serde_json::to_string_pretty(&config).unwrap_or_default();
        let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{text}\n").as_bytes());
        return Exit::Drained.into();
    }
    let missing: Vec<&str> = [
        ("K8S_NODE_NAME", &args.node_name),
        ("K8S_POD_IP", &args.pod_ip),
    ]
    .into_iter()
    .filter(|(_, value)| value.is_empty())
    .map(|(name, _)| name)
    .collect();
    if !missing.is_empty() {
        return fail(Exit::Config, &format!("{} not set", missing.join(" and ")));
    }
    let bind_ip = match (args.bind_ip, args.pod_ip.parse()) {
        (Some(ip), _) | (None, Ok(ip)) => ip,
        (None, Err(_)) => {
            return fail(
                Exit::Config,
                &format!("K8S_POD_IP {:?} is no address", args.pod_ip),
            );
        }
    };
    let folders = (args.journal_dir, args.events_dir);
    match serve(config, args.node_name, bind_ip, folders).await {
        Ok(()) => Exit::Drained.into(),
        Err((exit, text)) => {
            tracing::error!(error = text, "the agent ends");
            fail(exit, &text)
        }
    }
}

async fn serve(
    config: Config,
    node_name: String,
    bind_ip: IpAddr,
    (journal, events_dir): (Option<PathBuf>, PathBuf),
) -> Result<(), (Exit, String)> {
    let broken = |error: &dyn std::error::Error| (Exit::Dependency, chain(error));
    logging::init("autoscaler-agent").map_err(|error| (Exit::Config, chain(&error)))?;
    // A second provider could only have been installed by ourselves: then there is one, which is all that is needed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = kube::Client::try_default()
        .await
        .map_err(|error| broken(&error))?;
    let cancel = shutdown::on_signal().map_err(|error| broken(&error))?;
    let params = Params {
        journal,
        events_folder: Some(events_dir),
        ..Params::new(config, node_name, client, bind_ip)
    };
    agent::run(params, cancel)
        .await
        .map_err(|error| match error {
            RunError::Events(_) | RunError::Bind { .. } | RunError::Server { .. } => {
                (Exit::Dependency, chain(&error))
            }
            RunError::Crashed(_) => (Exit::Bug, chain(&error)),
        })
}
