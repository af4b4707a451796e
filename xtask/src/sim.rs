//! `cargo xtask sim`: the simulator, built fast, with its own arguments.

use anyhow::{Result, ensure};
use clap::Args;

use crate::progress::{Cargo, Depends};
use crate::shell;

/// Arguments of the simulator.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// `--seed N --seeds COUNT --vms 200 --hours 24 --faults none|light|heavy --steps N`;
    /// `--help` lists all
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds and runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let build = Cargo {
        command: shell::cargo()?,
        subcommand: &["build", "--locked", "--profile", "sim"],
        selection: &["--package", "sim"],
        depends: Depends::Normal,
        trailing: &[],
    };
    build.run("build the simulator")?;
    let mut command = shell::cargo()?;
    command.args([
        "run",
        "--quiet",
        "--locked",
        "--package",
        "sim",
        "--profile",
        "sim",
        "--",
    ]);
    let status = command.args(&options.arguments).status()?;
    ensure!(
        status.success(),
        "something did not hold, or the simulator could not run"
    );
    Ok(())
}
