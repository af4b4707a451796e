//! `bellows fleet publish`: makes a repository of releases in a folder. It needs no `bellows up`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use fleet_release::{
    Audience, Changed, PLATFORM, Program, PublishError, Publisher, ReleaseDraft, read_log,
};
use protocol::fleet::{LinkRange, ReleaseImage};
use protocol::parts::PartName;
use serde_json::json;

use super::args::version;
use super::{image, program};
use crate::fail::{Fail, Outcome};
use crate::output::{Format, print_value};
use crate::terminal::{err, out};

/// Publish releases: a folder of signed files that any file server hands out.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum PublishCommand {
    /// Make an empty repository and its keys
    Init(InitArgs),
    /// Add a channel, with a key of its own
    Channel(ChannelArgs),
    /// Add a release
    Release(Box<ReleaseArgs>),
    /// Let a channel name a release
    Promote(PromoteArgs),
    /// Take a release away that no channel ever served
    Withdraw(WithdrawArgs),
    /// Sign the metadata again, so that it does not expire; run it daily
    Renew(FolderArgs),
    /// Print the log of the repository, and check that no line was cut or edited
    Log(LogArgs),
}

/// A repository and its keys.
#[derive(Debug, Clone, Args)]
pub(crate) struct FolderArgs {
    /// Folder of the repository
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Folder of the keys. It is no part of the repository: serve it to nobody
    #[arg(long, value_name = "DIR")]
    keys: PathBuf,
}

impl FolderArgs {
    fn publisher(&self) -> Outcome<Publisher> {
        let absolute = |path| {
            std::path::absolute(path)
                .map_err(|error| Fail::usage(format!("the folder of the repository: {error}")))
        };
        if absolute(&self.keys)?.starts_with(absolute(&self.folder)?) {
            return Err(Fail::usage("--keys is a folder of the repository")
                .rule("a server hands out the whole repository")
                .fix("choose a folder outside of it"));
        }
        Ok(Publisher::new(&self.folder, &self.keys))
    }
}

/// A new repository.
#[derive(Debug, Clone, Args)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Keys for trying: all metadata is good for 7 days, and clusters refuse it
    #[arg(long)]
    dev: bool,
}

/// A new channel.
#[derive(Debug, Clone, Args)]
pub(crate) struct ChannelArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Name of the channel, as stable
    #[arg(value_name = "CHANNEL")]
    name: String,
}

/// A new release.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Version of the release, as 1.2.3
    #[arg(long, value_name = "VERSION", value_parser = version)]
    to: String,
    /// A program of the release for this platform, as monitor=FILE
    #[arg(long, required_unless_present = "image", value_name = "PART=FILE", value_parser = part_file)]
    program: Vec<(PartName, PathBuf)>,
    /// A container image of the release by its digest, as agent=sha256:HEX
    #[arg(long, value_name = "PART=DIGEST", value_parser = part_image)]
    image: Vec<(String, String)>,
    /// The signature of an image, a bundle that cosign wrote, as agent=FILE
    #[arg(long, value_name = "PART=FILE", value_parser = image_file)]
    bundle: Vec<(String, PathBuf)>,
    /// Public key in PEM by which each image must be signed, or nothing is published
    #[arg(long, value_name = "FILE")]
    image_key: Option<PathBuf>,
    /// Versions of a link that the release speaks, as monitor=1..2
    #[arg(long, value_name = "LINK=MIN..MAX", value_parser = link)]
    link: Vec<(String, LinkRange)>,
    /// Version that must have run before this one
    #[arg(long, value_name = "VERSION", value_parser = version)]
    at_least: Option<String>,
    /// It waits for no other part
    #[arg(long)]
    independent: bool,
    /// Text for people
    #[arg(long, default_value = "", value_name = "TEXT")]
    notes: String,
}

/// A release for a channel.
#[derive(Debug, Clone, Args)]
pub(crate) struct PromoteArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Version of the release
    #[arg(long, value_name = "VERSION", value_parser = version)]
    to: String,
    /// Channel that names it from now on
    #[arg(long, value_name = "CHANNEL")]
    channel: String,
    /// It is urgent: guests wait for no window
    #[arg(long)]
    critical: bool,
}

/// A release to take away.
#[derive(Debug, Clone, Args)]
pub(crate) struct WithdrawArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Version of the release
    #[arg(long, value_name = "VERSION", value_parser = version)]
    release: String,
}

