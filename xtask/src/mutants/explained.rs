//! Mutants that somebody has looked at and found equivalent or harmless, each with the reason.
//!
//! An entry is a paragraph of lines `file:`, `function:`, `change:`, `why:`. It names one mutant
//! without its line, because lines move. Where a function holds the same change several times,
//! `which:` says the place among them, counted from 1. Lines that begin with `#` are remarks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use super::list::Mutant;

/// The entries of the file.
#[derive(Debug)]
pub(super) struct Explained(Vec<Entry>);

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    file: String,
    function: String,
    change: String,
    which: Option<usize>,
}

impl Explained {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).context("failed to read explained mutants")?;
        Self::parse(&text)
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let (mut entries, mut lines) = (Vec::new(), Vec::new());
        for line in text.lines().chain([""]) {
            if !line.trim().is_empty() {
                lines.extend(Some(line).filter(|line| !line.starts_with('#')));
            } else if !lines.is_empty() {
                entries.push(Entry::parse(&lines)?);
                lines.clear();
            }
        }
        Ok(Self(entries))
    }

    /// The names of the mutants. An entry that names none, or several, is an error.
    pub(super) fn resolve(&self, all: &[Mutant]) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for entry in &self.0 {
            let name = entry.resolve(all)?;
            ensure!(names.insert(name.clone()), "{name} is explained twice");
        }
        Ok(names)
    }
}

impl Entry {
    fn parse(lines: &[&str]) -> Result<Self> {
        let mut fields = BTreeMap::new();
        for line in lines {
            let (key, value) = line
                .split_once(':')
                .with_context(|| format!("an explained mutant has the line {line:?}"))?;
            let is_new = fields.insert(key.trim(), value.trim()).is_none();
            ensure!(is_new, "an explained mutant has two lines {key:?}");
        }
        let about = lines.join(", ");
        let mut take = |key: &str| {
            fields
                .remove(key)
                .with_context(|| format!("an explained mutant has no {key:?}: {about}"))
        };
        let (file, function, change) = (take("file")?, take("function")?, take("change")?);
        ensure!(!take("why")?.is_empty(), "no reason is given: {about}");
        let which = fields.remove("which").map(str::parse).transpose()?;
        if let Some(key) = fields.keys().next() {
            bail!("an explained mutant has an unknown {key:?}: {about}");
        }
        Ok(Self {
            file: file.to_owned(),
            function: function.to_owned(),
            change: change.to_owned(),
            which,
        })
    }

    fn resolve(&self, all: &[Mutant]) -> Result<String> {
        let mut found: Vec<&Mutant> = all.iter().filter(|mutant| self.is_about(mutant)).collect();
        found.sort_by_key(|mutant| (mutant.line, mutant.column));
        let named = match (self.which, found.as_slice()) {
            (None, [only]) => Some(*only),
            (None, [_, _, ..]) => bail!(
                "{self} is explained, and there are {} of it: add `which:`",
                found.len()
            ),
            (Some(which), found) => which.checked_sub(1).and_then(|at| found.get(at).copied()),
            (None, []) => None,
        };
        let named = named.with_context(|| {
            format!("{self} is explained, and no such mutant exists any more: strike the entry")
        })?;
        Ok(named.name.clone())
    }

    fn is_about(&self, mutant: &Mutant) -> bool {
        (&self.file, &self.function, &self.change)
            == (&mutant.file, &mutant.function, &mutant.change)
    }
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}: {}", self.file, self.function, self.change)
    }
}
