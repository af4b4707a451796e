//! `cargo xtask test`: what CI runs, in the order in which failures are cheapest.

use anyhow::{Result, bail};
use clap::Args;

use crate::{build, cluster, event_servers, setup, shell, tidy};

/// Options of `test`.
#[derive(Args)]
pub(crate) struct Options {
    /// Leave out the tests that boot a guest
    #[arg(long)]
    no_guest: bool,
}

/// Format, tidy, lints, and every test that needs no guest.
pub(crate) fn check() -> Result<()> {
    setup::ensure(setup::Need::Build)?;
    let mut tests = shell::cargo()?;
    tests.args(["test", "--workspace", "--exclude", "bellows-tests"]);
    together(vec![
        ("format", format()),
        ("tidy", tidy::run()),
        ("lints", lints()),
        (
            "tests",
            shell::run("unit, golden and property tests", &mut tests),
        ),
    ])
}

/// Everything.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.no_guest {
        return check();
    }
    setup::ensure(setup::Need::Everything)?;
    event_servers::ensure()?;
    together(vec![
        ("format", format()),
        ("tidy", tidy::run()),
        ("lints", lints()),
    ])?;
    // A machine that builds everything for the first time has enough to do.
    let was_built = cluster::programs::is_built()?;
    let has_cluster = cluster::build_if_possible()?;
    if shell::is_root() {
        cluster::rootfs::ensure_systemd()?;
    }
    let bellows = build::images(build::Scope::Tests)?;
    let mut command = shell::cargo()?;
    command
        .args(["test", "--workspace", "--no-fail-fast"])
        .env("BELLOWS_BIN", &bellows)
        .env("BELLOWS_REQUIRE_GUEST", "1");
    if has_cluster {
        command.env("BELLOWS_REQUIRE_CLUSTER", "1");
    }
    shell::run(
        "all tests, with real guests and a real Kubernetes",
        &mut command,
    )?;
    if has_cluster && shell::is_root() {
        cluster::test_kind(&bellows, was_built)?;
    }
    Ok(())
}

/// Every failure is shown, so that one round is enough to see all of them.
fn together(results: Vec<(&str, Result<()>)>) -> Result<()> {
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

fn format() -> Result<()> {
    shell::run("format", shell::cargo()?.args(["fmt", "--all", "--check"]))
}

fn lints() -> Result<()> {
    let mut command = shell::cargo()?;
    command.args([
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]);
    shell::run("lints", &mut command)
}
