//! Figures of a run, the surviving mutants, and the verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::outcomes::{MutantResult, Tested};

/// Least share of viable mutants that the tests must catch, per cent.
const LEAST_PERCENT: usize = 95;

/// What has been tested so far.
pub(super) struct Report {
    seed: u64,
    /// Number of mutants that the sample was drawn from.
    of: usize,
    /// Names of harmless mutants.
    explained: BTreeSet<String>,
    tested: Vec<(&'static str, Tested)>,
}

/// Numbers of mutants.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) caught: usize,
    pub(super) timed_out: usize,
    pub(super) missed: usize,
    /// Survived, and a reason is given.
    pub(super) explained: usize,
    pub(super) unviable: usize,
}

impl Counts {
    /// Mutants that compile and are not explained.
    const fn viable(self) -> usize {
        self.detected() + self.missed
    }

    /// A mutant whose tests hang is detected: the run would not have passed.
    const fn detected(self) -> usize {
        self.caught + self.timed_out
    }

    /// Share of viable mutants, to a tenth of a per cent, rounded down.
    fn percent(self) -> String {
        match (self.detected() * 1000).checked_div(self.viable()) {
            Some(tenths) => format!("{}.{}", tenths / 10, tenths % 10),
            None => "-".to_owned(),
        }
    }

    fn row(self, name: &str) -> String {
        format!(
            "    {name:<12}{:>8}{:>9}{:>8}{:>11}{:>10}{:>12}",
            self.caught,
            self.timed_out,
            self.missed,
            self.explained,
            self.unviable,
            self.percent()
        )
    }
}

impl Report {
    pub(super) const fn new(seed: u64, of: usize, explained: BTreeSet<String>) -> Self {
        Self {
            seed,
            of,
            explained,
            tested: Vec::new(),
        }
    }

    pub(super) const fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn add(&mut self, core: &'static str, tested: Tested) {
        self.tested.push((core, tested));
    }

    fn is_explained(&self, tested: &Tested) -> bool {
        self.explained.contains(&tested.mutant.name)
    }

    /// Mutants that no test catches and no entry explains.
    fn survivors(&self) -> impl Iterator<Item = &Tested> {
        let all = self.tested.iter().map(|(_, tested)| tested);
        all.filter(|it| it.verdict == MutantResult::Missed && !self.is_explained(it))
    }

    /// Mutants with an entry that a test does catch.
    fn wrongly_explained(&self) -> impl Iterator<Item = &Tested> {
        let all = self.tested.iter().map(|(_, tested)| tested);
        all.filter(|it| it.verdict == MutantResult::Caught && self.is_explained(it))
    }

    fn by_core(&self) -> BTreeMap<&'static str, Counts> {
        let mut all: BTreeMap<_, Counts> = BTreeMap::new();
        for (core, tested) in &self.tested {
            let counts = all.entry(*core).or_default();
            let number = match tested.verdict {
                MutantResult::Caught => &mut counts.caught,
                MutantResult::TimedOut => &mut counts.timed_out,
                MutantResult::Missed if self.is_explained(tested) => &mut counts.explained,
                MutantResult::Missed => &mut counts.missed,
                MutantResult::Unviable => &mut counts.unviable,
            };
            *number += 1;
        }
        all
    }

    pub(super) fn total(&self) -> Counts {
        let mut total = Counts::default();
        for counts in self.by_core().into_values() {
            total.caught += counts.caught;
            total.timed_out += counts.timed_out;
            total.missed += counts.missed;
            total.explained += counts.explained;
            total.unviable += counts.unviable;
        }
        total
    }

    /// A line about the mutant that was tested last.
    pub(super) fn progress(&self, of: usize, elapsed: Duration) -> String {
        let last = self.tested.last().map(|(_, tested)| {
            let verdict = tested.verdict.label();
            format!("{verdict:<9}{}", tested.mutant.name)
        });
        let (total, seconds) = (self.total(), elapsed.as_secs());
        format!(
            "[{}/{of}, {}:{:02}, caught {}, missed {}] {}",
            self.tested.len(),
            seconds / 60,
            seconds % 60,
            total.detected(),
            total.missed,
            last.unwrap_or_default()
        )
    }

    /// The table, and the mutants somebody should look at.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "\n    {:<12}{:>8}{:>9}{:>8}{:>11}{:>10}{:>12}\n",
            "core", "caught", "timeout", "missed", "explained", "unviable", "% of viable"
        );
        for (core, counts) in self.by_core() {
            let _ = writeln!(text, "{}", counts.row(core));
        }
        let total = self.total();
        let _ = writeln!(text, "{}", total.row("all"));
        let _ = writeln!(
            text,
            "\nmutants: tests caught {} of {} viable ({} %); {} of {} drawn by --seed {}",
            total.detected(),
            total.viable(),
            total.percent(),
            self.tested.len(),
            self.of,
            self.seed
        );
        list(&mut text, "survive", self.survivors());
        list(
            &mut text,
            "are explained, and yet a test catches them: strike the entries",
            self.wrongly_explained(),
        );
        text
    }

    /// The same for programs.
    pub(super) fn json(&self) -> String {
        let counts = |it: Counts| {
            json!({
                "caught": it.caught, "timed_out": it.timed_out, "missed": it.missed,
                "explained": it.explained, "unviable": it.unviable, "viable": it.viable(),
            })
        };
        let survivors = self.survivors().map(|Tested { mutant, .. }| {
            json!({
                "file": mutant.file, "line": mutant.line, "function": mutant.function,
                "change": mutant.change,
            })
        });
        let by_core = self.by_core().into_iter();
        let report = json!({
            "seed": self.seed,
            "mutants": self.of,
            "drawn": self.tested.len(),
            "total": counts(self.total()),
            "cores": by_core.map(|(core, it)| (core, counts(it))).collect::<BTreeMap<_, _>>(),
            "survivors": survivors.collect::<Vec<_>>(),
        });
        format!("{report:#}\n")
    }

    /// An error when the tests catch too few.
    pub(super) fn check(&self) -> Result<()> {
        let total = self.total();
        ensure!(total.viable() > 0, "no mutant of the sample is viable");
        ensure!(
            total.detected() * 100 >= total.viable() * LEAST_PERCENT,
            "tests catch {} % of the viable mutants, and {LEAST_PERCENT} % are required",
            total.percent()
        );
        Ok(())
    }
}

fn list<'a>(text: &mut String, what: &str, mutants: impl Iterator<Item = &'a Tested>) {
    let mutants: Vec<&Tested> = mutants.collect();
    if !mutants.is_empty() {
        let _ = writeln!(text, "\n{} {what}:", mutants.len());
    }
    for Tested { mutant, .. } in mutants {
        let (file, line) = (&mutant.file, mutant.line);
        let (function, change) = (&mutant.function, &mutant.change);
        let _ = writeln!(text, "  {file}:{line}  {function}: {change}");
    }
}
