//! Rules of channels, and of the source of an environment.

use serde_json::Value;

use super::super::channel::{ChannelSpec, ChannelTrust};
use super::super::environment::Source;
use super::super::texts::{check_channel_name, check_version};
use super::field::invalid;
use crate::admission::FieldError;

/// Longest URL, bytes.
const URL_BYTES: usize = 2048;
/// Longest root, bytes.
const ROOT_BYTES: usize = 64 << 10;

pub(super) fn errors(spec: &ChannelSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(rule) = url_rule(spec) {
        errors.push(invalid("url", rule, spec.url.as_str()));
    }
    if let Err(rule) = check_channel_name(&spec.name) {
        errors.push(invalid("name", rule, spec.name.as_str()));
    }
    if let Some(rule) = root_rule(spec) {
        errors.push(invalid("root", rule, ""));
    }
    if !(10..=86_400).contains(&spec.poll_seconds) {
        errors.push(invalid(
            "pollSeconds",
            "must be 10 to 86400",
            spec.poll_seconds,
        ));
    }
    if spec.grace_seconds > 31_536_000 {
        let rule = "must be at most 31536000, a year";
        errors.push(invalid("graceSeconds", rule, spec.grace_seconds));
    }
    errors
}

fn url_rule(spec: &ChannelSpec) -> Option<&'static str> {
    let url = spec.url.as_str();
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"?#@\\\"".contains(&byte);
    if url.len() > URL_BYTES || !url.bytes().all(is_plain) {
        return Some("must be at most 2048 printable characters without a user, query or fragment");
    }
    let host = url.strip_prefix("https://");
    let is_web = host.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    let is_file = url
        .strip_prefix("file:///")
        .is_some_and(|rest| !rest.is_empty());
    if !is_web && !is_file {
        return Some("must begin with https:// and a host, or with file:/// on one machine");
    }
    if spec.trust == ChannelTrust::Local && !is_file {
        return Some("must begin with file:/// for trust Local, which has no signatures");
    }
    None
}

fn root_rule(spec: &ChannelSpec) -> Option<&'static str> {
    if spec.trust == ChannelTrust::Local {
        return (!spec.root.is_empty()).then_some("must be empty for trust Local");
    }
    if spec.root.len() > ROOT_BYTES {
        return Some("must be at most 64 KiB");
    }
    let root = serde_json::from_str::<Value>(&spec.root).unwrap_or_default();
    (root["signed"]["_type"] != "root")
        .then_some("must be the text of the repository's metadata/1.root.json, or of a later root")
}

pub(super) fn source_error(source: &Source) -> Option<FieldError> {
    match (&source.release, &source.channel) {
        (Some(release), None) => {
            let rule = check_version(&release.version).err()?;
            Some(invalid(
                "source.release.version",
                rule,
                release.version.as_str(),
            ))
        }
        (None, Some(channel)) if channel.is_empty() || channel.len() > 253 => {
            let rule = "must name a FleetChannel of the namespace";
            Some(invalid("source.channel", rule, channel.as_str()))
        }
        (None, Some(_)) => None,
        (None, None) | (Some(_), Some(_)) => {
            let rule = "must have either release or channel: leave one of them out";
            Some(invalid("source", rule, Value::Null))
        }
    }
}
