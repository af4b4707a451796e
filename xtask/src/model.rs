//! `cargo xtask model`: the permit protocol model-checked in the larger bounds, built fast.

use anyhow::Result;

use crate::shell;

/// Runs `scheduler/tests/model.rs` with every bound; minutes, not seconds.
pub(crate) fn run() -> Result<()> {
    let mut command = shell::cargo()?;
    command
        .args([
            "test",
            "--release",
            "--locked",
            "--package",
            "scheduler",
            "--test",
            "model",
            "--",
            "--nocapture",
        ])
        .env("SCHEDULER_MODEL", "large");
    shell::run("the model of the permit protocol", &mut command)
}
