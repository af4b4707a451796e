//! `bellows fleet preflight`: would a control plane of a release understand the guests that run?

use std::collections::BTreeMap;

use clap::Args;
use fleet_core::order::{self, Link, Range, Refusal, Release};
use fleet_release::ReadError;
use protocol::fleet::ReleaseManifest;
use semver::Version;
use serde::Serialize;
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

/// A part that runs in a guest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct RunningPart {
    instance: String,
    part: String,
    version: String,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Findings {
    understood: usize,
    refused: Vec<(RunningPart, String)>,
    unknown: Vec<RunningPart>,
}

pub(super) async fn preflight(context: &Context, args: &PreflightArgs) -> Outcome {
    let wanted = Version::parse(&args.control_plane)
        .map_err(|error| Fail::usage(format!("--control-plane: {error}")))?;
    let opened = open(context, &args.list).await?;
    let manifest = opened.repository.manifest(&wanted).await;
    let release = release_of(&wanted, &manifest.map_err(|error| explained(&error))?);
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

/// Parts by the status of their instances. One without a version has never been seen.
pub(super) fn running_parts(instances: &[Value]) -> Vec<RunningPart> {
    let mut all = Vec::new();
    for instance in instances {
        let metadata = &instance["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = format!(
            "{}/{}",
            text(&metadata["namespace"]),
            text(&metadata["name"])
        );
        let parts = instance["status"]["parts"].as_object();
        for (part, state) in parts.into_iter().flatten() {
            let version = text(&state["version"]);
            if !version.is_empty() {
                all.push(RunningPart {
                    instance: name.clone(),
                    part: part.clone(),
                    version,
                });
            }
        }
    }
    all
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
        known.insert(text, release_of(&version, &manifest));
    }
    Ok(known)
}

pub(super) fn compare(
    release: &Release,
    parts: Vec<RunningPart>,
    known: &BTreeMap<String, Release>,
) -> Findings {
    let mut findings = Findings::default();
    for part in parts {
        let Some(runs) = known.get(&part.version) else {
            findings.unknown.push(part);
            continue;
        };
        match order::skew(release, &[(part.part.as_str(), runs)]) {
            Ok(()) => findings.understood += 1,
            Err(
                Refusal::Skew(text)
                | Refusal::Order(text)
                | Refusal::LowerMajor(text)
                | Refusal::SteppingStone(text),
            ) => findings.refused.push((part, text)),
        }
    }
    findings
}

/// A link of another name is one that this program has not heard of, and is not compared.
pub(super) fn release_of(version: &Version, manifest: &ReleaseManifest) -> Release {
    let links = manifest.links.iter().filter_map(|(name, range)| {
        let link = match name.as_str() {
            "monitor" => Link::Monitor,
            "permit" => Link::Permit,
            "runner" => Link::Runner,
            "guestd" => Link::Guestd,
            "parts" => Link::Parts,
            _ => return None,
        };
        let (min, max) = (range.min, range.max);
        Some((link, Range { min, max }))
    });
    Release {
        version: version.clone(),
        links: links.collect(),
        is_independent: manifest.independent,
        at_least: None,
    }
}

fn show(args: &PreflightArgs, findings: &Findings) -> Outcome {
    let format = args.list.output;
    if matches!(format, Format::Json | Format::Yaml) {
        let refused = findings.refused.iter();
        let refused = refused.map(|(part, reason)| {
            let mut value = json!(part);
            value["reason"] = json!(reason);
            value
        });
        let value = json!({
            "controlPlane": args.control_plane,
            "understood": findings.understood,
            "refused": refused.collect::<Vec<Value>>(),
            "unknown": findings.unknown,
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
