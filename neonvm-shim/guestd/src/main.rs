//! `neonvmd`: the guest daemon. See the library's documentation.

use std::io::Write;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use neonvm_guestd::core::cpus::CpuOrder;
use neonvm_guestd::core::flags::{self, Flags, Invocation};
use neonvm_guestd::core::overlay::Overlay;
use neonvm_guestd::shell::http::{Served, serve};
use neonvm_guestd::shell::keeper;
use neonvm_guestd::shell::notice::Notice;
use neonvm_guestd::shell::parts::{self, Parts, Renewal};
use neonvm_guestd::shell::render;
use neonvm_guestd::shell::runtime::Runtime;
use neonvm_guestd::shell::system::Roots;
use neonvm_guestd::shell::uevents::Uevents;
use protocol::parts::PartStates;
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
        Ok(Invocation::Run(flags)) => *flags,
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

/// Time for the response of the order that renews this daemon.
const RESPONSE_LIMIT: Duration = Duration::from_millis(300);

/// Changes this process as ordered. Returns when the daemon is to end.
async fn renew(mut renewed: mpsc::Receiver<Renewal>, parts: &Parts) {
    while let Some(renewal) = renewed.recv().await {
        tokio::time::sleep(RESPONSE_LIMIT).await;
        match renewal {
            Renewal::End => return,
            Renewal::Execute(program) => {
                info!(program = %program.display(), "executing another daemon");
                // Returns only if it fails: then this daemon serves on.
                let error = Command::new(&program)
                    .args(std::env::args_os().skip(1))
                    .exec();
                warn!(%error, program = %program.display(), "failed to execute another daemon");
                if let Err(error) = parts.not_executed() {
                    warn!(%error, "failed to end the trial of a program that does not run");
                }
            }
        }
    }
}

async fn run(flags: Flags) -> anyhow::Result<()> {
    let notice = flags.parts_run.with_file_name("notice");
    let settings = parts::Settings {
        parts: flags.parts,
        run: flags.parts_run,
        scripts: flags.scripts,
        monitor_control: flags.monitor_control,
        procfs: flags.procfs.clone(),
    };
    let roots = Roots {
        sysfs: flags.sysfs,
        procfs: flags.procfs,
    };
    let (identity, first) =
        keeper::first_look(&roots).context("failed to read the machine's state")?;
    if flags.self_test {
        return Ok(());
    }
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
    let notice = Notice::new(notice);
    let (renewals, renewed) = mpsc::channel(1);
    let (states, part_states) = watch::channel(PartStates::new());
    let parts = Arc::new(Parts::new(settings, states, renewals));
    let sources = keeper::Sources {
        uevents,
        programs,
        parts: part_states,
    };
    tokio::spawn(render::run(folders, state.clone(), reports, cancel.clone()));
    let followed = (parts.clone(), cancel.clone());
    tokio::spawn(async move { followed.0.follow(followed.1).await });
    let (keeper_tx, requests) = mpsc::channel(keeper::MAX_WAITING);
    let served = Served {
        state,
        keeper: keeper_tx,
        files_root: flags.files_root,
        overlay,
        runtime,
        parts: parts.clone(),
        notice,
        now: wall,
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        () = keeper::run(roots, identity, order, state_tx, requests, sources, cancel.clone()) => {}
        () = serve(listener, Arc::new(served), cancel.clone()) => {}
        () = renew(renewed, &parts) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    cancel.cancel();
    Ok(())
}
