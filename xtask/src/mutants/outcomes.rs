//! What cargo-mutants writes about the mutants it has tested.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::list::Mutant;

/// What the tests made of a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MutantResult {
    /// A test failed.
    Caught,
    /// The tests did not end in time.
    TimedOut,
    /// Every test passed.
    Missed,
    /// The mutant does not compile.
    Unviable,
}

/// A mutant that was tested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tested {
    pub(super) mutant: Mutant,
    pub(super) verdict: MutantResult,
}

#[derive(Deserialize)]
struct File {
    outcomes: Vec<Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    /// Text for the unchanged code, an object for a mutant.
    scenario: Value,
    summary: String,
}

impl MutantResult {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::TimedOut => "timeout",
            Self::Missed => "MISSED",
            Self::Unviable => "unviable",
        }
    }

    fn of(summary: &str) -> Option<Self> {
        match summary {
            "CaughtMutant" => Some(Self::Caught),
            "Timeout" => Some(Self::TimedOut),
            "MissedMutant" => Some(Self::Missed),
            "Unviable" => Some(Self::Unviable),
            _ => None,
        }
    }
}

/// The mutants that have been tested, in that order. A file that is absent or half written has
/// none: the next look finds it whole.
pub(super) fn read(file: &Path) -> Vec<Tested> {
    std::fs::read_to_string(file)
        .map(|text| parse(&text))
        .unwrap_or_default()
}

/// The outcomes of these mutants. cargo-mutants 27.1.0 applies no filter to deleted fields: it
/// tests each one of the core beside the sample.
pub(super) fn of_sample(tested: Vec<Tested>, mutants: &[&Mutant]) -> impl Iterator<Item = Tested> {
    let names: BTreeSet<&str> = mutants.iter().map(|it| it.name.as_str()).collect();
    let tested = tested.into_iter();
    tested.filter(move |it| names.contains(it.mutant.name.as_str()))
}

pub(super) fn parse(text: &str) -> Vec<Tested> {
    let Ok(file) = serde_json::from_str::<File>(text) else {
        return Vec::new();
    };
    let outcomes = file.outcomes.into_iter();
    outcomes.filter_map(Outcome::into_tested).collect()
}

impl Outcome {
    fn into_tested(mut self) -> Option<Tested> {
        let mutant = self.scenario.get_mut("Mutant")?.take();
        Some(Tested {
            mutant: serde_json::from_value(mutant).ok()?,
            verdict: MutantResult::of(&self.summary)?,
        })
    }
}
