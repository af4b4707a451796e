//! The guest's network process: see [`crate::core::passt`].
//!
//! passt is QEMU's peer on a socket, ends with QEMU, and outlives the runner as QEMU does. If it
//! ends before QEMU, the runner starts another: the guest loses its connections, but not its
//! network.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use rustix::thread::CapabilitySet;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::confined;
use super::control::bind_private;
use super::inherit;
use super::input::Input;
use super::process::{self, ProcessId};
use crate::config::{RunnerConfig, Walls};
use crate::core::passt::passt_args;
use crate::core::paths::Paths;

/// Longest time until it serves the guest's ports.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Pause between two looks for that.
const LOOK: Duration = Duration::from_millis(3);
/// Send buffer towards QEMU in bytes. QEMU reads nothing while the guest has no driver or is
/// stopped. A write that does not fit crashes passt of Debian 13 by a null pointer: the kernel's
/// default of 200 KiB holds 280 frames, which 20 s of connection attempts fill.
const WAITING_BYTES: usize = 4 << 20;
/// Pause before a restart, doubled up to [`PAUSE_MOST`] while passt keeps failing.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MOST: Duration = Duration::from_secs(5);
/// A passt that has served for this long did not fail at its start.
const SERVED: Duration = Duration::from_secs(30);
/// Longest part of its log in an error message, in bytes.
const TAIL_BYTES: u64 = 2048;
/// Advice for users who cannot change the node.
const OR_USER: &str = "or start bellows up with --guest-network=user, which has no wall between guests and this machine";

/// Errors of starting a guest's network process.
#[derive(Debug, thiserror::Error)]
pub enum PasstError {
    /// The socket between passt and QEMU failed.
    #[error("cannot make or reach the socket {0} of the guest's network")]
    Socket(PathBuf, #[source] io::Error),
    /// The program is missing, or could not be run.
    #[error("cannot execute {0}: build image bellows/qemu again, {OR_USER}")]
    Execute(PathBuf, #[source] io::Error),
    /// The program ended before it served the guest.
    #[error(
        "passt ended at its start ({0}): {1}. It needs free ports at the pod's address and user namespaces: \
         allow those (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
         kernel.apparmor_restrict_unprivileged_userns), {OR_USER}"
    )]
    Ended(ExitStatus, String),
    /// The program does not serve in time.
    #[error("passt does not serve the guest's ports after {seconds} s", seconds = READY_WITHIN.as_secs())]
    Late,
}

/// A network process that serves.
pub(super) struct Started {
    /// `None` if it ended before its start time was read.
    pub(super) process: Option<ProcessId>,
    /// Listening socket of QEMU for this process and its successors.
    pub(super) listener: OwnedFd,
}

/// Starts the network process and waits until it serves the guest's ports.
pub(super) async fn start(
    config: &RunnerConfig,
    walls: &Walls,
    paths: &Paths,
) -> Result<Started, PasstError> {
    let path = paths.network();
    let listener = bind_private(&path)
        .and_then(tokio::net::UnixListener::into_std)
        .map_err(|error| PasstError::Socket(path, error))?;
    Ok(Started {
        process: serve(config, walls, paths).await?,
        listener: listener.into(),
    })
}

/// Starts a process for the QEMU that listens on the socket.
async fn serve(
    config: &RunnerConfig,
    walls: &Walls,
    paths: &Paths,
) -> Result<Option<ProcessId>, PasstError> {
    let path = paths.network();
    let end = UnixStream::connect(&path).map_err(|error| PasstError::Socket(path, error))?;
    let forced = setsockopt(&end.as_fd(), sockopt::SndBufForce, &WAITING_BYTES);
    if forced.is_err() {
        // An ordinary user gets as much as the machine allows.
        let _ = setsockopt(&end.as_fd(), sockopt::SndBuf, &WAITING_BYTES);
    }
    // A file of an earlier process would look like this one's.
    let _ = std::fs::remove_file(paths.passt_pid());
    let mut child = spawn(config, walls, paths, end.into())
        .map_err(|error| PasstError::Execute(walls.passt.clone(), error))?;
    let process = child.id().and_then(ProcessId::of);
    let serves = serving(&mut child, paths).await;
    if serves.is_err()
        && let Some(process) = process
    {
        process.kill();
    }
    serves.map(|()| process)
}

