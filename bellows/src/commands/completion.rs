//! `bellows completion`: a completion script for a shell.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::fail::Outcome;

/// Print a completion script.
///
/// For bash: bellows completion bash > /etc/bash_completion.d/bellows
#[derive(Debug, Clone, Args)]
pub(crate) struct CompletionArgs {
    /// Shell that will read the script
    shell: Shell,
}

/// Prints the script for `command`, the whole command line of `bellows`.
pub(crate) fn run(args: &CompletionArgs, command: &mut Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "bellows", &mut script);
    crate::terminal::out(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}
