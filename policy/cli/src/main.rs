//! `bellows-policy`: the one program that links Lua. The agent and `bellows` start it.

#![forbid(unsafe_code)]

mod cli;
mod text;
mod whatif;

use std::process::ExitCode;

use clap::Parser as _;

/// Exit codes, those of `bellows`.
pub(crate) mod exit {
    /// A policy breaks a rule.
    pub(crate) const FINDING: u8 = 1;
    /// The command line or a file is at fault.
    pub(crate) const USAGE: u8 = 64;
    /// Something of the machine is missing.
    pub(crate) const UNAVAILABLE: u8 = 69;
    /// The parent of a worker broke the protocol, or a fault of this program.
    pub(crate) const INTERNAL: u8 = 70;
}

fn main() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(cli) => cli.run(),
        Err(error) => {
            let _ = error.print();
            let code = if error.use_stderr() { exit::USAGE } else { 0 };
            ExitCode::from(code)
        }
    }
}
