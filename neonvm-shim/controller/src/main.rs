//! `neonvm-controller`: the controller alone. `bellows up` runs the same in one process with the other parts.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use axum::Json;
use axum::routing::get;
use clap::Parser;
use leases::core::elect::ElectRule;
use leases::{LeaseName, Led, LostLead, while_leading};
use neonvm_controller::args::{Args, TrueRequests};
use neonvm_controller::core::review::Excused;
use neonvm_controller::{
    Metrics, Params, Settings, StateHandle, Webhook, WebhookNames, offers_resize,
};
use prometheus_client::registry::Registry;
use protocol::time::Span;
use telemetry::admin::Admin;
use telemetry::clock::Clock;
use telemetry::exit::Exit;
use telemetry::{StageLog, logging, shutdown};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Resize stages kept.
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
            let lost = error.downcast_ref::<LostLead>().is_some();
            let exit = if lost {
                Exit::TryAgain
            } else {
                Exit::Dependency
            };
            exit.into()
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
    let (clock, mut registry) = (Clock::new(), Registry::default());
    let metrics = Metrics::register(&mut registry);
    let state = StateHandle::new(clock);
    let election = args
        .election(client.default_namespace(), SETTLE, clock.wall())
        .context("no name for this replica")?;
    let webhook = webhook(&args, &client, clock).await?;
    let waits = Waits {
        // A replica that waits for the lead is as ready as it can be.
        for_lead: Arc::new(AtomicBool::new(election.is_some())),
        // Objects are refused while nobody answers for them: whoever waits for this replica waits for its webhook too.
        is_asked: webhook.as_ref().map(|webhook| Arc::clone(&webhook.ready)),
    };
    let admin = waits.admin(Admin::new(Arc::new(registry)).log(log), &state);
    let server = serve_admin(&args, admin, &state, &cancel).await?;
    let webhook = webhook.map(|webhook| tokio::spawn(webhook.serve(cancel.clone())));
    let params = Params {
        settings: settings(&args, &client).await?,
        client,
        state_dir: args.state_dir,
        clock,
        stages: StageLog::new(STAGES_KEPT),
        metrics,
        state,
    };
    work(params, election, &waits.for_lead, &cancel).await?;
    server.await??;
    if let Some(webhook) = webhook {
        webhook.await??;
    }
    Ok(())
}

/// What this replica is not ready before.
struct Waits {
    for_lead: Arc<AtomicBool>,
    is_asked: Option<Arc<AtomicBool>>,
}

impl Waits {
    fn admin(&self, admin: Admin, state: &StateHandle) -> Admin {
        let (shown, synced) = (state.clone(), state.clone());
        let (for_lead, is_asked) = (Arc::clone(&self.for_lead), self.is_asked.clone());
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        admin.state(move || shown.dump()).ready(move || {
            if is_asked.as_deref().is_some_and(|asked| !is_set(asked)) {
                Err("the webhook does not serve yet, or API servers do not trust it yet".into())
            } else if is_set(&for_lead) || synced.is_synced() {
                Ok(())
            } else {
                Err("lists are not synced".into())
            }
        })
    }
}

async fn serve_admin(
    args: &Args,
    admin: Admin,
    state: &StateHandle,
    cancel: &CancellationToken,
) -> anyhow::Result<JoinHandle<std::io::Result<()>>> {
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| format!("could not listen on {}", args.listen))?;
    tracing::info!(address = %listener.local_addr()?, "admin server listens");
    let root = state.clone();
    let router = admin.router();
    let router = router.route("/", get(async move || Json(root.dump())));
    let served = axum::serve(listener, router);
    let served = served.with_graceful_shutdown(cancel.clone().cancelled_owned());
    Ok(tokio::spawn(served.into_future()))
}

/// Every replica serves it, whoever leads.
async fn webhook(
    args: &Args,
    client: &kube::Client,
    clock: Clock,
) -> anyhow::Result<Option<Webhook>> {
    let Some(address) = args.webhook_listen else {
        return Ok(None);
    };
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("could not listen on {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "webhook listens");
    Ok(Some(Webhook {
        client: client.clone(),
        listener,
        names: WebhookNames::deployed(client.default_namespace()),
        excused: Excused::of(args.skip_update_validation_for.iter().map(String::as_str)),
        clock,
        ready: Arc::default(),
    }))
}

async fn settings(args: &Args, client: &kube::Client) -> anyhow::Result<Settings> {
    let mut settings = args.settings();
    if args.true_requests == TrueRequests::Auto {
        let offers = offers_resize(client).await;
        settings.true_requests = offers.context("whether the API server resizes pods")?;
    }
    if let Some((namespace, name)) = args.overlay() {
        let found = neonvm_controller::overlay(client, namespace, name).await;
        settings.overlay = Some(found.context("the overlay's addresses")?);
    }
    Ok(settings)
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
    let work = async |stop: CancellationToken| neonvm_controller::run(params, stop).await;
    let done = while_leading(led, cancel.clone(), on_turn, work).await;
    cancel.cancel();
    done?.transpose()?;
    Ok(())
}
