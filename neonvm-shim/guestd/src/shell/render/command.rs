//! Runs a unit's commands: as its owner, with an empty environment, bounded in time and output.

use std::fmt;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::destination::Rights;

/// Longest run of a command.
const LIMIT: Duration = Duration::from_secs(10);
/// Most output in bytes.
const MAX_OUTPUT: usize = 64 << 10;
/// Most characters of the output's last line in a report.
const MAX_LINE: usize = 200;

/// Why a command did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::shell) enum CommandError {
    /// It took too long, so its result is not known. In a busy guest it may end in time later.
    Late(String),
    /// It cannot be started, failed or wrote too much.
    Failed(String),
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late(text) | Self::Failed(text) => f.write_str(text),
        }
    }
}

/// Runs `command`. Afterwards nothing of its process group is left.
///
/// # Errors
/// Its text ends with the last line of the command's output.
pub(in crate::shell) async fn run(command: &[String], rights: Rights) -> Result<(), CommandError> {
    run_for(command, rights, LIMIT).await
}

async fn run_for(command: &[String], rights: Rights, limit: Duration) -> Result<(), CommandError> {
    let failed = CommandError::Failed;
    let split = command.split_first();
    let (program, arguments) = split.ok_or_else(|| failed("the command is empty".to_owned()))?;
    let started = start(program, arguments, rights);
    let (mut child, mut output) =
        started.map_err(|error| failed(format!("failed to start {program}: {error}")))?;
    let group = child
        .id()
        .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let mut text = Vec::new();
    let ended = timeout(limit, follow(&mut child, &mut output, &mut text)).await;
    if let Some(group) = group {
        // The group may have ended by itself.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait().await;
    let line = last_line(&text).map_or_else(String::new, |line| format!(": {line}"));
    let why = match ended {
        Err(_) => {
            let text = format!("it took more than {} s{line}", limit.as_secs());
            return Err(CommandError::Late(text));
        }
        Ok(Err(error)) => format!("failed to read its output: {error}"),
        Ok(Ok(None)) => format!("it wrote more than {MAX_OUTPUT} bytes"),
        Ok(Ok(Some(status))) if status.success() => return Ok(()),
        Ok(Ok(Some(status))) => status.to_string(),
    };
    Err(failed(format!("{why}{line}")))
}

fn start(program: &str, arguments: &[String], rights: Rights) -> io::Result<(Child, Receiver)> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().current_dir("/");
    command.uid(rights.user).gid(rights.group).process_group(0);
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let child = command.kill_on_drop(true).spawn()?;
    Ok((child, Receiver::from_owned_fd(reader.into())?))
}

/// Reads until the program ends. `None`: it wrote too much.
async fn follow(
    child: &mut Child,
    output: &mut Receiver,
    text: &mut Vec<u8>,
) -> io::Result<Option<ExitStatus>> {
    let mut part = [0_u8; 4096];
    loop {
        let read = tokio::select! {
            biased;
            read = output.read(&mut part) => read?,
            // All that the program itself wrote is read: reading has precedence.
            status = child.wait() => return status.map(Some),
        };
        if read == 0 {
            return child.wait().await.map(Some);
        }
        text.extend_from_slice(&part[..read]);
        if text.len() > MAX_OUTPUT {
            return Ok(None);
        }
    }
}

fn last_line(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    let shown = line.chars().filter(|c| !c.is_control());
    Some(shown.take(MAX_LINE).collect())
}

#[cfg(test)]
mod tests;
