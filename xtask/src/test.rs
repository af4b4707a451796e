//! `cargo xtask test`: what CI runs, in the order in which failures are cheapest.

use anyhow::{Result, bail};
use clap::Args;

use crate::{build, setup, shell, tidy};

/// Options of `test`.
#[derive(Args)]
pub(crate) struct Options {
    /// Leave out the tests that boot a guest
    #[arg(long)]
    no_guest: bool,
}

/// Format, lints, tidy, unit tests.
pub(crate) fn check() -> Result<()> {
    setup::ensure(setup::Need::Build)?;
    // Collect every failure, so that one round shows all of them.
    let results = [
        ("format", format()),
        ("tidy", tidy::run()),
        ("lints", lints()),
        (
            "unit, golden and property tests",
            cargo_test(&["--workspace", "--exclude", "bellows-tests"]),
        ),
    ];
    let failed: Vec<String> = results
        .into_iter()
        .filter_map(|(name, result)| result.err().map(|error| format!("{name}: {error:#}")))
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("{}", failed.join("\n"))
    }
}

/// Everything.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.no_guest {
        return check();
    }
    setup::ensure(setup::Need::Everything)?;
    check()?;
    let bellows = build::images()?;
    let mut command = shell::cargo()?;
    // One guest at a time: two cores carry no more.
    command
        .args([
            "test",
            "-p",
            "bellows-tests",
            "--",
            "--test-threads=1",
            "--nocapture",
        ])
        .env("BELLOWS_BIN", &bellows)
        .env("BELLOWS_REQUIRE_GUEST", "1");
    shell::run("black-box tests with a real guest", &mut command)
}

fn format() -> Result<()> {
    shell::run("format", shell::cargo()?.args(["fmt", "--all", "--check"]))
}

fn lints() -> Result<()> {
    shell::run(
        "lints",
        shell::cargo()?.args([
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]),
    )
}

fn cargo_test(arguments: &[&str]) -> Result<()> {
    shell::run("tests", shell::cargo()?.arg("test").args(arguments))
}
