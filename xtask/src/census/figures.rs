//! All figures of a census.

use std::collections::BTreeMap;

use serde::Serialize;

use super::doubled;
use super::functions;
use super::shadows;
use super::sources;
use crate::tidy::circles;
use crate::tidy::source;
use crate::tidy::stubs;
use crate::tidy::text;

/// Most lines of a file and of a function, by docs/style.md.
const FILE_LINES: usize = 400;
const FUNCTION_LINES: usize = 50;

/// The figures, as `-o json` prints them.
#[derive(Debug, Default, Serialize)]
pub(super) struct Census {
    pub(super) stub_comments: usize,
    pub(super) comments: Comments,
    pub(super) shadow_chains: Chains,
    pub(super) circles: Circles,
    pub(super) files: Lengths,
    pub(super) functions: Lengths,
    pub(super) dead_citations: usize,
    /// By the folder of the crate.
    pub(super) components: BTreeMap<String, Lines>,
    /// For each idea the files that build it, with the number of markers.
    pub(super) doubled: BTreeMap<&'static str, BTreeMap<String, usize>>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Comments {
    pub(super) lines: usize,
    pub(super) over_100_columns: usize,
    /// Of 100 comment lines.
    pub(super) share_percent: f64,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Chains {
    pub(super) count: usize,
    pub(super) of_three_or_more: usize,
    /// `file:line: name`, for each chain.
    pub(super) places: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Circles {
    pub(super) count: usize,
    pub(super) of_three_or_more: usize,
    /// Files of the largest one.
    pub(super) largest: usize,
    /// A file of the largest one.
    pub(super) largest_has: Option<String>,
}

/// Lengths of files or of functions.
#[derive(Debug, Default, Serialize)]
pub(super) struct Lengths {
    /// Most lines that docs/style.md wants.
    pub(super) limit: usize,
    /// How many are longer.
    pub(super) over_limit: usize,
    /// The longest outside of tests.
    pub(super) in_code: Option<Longest>,
    pub(super) in_tests: Option<Longest>,
}

#[derive(Debug, Serialize)]
pub(super) struct Longest {
    /// A path; for a function `path:line: name`.
    pub(super) place: String,
    pub(super) lines: usize,
}

/// Lines of a component that are not blank.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Lines {
    /// Neither comments nor tests.
    pub(super) code: usize,
    pub(super) comments: usize,
    /// Tests with their comments.
    pub(super) tests: usize,
}

impl Census {
    /// Counts. `files` maps each Rust file to its text.
    pub(super) fn of(files: &BTreeMap<String, String>, dead_citations: usize) -> Self {
        let sources = sources::of(files);
        let mut census = Self {
            stub_comments: files.values().map(|text| stubs::lines(text).len()).sum(),
            comments: comments(files),
            circles: Circles::of(&circles::of(files)),
            files: Lengths::up_to(FILE_LINES),
            functions: Lengths::up_to(FUNCTION_LINES),
            dead_citations,
            doubled: doubled::of(&sources),
            ..Self::default()
        };
        for source in &sources {
            census.add(source);
        }
        census
    }

    fn add(&mut self, source: &sources::Source<'_>) {
        let is_test = source.code.text.is_empty();
        let file = source.file;
        self.files
            .add(is_test, source.text.lines().count(), || file.to_owned());
        let component = source::component(file).to_owned();
        let lines = self.components.entry(component).or_default();
        for line in filled(source.code.text) {
            match text::comment(line) {
                Some(_) => lines.comments += 1,
                None => lines.code += 1,
            }
        }
        lines.tests += filled(source.tests.text).count();
        for (part, is_test) in [(&source.code, false), (&source.tests, true)] {
            let functions = functions::of(&part.blank);
            for function in &functions {
                self.functions.add(is_test, function.lines, || {
                    format!("{file}:{}: {}", part.above + function.line, function.name)
                });
            }
            for chain in shadows::of(&part.blank, &functions) {
                self.shadow_chains.count += 1;
                self.shadow_chains.of_three_or_more += usize::from(chain.bindings > 2);
                let place = format!("{file}:{}: {}", part.above + chain.line, chain.name);
                self.shadow_chains.places.push(place);
            }
        }
    }

