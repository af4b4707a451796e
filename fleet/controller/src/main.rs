//! `bellows-fleet`: rollouts in a cluster. `bellows up` runs the same driver in one process with
//! the other parts.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use daemon_kit::admin::{self, Admin};
use daemon_kit::clock::Clock;
use daemon_kit::connections::ConnectionCounters;
use daemon_kit::exit::Exit;
use daemon_kit::journal::{Identity, Journal, Limits};
use daemon_kit::logging::LogHandle;
use daemon_kit::{StageLog, descriptors, logging, shutdown};
use fleet::{Location, Metrics, MoveParams, Mover, Params, Pulses};
use fleet_controller::args::{Args, Command};
use fleet_controller::config::Config;
use fleet_controller::runners::RunnersConfig;
use fleet_controller::{join, watchdog};
use leader_election::{Led, exit_of, while_leading};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use protocol::units::Resources;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Time-out of a call about the Lease.
const LEASE_CALL: Duration = Duration::from_secs(2);
/// Most records of resize stages. No part of a cluster writes them here.
const STAGES_KEPT: usize = 1;
/// Part of the journal.
const PART: &str = "fleet";
/// Field manager of the Lease.
const WRITER: &str = "bellows-fleet";

mod preflight;

/// A look reads all objects and drops them soon after. The C library's allocator keeps most of that
/// memory. Its settings are compiled in (`.cargo/config.toml`).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    let config = Config::load(args.config.as_deref());
    let read = config.and_then(|config| Ok((config.location()?, config)));
    let (location, config) = match read {
        Ok(read) => read,
        Err(error) => return fail(&error.into(), Exit::Config),
    };
    if args.check_config {
        return print(&config);
    }
    if let Some(Command::Preflight { control_plane }) = &args.command {
        return preflight::run(control_plane, &location, &args.state_dir);
    }
    let log = match logging::init(WRITER) {
        Ok(log) => log,
        Err(error) => return fail(&error.into(), Exit::Config),
    };
    descriptors::raise_limit();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let outcome = runtime
        .context("failed to start the runtime")
        .and_then(|runtime| runtime.block_on(run(args, &config, location, log)));
    match outcome {
        Ok(()) => Exit::Drained.into(),
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "stopped");
            exit_of(error.as_ref()).into()
        }
    }
}

#[expect(clippy::print_stdout, reason = "the response to --check-config")]
fn print(config: &Config) -> ExitCode {
    match serde_json::to_string_pretty(config) {
        Ok(text) => {
            println!("{text}");
            Exit::Drained.into()
        }
        Err(error) => fail(&error.into(), Exit::Bug),
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the last line of a process that cannot run"
)]
fn fail(error: &anyhow::Error, exit: Exit) -> ExitCode {
    eprintln!("{error:#}");
    exit.into()
}

async fn run(
    args: Args,
    config: &Config,
    location: Location,
    log: LogHandle,
) -> anyhow::Result<()> {
    let cancel = shutdown::on_signal().context("failed to register signal handlers")?;
    let client = api_client::infer().await;
    let client = client.context("no API server is configured")?;
    let (clock, mut registry) = (Clock::new(), Registry::default());
    let leads: Gauge = Gauge::default();
    let help = "Whether this replica leads";
    registry.register("bellows_fleet_leads", help, leads.clone());
    let metrics = Metrics::register(&mut registry);
    let connections = ConnectionCounters::register(&mut registry);
    let scripts = scripts(&args, config, &connections, &cancel).await?;
    let connections = connections.server("metrics");
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| format!("could not listen on {}", args.listen))?;
    let pages = Admin::new(Arc::new(registry), connections)
        .program("bellows_fleet")
        .log(log);
    let server = tokio::spawn(admin::serve(listener, pages, cancel.clone()));
    let host = host().context("failed to read the name of this replica's host")?;
    let (lease, rule) = args.election(&host, clock.wall());
    let journal = journal(&args.state_dir, &host, clock)?;
    let pulses = Pulses::default();
    watchdog::start(pulses.clone(), config.longest_step(), end)
        .context("failed to start the watchdog")?;
    let led = Led {
        client: client.clone(),
        clock,
        lease,
        rule,
        timeout: LEASE_CALL,
        writer: WRITER.into(),
    };
    let params = Params {
        client,
        clock,
        state_dir: args.state_dir,
        location,
        stages: StageLog::new(STAGES_KEPT),
        metrics,
        journal: Some(journal.clone()),
        pulses,
        schedules: config.schedules,
    };
    let moves = moves(&params, config);
    let on_turn = |is_leader: bool| {
        leads.set(i64::from(is_leader));
    };
    let work = async |stop: CancellationToken| {
        let mover = Mover::new(moves);
        tokio::join!(fleet::run(params, stop.clone()), mover.run(stop));
    };
    let done = while_leading(led, cancel.clone(), on_turn, work).await;
    cancel.cancel();
    journal.close().await;
    done?;
    server.await?;
    if let Some(scripts) = scripts {
        scripts.await?;
    }
    Ok(())
}

/// Serves join scripts where they are switched on. Replicas that do not lead serve them too.
async fn scripts(
    args: &Args,
    config: &Config,
    connections: &ConnectionCounters,
    cancel: &CancellationToken,
) -> anyhow::Result<Option<JoinHandle<()>>> {
    let Some(join) = config.join.clone() else {
        return Ok(None);
    };
    let at = args.join_listen;
    let listener = TcpListener::bind(at).await;
    let listener = listener.with_context(|| format!("could not listen on {at}"))?;
    let counters = connections.server("join");
    let serving = join::run(listener, join, counters, cancel.clone());
    Ok(Some(tokio::spawn(serving)))
}

/// Moves of guests to new runners. Without settings of them nothing is done.
fn moves(params: &Params, config: &Config) -> MoveParams {
    let runners = config.runners.as_ref();
    MoveParams {
        client: params.client.clone(),
        clock: params.clock,
        state_dir: params.state_dir.clone(),
        location: params.location.clone(),
        settings: runners.map(RunnersConfig::settings),
        wanted: runners.map(RunnersConfig::wanted),
        namespace: None,
        metrics: params.metrics.clone(),
        journal: params.journal.clone(),
        pulses: params.pulses.clone(),
    }
}

/// Ends the process. The Lease is not released: writes of the stuck task may still be in flight.
fn end(step: Duration) {
    let seconds = step.as_secs();
    tracing::error!(
        seconds,
        "a task of the driver stands still; the process ends"
    );
    std::process::exit(i32::from(Exit::Bug as u8));
}

fn host() -> std::io::Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    Ok(host.trim().to_owned())
}

fn journal(state_dir: &Path, host: &str, clock: Clock) -> anyhow::Result<Journal> {
    let identity = Identity {
        part: PART.into(),
        node: host.to_owned(),
        build: env!("CARGO_PKG_VERSION").into(),
        compute_unit: Resources::default(),
        run: u64::try_from(clock.wall().0).unwrap_or(0),
    };
    let folder = state_dir.join("journal").join(PART);
    let journal = Journal::open(&folder, identity, Limits::default(), clock, Vec::new());
    journal.with_context(|| format!("failed to open the journal {}", folder.display()))
}
