//! `cargo xtask model`: the permit protocol and migration, model-checked in the larger bounds, built fast.

use anyhow::Result;

use crate::shell;

/// Runs `scheduler/tests/model.rs` and `migrations.rs` with every bound; minutes, not seconds.
pub(crate) fn run() -> Result<()> {
    let mut command = shell::cargo()?;
    command
        .args([
            "test",
            "--profile",
            "sim",
            "--locked",
            "--package",
            "scheduler",
            "--test",
            "model",
            "--test",
            "migrations",
            "--",
            "--nocapture",
        ])
        .env("SCHEDULER_MODEL", "large");
    shell::run("the models of permits and migration", &mut command)
}
