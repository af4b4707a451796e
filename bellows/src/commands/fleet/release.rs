//! `bellows fleet release`: releases in the repository of a channel, read and verified here.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use fleet_release::{FetchLimits, Fetcher, PLATFORM, ReadError, Repository, Scope, Trust};
use fleet_signatures::ImageKey;
use protocol::fleet::{ChannelSpec, ReleaseManifest, check_version};
use protocol::parts::PartName;
use reqwest::Url;
use semver::Version;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::channel::{CHANNEL, ChannelArgs};
use super::{args, image};
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, Table, print_value};
use crate::terminal::{err, out};

/// Releases in the repository of a channel. Each command reads it again and keeps nothing.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ReleaseCommand {
    /// List the releases, the highest first
    List(ListArgs),
    /// The manifest of a release
    Show(OneArgs),
    /// Read every program of a release for this platform, and compare it with what was signed. With
    /// a key also the signatures of images
    Verify(VerifyArgs),
}

/// A repository to list.
#[derive(Debug, Clone, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    channel: ChannelArgs,
    /// Accept keys for trying in a cluster
    #[arg(long)]
    allow_dev: bool,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(super) output: Format,
}

/// A release of a repository.
#[derive(Debug, Clone, Args)]
pub(crate) struct OneArgs {
    #[command(flatten)]
    list: ListArgs,
    /// Version of the release [default: the one that the channel names]
    #[arg(long, value_name = "VERSION", value_parser = args::version)]
    release: Option<String>,
}

/// A release to verify.
#[derive(Debug, Clone, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Public key in PEM by which each image of the release must be signed
    #[arg(long, value_name = "FILE")]
    image_key: Option<PathBuf>,
}

pub(super) async fn run(context: &Context, command: &ReleaseCommand) -> Outcome {
    match command {
        ReleaseCommand::List(args) => list(context, args).await,
        ReleaseCommand::Show(args) => show(context, args).await,
        ReleaseCommand::Verify(args) => verify(context, args).await,
    }
}

/// The failure of a reading as the end of a command.
pub(super) fn explained(error: &ReadError) -> Fail {
    let what = error.to_string();
    match error {
        ReadError::Unavailable(_) => Fail::missing(what)
            .rule("a repository is read as a whole")
            .fix("see whether its server is reached, and its URL is right"),
        ReadError::Expired(_) => Fail::not_so(what)
            .rule("expired metadata upgrades nothing")
            .fix("ask the publisher to renew it: bellows fleet publish renew"),
        ReadError::Unverified(_) => Fail::not_so(what)
            .rule("every byte must have the signature that leads to the channel's root")
            .fix("trust nothing of that server; compare the root with the publisher's"),
        ReadError::Invalid(_) => {
            Fail::not_so(what).rule("a signed document has to keep its own rules")
        }
        ReadError::Refused(_) => Fail::usage(what),
    }
}

pub(super) struct Opened {
    pub(super) repository: Repository,
    spec: ChannelSpec,
    /// Folder of the verified metadata. The repository writes to it until the command ends.
    _verified: TempDir,
}

pub(super) async fn open(context: &Context, args: &ListArgs) -> Outcome<Opened> {
    let api = context.api().await?;
    let (namespace, name) = args.channel.key();
    let object = api.get(CHANNEL, namespace, name).await?;
    let spec = ChannelSpec::of_object(&object)
        .map_err(|error| Fail::not_so(format!("fleet channel {namespace}/{name}: {error}")))?;
    let url =
        Url::parse(&spec.url).map_err(|error| Fail::not_so(format!("{}: {error}", spec.url)))?;
    let fetcher = Fetcher::new(FetchLimits::default(), &[]).map_err(Fail::missing)?;
    let verified = tempfile::tempdir()
        .map_err(|error| Fail::missing(format!("no folder for a moment: {error}")))?;
    let trust = Trust::of_channel(&spec, verified.path());
    let allow_dev = args.allow_dev;
    let scope = match context.asks_cluster() {
        true => Scope::Cluster { allow_dev },
        false => Scope::Machine,
    };
    let opened = Repository::open(&fetcher, &url, trust, scope).await;
    let repository = opened.map_err(|error| explained(&error))?;
    Ok(Opened {
        repository,
        spec,
        _verified: verified,
    })
}

