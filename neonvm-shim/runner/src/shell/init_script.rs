//! Runs `spec.initScript` in the runner of a pod before anything else (docs/compatibility/neonvm.md
//! §1.2, §3.1).

use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::Command;
use tokio::task::JoinHandle;
use tracing::info;

use crate::config::RunnerConfig;

const SHELL: &str = "/bin/sh";
/// Name of its file in the runner's directory.
const FILE: &str = "init-script";
/// Longest line of one log record in bytes.
const MAX_LINE_BYTES: u64 = 4096;
/// How long its output may stay open after its end, as background processes of the script may hold
/// it open for ever.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Errors of the script. The VM is not started.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The script's file cannot be written.
    #[error("spec.initScript: cannot write {0}")]
    Write(PathBuf, #[source] io::Error),
    /// The shell cannot be executed, or its end cannot be waited for.
    #[error("spec.initScript: cannot execute {SHELL}")]
    Execute(#[source] io::Error),
    /// The script ended without success, so the VM is not started.
    #[error("spec.initScript failed: {status}{}", last_line(.said))]
    Failed {
        /// Exit status or signal of the shell.
        status: ExitStatus,
        /// Last line of its output; empty without output.
        said: String,
    },
}

fn last_line(said: &str) -> String {
    if said.is_empty() {
        return String::new();
    }
    format!("; its last words: {said}")
}

/// Runs the script of a VM's spec, if it has one and the configuration allows it.
///
/// # Errors
/// [`InitError`].
pub async fn run(config: &RunnerConfig, dir: &Path) -> Result<(), InitError> {
    let script = &config.spec.init_script;
    if !config.runs_init_script || script.is_empty() {
        return Ok(());
    }
    to_end(script, dir).await
}

/// Runs a script to its end, with its output in our log and without a time limit. Dropping the
/// future ends the script.
async fn to_end(script: &str, dir: &Path) -> Result<(), InitError> {
    let path = dir.join(FILE);
    // From a file: its standard input is not the script, and its length is not limited.
    write(&path, script).map_err(|error| InitError::Write(path.clone(), error))?;
    info!("spec.initScript started");
    let mut child = Command::new(SHELL)
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(InitError::Execute)?;
    let out = child.stdout.take().map(|out| tokio::spawn(log(out)));
    let err = child.stderr.take().map(|err| tokio::spawn(log(err)));
    let status = child.wait().await.map_err(InitError::Execute)?;
    let (out, err) = tokio::join!(last_words(out), last_words(err));
    if status.success() {
        info!("spec.initScript finished");
        return Ok(());
    }
    // Errors usually go to stderr.
    let said = if err.is_empty() { out } else { err };
    Err(InitError::Failed { status, said })
}

fn write(path: &Path, script: &str) -> io::Result<()> {
    use std::io::Write as _;
    let _ = std::fs::remove_file(path);
    let mut options = std::fs::File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(script.as_bytes())
}

/// Logs output line by line. Returns the last line.
async fn log(output: impl AsyncRead + Unpin) -> String {
    let mut output = BufReader::new(output);
    let (mut line, mut last) = (Vec::new(), String::new());
    loop {
        line.clear();
        let mut part = (&mut output).take(MAX_LINE_BYTES);
        // A read error ends the output too.
        if !matches!(part.read_until(b'\n', &mut line).await, Ok(1..)) {
            return last;
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if !text.is_empty() {
            info!(target: "init_script", "{text}");
            text.clone_into(&mut last);
        }
    }
}

/// Last line of a log that has ended.
async fn last_words(log: Option<JoinHandle<String>>) -> String {
    let Some(log) = log else {
        return String::new();
    };
    // Otherwise the task continues to log.
    let ended = tokio::time::timeout(LAST_WORDS, log).await;
    ended.ok().and_then(Result::ok).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::args::tests::config;

    async fn said(script: &str) -> Result<(), String> {
        let dir = tempfile::tempdir().unwrap();
        let ended = to_end(script, dir.path()).await;
        ended.map_err(|error| daemon_kit::chain(&error))
    }

    #[tokio::test]
    async fn failed_script_is_reported_with_status_and_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let script = format!(
            "set -e\nread line || true\necho \"[$line]\" > {}",
            mark.display()
        );
        assert_eq!(said(&script).await, Ok(()));
        assert_eq!(std::fs::read_to_string(&mark).unwrap(), "[]\n");

        let failed = said("echo fine\necho no such key >&2\n\nexit 3\n").await;
        let why = "spec.initScript failed: exit status: 3; its last words: no such key";
        assert_eq!(failed, Err(why.to_owned()));
        let failed = said("echo gone; kill -9 $$").await.unwrap_err();
        assert!(failed.contains("signal: 9"), "{failed}");
        assert!(failed.ends_with("its last words: gone"), "{failed}");
        let silent = said("exit 1").await;
        assert_eq!(silent, Err("spec.initScript failed: exit status: 1".into()));
    }

    #[tokio::test]
    async fn script_is_run_only_in_a_container() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config();
        config.spec.init_script = "exit 7".into();
        assert!(run(&config, dir.path()).await.is_ok(), "nothing is run");
        config.runs_init_script = true;
        let failed = run(&config, dir.path()).await.unwrap_err();
        assert!(failed.to_string().contains("exit status: 7"), "{failed}");
        config.spec.init_script.clear();
        assert!(run(&config, dir.path()).await.is_ok());
    }

    #[tokio::test]
    async fn background_processes_of_a_script_are_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}", pid.display());
        assert_eq!(said(&script).await, Ok(()));
        let pid = std::fs::read_to_string(pid).unwrap();
        let left = crate::shell::process::ProcessId::of(pid.trim().parse().unwrap())
            .expect("it is still there");
        left.kill();
    }

    #[tokio::test]
    async fn long_line_is_logged_in_parts() {
        let long = format!(
            "head -c {} /dev/zero | tr '\\0' x; exit 4",
            MAX_LINE_BYTES * 3 + 5
        );
        let failed = said(&long).await.unwrap_err();
        assert!(failed.ends_with("its last words: xxxxx"), "{failed}");
    }
}
