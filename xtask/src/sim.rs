//! `cargo xtask sim`: the simulator, built fast, with its own arguments.

use anyhow::{Result, bail, ensure};
use clap::Args;

use crate::progress::{Cargo, Depends};
use crate::shell;

/// Arguments of the simulator.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// `--seed N --seeds COUNT --vms 200 --hours 24 --faults none|light|heavy --steps N`;
    /// `--help` lists all. `--fleet --seed N --seeds COUNT --steps SECONDS` runs rollouts
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds and runs it.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options
        .arguments
        .first()
        .is_some_and(|first| first == "--fleet")
    {
        return fleet(&options.arguments[1..]);
    }
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

/// Runs rollouts of the fleet's engine on a virtual clock. A failure names its seed.
fn fleet(arguments: &[String]) -> Result<()> {
    let mut command = shell::cargo()?;
    command.args([
        "test",
        "--locked",
        "--profile",
        "sim",
        "--package",
        "fleet-core",
    ]);
    command.args(["--test", "simulation", "--", "long_rollouts", "--nocapture"]);
    for pair in arguments.chunks(2) {
        let [option, value] = pair else {
            bail!("{} needs a number", pair[0]);
        };
        let name = match option.as_str() {
            "--seed" => "BELLOWS_FLEET_SEED",
            "--seeds" => "BELLOWS_FLEET_SEEDS",
            "--steps" => "BELLOWS_FLEET_STEPS",
            _ => bail!("unknown option {option}: --fleet takes --seed, --seeds and --steps"),
        };
        ensure!(
            value.parse::<u64>().is_ok(),
            "{option} {value} is not a number"
        );
        command.env(name, value);
    }
    ensure!(command.status()?.success(), "a rollout did not hold");
    Ok(())
}
