//! `bellows up`: all components of the system in one process on one machine.
//!
//! ```text
//! lock ─► instance ─► admin socket ─► API server ─► scheduler ─► controller ─► node driver
//!      ─► agent ─► policies ─► fleet ─► announcer ─► ready
//! ```
//!
//! Components start in this order. All of them use the API server as they would a cluster's.
//!
//! One small file starts each component from its own crate: [`apiserver`], [`scheduler`],
//! [`controller`], [`node`], [`agent`], [`policies`], [`fleet`], [`announcer`].
//! [`supervisor`] detects one that ends, [`part_registry`] records which components are ready,
//! [`admin`] answers requests.
//!
//! * SIGTERM, SIGINT or `bellows down`: the components end in order, deciders before node driver
//!   before API server. Guests keep running, or are powered down first on request.
//! * A component that cannot start: no other starts. The error names the port or file, and the exit
//!   code tells usage from machine.
//! * A component that ends on its own: the others drain, exit 70. Guests keep running.
//! * `kill -9`: the kernel releases the lock, guests keep running, and the next `bellows up` takes
//!   them over.

mod accel;
pub(crate) mod admin;
mod agent;
mod announcer;
mod apiserver;
pub(crate) mod args;
mod base;
mod controller;
mod detach;
mod fleet;
mod journal;
mod machine;
mod metrics;
mod node;
mod objects;
mod part_registry;
pub(crate) mod peers;
mod policies;
mod scheduler;
mod secrets;
pub(crate) mod status;
mod supervisor;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use daemon_kit::connections::ConnectionCounters;
use neonvm_runner::node::{Orphan, Orphans};
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::actions::SETS;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::instance::Instance;
use crate::instance::lock::StateLock;
use crate::instance::sockets::check_free;
use crate::terminal::{err, out};
use admin::{AdminApi, Shutdown};
use args::UpArgs;
use base::Base;
use part_registry::PartRegistry;
use secrets::Secrets;
use status::{PartPhase, Status, WallStatus};
use supervisor::{Stage, Supervisor};

/// The last 500 resizes, with eight stages each.
const STAGES_KEPT: usize = 4_000;
/// Time after which components that are not ready are logged. The start continues.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Interval at which readiness is read.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Validated settings of all components. Nothing has been changed before they exist.
struct Plan {
    agent: ::agent::Config,
    scheduler: ::scheduler::config::Config,
    node: node::NodeSettings,
    peers: Option<peers::Plan>,
    audit_log: Option<PathBuf>,
}

impl Plan {
    fn read(args: &UpArgs) -> Outcome<Self> {
        Ok(Self {
            agent: agent::config(args.agent_config.as_deref())?,
            scheduler: scheduler::config(args.scheduler_config.as_deref())?,
            peers: peers::Plan::read(&args.peers)?,
            audit_log: args.audit_log.as_deref().map(absolute).transpose()?,
            node: node::NodeSettings {
                allocatable: machine::share(args.allocatable_cpu, args.allocatable_memory)?,
                accel: args.accel.choice(),
                cpu_quota_percent: args.cpu_quota_percent,
                guest_network: args.guest_network,
                vm_users: args.vm_users,
            },
        })
    }
}

/// A process in the background has another working directory.
fn absolute(file: &Path) -> Outcome<PathBuf> {
    let path = std::path::absolute(file);
    path.map_err(|error| Fail::usage(format!("--audit-log {}: {error}", file.display())))
}

