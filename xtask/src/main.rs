//! Every developer command of the project. `cargo xtask demo` and `cargo xtask test` are the two of
//! the README; each does all of its own set-up.

#![forbid(unsafe_code)]

mod bench;
mod build;
mod census;
mod cluster;
mod crates;
mod demo;
mod disk;
mod dist;
mod escape;
mod foreign;
mod fuzz;
mod histories;
mod http;
mod interrupt;
mod model;
mod mutants;
mod progress;
mod protocol_doc;
mod setup;
mod shell;
mod sim;
mod test;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Build, test, measure and show Bellows.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Boot a real guest, load it, and watch it grow and shrink
    Demo(demo::Options),
    /// Everything a change must pass: format, lints, tidy, unit, golden, property and black-box
    /// tests with a real guest; with COMPONENT, its tests alone
    Test(test::Options),
    /// The cheap part of `test`: format, lints, tidy, unit tests
    Check,
    /// The rules of the house that no compiler knows: arrows, docs, file lengths, golden files,
    /// licences and sources of crates
    Tidy(tidy::Options),
    /// Figures of the house: stub comments, shadow chains, circles, lengths, lines, dead citations
    /// and doubled ideas
    Census(census::Options),
    /// Write docs/protocol.md from the types and the golden files of crate `protocol`
    ProtocolDoc,
    /// Measure a promise of SPECIFICATION.md and print it as a table
    Bench(bench::Options),
    /// Make the packages of `vm-monitor` and `bellows`, each with a list of what is in it
    Dist(dist::Options),
    /// Fuzz all that reads what others wrote; with `--properties`, its property tests with many
    /// cases
    Fuzz(fuzz::Options),
    /// Run the cores of the whole system on a virtual clock under faults:
    /// `cargo xtask sim --seed 1 --seeds 100`
    Sim(sim::Options),
    /// Record a long history of clients of the API server under faults, and check it
    Histories(histories::Options),
    /// Run hostile scripts in the worker of policies; each must end as expected
    Escape,
    /// Check the model of the permit protocol in its larger bounds
    Model,
    /// Plant faults in the cores, and count those that the tests catch
    Mutants(mutants::Options),
    /// A real Kubernetes on this machine, with nodes: build, up, images, test, down, status
    Cluster(cluster::Options),
    /// Install what this machine lacks, or print the one command that does
    Setup,
    /// Build the static binaries that go into guests
    GuestBins,
    /// Build the binaries and the images everything else needs
    Images,
    /// Draw the plot of a demo report again
    Plot {
        /// The JSON report of `demo --report`
        report: PathBuf,
    },
}

/// All that a machine needs for every command: packages, and the servers that tests talk to.
fn everything() -> anyhow::Result<()> {
    setup::ensure(setup::Need::Everything)?;
    foreign::ensure()?;
    if shell::is_root() {
        cluster::rootfs::ensure_systemd()?;
    }
    cluster::build_if_possible().map(|_| ())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Demo(options) => demo::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Check => test::check(),
        Command::Tidy(options) => tidy::chosen(&options),
        Command::Census(options) => census::run(&options),
        Command::ProtocolDoc => protocol_doc::run(),
        Command::Bench(options) => bench::run(&options),
        Command::Dist(options) => dist::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Sim(options) => sim::run(&options),
        Command::Histories(options) => histories::run(&options),
        Command::Escape => escape::run(),
        Command::Model => model::run(),
        Command::Mutants(options) => mutants::run(&options),
        Command::Cluster(options) => cluster::run(&options),
        Command::Setup => everything(),
        Command::GuestBins => build::guest_bins().map(|dir| shell::say(&dir.display().to_string())),
        Command::Images => build::images(build::Scope::Binaries).map(|_| ()),
        Command::Plot { report } => demo::plot_again(&report),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            shell::complain(&format!("{error:#}"));
            if error.is::<shell::Missing>() {
                ExitCode::from(69)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}
