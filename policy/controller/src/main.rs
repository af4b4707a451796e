//! `policy-controller`: the controller of policies as a process of its own. `bellows up` runs the
//! same in one process with the other parts.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use daemon_kit::admin::{self, Admin};
use daemon_kit::clock::Clock;
use daemon_kit::connections::ConnectionCounters;
use daemon_kit::exit::Exit;
use daemon_kit::{descriptors, logging, shutdown};
use leader_election::{Led, exit_of, while_leading};
use policy_controller::args::Args;
use policy_controller::{AgentPods, Agents, LOOK_EVERY, Params};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Time-out of a call about the Lease.
const LEASE_CALL: Duration = Duration::from_secs(2);

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
    let log = logging::init("policy-controller").context("failed to start logging")?;
    descriptors::raise_limit();
    let cancel = shutdown::on_signal().context("failed to register signal handlers")?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = api_client::infer()
        .await
        .context("no API server is configured")?;
    let (clock, mut registry) = (Clock::new(), Registry::default());
    let leads: Gauge = Gauge::default();
    let help = "Whether this replica looks at the policies";
    registry.register("policy_controller_leads", help, leads.clone());
    let connections = ConnectionCounters::register(&mut registry).server("metrics");
    let (lease, rule) = args
        .election(clock.wall())
        .context("failed to read the name of this replica's host")?;
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| format!("could not listen on {}", args.listen))?;
    let pages = Admin::new(Arc::new(registry), connections)
        .program("policy_controller")
        .log(log);
    let server = tokio::spawn(admin::serve(listener, pages, cancel.clone()));
    let sets = args.sets.params();
    let led = Led {
        client: client.clone(),
        clock,
        lease,
        rule,
        timeout: LEASE_CALL,
        writer: "policy-controller".into(),
    };
    let params = Params {
        client,
        clock,
        agents: Agents::InPods(AgentPods {
            labels: args.agent_labels,
            port: args.agent_port,
        }),
        every: LOOK_EVERY,
        sets: Some(sets),
    };
    let on_turn = |is_leader: bool| {
        leads.set(i64::from(is_leader));
    };
    let work = async |stop: CancellationToken| policy_controller::run(params, stop).await;
    let done = while_leading(led, cancel.clone(), on_turn, work).await;
    cancel.cancel();
    done?;
    server.await?;
    Ok(())
}
