//! `bellows vm`: create, stop, start and delete VMs. kubectl can do all of this too; these commands
//! write the YAML.

use clap::Subcommand;

use super::backup::{self, BackupArgs};
use super::power::{self, StartArgs, StopArgs};
use super::restore::{self, RestoreArgs};
use super::vm_create::{self, CreateArgs};
use super::vm_delete::{self, DeleteArgs};
use super::vm_disk::{self, ResizeDiskArgs};
use crate::context::Context;
use crate::fail::Outcome;

/// Create, stop, start or delete a VM.
#[derive(Debug, Subcommand)]
pub(crate) enum VmCommand {
    /// Create a VM
    Create(Box<CreateArgs>),
    /// Power a VM off; its object and its disk stay
    Stop(StopArgs),
    /// Start a VM that was stopped
    Start(StartArgs),
    /// Stop a VM and start it again
    Restart(StopArgs),
    /// Make the root disk of a VM larger
    ResizeDisk(ResizeDiskArgs),
    /// Copy the root disk of a VM into a file, also while its guest runs
    Backup(BackupArgs),
    /// Make a VM from a backup
    Restore(RestoreArgs),
    /// Delete a VM
    Delete(DeleteArgs),
}

pub(crate) async fn run(context: &Context, command: VmCommand) -> Outcome {
    match command {
        VmCommand::Create(args) => vm_create::create(context, &args).await,
        VmCommand::Stop(args) => power::stop(context, &args).await,
        VmCommand::Start(args) => power::start(context, &args).await,
        VmCommand::Restart(args) => power::restart(context, &args).await,
        VmCommand::ResizeDisk(args) => vm_disk::resize(context, &args).await,
        VmCommand::Backup(args) => backup::backup(context, &args).await,
        VmCommand::Restore(args) => restore::restore(context, &args).await,
        VmCommand::Delete(args) => vm_delete::delete(context, &args).await,
    }
}
