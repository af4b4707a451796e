//! `bellows vmset`: sets of VMs. kubectl can do all of this too; these commands write the objects.

mod change;
mod create;
pub(crate) mod orders;
pub(crate) mod plan;
mod upgrade;
pub(crate) mod view;
mod wait;
mod why;

use clap::Subcommand;

use crate::context::Context;
use crate::fail::Outcome;

/// Sets of VMs: members from one template, counted, upgraded one by one.
#[derive(Debug, Subcommand)]
pub(crate) enum VmsetCommand {
    /// Create a set
    Create(Box<create::CreateArgs>),
    /// List the sets
    List(view::ListArgs),
    /// One set with its members
    Get(view::GetArgs),
    /// Why a set has its number of members
    Why(why::WhyArgs),
    /// Change the number of members
    Scale(change::ScaleArgs),
    /// Bring the members to the newest template, one after the other
    Upgrade(upgrade::UpgradeArgs),
    /// Take an upgrade back
    Undo(upgrade::UndoArgs),
    /// Delete a set and its members
    Delete(change::DeleteArgs),
}

pub(crate) async fn run(context: &Context, command: VmsetCommand) -> Outcome {
    match command {
        VmsetCommand::Create(args) => create::create(context, &args).await,
        VmsetCommand::List(args) => view::list(context, &args).await,
        VmsetCommand::Get(args) => view::get(context, &args).await,
        VmsetCommand::Why(args) => why::why(context, &args).await,
        VmsetCommand::Scale(args) => change::scale(context, &args).await,
        VmsetCommand::Upgrade(args) => upgrade::upgrade(context, &args).await,
        VmsetCommand::Undo(args) => upgrade::undo(context, &args).await,
        VmsetCommand::Delete(args) => change::delete(context, &args).await,
    }
}
