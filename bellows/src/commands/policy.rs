//! `bellows policy`: candidates beside the built-in goal. No candidate has an effect on a VM.

mod ask;
mod object;
mod program;
mod report;
mod state;
pub(crate) mod worker;

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::context::Context;
use crate::fail::Outcome;

/// Candidates beside the built-in goal: how big they would make VMs.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Create or update a policy from a Lua file
    Apply(object::ApplyArgs),
    /// List the policies, and how many VMs have each
    List(state::ListArgs),
    /// One policy, with its last answer about each VM
    Show(state::ShowArgs),
    /// How its recorded answers differ from the built-in goal
    Report(report::ReportArgs),
    /// Compile a policy and ask it made-up questions
    #[command(disable_help_flag = true)]
    Check(ProgramArgs),
    /// Ask policies the questions beside them and compare the answers
    #[command(disable_help_flag = true)]
    Test(ProgramArgs),
    /// Ask a policy once about a VM; nothing is done
    Run(ask::RunArgs),
    /// Print type declarations in Luau for editors
    #[command(disable_help_flag = true)]
    Stubs(ProgramArgs),
}

/// Arguments for `bellows-policy`.
#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// Arguments of the program bellows-policy
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) async fn run(context: &Context, command: PolicyCommand) -> Outcome {
    match command {
        PolicyCommand::Apply(args) => object::apply(context, &args).await,
        PolicyCommand::List(args) => state::list(context, &args).await,
        PolicyCommand::Show(args) => state::show(context, &args).await,
        PolicyCommand::Report(args) => report::run(context, &args),
        PolicyCommand::Check(args) => program::replace("check", &args.arguments),
        PolicyCommand::Test(args) => program::replace("test", &args.arguments),
        PolicyCommand::Run(args) => ask::run(context, &args),
        PolicyCommand::Stubs(args) => program::replace("stubs", &args.arguments),
    }
}
