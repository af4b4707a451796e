//! `bellows policy`: programs that decide beside the built-in goal or in its place.

mod ask;
mod ask_sets;
pub(crate) mod canary;
mod compiles;
pub(crate) mod conditions;
mod library;
mod needs;
pub(crate) mod object;
mod pack;
pub(crate) mod program;
mod report;
pub(crate) mod set_answers;
pub(crate) mod sets;
pub(crate) mod stage;
pub(crate) mod state;
pub(crate) mod whatif;
pub(crate) mod worker;

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::context::Context;
use crate::fail::Outcome;
use crate::terminal::out;

/// Policies: programs that say how big VMs should be, tried before they decide.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Create or update a policy from a Lua file
    Apply(object::ApplyArgs),
    /// Make one file of a policy, pinned by its digest
    Pack(pack::PackArgs),
    /// Write source and fixtures of a packed policy as files
    Unpack(pack::UnpackArgs),
    /// List the policies, and how many VMs have each
    List(state::ListArgs),
    /// One policy, with its last answer about each VM
    Show(state::ShowArgs),
    /// How its recorded answers differ from the built-in goal
    Report(report::ReportArgs),
    /// Begin the next stage of the newest version: canary, then all VMs that have the policy
    Promote(stage::PromoteArgs),
    /// Take the deciding version back
    Demote(stage::StageArgs),
    /// Let the built-in goal decide for a while
    Pause(stage::StageArgs),
    /// End a pause
    Resume(stage::ResumeArgs),
    /// Compile a policy and ask it made-up questions
    #[command(disable_help_flag = true)]
    Check(ProgramArgs),
    /// Ask policies the questions beside them and compare the answers
    #[command(disable_help_flag = true)]
    Test(ProgramArgs),
    /// Ask a policy once about a VM, or about sets; nothing is done
    Run(ask::RunArgs),
    /// Policies to begin with: list them, show one, write their files
    #[command(subcommand)]
    Library(library::LibraryCommand),
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

fn say(lines: Vec<String>) {
    for line in lines {
        out(&line);
    }
}

pub(crate) async fn run(context: &Context, command: PolicyCommand) -> Outcome {
    match command {
        PolicyCommand::Apply(args) => object::apply(context, &args).await,
        PolicyCommand::Pack(args) => pack::pack(&args),
        PolicyCommand::Unpack(args) => pack::unpack(&args),
        PolicyCommand::List(args) => state::list(context, &args).await,
        PolicyCommand::Show(args) => state::show(context, &args).await,
        PolicyCommand::Report(args) => {
            if report::of_sets(context, &args).await? {
                return Ok(());
            }
            needs::journal(context, "report")?;
            report::run(context, &args).await
        }
        PolicyCommand::Promote(args) => args.run(context).await.map(say),
        PolicyCommand::Demote(args) => stage::demote(context, &args.order()).await.map(say),
        PolicyCommand::Pause(args) => stage::pause(context, &args.order()).await.map(say),
        PolicyCommand::Resume(args) => stage::resume(context, &args.order()).await.map(say),
        PolicyCommand::Check(args) => program::replace("check", &args.arguments),
        PolicyCommand::Test(args) => program::replace("test", &args.arguments),
        PolicyCommand::Run(args) => ask::run(context, &args).await,
        PolicyCommand::Library(command) => library::run(context, &command),
        PolicyCommand::Stubs(args) => program::replace("stubs", &args.arguments),
    }
}
