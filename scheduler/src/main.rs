//! `autoscale-scheduler`: the scheduler as a process of its own.

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use daemon_kit::clock::Clock;
use daemon_kit::exit::Exit;
use scheduler::args::Args;
use scheduler::config::Config;
use scheduler::{Callers, Params, StateHandle};
use tokio::net::TcpListener;

/// Each permit allocates a few dozen times on one thread and frees a part of it on others: with the
/// C library's allocator they wait for each other's arenas. Its settings are compiled in
/// (`.cargo/config.toml`).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    let config = match Config::load(args.config.as_deref()) {
        Ok(config) => config,
        Err(error) => return fail(&error.into(), Exit::Config),
    };
    daemon_kit::descriptors::raise_limit();
    let callers = match args.trust.callers() {
        Ok(callers) => callers,
        Err(error) => return fail(&error.into(), Exit::Config),
    };
    if args.check_config {
        return print(&config);
    }
    let log = match daemon_kit::logging::init("autoscale-scheduler") {
        Ok(log) => log,
        Err(error) => return fail(&error.into(), Exit::Config),
    };
    if args.trust.permits_for_anyone {
        tracing::warn!("permits are granted to anyone who reaches the port: --permits-for-anyone");
    }
    // Both sides name the provider, so that a second one in the tree cannot make the choice
    // ambiguous.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let outcome = scheduler::runtime()
        .context("could not start the runtime")
        .and_then(|runtime| runtime.block_on(serve(args, config, callers, log)));
    match outcome {
        Ok(()) => Exit::Drained.into(),
        Err(error) if error.downcast_ref::<scheduler::RunError>().is_some() => {
            fail(&error, Exit::Bug)
        }
        Err(error) => fail(&error, Exit::Dependency),
    }
}

#[expect(clippy::print_stdout, reason = "the answer to --check-config")]
fn print(config: &Config) -> ExitCode {
    println!("{}", config.to_pretty_json());
    Exit::Drained.into()
}

#[expect(clippy::print_stdout, reason = "one line for whoever gave port 0")]
async fn serve(
    args: Args,
    config: Config,
    callers: Callers,
    log: daemon_kit::logging::LogHandle,
) -> anyhow::Result<()> {
    let clock = Clock::new();
    let takeover_wait = args.takeover_wait();
    let leadership = args.lease.leadership(config.crud_timeout(), clock.wall());
    let leadership = leadership.context("this machine's name cannot be read")?;
    let bind = async |address| {
        let bound = TcpListener::bind(address).await;
        bound.with_context(|| format!("could not listen on {address}"))
    };
    let permit_listener = bind(args.listen).await?;
    let metrics_listener = bind(args.metrics_listen).await?;
    let client = api_client::infer().await;
    let client = client.context("no usable Kubernetes configuration")?;
    let extender_listener = match args.extender_listen {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let (permits, metrics) = (
        permit_listener.local_addr()?,
        metrics_listener.local_addr()?,
    );
    let extender = match &extender_listener {
        Some(listener) => format!(r#","extender":"{}""#, listener.local_addr()?),
        None => String::new(),
    };
    println!(r#"{{"permits":"{permits}","metrics":"{metrics}"{extender}}}"#);
    let cancel = daemon_kit::shutdown::on_signal().context("could not listen for signals")?;
    let params = Params {
        config,
        client,
        permit_listener,
        extender_listener,
        metrics_listener: Some(metrics_listener),
        metrics_token: None,
        embedded_bind: args.embedded_bind,
        count_plugged: true,
        callers,
        leadership,
        takeover_wait,
        clock,
        state: StateHandle::default(),
        log: Some(log),
    };
    Ok(scheduler::run(params, cancel).await?)
}

#[expect(
    clippy::print_stderr,
    reason = "the last words of a process that cannot run"
)]
fn fail(error: &anyhow::Error, exit: Exit) -> ExitCode {
    eprintln!("{}", daemon_kit::chain(error.as_ref()));
    exit.into()
}
