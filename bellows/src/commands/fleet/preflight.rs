//! `bellows fleet preflight`: would a control plane of a release understand the guests that run?

use std::collections::BTreeMap;

use clap::Args;
use fleet_core::order::Release;
use fleet_core::preflight::{Findings, RunningPart, compare, running_parts};
use fleet_release::ReadError;
use semver::Version;
use serde_json::{Value, json};

use super::args;
use super::objects::INSTANCE;
use super::release::{ListArgs, Opened, explained, open};
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, print_value};
use crate::terminal::out;

/// Check that a control plane of a release understands all guests.
///
/// Compares the links of the release with those of the releases that the guests' parts run, of all
/// namespaces. Exits with 1 if a guest has no common version of a link, and names it. A part whose
/// version is no release of the repository is named, and refuses nothing.
#[derive(Debug, Clone, Args)]
pub(crate) struct PreflightArgs {
    #[command(flatten)]
    list: ListArgs,
    /// Release of the new control plane
    #[arg(long, value_name = "VERSION", value_parser = args::version)]
    control_plane: String,
}

pub(super) async fn preflight(context: &Context, args: &PreflightArgs) -> Outcome {
    let wanted = Version::parse(&args.control_plane)
        .map_err(|error| Fail::usage(format!("--control-plane: {error}")))?;
    let opened = open(context, &args.list).await?;
    let manifest = opened.repository.manifest(&wanted).await;
    let release = Release::of_manifest(&wanted, &manifest.map_err(|error| explained(&error))?);
    let api = context.api().await?;
    let parts = running_parts(&api.list(INSTANCE, None).await?);
    let known = releases(&opened, &parts).await?;
    let findings = compare(&release, parts, &known);
    show(args, &findings)?;
    let Some((first, reason)) = findings.refused.first() else {
        return Ok(());
    };
    let count = findings.refused.len();
    Err(Fail::not_so(format!(
        "a control plane of {wanted} does not understand {count} parts of guests, such as the {} of \
         {}: {reason}",
        first.part, first.instance
    ))
    .rule("both ends of a link speak a common version")
    .fix("roll a release out to these guests first that both control planes understand"))
}

/// The releases of the repository that run, by version.
async fn releases(opened: &Opened, parts: &[RunningPart]) -> Outcome<BTreeMap<String, Release>> {
    let mut known = BTreeMap::new();
    let versions = opened.repository.versions();
    let versions = versions.map_err(|error: ReadError| explained(&error))?;
    for version in versions {
        let text = version.to_string();
        if !parts.iter().any(|part| part.version == text) {
            continue;
        }
        let manifest = opened.repository.manifest(&version).await;
        let manifest = manifest.map_err(|error| explained(&error))?;
        known.insert(text, Release::of_manifest(&version, &manifest));
    }
    Ok(known)
}

fn value_of(part: &RunningPart) -> Value {
    json!({"instance": part.instance, "part": part.part, "version": part.version})
}

fn show(args: &PreflightArgs, findings: &Findings) -> Outcome {
    let format = args.list.output;
    if matches!(format, Format::Json | Format::Yaml) {
        let refused = findings.refused.iter();
        let refused = refused.map(|(part, reason)| {
            let mut value = value_of(part);
            value["reason"] = json!(reason);
            value
        });
        let value = json!({
            "controlPlane": args.control_plane,
            "understood": findings.understood,
            "refused": refused.collect::<Vec<Value>>(),
            "unknown": findings.unknown.iter().map(value_of).collect::<Vec<Value>>(),
        });
        return print_value(format, &value);
    }
    for (part, reason) in &findings.refused {
        out(&format!("{} {}: {reason}", part.instance, part.part));
    }
    for part in &findings.unknown {
        out(&format!(
            "{} {}: version {} is no release of the repository",
            part.instance, part.part, part.version
        ));
    }
    out(&format!(
        "{} parts understood, {} not, {} unknown",
        findings.understood,
        findings.refused.len(),
        findings.unknown.len()
    ));
    Ok(())
}

#[cfg(test)]
mod tests;
