//! Rules for single texts of a recipe: names, words and paths.

use std::collections::BTreeSet;

use super::problem::Problem;

/// Problems of one recipe, in the order in which they are found.
pub(super) type Problems = Vec<Problem>;

pub(super) fn unique<'a>(p: &mut Problems, at: &str, names: impl Iterator<Item = &'a str>) {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            let problem = format!("has {name:?} twice");
            p.push(Problem {
                at: at.to_owned(),
                problem,
                rule: "names must be unique".into(),
            });
        }
    }
}

pub(super) fn check(
    p: &mut Problems,
    at: &str,
    text: &str,
    holds: impl Fn(&str) -> bool,
    rule: &str,
) {
    // A missing text is a problem of its own.
    if !text.is_empty() && !holds(text) {
        p.push(Problem {
            at: at.to_owned(),
            problem: format!("is {text:?}"),
            rule: rule.to_owned(),
        });
    }
}

pub(super) const SETTING: &str = "must be a server setting: a-z, 0-9, '_', '.'";
pub(super) const WORD: &str =
    "must be a word of a-z, A-Z, 0-9, '_', '-', '.', not beginning with '-' or '.'";
pub(super) const RELATIVE: &str = "must be a path without a leading '/', empty parts or '..'";
pub(super) const ABSOLUTE: &str = "must be an absolute path without spaces, empty parts or '..'";

pub(super) fn is_word(text: &str) -> bool {
    !text.starts_with(['-', '.'])
        && text.len() <= 63
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

pub(super) fn is_package_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(allowed)
}

pub(super) fn is_setting_name(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.".contains(c))
}

pub(super) fn is_relative_path(text: &str) -> bool {
    let part = |p: &str| !p.is_empty() && p != ".." && p != ".";
    !text.contains(['\n', '\0']) && text.split('/').all(part)
}

pub(super) fn is_absolute_path(text: &str) -> bool {
    !text.contains(' ') && text.strip_prefix('/').is_some_and(is_relative_path)
}

/// Whether the text is `word/word:tag` in lower case, which makes a safe path in the cache.
pub(crate) fn is_image_name(text: &str) -> bool {
    let (path, tag) = text
        .split_once(':')
        .map_or((text, None), |(path, tag)| (path, Some(tag)));
    let lower =
        |w: &str| !w.is_empty() && is_word(w) && !w.contains(|c: char| c.is_ascii_uppercase());
    text.len() <= 128 && path.split('/').all(lower) && tag.is_none_or(lower)
}
