//! `cargo xtask model`: the permit protocol and migration, model-checked in the larger bounds,
//! built fast.

use anyhow::Result;

use crate::shell;

/// Runs `scheduler/tests/large_models.rs`; minutes, not seconds.
pub(crate) fn run() -> Result<()> {
    let mut command = shell::cargo()?;
    command.args([
        "test",
        "--profile",
        "sim",
        "--locked",
        "--package",
        "scheduler",
        "--test",
        "large_models",
        "--",
        "--nocapture",
    ]);
    shell::run("the models of permits and migration", &mut command)
}
