//! `bellows completion`: a script that completes our commands in a shell.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::fail::Outcome;

/// Print a completion script.
///
/// For bash: bellows completion bash > /etc/bash_completion.d/bellows
#[derive(Debug, Clone, Args)]
pub(crate) struct CompletionArgs {
    /// Shell that will read the script
    shell: Shell,
}

pub(crate) fn run(args: &CompletionArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "bellows", &mut script);
    crate::terminal::out(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}
