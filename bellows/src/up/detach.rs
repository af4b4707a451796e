//! `bellows up --detach`: the same process in its own session, with its log in a file.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use daemon_kit::exit::Exit;
use hyper::http::Method;
use neonvm_runner::shell::inherit;

use super::status::Status;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::instance::lock::{self, Holder};
use crate::places::StateDir;
use crate::progress::Progress;
use crate::terminal::{err, out};
use crate::unix_http;

/// Set in the process in the background.
const CHILD: &str = "BELLOWS_UP_DETACHED";
/// Variables that the process in the background keeps: directories, proxies, and the credentials of
/// object stores for events.
const KEPT: [&str; 23] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_*",
    "TZ",
    "TMPDIR",
    "XDG_*",
    "BELLOWS_*",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "KUBECONFIG",
    "NO_COLOR",
    "AWS_*",
    "AZURE_*",
    "SSL_CERT_*",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];
/// Longest log before it is rotated. One older log is kept.
const LOG_LIMIT_BYTES: u64 = 16 << 20;
/// Interval at which the length of the log is read.
const LOG_LOOK: Duration = Duration::from_secs(30);
/// Interval at which the parent checks whether the child is ready.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest time for which the parent waits.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Bytes of the log shown when the child ends early.
const TAIL_BYTES: u64 = 4096;

pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Starts the process in the background and waits until it is ready.
pub(crate) async fn run(context: &Context, state: &StateDir) -> Outcome {
    state.create()?;
    if let Holder::Process(pid) = lock::holder(state) {
        let who = pid.map_or_else(
            || "another process".to_owned(),
            |pid| format!("process {pid}"),
        );
        return Err(Fail::try_again(format!(
            "{} is in use: {who} holds {}",
            state.path().display(),
            state.lock().display()
        ))
        .rule("one `bellows up` owns a state directory")
        .fix("end it with `bellows down`, or give this one another --state-dir"));
    }
    let log = open_log(&state.log())?;
    let from = log.metadata().map_or(0, |meta| meta.len());
    let broken = |error: std::io::Error| {
        Fail::bug(format!(
            "the process in the background does not start: {error}"
        ))
    };
    let mut command = tokio::process::Command::new(std::env::current_exe().map_err(broken)?);
    inherit::only(&mut command, &KEPT);
    let mut child = command
        .args(std::env::args_os().skip(1))
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(broken)?)
        .stderr(log)
        .kill_on_drop(false)
        .spawn()
        .map_err(broken)?;
    let mut progress = Progress::new();
    loop {
        if let Some(status) = child.try_wait().map_err(broken)? {
            progress.clear();
            return Err(early_end(state, from, status));
        }
        if let Some(status) = ready(state, child.id()).await {
            progress.clear();
            out(&status.ready_line());
            for line in status.ready_text(context.paint_err()) {
                err(&line);
            }
            return Ok(());
        }
        if progress.elapsed() >= READY_WITHIN {
            return Err(Fail::try_again(format!(
                "not ready after {} s; it goes on in the background",
                READY_WITHIN.as_secs()
            ))
            .fix(format!(
                "see what it waits for: bellows status; its log: {}",
                state.log().display()
            )));
        }
        progress.say("starting");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn ready(state: &StateDir, child: Option<u32>) -> Option<Status> {
    let answer = unix_http::exchange(&state.admin_socket(), Method::GET, "/v1/status", None)
        .await
        .ok()?;
    let status: Status = serde_json::from_value(answer).ok()?;
    (status.ready && Some(status.pid) == child).then_some(status)
}

/// The child's last output as a failure of this command.
fn early_end(state: &StateDir, from: u64, status: ExitStatus) -> Fail {
    let exit = match status.code() {
        Some(64) => Exit::Config,
        Some(69) => Exit::Dependency,
        Some(75) => Exit::TryAgain,
        _ => Exit::Bug,
    };
    let text = tail(&state.log(), from);
    let lines: Vec<&str> = text.lines().collect();
    // Log lines are JSON. The last output is not.
    let Some(at) = lines.iter().rposition(|line| line.starts_with("error: ")) else {
        return Fail::new(
            exit,
            format!("the process in the background ended early ({status})"),
        )
        .fix(format!("read its log: {}", state.log().display()));
    };
    let mut fail = Fail::new(exit, lines[at].trim_start_matches("error: "));
    for line in &lines[at + 1..] {
        if let Some(rule) = line.trim().strip_prefix("rule: ") {
            fail = fail.rule(rule);
        } else if let Some(fix) = line.trim().strip_prefix("fix: ") {
            fail = fail.fix(fix);
        }
    }
    fail
}

fn tail(path: &Path, from: u64) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let end = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(
            from.max(end.saturating_sub(TAIL_BYTES)).min(end),
        ))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}