/// Runs until a signal or a shutdown request.
pub(crate) async fn run(context: &Context, args: UpArgs) -> Outcome {
    neonvm_runner::shell::inherit::no_files()
        .map_err(|error| Fail::bug(format!("open files cannot be kept from programs: {error}")))?;
    let state = context.state()?;
    if args.detach && !detach::is_child() {
        return detach::run(context, &state).await;
    }
    let _log = daemon_kit::logging::init("bellows").map_err(|error| {
        Fail::usage(daemon_kit::chain(&error)).fix("correct BELLOWS_LOG or RUST_LOG")
    })?;
    daemon_kit::descriptors::raise_limit();
    let signals = daemon_kit::shutdown::on_signal()
        .map_err(|error| Fail::bug(format!("signals cannot be handled: {error}")))?;
    let plan = Plan::read(&args)?;
    state.create()?;
    let _lock = StateLock::take(&state)?;
    detach::settle(&state)?;
    let instance = Instance::load_or_create(&state, args.block, args.node_name.as_deref())?;
    let base = Base {
        secrets: Secrets::load(&state)?,
        state,
        instance,
        clock: Clock::new(),
        stages: StageLog::new(STAGES_KEPT),
        parts: PartRegistry::default(),
        orphans: Orphans::default(),
        backups: Arc::default(),
        peers: Arc::default(),
    };
    check_addresses(&base.instance)?;
    let mut supervisor = Supervisor::new(base.parts.clone());
    let whole = async {
        let ended = serve(context, plan, &base, &mut supervisor, signals.clone()).await;
        supervisor.drain_through(Stage::Api).await;
        ended
    };
    let ended = tokio::select! {
        ended = whole => ended,
        () = second_signal(&signals) => Err(Fail::try_again("told to end twice: ended without draining")
            .rule("nothing is lost by that: what was answered is on disk, and guests keep running")),
    };
    let _ = std::fs::remove_file(base.state.admin_socket());
    ended
}

/// Waits for a second signal: the user does not want to wait for the drain.
async fn second_signal(first: &CancellationToken) {
    first.cancelled().await;
    match daemon_kit::shutdown::on_signal() {
        Ok(second) => second.cancelled().await,
        Err(_) => std::future::pending().await,
    }
}

/// Checks that every address is free before any component starts. The failure names the process
/// that uses it.
fn check_addresses(instance: &Instance) -> Outcome {
    let fix = "end that process, or use another --state-dir, which gets other addresses";
    let agent = std::net::IpAddr::V4(instance.agent());
    for (address, what) in [
        (instance.api(), "the API server"),
        (instance.permits(), "the permit server"),
        (
            scheduler::metrics_address(instance),
            "the scheduler's metrics server",
        ),
        (
            (agent, ::agent::Ports::default().metrics).into(),
            "the agent's metrics server",
        ),
        (
            (agent, ::agent::Ports::default().vm_metrics).into(),
            "the agent's server of VM metrics",
        ),
        (metrics::address(instance), "the metrics server"),
    ] {
        check_free(address, what, fix)?;
    }
    Ok(())
}

async fn serve(
    context: &Context,
    plan: Plan,
    base: &Base,
    supervisor: &mut Supervisor,
    signals: CancellationToken,
) -> Outcome {
    let listener = admin::bind(&base.state.admin_socket())?;
    let (shutdown, mut asked) = watch::channel(Shutdown::No);
    let started = Arc::new(AtomicBool::new(false));
    let describe = describe(
        base,
        accel::learn(base, plan.node.accel),
        Arc::clone(&started),
    );
    let api = AdminApi {
        status: Arc::clone(&describe),
        parts: base.parts.clone(),
        stages: base.stages.clone(),
        shutdown,
        orphans: base.orphans.clone(),
        backups: Arc::clone(&base.backups),
        peers: Arc::clone(&base.peers),
    };
    let closing = CancellationToken::new();
    let admin = tokio::spawn(admin::serve(listener, api, closing.clone()));
    let parts = tokio::select! {
        parts = start_parts(plan, base, supervisor) => parts,
        () = signals.cancelled() => Err(Fail::try_again("told to end while starting")),
    };
    started.store(parts.is_ok(), Ordering::Release);
    let ended = match parts {
        Err(fail) => Err(fail),
        Ok(()) => {
            let ended = tokio::select! {
                fail = supervisor.fatal() => Err(fail),
                fail = announce(context, describe.as_ref()) => Err(fail),
                () = signals.cancelled() => Ok(Shutdown::Leave),
                Ok(wish) = asked.wait_for(|wish| *wish != Shutdown::No) => Ok(*wish),
            };
            finish(base, supervisor, ended).await
        }
    };
    closing.cancel();
    let _ = tokio::time::timeout(Duration::from_secs(2), admin).await;
    ended
}

