//! Attributes of a type: how serde spells its members, and its documentation.

use anyhow::Result;
use syn::{Attribute, Expr, ExprLit, Lit, Meta};

/// The settings of serde that change what is on the wire.
#[derive(Default)]
pub(super) struct Serde {
    pub(super) rename: Option<String>,
    pub(super) rename_all: Option<String>,
    pub(super) tag: Option<String>,
    pub(super) may_be_absent: bool,
    pub(super) is_other: bool,
}

impl Serde {
    pub(super) fn of(attributes: &[Attribute]) -> Result<Self> {
        let mut found = Self::default();
        for attribute in attributes.iter().filter(|it| it.path().is_ident("serde")) {
            attribute.parse_nested_meta(|meta| {
                let value = match meta.value() {
                    Ok(value) => Some(value.parse::<syn::LitStr>()?.value()),
                    Err(_) => None,
                };
                let name = last_of(&meta.path);
                match (name.as_str(), value) {
                    ("rename", value @ Some(_)) => found.rename = value,
                    ("rename_all", value @ Some(_)) => found.rename_all = value,
                    ("tag", value @ Some(_)) => found.tag = value,
                    ("default" | "skip_serializing_if", _) => found.may_be_absent = true,
                    ("other", None) => found.is_other = true,
                    ("deny_unknown_fields" | "transparent", None) | ("serialize_with", _) => {}
                    _ => return Err(meta.error(format!("serde({name}) is not described"))),
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// The wire's spelling of a field or variant.
    pub(super) fn spell(&self, name: &str) -> String {
        match self.rename_all.as_deref() {
            Some("lowercase") => name.to_lowercase(),
            Some("snake_case") => snake_case(name),
            Some("camelCase") => camel_case(name),
            _ => name.to_owned(),
        }
    }
}

fn snake_case(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |whole, word| {
        let (initial, rest) = word.split_at(word.len().min(1));
        whole + &initial.to_uppercase() + rest
    })
}

/// Documentation as Markdown: links of rustdoc and citations of papers outside of the project are
/// left out.
pub(super) fn doc_of(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| {
        let Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        match &pair.value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(line),
                ..
            }) if pair.path.is_ident("doc") => Some(line.value()),
            _ => None,
        }
    });
    let text: Vec<String> = lines
        .map(|line| line.strip_prefix(' ').unwrap_or(&line).to_owned())
        .collect();
    let whole = text.join("\n");
    let paragraphs = whole.split("\n\n").map(without_citations);
    let kept: Vec<String> = paragraphs.filter(|text| !text.is_empty()).collect();
    kept.join("\n\n")
        .replace("[`", "`")
        .replace("`]", "`")
        .replace("`crate::", "`")
}

fn without_citations(paragraph: &str) -> String {
    let source = first_of(
        paragraph,
        &[
            "Source: docs/compatibility/",
            "Source:\ndocs/compatibility/",
        ],
    );
    let mut text = paragraph[..source.unwrap_or(paragraph.len())]
        .trim_end()
        .to_owned();
    while let Some(start) = first_of(&text, &[" (docs/compatibility/", "\n(docs/compatibility/"]) {
        let Some(length) = text[start..].find(')') else {
            break;
        };
        text.replace_range(start..=start + length, "");
    }
    text
}

/// Where the first of these stands.
fn first_of(text: &str, words: &[&str]) -> Option<usize> {
    words.iter().filter_map(|word| text.find(word)).min()
}

pub(super) fn last_of(path: &syn::Path) -> String {
    let last = path.segments.last();
    last.map_or_else(String::new, |last| last.ident.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citation_is_left_out_wherever_its_line_is_broken() {
        for text in [
            "A port. Source: docs/compatibility/agent.md §1.",
            "A port. Source:\ndocs/compatibility/agent.md §1.",
            "A port\n(docs/compatibility/agent.md §1).",
            "A port (docs/compatibility/agent.md §1).",
        ] {
            assert_eq!(without_citations(text), "A port.");
        }
    }

    #[test]
    fn names_are_spelled_as_serde_spells_them() {
        assert_eq!(snake_case("TooFewSamples"), "too_few_samples");
        assert_eq!(camel_case("last_permit"), "lastPermit");
        assert_eq!(camel_case("pod"), "pod");
    }
}
