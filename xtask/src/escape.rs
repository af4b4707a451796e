//! `cargo xtask escape`: hostile scripts against the real worker of policies, one line each.

use anyhow::Result;

use crate::shell;

/// Questions that two processes must answer with the same bytes.
const QUESTIONS: &str = "100000";

/// Runs `policy/cli/tests/escape.rs` with all of its scripts, and `processes.rs`.
pub(crate) fn run() -> Result<()> {
    let mut command = shell::cargo()?;
    command.args(["test", "--locked", "--package", "policy-cli"]);
    command.args(["--test", "escape", "--test", "processes"]);
    command.args(["--", "--nocapture"]);
    command.env("BELLOWS_ESCAPE_ALL", "1");
    command.env("BELLOWS_POLICY_QUESTIONS", QUESTIONS);
    shell::run(
        "hostile scripts against the worker of policies",
        &mut command,
    )
}
