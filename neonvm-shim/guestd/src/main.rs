//! `neonvmd`: the guest daemon. See the library's documentation.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use neonvm_guestd::core::cpus::{CpuOrder, CpuPolicy};
use neonvm_guestd::shell::http::{Served, serve};
use neonvm_guestd::shell::keeper;
use neonvm_guestd::shell::system::Roots;
use neonvm_guestd::shell::uevents::Uevents;
use protocol::time::WallTime;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The guest daemon: CPUs on and off, state of the guest, files into the guest.
#[derive(Debug, Parser)]
#[command(name = "neonvmd", version)]
struct Args {
    /// Address to serve on.
    #[arg(long, default_value = "0.0.0.0:25183")]
    addr: SocketAddr,
    /// Who decides how many CPUs are online.
    #[arg(long, value_enum, default_value = "online-all")]
    cpu_policy: Policy,
    /// Where sysfs is.
    #[arg(long, default_value = "/sys")]
    sysfs: PathBuf,
    /// Where procfs is.
    #[arg(long, default_value = "/proc")]
    procfs: PathBuf,
    /// Where the paths of /files begin.
    #[arg(long, default_value = "/")]
    files_root: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Policy {
    /// Every CPU that is there, unless `PUT /cpu` or the kernel's maxcpus= says less.
    OnlineAll,
    /// Only `PUT /cpu` switches CPUs.
    Managed,
}

/// The daemon's one clock.
fn wall() -> WallTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    WallTime(since.map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let roots = Roots {
        sysfs: args.sysfs,
        procfs: args.procfs,
    };
    let (identity, first) = keeper::first_look(&roots).context("cannot look at the machine")?;
    let policy = match args.cpu_policy {
        Policy::OnlineAll => CpuPolicy::OnlineAll,
        Policy::Managed => CpuPolicy::Managed,
    };
    let order = CpuOrder::at_start(policy, &roots.cmdline());
    let uevents = Uevents::open()
        .inspect_err(|error| warn!(%error, "no kernel events: changes are seen within a second"))
        .ok();
    let listener = TcpListener::bind(args.addr)
        .await
        .with_context(|| format!("cannot serve on {}", args.addr))?;
    info!(addr = %listener.local_addr()?, kernel = identity.kernel, cpus = first.cpus_online, "serving");

    let cancel = CancellationToken::new();
    let (state_tx, state) = watch::channel(first);
    let (keeper_tx, requests) = mpsc::channel(keeper::MAX_WAITING);
    let served = Served {
        state,
        keeper: keeper_tx,
        files_root: args.files_root,
        now: wall,
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        () = keeper::run(roots, identity, order, state_tx, requests, uevents, cancel.clone()) => {}
        () = serve(listener, Arc::new(served), cancel.clone()) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    cancel.cancel();
    Ok(())
}
