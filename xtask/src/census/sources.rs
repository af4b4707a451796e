//! Which text of the Rust files is product code and which is tests.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::circles;
use crate::tidy::source;

/// What counts as tests, for the help.
pub(super) const HOW: &str = "unit tests, modules under `cfg(test)`, `tests` and `benches`";

/// A file by its parts.
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
    /// Empty in a file of tests.
    pub(super) code: Part<'a>,
    pub(super) tests: Part<'a>,
}

/// A piece of a file.
pub(super) struct Part<'a> {
    pub(super) text: &'a str,
    /// The text with spaces in place of comments and the contents of strings.
    pub(super) blank: String,
    /// Lines of the file above this piece.
    pub(super) above: usize,
}

impl<'a> Part<'a> {
    fn new(text: &'a str, above: usize) -> Self {
        let blank = source::blanked(text);
        Self { text, blank, above }
    }
}

/// All files. `files` maps a path to a text.
pub(super) fn of(files: &BTreeMap<String, String>) -> Vec<Source<'_>> {
    let gated = gated(files);
    let is_below = |file: &str| {
        let mut modules = gated.iter();
        modules.any(|module| {
            let rest = file.strip_prefix(module.as_str());
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    files
        .iter()
        .map(|(file, text)| {
            let is_test = file.starts_with("tests/")
                || file.contains("/benches/")
                || source::is_test(file)
                || is_below(file);
            let code = if is_test { "" } else { source::code_of(text) };
            let above = code.matches('\n').count();
            Source {
                file,
                text,
                code: Part::new(code, 0),
                tests: Part::new(&text[code.len()..], above),
            }
        })
        .collect()
}

/// Paths of the modules that are compiled for tests alone, without their ending.
fn gated(files: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut gated = BTreeSet::new();
    for (file, text) in files.iter().filter(|(_, text)| text.contains("cfg(test)")) {
        let folder = source::folder_of_modules(file, circles::is_root(file));
        let declared = source::declared(&source::blanked(source::code_of(text)));
        let of_tests = declared.into_iter().filter(|module| module.is_gated);
        gated.extend(of_tests.map(|module| format!("{folder}/{}", module.name)));
    }
    gated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_told_from_code_by_place_and_by_attribute() {
        let unit = "//! doc\nfn f() {}\n\n#[cfg(test)]\nmod tests {\n}\n";
        let files = [
            ("a/src/lib.rs", "mod x;\n#[cfg(test)]\nmod rig;\n"),
            ("a/src/x.rs", unit),
            ("a/src/rig.rs", "mod y;\n"),
            ("a/src/rig/y.rs", "fn f() {}\n"),
            ("a/src/rigid.rs", "fn f() {}\n"),
            ("a/tests/b.rs", "fn f() {}\n"),
            ("tests/src/lib.rs", "fn f() {}\n"),
        ];
        let files = files.map(|(file, text)| (file.to_owned(), text.to_owned()));
        let files = BTreeMap::from(files);
        let parts = of(&files).into_iter().map(|it| (it.file, it.code.text));
        let with_code: Vec<_> = parts.filter(|(_, code)| !code.is_empty()).collect();
        assert_eq!(
            with_code,
            [
                ("a/src/lib.rs", "mod x;\n#[cfg(test)]\nmod rig;\n"),
                ("a/src/rigid.rs", "fn f() {}\n"),
                ("a/src/x.rs", "//! doc\nfn f() {}\n"),
            ]
        );
        let all = of(&files);
        let unit = all.iter().find(|it| it.file == "a/src/x.rs").expect("it");
        assert_eq!(unit.tests.above, 2);
        assert!(unit.tests.text.starts_with("\n#[cfg(test)]"));
    }
}
