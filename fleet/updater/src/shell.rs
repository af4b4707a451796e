//! Input and output of the updater.
//!
//! Only [`packages`] changes packages, by [`apt`] or [`dnf`], and only [`upgrade`] uses it.

pub mod apt;
pub mod channel;
pub mod check;
pub mod dnf;
pub mod files;
pub mod monitor;
pub mod packages;
pub mod settings;
pub mod state;
pub mod status;
pub mod timer;
pub mod upgrade;

use std::process::{Command, Stdio};

/// A failure, as a sentence that names the thing, the rule and the fix.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Settings or input that a person has to mend.
    #[error("{0}")]
    Input(String),
    /// Something of the machine that is missing or failed.
    #[error("{0}")]
    Machine(String),
}

/// Most bytes of a program's error output that a message has.
const TAIL_BYTES: usize = 400;

/// Runs a program without standard input; returns what it printed.
fn output(command: &mut Command) -> Result<String, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ended = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::Machine(format!("failed to start {name}: {error}")))?;
    if ended.status.success() {
        return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
    let tail = &said[said.ceil_char_boundary(said.len().saturating_sub(TAIL_BYTES))..];
    Err(Error::Machine(format!(
        "{name} ended with {}: {tail}",
        ended.status
    )))
}
