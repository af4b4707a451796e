//! `neonvmd`: the guest daemon. See the library's documentation.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use neonvm_guestd::core::cpus::CpuOrder;
use neonvm_guestd::core::flags::{self, Flags, Invocation};
use neonvm_guestd::core::overlay::Overlay;
use neonvm_guestd::shell::http::{Served, serve};
use neonvm_guestd::shell::keeper;
use neonvm_guestd::shell::render;
use neonvm_guestd::shell::runtime::Runtime;
use neonvm_guestd::shell::system::Roots;
use neonvm_guestd::shell::uevents::Uevents;
use protocol::time::WallTime;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

fn wall() -> WallTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    WallTime(since.map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX)))
}

/// Exit status of a usage error, as in all programs of the project.
const USAGE_ERROR: u8 = 64;

fn main() -> anyhow::Result<ExitCode> {
    let asked = flags::parse(std::env::args().skip(1));
    let flags = match asked {
        Ok(Invocation::Run(flags)) => flags,
        Ok(Invocation::Help) => return say(flags::USAGE),
        Ok(Invocation::Version) => {
            return say(concat!("neonvmd ", env!("CARGO_PKG_VERSION"), "\n"));
        }
        Err(error) => {
            writeln!(std::io::stderr(), "neonvmd: {error}")?;
            return Ok(ExitCode::from(USAGE_ERROR));
        }
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(flags))?;
    Ok(ExitCode::SUCCESS)
}

fn say(text: &str) -> anyhow::Result<ExitCode> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn run(flags: Flags) -> anyhow::Result<()> {
    let roots = Roots {
        sysfs: flags.sysfs,
        procfs: flags.procfs,
    };
    let (identity, first) =
        keeper::first_look(&roots).context("failed to read the machine's state")?;
    let order = CpuOrder::at_start(flags.cpu_policy, &roots.cmdline());
    let overlay = Overlay::of(&roots.cmdline());
    let uevents = Uevents::open()
        .inspect_err(|error| warn!(%error, "no kernel events: changes are seen within a second"))
        .ok();
    let runtime = Runtime::new(flags.runtime);
    match runtime.has_key() {
        Ok(true) => {}
        Ok(false) => warn!("no key on the runtime drive: callers are known by their address alone"),
        Err(error) => {
            warn!(%error, "the key on the runtime drive cannot be read: no request is admitted")
        }
    }
    let listener = TcpListener::bind(flags.addr)
        .await
        .with_context(|| format!("cannot serve on {}", flags.addr))?;
    info!(addr = %listener.local_addr()?, kernel = identity.kernel, cpus = first.cpus_online, "serving");

    let cancel = CancellationToken::new();
    let (state_tx, state) = watch::channel(first);
    let (reports, programs) = watch::channel(Vec::new());
    let folders = render::Folders {
        units: flags.render_units,
        notes: flags.render_notes,
    };
    let sources = keeper::Sources { uevents, programs };
    tokio::spawn(render::run(folders, state.clone(), reports, cancel.clone()));
    let (keeper_tx, requests) = mpsc::channel(keeper::MAX_WAITING);
    let served = Served {
        state,
        keeper: keeper_tx,
        files_root: flags.files_root,
        overlay,
        runtime,
        now: wall,
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        () = keeper::run(roots, identity, order, state_tx, requests, sources, cancel.clone()) => {}
        () = serve(listener, Arc::new(served), cancel.clone()) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    cancel.cancel();
    Ok(())
}