async fn list(context: &Context, args: &ListArgs) -> Outcome {
    let opened = open(context, args).await?;
    let Opened {
        repository, spec, ..
    } = &opened;
    let versions = repository.versions().map_err(|error| explained(&error))?;
    let named = repository.channel(&spec.name).await.ok();
    let named = named.map(|reading| reading.version);
    if matches!(args.output, Format::Json | Format::Yaml) {
        let items: Vec<String> = versions.iter().map(ToString::to_string).collect();
        let named = named.map(|version| version.to_string());
        return print_value(args.output, &json!({"items": items, "named": named}));
    }
    if versions.is_empty() {
        err("the repository has no release");
        return Ok(());
    }
    let mut table = Table::new(&["VERSION", "CHANNEL"]);
    for version in versions {
        let channel = if named.as_ref() == Some(&version) {
            spec.name.as_str()
        } else {
            ""
        };
        table.row(vec![version.to_string().into(), channel.into()]);
    }
    table.print(context.paint());
    Ok(())
}

async fn manifest(opened: &Opened, release: Option<&str>) -> Outcome<ReleaseManifest> {
    let version: Version = match release {
        Some(version) => check_version(version).map_err(Fail::usage)?,
        None => {
            let reading = opened.repository.channel(&opened.spec.name).await;
            reading.map_err(|error| explained(&error))?.version
        }
    };
    let manifest = opened.repository.manifest(&version).await;
    manifest.map_err(|error| explained(&error))
}

async fn show(context: &Context, args: &OneArgs) -> Outcome {
    let opened = open(context, &args.list).await?;
    let manifest = manifest(&opened, args.release.as_deref()).await?;
    if matches!(args.list.output, Format::Json | Format::Yaml) {
        return print_value(args.list.output, &manifest);
    }
    out(&format!("release {}", manifest.version));
    let mut table = Table::new(&["PART", "PLATFORM", "BYTES", "SHA256"]);
    for (part, platforms) in &manifest.parts {
        for (platform, program) in platforms {
            table.row(vec![
                part.clone().into(),
                platform.clone().into(),
                program.size.to_string().into(),
                program.sha256.clone().into(),
            ]);
        }
    }
    table.print(context.paint());
    for (part, image) in &manifest.images {
        let signed = if image.bundle.is_empty() {
            "not signed"
        } else {
            "with a signature"
        };
        out(&format!("image {part}: {}, {signed}", image.digest));
    }
    for (link, range) in &manifest.links {
        out(&format!("link {link}: {} to {}", range.min, range.max));
    }
    if let Some(least) = &manifest.at_least {
        out(&format!("follows {least} or a later one"));
    }
    Ok(())
}

/// Images of a release that a key signed. Without a key they are not verified.
fn verified_images(manifest: &ReleaseManifest, key: Option<&ImageKey>) -> Outcome<Vec<Value>> {
    let Some(key) = key else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for (part, named) in &manifest.images {
        image::verified(key, named)?;
        let sha256 = named.digest.strip_prefix("sha256:");
        all.push(json!({"part": part, "sha256": sha256}));
    }
    Ok(all)
}

async fn verify(
    context: &Context,
    VerifyArgs {
        one: args,
        image_key,
    }: &VerifyArgs,
) -> Outcome {
    let key = image_key.as_deref().map(image::key).transpose()?;
    let opened = open(context, &args.list).await?;
    let manifest = manifest(&opened, args.release.as_deref()).await?;
    let mut all = verified_images(&manifest, key.as_ref())?;
    for part in PartName::ALL {
        if manifest.program(part, PLATFORM).is_none() {
            continue;
        }
        let read = opened.repository.program(&manifest, part).await;
        let (program, _) = read.map_err(|error| explained(&error))?;
        all.push(json!({"part": part, "platform": PLATFORM, "sha256": program.sha256}));
    }
    if matches!(args.list.output, Format::Json | Format::Yaml) {
        let value = json!({"version": manifest.version, "verified": all});
        return print_value(args.list.output, &value);
    }
    if all.is_empty() {
        let what = format!(
            "nothing of release {} was verified: it has no program for {PLATFORM}",
            manifest.version
        );
        return Err(Fail::not_so(what).fix("see which it has: bellows fleet release show"));
    }
    for one in all {
        let (part, sha256) = (&one["part"], &one["sha256"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        out(&format!(
            "{} {} verified: {}",
            text(part),
            manifest.version,
            text(sha256)
        ));
    }
    Ok(())
}