    /// Lines of all components.
    pub(super) fn all_lines(&self) -> Lines {
        self.components
            .values()
            .fold(Lines::default(), |sum, it| Lines {
                code: sum.code + it.code,
                comments: sum.comments + it.comments,
                tests: sum.tests + it.tests,
            })
    }
}

fn filled(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim().is_empty())
}

fn comments(files: &BTreeMap<String, String>) -> Comments {
    let of_file = |text: &String| text.lines().filter_map(text::comment).count();
    let lines = files.values().map(of_file).sum();
    let wide = |text: &String| text::wide_comments(text).count();
    let over_100_columns = files.values().map(wide).sum();
    Comments {
        lines,
        over_100_columns,
        share_percent: share(over_100_columns, lines),
    }
}

/// Percent with one digit behind the point.
fn share(part: usize, whole: usize) -> f64 {
    let per_mille = (1000 * part) / whole.max(1);
    f64::from(u32::try_from(per_mille).unwrap_or(u32::MAX)) / 10.0
}

impl Circles {
    fn of(circles: &[Vec<String>]) -> Self {
        let largest = circles.iter().max_by_key(|circle| circle.len());
        Self {
            count: circles.len(),
            of_three_or_more: circles.iter().filter(|circle| circle.len() > 2).count(),
            largest: largest.map_or(0, Vec::len),
            largest_has: largest.and_then(|circle| circle.first()).cloned(),
        }
    }
}

impl Lengths {
    fn up_to(limit: usize) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    fn add(&mut self, is_test: bool, lines: usize, place: impl FnOnce() -> String) {
        self.over_limit += usize::from(lines > self.limit);
        let longest = if is_test {
            &mut self.in_tests
        } else {
            &mut self.in_code
        };
        if longest.as_ref().is_none_or(|it| it.lines < lines) {
            *longest = Some(Longest {
                place: place(),
                lines,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::census;
    use super::*;

    #[test]
    fn each_figure_is_counted() {
        let census = census();
        assert_eq!(census.stub_comments, 1);
        assert_eq!(census.dead_citations, 3);
        let comments = &census.comments;
        assert_eq!((comments.lines, comments.over_100_columns), (3, 1));
        assert!((comments.share_percent - 33.3).abs() < 0.01);
        let chains = &census.shadow_chains;
        assert_eq!((chains.count, chains.of_three_or_more), (1, 0));
        assert_eq!(chains.places, ["a/src/x.rs:3: n"]);
        let circles = &census.circles;
        assert_eq!((circles.count, circles.largest), (0, 0));
        let lines = |code, comments, tests| Lines {
            code,
            comments,
            tests,
        };
        assert_eq!(census.components["a"], lines(8, 2, 7));
        assert_eq!(census.components["b"], lines(1, 0, 0));
        assert_eq!(census.all_lines(), lines(9, 2, 7));
        let loops = &census.doubled["accept loops"];
        assert_eq!(loops.keys().collect::<Vec<_>>(), ["b/src/lib.rs"]);
    }

    #[test]
    fn longest_ones_are_found_in_code_and_in_tests() {
        let census = census();
        let shown = |longest: &Option<Longest>| {
            let it = longest.as_ref().expect("there is one");
            format!("{} {}", it.lines, it.place)
        };
        assert_eq!(census.files.over_limit, 1);
        assert_eq!(shown(&census.files.in_code), "10 a/src/y.rs");
        assert_eq!(shown(&census.files.in_tests), "500 b/tests/c.rs");
        assert_eq!(census.functions.over_limit, 0);
        assert_eq!(shown(&census.functions.in_code), "4 a/src/x.rs:2: x");
        assert_eq!(shown(&census.functions.in_tests), "3 a/src/y.rs:7: t");
    }

    #[test]
    fn circles_are_told_by_their_size() {
        let circle = |files: &[&str]| files.iter().map(|file| (*file).to_owned()).collect();
        let circles = Circles::of(&[circle(&["a", "b"]), circle(&["c", "d", "e"])]);
        assert_eq!((circles.count, circles.of_three_or_more), (2, 1));
        assert_eq!(circles.largest, 3);
        assert_eq!(circles.largest_has.as_deref(), Some("c"));
    }
}
