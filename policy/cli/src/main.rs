//! `bellows-policy`: the one program that links Lua. The agent and `bellows` start it.

#![forbid(unsafe_code)]

mod cli;
mod terminal;
mod text;
mod unanswered;
mod whatif;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(cli) => cli.run(),
        Err(error) => {
            let _ = error.print();
            let code = if error.use_stderr() {
                terminal::exit::USAGE
            } else {
                0
            };
            ExitCode::from(code)
        }
    }
}
