//! The mutants of the cores, and the choice of a sample.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// One planted fault, as cargo-mutants lists it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Listed")]
pub(super) struct Mutant {
    /// `FILE:LINE:COLUMN: CHANGE in FUNCTION`, unique in a listing.
    pub(super) name: String,
    pub(super) file: String,
    pub(super) line: u32,
    pub(super) column: u32,
    /// Empty where code belongs to no function, as in a constant.
    pub(super) function: String,
    /// What is replaced by what, or deleted.
    pub(super) change: String,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    file: String,
    function: Option<Function>,
    span: Span,
}

#[derive(Deserialize)]
struct Function {
    function_name: String,
}

#[derive(Deserialize)]
struct Span {
    start: Position,
}

#[derive(Deserialize)]
struct Position {
    line: u32,
    column: u32,
}

impl From<Listed> for Mutant {
    fn from(listed: Listed) -> Self {
        let function = listed.function.map(|it| it.function_name);
        let function = function.unwrap_or_default();
        let Position { line, column } = listed.span.start;
        let place = format!("{}:{line}:{column}: ", listed.file);
        let change = listed.name.strip_prefix(&place).unwrap_or(&listed.name);
        let change = change
            .strip_suffix(&format!(" in {function}"))
            .unwrap_or(change);
        Self {
            change: change.to_owned(),
            name: listed.name,
            file: listed.file,
            line,
            column,
            function,
        }
    }
}

/// Reads what `cargo mutants --list --json` prints.
pub(super) fn parse(text: &str) -> Result<Vec<Mutant>> {
    let mut mutants: Vec<Mutant> =
        serde_json::from_str(text).context("the listing of mutants is not understood")?;
    // The sample must not depend on the order of a listing.
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    mutants.dedup_by(|a, b| a.name == b.name);
    Ok(mutants)
}

/// Draws `count` mutants, each with the same chance. The same seed draws the same ones again.
pub(super) fn draw(pool: &[Mutant], count: usize, seed: u64) -> Vec<Mutant> {
    let mut pool: Vec<&Mutant> = pool.iter().collect();
    let count = count.min(pool.len());
    let mut random = Random(seed);
    for drawn in 0..count {
        let left = pool.len() - drawn;
        pool.swap(drawn, drawn + random.below(left));
    }
    pool.into_iter().take(count).cloned().collect()
}

/// SplitMix64, whose numbers are the same on every machine and in every release.
struct Random(u64);

impl Random {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number under `bound`, which is not 0.
    fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next()) * bound as u128;
        usize::try_from(wide >> 64).unwrap_or_default()
    }
}

/// A regular expression that only `name` matches.
pub(super) fn exactly(name: &str) -> String {
    let mut pattern = String::from("^");
    for character in name.chars() {
        if character.is_ascii_punctuation() && !"_<>".contains(character) {
            pattern.push('\\');
        }
        let _ = write!(pattern, "{character}");
    }
    pattern.push('$');
    pattern
}
