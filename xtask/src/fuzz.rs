//! `cargo xtask fuzz`: the tests of every crate that reads what others wrote (frames, the kernel's files, words, objects),
//! its properties with as many cases as there is patience for. It finds what chance finds: a coverage-guided fuzzer would
//! need a nightly compiler and a program of its own. A property that names its own number of cases keeps it.

use anyhow::Result;
use clap::Args;

use crate::shell;

/// Options of `fuzz`.
#[derive(Args)]
pub(crate) struct Options {
    /// Cases of each property
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    cases: u32,
    /// Only properties with this in their name
    #[arg(value_name = "NAME")]
    only: Option<String>,
}

/// Who reads what others wrote.
const READERS: [&str; 5] = [
    "protocol",
    "vm-monitor",
    "neonvm-guestd",
    "vm-images",
    "neonvm-apiserver",
];

/// Runs them; a property that does not hold shows its smallest counterexample.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut command = shell::cargo()?;
    // Fast, and with every check of arithmetic.
    command.args(["test", "--quiet", "--profile", "sim"]);
    for package in READERS {
        command.args(["--package", package]);
    }
    command.args(&options.only);
    command.env("PROPTEST_CASES", options.cases.to_string());
    let what = format!("{} cases of each property", options.cases);
    shell::run(&what, &mut command)
}
