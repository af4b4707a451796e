//! `cargo xtask model`: the permit protocol, migration and rollouts, model-checked in the larger
//! bounds, built fast.

use anyhow::Result;

use crate::shell;

/// Runs `scheduler/tests/large_models.rs` and `fleet/core/tests/large_model.rs`; minutes, not
/// seconds.
pub(crate) fn run() -> Result<()> {
    of(
        "scheduler",
        "large_models",
        "the models of permits and migration",
    )?;
    of("fleet-core", "large_model", "the model of rollouts")
}

fn of(package: &str, test: &str, what: &str) -> Result<()> {
    let mut command = shell::cargo()?;
    command.args([
        "test",
        "--profile",
        "sim",
        "--locked",
        "--package",
        package,
        "--test",
        test,
        "--",
        "--nocapture",
    ]);
    shell::run(what, &mut command)
}