/// Starts another network process whenever one ends, until `stop`. Returns the last one.
pub(super) async fn keep(
    config: Arc<RunnerConfig>,
    paths: Paths,
    mut process: Option<ProcessId>,
    inputs: mpsc::Sender<Input>,
    stop: CancellationToken,
) -> Option<ProcessId> {
    let Some(walls) = &config.walls else {
        return process;
    };
    let mut pause = PAUSE;
    loop {
        let began = Instant::now();
        let ended = async {
            if let Some(process) = process {
                process.ended().await;
            }
            pause = if began.elapsed() < SERVED {
                (pause * 2).min(PAUSE_MOST)
            } else {
                PAUSE
            };
            sleep(pause).await;
            serve(&config, walls, &paths).await
        };
        let served = tokio::select! {
            () = stop.cancelled() => return process,
            served = ended => served,
        };
        match served {
            Ok(next) => {
                let pid = next.map(|process| process.pid);
                warn!(
                    pid,
                    "the guest's network process was restarted: the guest's connections are lost"
                );
                process = next;
                if let Some(next) = next {
                    // The driver is gone only when the runner ends.
                    let _ = inputs.send(Input::Network(next)).await;
                }
            }
            Err(PasstError::Socket(path, error)) if error.kind() == io::ErrorKind::NotFound => {
                let path = path.display();
                warn!(%path, "the guest has no network any more: its network process ended, and a QEMU of an earlier version takes no other one; restart the VM");
                return None;
            }
            // QEMU has ended as well.
            Err(PasstError::Socket(_, error))
                if error.kind() == io::ErrorKind::ConnectionRefused =>
            {
                process = None;
            }
            Err(error) => {
                let error = daemon_kit::chain(&error);
                warn!(
                    error,
                    "the guest has no network: its network process ended, and another one did not start"
                );
                process = None;
            }
        }
    }
}

fn spawn(config: &RunnerConfig, walls: &Walls, paths: &Paths, end: OwnedFd) -> io::Result<Child> {
    let log = paths.passt_log();
    let (out, err) = (process::append_file(&log)?, process::append_file(&log)?);
    let mut command = Command::new(&walls.passt);
    inherit::only_for_guest(&mut command);
    command
        .args(passt_args(config, walls, &paths.passt_pid()))
        .current_dir("/")
        .stdin(Stdio::from(end))
        .stdout(Stdio::from(out))
        .stderr(Stdio::from(err))
        .process_group(0)
        .kill_on_drop(false);
    // passt binds the guest's ports, becomes the VM's user, and gives up all else itself.
    let keep = CapabilitySet::NET_BIND_SERVICE | CapabilitySet::SETUID | CapabilitySet::SETGID;
    confined::spawn(&mut command, keep)
}

/// Waits for the process id file, which passt writes when it serves.
async fn serving(child: &mut Child, paths: &Paths) -> Result<(), PasstError> {
    let end = Instant::now() + READY_WITHIN;
    while Instant::now() < end {
        if std::fs::metadata(paths.passt_pid()).is_ok_and(|file| file.len() > 0) {
            return Ok(());
        }
        if let Ok(Some(status)) = child.try_wait() {
            let said = process::file_tail(&paths.passt_log(), TAIL_BYTES);
            let last = said.lines().next_back().unwrap_or_default().to_owned();
            return Err(PasstError::Ended(status, last));
        }
        sleep(LOOK).await;
    }
    Err(PasstError::Late)
}