/// A repository whose log is read.
#[derive(Debug, Clone, Args)]
pub(crate) struct LogArgs {
    /// Folder of the repository
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

fn part_file(text: &str) -> Result<(PartName, PathBuf), String> {
    let (part, file) = text.split_once('=').ok_or("it must be PART=FILE")?;
    let part = PartName::parse(part).ok_or("the part must be monitor or guestd")?;
    Ok((part, file.into()))
}

fn part_image(text: &str) -> Result<(String, String), String> {
    let (part, digest) = text.split_once('=').ok_or("it must be PART=DIGEST")?;
    let digest = image::digest(digest)?;
    Ok((imaged(part)?, format!("sha256:{digest}")))
}

fn image_file(text: &str) -> Result<(String, PathBuf), String> {
    let (part, file) = text.split_once('=').ok_or("it must be PART=FILE")?;
    Ok((imaged(part)?, file.into()))
}

/// A part that is an image.
fn imaged(part: &str) -> Result<String, String> {
    if !PartName::OF_IMAGES.iter().any(|one| one.as_str() == part) {
        return Err("the part must be agent, scheduler, controller or fleet".to_owned());
    }
    Ok(part.to_owned())
}

fn link(text: &str) -> Result<(String, LinkRange), String> {
    const RULE: &str = "it must be LINK=MIN..MAX, as monitor=1..2";
    let (name, range) = text.split_once('=').ok_or(RULE)?;
    let (min, max) = range.split_once("..").ok_or(RULE)?;
    let number = |text: &str| text.parse().map_err(|_| RULE.to_owned());
    let range = LinkRange {
        min: number(min)?,
        max: number(max)?,
    };
    Ok((name.to_owned(), range))
}

pub(super) async fn run(command: &PublishCommand) -> Outcome {
    match command {
        PublishCommand::Init(args) => init(args).await,
        PublishCommand::Channel(args) => channel(args).await,
        PublishCommand::Release(args) => release(args).await,
        PublishCommand::Promote(args) => promote(args).await,
        PublishCommand::Withdraw(args) => withdraw(args).await,
        PublishCommand::Renew(args) => renew(args).await,
        PublishCommand::Log(args) => log(args),
    }
}

/// The failure of a publisher as the end of a command.
fn explained(error: PublishError) -> Fail {
    match error {
        PublishError::Refused { what, rule } => Fail::not_so(what).rule(rule),
        PublishError::NoKey(what) => Fail::missing(what)
            .rule("each role signs with its own key")
            .fix("name the folder with that key: --keys DIR"),
        PublishError::Io { what, error } => Fail::missing(format!("{what}: {error}")),
        PublishError::Broken(what) => Fail::missing(what)
            .rule("a repository is changed only while its metadata holds")
            .fix("put back a copy of the repository's folder"),
    }
}

async fn init(args: &InitArgs) -> Outcome {
    let audience = if args.dev {
        Audience::Dev
    } else {
        Audience::Production
    };
    let root = args.folder.publisher()?.init(audience).await;
    let root = root.map_err(explained)?;
    out(&format!("repository {} made", args.folder.folder.display()));
    err(&format!(
        "readers need {}; keep root-1, root-2, root-3 and targets of {} off-line",
        root.display(),
        args.folder.keys.display()
    ));
    Ok(())
}

async fn channel(args: &ChannelArgs) -> Outcome {
    let added = args.folder.publisher()?.add_channel(&args.name).await;
    added.map_err(explained)?;
    out(&format!("channel {} added; it names no version", args.name));
    Ok(())
}

impl ReleaseArgs {
    /// Images with their bundles. With a key each bundle is verified.
    fn images(&self) -> Outcome<BTreeMap<String, ReleaseImage>> {
        let mut images = BTreeMap::new();
        for (part, digest) in &self.image {
            let bundle = String::new();
            let digest = digest.clone();
            images.insert(part.clone(), ReleaseImage { digest, bundle });
        }
        for (part, file) in &self.bundle {
            let named = images.get_mut(part).ok_or_else(|| {
                Fail::usage(format!("--bundle {part}: the release has no such image"))
                    .rule("a bundle belongs to an image of the release")
                    .fix(format!("name its digest too: --image {part}=sha256:HEX"))
            })?;
            named.bundle = image::bundle(file)?;
        }
        if let Some(file) = &self.image_key {
            let key = image::key(file)?;
            for named in images.values() {
                image::verified(&key, named)?;
            }
        }
        Ok(images)
    }
}

async fn release(args: &ReleaseArgs) -> Outcome {
    let mut programs = Vec::new();
    for (part, file) in &args.program {
        program::check(file, &args.to).await?;
        programs.push(Program {
            part: *part,
            platform: PLATFORM.to_owned(),
            file: file.clone(),
        });
    }
    let draft = ReleaseDraft {
        version: args.to.clone(),
        programs,
        images: args.images()?,
        links: args.link.iter().cloned().collect(),
        at_least: args.at_least.clone(),
        is_independent: args.independent,
        notes: args.notes.clone(),
    };
    let released = args.folder.publisher()?.release(&draft).await;
    out(&match released.map_err(explained)? {
        Changed::Yes => format!("release {} added; no channel names it", args.to),
        Changed::No => format!("release {} is there already", args.to),
    });
    Ok(())
}

async fn promote(args: &PromoteArgs) -> Outcome {
    let publisher = args.folder.publisher()?;
    let promoted = publisher.promote(&args.channel, &args.to, args.critical);
    let (channel, version) = (&args.channel, &args.to);
    out(&match promoted.await.map_err(explained)? {
        Changed::Yes => format!("channel {channel} names {version}"),
        Changed::No => format!("channel {channel} names {version} already"),
    });
    Ok(())
}

async fn withdraw(args: &WithdrawArgs) -> Outcome {
    let withdrawn = args.folder.publisher()?.withdraw(&args.release).await;
    withdrawn.map_err(explained)?;
    out(&format!("release {} withdrawn", args.release));
    Ok(())
}

async fn renew(args: &FolderArgs) -> Outcome {
    let renewed = args.publisher()?.renew().await.map_err(explained)?;
    let renewed: Vec<String> = renewed.into_iter().collect();
    out(&format!("signed again: {}", renewed.join(", ")));
    Ok(())
}

fn log(args: &LogArgs) -> Outcome {
    let lines = read_log(&args.folder).map_err(explained)?;
    if matches!(args.output, Format::Json | Format::Yaml) {
        return print_value(args.output, &json!({"items": lines}));
    }
    for line in lines {
        let changed = if line.changed { "" } else { "unchanged" };
        let words = [&line.at, &line.action, &line.channel, &line.version];
        let words = words.into_iter().filter(|word| !word.is_empty());
        let words: Vec<&str> = words.map(String::as_str).chain([changed]).collect();
        out(words.join(" ").trim_end());
    }
    Ok(())
}