/// Starts the components in order. Each uses those before it.
async fn start_parts(plan: Plan, base: &Base, supervisor: &mut Supervisor) -> Outcome {
    let mut registry = Registry::default();
    let connections = ConnectionCounters::register(&mut registry);
    let api = apiserver::start(base, supervisor, &connections, plan.audit_log).await?;
    let client = api.client.clone();
    scheduler::start(base, supervisor, &client, plan.scheduler).await?;
    // The controllers of sets and of policies write the same part.
    let sets = journal::open(base, SETS);
    controller::start(base, supervisor, &client, &mut registry, sets.clone());
    node::start(base, supervisor, &api, plan.node)?;
    let of_sets = policies::OfSets::of(&plan.agent, sets);
    let state = agent::start(base, supervisor, &client, plan.agent).await?;
    if let Some(of_sets) = of_sets {
        policies::start(base, supervisor, &client, state, of_sets);
    }
    fleet::start(base, supervisor, &client, &mut registry);
    announcer::start(base, supervisor, &client);
    if let Some(peers) = plan.peers {
        peers::start(base, supervisor, &mut registry, peers).await?;
    }
    metrics::start(base, supervisor, registry, &connections).await
}

/// Ends the deciders, and then the guests on request. The caller ends the rest.
async fn finish(base: &Base, supervisor: &mut Supervisor, ended: Outcome<Shutdown>) -> Outcome {
    tracing::info!(reason = ?ended.as_ref().map_err(Fail::what), "ending");
    supervisor.drain_through(Stage::Deciders).await;
    if ended? == Shutdown::StopVms {
        let mut say = |text: &str| tracing::info!(text, "stopping guests");
        let count = crate::guests::stop_all(&base.state, crate::guests::GRACE, &mut say).await;
        tracing::info!(count, "guests powered down");
    }
    Ok(())
}

/// Returns a function that builds the response of `/v1/status`.
fn describe(
    base: &Base,
    accel: accel::Learned,
    started: Arc<AtomicBool>,
) -> Arc<dyn Fn() -> Status + Send + Sync> {
    let (registry, clock, began) = (base.parts.clone(), base.clock, base.clock.now());
    let (state, instance) = (base.state.clone(), base.instance.clone());
    let orphans = base.orphans.clone();
    Arc::new(move || {
        let parts = registry.statuses();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: clock.now().since(began).as_millis() / 1000,
            node: instance.node().into(),
            block: instance.block(),
            state_dir: state.path().display().to_string(),
            kubeconfig: state.kubeconfig().display().to_string(),
            accel: accel.label(),
            ready: started.load(Ordering::Acquire)
                && parts.iter().all(|part| part.phase == PartPhase::Ready),
            walls: WallStatus::all(state.path()),
            parts,
            orphans: orphans.list().iter().map(Orphan::key).collect(),
        }
    })
}

/// Prints the ready line once everything is ready. Never returns.
async fn announce(context: &Context, status: &(dyn Fn() -> Status + Send + Sync)) -> Fail {
    let mut late = false;
    loop {
        let now = status();
        if now.ready {
            out(&now.ready_line());
            for text in now.ready_text(context.paint_err()) {
                err(&text);
            }
            return std::future::pending().await;
        }
        if !late && now.uptime_s >= READY_WITHIN.as_secs() {
            late = true;
            for part in now
                .parts
                .iter()
                .filter(|part| part.phase != PartPhase::Ready)
            {
                tracing::warn!(part = part.name, waits_for = part.note, "not ready yet");
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
