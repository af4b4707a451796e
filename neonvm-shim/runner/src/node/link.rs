//! Link to one runner: its process if it is a child, and its state by long-poll.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use daemon_kit::http_client::{HttpError, over_unix};
use hyper::Method;
use protocol::runner::{RunnerState, StopOrder};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::core::paths::Paths;
use crate::shell::inherit;
use crate::shell::process::append_file;

/// Longest time that a runner holds a long-poll.
const LONG_POLL_MS: u64 = 20_000;
/// Longest wait for the response to a long-poll.
const LONG_POLL_LIMIT: Duration = Duration::from_secs(30);
/// Longest wait for any other response.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two attempts at a runner that does not answer yet.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// A runner that was started or found.
#[derive(Debug)]
pub(super) struct Link {
    /// The newest state; `None` until the first answer.
    pub(super) state: watch::Receiver<Option<RunnerState>>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// Starts a runner for a directory. The runner makes a session of its own and so outlives the
    /// driver.
    ///
    /// # Errors
    /// The command cannot be executed, or its log cannot be opened.
    pub(super) fn spawn(command: &[OsString], dir: &Path) -> std::io::Result<Self> {
        let (program, args) = command
            .split_first()
            .ok_or_else(|| std::io::Error::other("the runner's command is empty"))?;
        let log = Paths::new(dir).runner_log();
        let mut command = Command::new(program);
        inherit::only_for_runner(&mut command);
        let child = command
            .args(args)
            .arg("--rundir")
            .arg(dir)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::from(append_file(&log)?))
            .stderr(Stdio::from(append_file(&log)?))
            .kill_on_drop(false)
            .spawn()?;
        Ok(Self::follow(dir.to_owned(), Some(child)))
    }

    /// Finds a runner that serves a directory; `None` if there is none.
    pub(super) async fn find(dir: &Path) -> Option<Self> {
        let socket = Paths::new(dir).control();
        over_unix(&socket, Method::GET, "/v1/state", "", ANSWER_LIMIT)
            .await
            .ok()?;
        Some(Self::follow(dir.to_owned(), None))
    }

    fn follow(dir: PathBuf, child: Option<Child>) -> Self {
        let (tx, state) = watch::channel(None);
        let task = tokio::spawn(follow(Paths::new(dir).control(), child, tx));
        Self { state, task }
    }

    pub(super) fn is_over(&self) -> bool {
        self.task.is_finished() || self.state.has_changed().is_err()
    }
}

/// Polls the state until the runner is gone, then drops the sender.
async fn follow(
    socket: PathBuf,
    mut child: Option<Child>,
    state: watch::Sender<Option<RunnerState>>,
) {
    let mut generation = None;
    loop {
        let path = match generation {
            None => "/v1/state".to_owned(),
            Some(after) => format!("/v1/state?after={after}&wait_ms={LONG_POLL_MS}"),
        };
        let answer = over_unix(&socket, Method::GET, &path, "", LONG_POLL_LIMIT);
        let answer = match &mut child {
            None => answer.await,
            Some(process) => tokio::select! {
                // Also reaps the child.
                _ = process.wait() => return,
                answer = answer => answer,
            },
        };
        match answer.and_then(|bytes| serde_json::from_slice(&bytes).map_err(HttpError::Malformed))
        {
            Ok(next) => {
                let next: RunnerState = next;
                generation = Some(next.generation);
                state.send_replace(Some(next));
            }
            // A runner that is not a child and refuses connections is gone.
            Err(HttpError::Connect(_)) if child.is_none() => return,
            Err(_) => tokio::time::sleep(TRY_AGAIN).await,
        }
    }
}

/// Orders a runner to stop its guest.
///
/// # Errors
/// [`HttpError`].
pub(super) async fn stop(dir: &Path, grace_ms: u64) -> Result<(), HttpError> {
    let body = serde_json::to_vec(&StopOrder { grace_ms }).map_err(HttpError::Malformed)?;
    let socket = Paths::new(dir).control();
    over_unix(&socket, Method::POST, "/v1/stop", body, ANSWER_LIMIT)
        .await
        .map(drop)
}
