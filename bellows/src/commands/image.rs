//! `bellows image`: build, list and remove images.

mod build;
mod collect;
mod store;
mod view;

use std::path::PathBuf;

use build::{BuildArgs, build};
use clap::{Args, Subcommand};
use collect::collect;
use store::{explain_store, store};
use view::{ImageView, table, view};
use vm_images::oci::{self, OciImage};

use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, print_value};
use crate::terminal::{err, out};

/// Build, list and remove images.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build images from their recipes; what is already built and unchanged costs nothing
    Build(BuildArgs),
    /// List built images
    Ls(LsArgs),
    /// Forget an image's name; its files go at the next gc
    Rm(RmArgs),
    /// Remove files that no image and no VM uses
    Gc(GcArgs),
    /// Make an OCI archive of files and trees, without a daemon or a registry
    Pack(PackArgs),
}

/// List built images.
#[derive(Debug, Clone, Args)]
pub(crate) struct LsArgs {
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// Forget an image's name.
#[derive(Debug, Clone, Args)]
pub(crate) struct RmArgs {
    /// Name, such as bellows/postgres:15
    name: String,
}

/// Remove files that no image and no VM uses.
///
/// Kept are images that have a name, those that VMs and root disks of this state directory were
/// made from, and those that any running process has open.
#[derive(Debug, Clone, Args)]
pub(crate) struct GcArgs {}

/// Make an OCI archive.
///
/// The specification is JSON: `reference` (name and tag), `layers` (lists of parts: `file`, `tree`,
/// `link`, `text`, `directory`), `entrypoint`, `env`. The same files give the same bytes.
/// `ctr images import` and its like take the archive.
#[derive(Debug, Clone, Args)]
pub(crate) struct PackArgs {
    /// What goes in
    #[arg(value_name = "SPECIFICATION")]
    specification: PathBuf,
    /// The archive to write
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
}

pub(crate) async fn run(context: &Context, command: ImageCommand) -> Outcome {
    // Builds and removals block this thread. No other task waits for it.
    match command {
        ImageCommand::Build(args) => build(&args),
        ImageCommand::Ls(args) => list(context, &args),
        ImageCommand::Rm(args) => remove(&args),
        ImageCommand::Gc(_) => collect(&context.state()?),
        ImageCommand::Pack(args) => pack(&args),
    }
}

fn pack(args: &PackArgs) -> Outcome {
    let path = args.specification.display();
    let text = std::fs::read(&args.specification)
        .map_err(|error| Fail::missing(format!("{path} cannot be read: {error}")))?;
    let image: OciImage = serde_json::from_slice(&text)
        .map_err(|error| Fail::usage(format!("{path} is no specification: {error}")))?;
    let digest = oci::write(&image, &args.archive)
        .map_err(|error| Fail::missing(daemon_kit::chain(&error)))?;
    out(&format!("{} sha256:{}", image.reference, digest.as_str()));
    Ok(())
}

fn list(context: &Context, args: &LsArgs) -> Outcome {
    let images = store()?.images().map_err(|error| explain_store(&error))?;
    let views: Vec<ImageView> = images.iter().map(view).collect();
    match args.output {
        Format::Json | Format::Yaml => {
            print_value(args.output, &serde_json::json!({"items": views}))
        }
        Format::Table | Format::Wide if views.is_empty() => {
            err("no images; build them: bellows image build");
            Ok(())
        }
        Format::Table | Format::Wide => {
            table(&views, args.output == Format::Wide).print(context.paint());
            Ok(())
        }
    }
}

fn remove(args: &RmArgs) -> Outcome {
    let store = store()?;
    let image = store
        .resolve(&args.name)
        .map_err(|error| explain_store(&error))?;
    if image.is_none() {
        return Err(Fail::not_so(format!("there is no image {}", args.name))
            .fix("see what there is: bellows image ls"));
    }
    let reference = store.root().join("refs").join(&args.name);
    std::fs::remove_file(&reference).map_err(|error| {
        Fail::missing(format!(
            "{} cannot be removed: {error}",
            reference.display()
        ))
    })?;
    out(&format!(
        "{} forgotten; its files go with: bellows image gc",
        args.name
    ));
    Ok(())
}
