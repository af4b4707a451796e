//! `neonvm-controller`: the controller alone. `bellows up` runs the same in one process with the
//! other parts.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use daemon_kit::admin::Admin;
use daemon_kit::clock::Clock;
use daemon_kit::connections::ConnectionCounters;
use daemon_kit::exit::Exit;
use daemon_kit::{StageLog, descriptors, logging, shutdown};
use leader_election::core::elect::ElectRule;
use leader_election::{LeaseName, Led, exit_of, while_leading};
use neonvm_controller::args::Args;
use neonvm_controller::core::review::Excused;
use neonvm_controller::{Metrics, Params, StateHandle, Waits, Webhook, serve_admin, settings};
use prometheus_client::registry::Registry;
use protocol::time::Span;
use tokio_util::sync::CancellationToken;

/// Most records of resize stages kept for `/debug`.
const STAGES_KEPT: usize = 4096;
/// Time-out of a call about the Lease.
const LEASE_CALL: Duration = Duration::from_secs(2);
/// A new leader begins when calls of the last one have landed or never will.
const SETTLE: Span = Span::from_secs(3);

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match run(args).await {
        Ok(()) => Exit::Drained.into(),
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "stopped");
            exit_of(error.as_ref()).into()
        }
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    let log = logging::init("neonvm-controller").context("failed to start logging")?;
    descriptors::raise_limit();
    let cancel = shutdown::on_signal().context("failed to register signal handlers")?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = api_client::infer()
        .await
        .context("no API server is configured")?;
    let (clock, mut registry) = (Clock::new(), Registry::default());
    let metrics = Metrics::register(&mut registry);
    let connections = ConnectionCounters::register(&mut registry).server("metrics");
    let state = StateHandle::new(clock);
    let election = args
        .election(client.default_namespace(), SETTLE, clock.wall())
        .context("failed to read the name of this replica's host")?;
    let webhook = webhook(&args, &client, clock).await?;
    let waits = Waits {
        for_lead: Arc::default(),
        is_asked: webhook.as_ref().map(|webhook| Arc::clone(&webhook.ready)),
    };
    let admin = Admin::new(Arc::new(registry), connections.clone())
        .program("neonvm_controller")
        .log(log);
    let admin = waits.admin(admin, &state);
    let server = serve_admin(args.listen, admin, connections, &state, &cancel).await;
    let server = server.with_context(|| format!("could not listen on {}", args.listen))?;
    let webhook = webhook.map(|webhook| tokio::spawn(webhook.serve(cancel.clone())));
    // `None`: the process was cancelled while the API server was unreachable.
    let known = cancel.run_until_cancelled(settings(&args, &client)).await;
    if let Some(settings) = known.transpose()? {
        let params = Params {
            settings,
            client,
            state_dir: args.state_dir,
            clock,
            stages: StageLog::new(STAGES_KEPT),
            metrics,
            state,
            // A pod has no disk of its own. Its log has the lines.
            set_journal: None,
        };
        work(params, election, &waits.for_lead, &cancel).await?;
    }
    server.await?;
    if let Some(webhook) = webhook {
        webhook.await??;
    }
    Ok(())
}

/// The webhook, if it is configured. Every replica serves it, with or without the lead.
async fn webhook(
    args: &Args,
    client: &kube::Client,
    clock: Clock,
) -> anyhow::Result<Option<Webhook>> {
    let Some(address) = args.webhook_listen else {
        return Ok(None);
    };
    let excused = args.skip_update_validation_for.iter();
    let excused = Excused::of(excused.map(String::as_str));
    let webhook = Webhook::listen(address, client, excused, clock).await;
    let webhook = webhook.with_context(|| format!("could not listen on {address}"))?;
    Ok(Some(webhook))
}

/// Works, if there is an election while this replica leads.
async fn work(
    params: Params,
    election: Option<(LeaseName, ElectRule)>,
    waits: &AtomicBool,
    cancel: &CancellationToken,
) -> anyhow::Result<()> {
    let Some((lease, rule)) = election else {
        return Ok(neonvm_controller::run(params, cancel.clone()).await?);
    };
    let led = Led {
        client: params.client.clone(),
        clock: params.clock,
        lease,
        rule,
        timeout: LEASE_CALL,
        writer: "neonvm-controller".into(),
    };
    let on_turn = |leads: bool| waits.store(!leads, Ordering::Relaxed);
    on_turn(false);
    let work = async |stop: CancellationToken| neonvm_controller::run(params, stop).await;
    let done = while_leading(led, cancel.clone(), on_turn, work).await;
    cancel.cancel();
    done?.transpose()?;
    Ok(())
}
