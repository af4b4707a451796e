//! Admission rules of policies that a schema cannot state.

use std::collections::{BTreeMap, BTreeSet};

use super::kind::{FeedSource, Scope, Series};
use super::refusal::Refusal;

/// Longest source of a policy, bytes.
pub const MAX_SOURCE_BYTES: usize = 64 << 10;
/// Most parameters of a policy.
pub const MAX_PARAMS: usize = 32;
/// Most feeds of a policy.
pub const MAX_FEEDS: usize = 8;
/// Most labels of a VM in a question.
pub const LABELS_MAX: usize = 32;
/// Longest word, bytes.
pub const WORD_MAX: usize = 32;

const MAX_METRIC_BYTES: usize = 200;

/// Whether `text` is 1 to 32 of `a-z0-9_`.
#[must_use]
pub fn is_word(text: &str) -> bool {
    (1..=WORD_MAX).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Refuses a source that is empty, too long, or no text: compiled code has control characters.
///
/// # Errors
/// With the rule that the source broke.
pub fn check_source(source: &str) -> Result<(), Refusal> {
    let refused = |value: String, rule| Err(Refusal::of("source", value, rule));
    if source.trim().is_empty() {
        return refused("it".into(), "a program: it is empty");
    }
    if source.len() > MAX_SOURCE_BYTES {
        let size = format!("a text of {} bytes", source.len());
        return refused(size, "at most 65536 bytes");
    }
    let is_text = |c: &char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
    match source.chars().find(|c| !is_text(c)) {
        Some(control) => refused(
            format!("{control:?}"),
            "text: compiled code and control characters are refused",
        ),
        None => Ok(()),
    }
}

/// Refuses parameters that are too many, have other names than words, or are not finite.
///
/// # Errors
/// With the first parameter at fault.
pub fn check_params(params: &BTreeMap<String, f64>) -> Result<(), Refusal> {
    if params.len() > MAX_PARAMS {
        return Err(Refusal::of("params", params.len(), "at most 32 numbers"));
    }
    for (name, value) in params {
        if !is_word(name) {
            return Err(Refusal::of("params", name, "a name of 1-32 of a-z0-9_"));
        }
        if !value.is_finite() {
            let path = format!("params.{name}");
            return Err(Refusal::of(path, value, "a finite number"));
        }
    }
    Ok(())
}

/// Refuses series that every policy has anyway, that are feeds, or that occur twice. A policy of
/// sets has none but its feeds.
///
/// # Errors
/// With the first series at fault.
pub fn check_series(scope: Scope, series: &[Series]) -> Result<(), Refusal> {
    if let (Scope::Set, Some(first)) = (scope, series.first()) {
        let rule = "for scope set, whose past has sums of feeds alone";
        return Err(Refusal::of("series[0]", first, rule));
    }
    let mut seen = BTreeSet::new();
    for (index, one) in series.iter().enumerate() {
        let path = || format!("series[{index}]");
        if !Series::NAMED.contains(&one.as_str()) {
            return Err(Refusal::of(
                path(),
                one,
                "one of pressure, estimate, lfc_hits, lfc_misses",
            ));
        }
        if !seen.insert(one) {
            return Err(Refusal::of(path(), one, "named once"));
        }
    }
    Ok(())
}

/// Refuses feeds that are too many, that share a name, or whose members are malformed.
///
/// # Errors
/// With the first feed at fault.
pub fn check_feeds(feeds: &[FeedSource]) -> Result<(), Refusal> {
    if feeds.len() > MAX_FEEDS {
        return Err(Refusal::of("feeds", feeds.len(), "at most 8"));
    }
    let mut seen = BTreeSet::new();
    for (index, feed) in feeds.iter().enumerate() {
        let at = |member: &str| format!("feeds[{index}].{member}");
        if !is_word(&feed.name) {
            return Err(Refusal::of(at("name"), &feed.name, "1-32 of a-z0-9_"));
        }
        if !seen.insert(&feed.name) {
            return Err(Refusal::of(at("name"), &feed.name, "used once"));
        }
        if feed.port == 0 {
            return Err(Refusal::of(at("port"), feed.port, "a port, 1-65535"));
        }
        if !is_metric(&feed.metric) {
            return Err(Refusal::of(
                at("metric"),
                &feed.metric,
                "the name of a metric",
            ));
        }
    }
    Ok(())
}

fn is_metric(name: &str) -> bool {
    let is_letter = |b: u8| b.is_ascii_alphabetic() || b == b'_' || b == b':';
    name.len() <= MAX_METRIC_BYTES
        && name.bytes().next().is_some_and(is_letter)
        && name.bytes().all(|b| is_letter(b) || b.is_ascii_digit())
}