fn open_log(path: &Path) -> Outcome<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| Fail::missing(format!("{} cannot be opened: {error}", path.display())))
}

/// Detaches the child: it gets its own session, so that no terminal ends it, and a log that is
/// rotated.
pub(crate) fn settle(state: &StateDir) -> Outcome {
    if !is_child() {
        return Ok(());
    }
    // All relative paths have been resolved.
    let _ = std::env::set_current_dir("/");
    // Fails only for the leader of a process group. A freshly started child is none.
    let _ = nix::unistd::setsid();
    let path = state.log();
    tokio::spawn(async move {
        let mut looks = tokio::time::interval(LOG_LOOK);
        loop {
            looks.tick().await;
            if let Err(error) = turn_over(&path, LOG_LIMIT_BYTES) {
                tracing::warn!(%error, "the log cannot be turned over");
            }
        }
    });
    Ok(())
}

/// Copies a log that is too long to `.1` and truncates it. The file descriptor appends, so later
/// lines go to the new begin. Lines between copy and truncation are lost. That is cheaper than to
/// reopen standard error.
fn turn_over(path: &Path, limit_bytes: u64) -> std::io::Result<()> {
    if std::fs::metadata(path)?.len() <= limit_bytes {
        return Ok(());
    }
    let mut old = path.as_os_str().to_owned();
    old.push(".1");
    std::fs::copy(path, old)?;
    OpenOptions::new().write(true).open(path)?.set_len(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_long_log_is_turned_over_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("up.log");
        let mut log = open_log(&path).unwrap();
        log.write_all(b"0123456789").unwrap();
        turn_over(&path, 10).unwrap();
        assert!(!dir.path().join("up.log.1").exists());
        log.write_all(b"x").unwrap();
        turn_over(&path, 10).unwrap();
        assert_eq!(
            std::fs::read(dir.path().join("up.log.1")).unwrap(),
            b"0123456789x"
        );
        log.write_all(b"next").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"next");
    }

    #[test]
    fn last_output_of_child_is_the_failure() {
        use std::os::unix::process::ExitStatusExt;
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::choose(Some(dir.path())).unwrap();
        std::fs::write(state.log(), "error: old\n").unwrap();
        let from = std::fs::metadata(state.log()).unwrap().len();
        let mut log = open_log(&state.log()).unwrap();
        writeln!(
            log,
            "{{\"message\":\"an error: x\"}}\nerror: port taken\n rule: r\n  fix: f"
        )
        .unwrap();
        let fail = early_end(&state, from, ExitStatus::from_raw(75 << 8));
        assert_eq!(
            fail,
            Fail::new(Exit::TryAgain, "port taken").rule("r").fix("f")
        );
        let silent = early_end(
            &state,
            std::fs::metadata(state.log()).unwrap().len(),
            ExitStatus::from_raw(9),
        );
        assert_eq!(silent.exit(), Exit::Bug);
        assert!(silent.to_string().contains("up.log"), "{silent}");
    }
}
