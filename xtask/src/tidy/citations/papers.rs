//! The documents of the repository: their paths, numbered headings, and the list of requirements.

use std::collections::{BTreeMap, BTreeSet};

/// The document with one entry for each requirement.
pub(super) const REQUIREMENTS: &str = "docs/requirements.md";

/// What may be cited.
#[derive(Default)]
pub(super) struct Papers {
    /// Numbers of the headings of each document.
    sections: BTreeMap<String, BTreeSet<String>>,
    requirements: BTreeSet<String>,
    /// Id of a requirement, and a test that it names.
    pub(super) tests: BTreeSet<(String, String)>,
}

impl Papers {
    pub(super) fn add(&mut self, file: &str, text: &str) {
        let sections = text.lines().filter_map(heading).map(str::to_owned);
        self.sections.insert(file.to_owned(), sections.collect());
        if file == REQUIREMENTS {
            // An entry reaches to the next one or to a heading.
            for part in text.split("\n#") {
                for entry in part.split("- **").skip(1) {
                    self.add_requirement(entry);
                }
            }
        }
    }

    fn add_requirement(&mut self, entry: &str) {
        let Some((id, body)) = entry.split_once("**") else {
            return;
        };
        self.requirements.insert(id.to_owned());
        let tests = body.split_once("Test:").map_or("", |(_, tests)| tests);
        let tests = tests.split("Open:").next().unwrap_or_default();
        // What stands between backticks is at the odd places.
        let mut names = tests.split('`').skip(1).step_by(2).peekable();
        if names.peek().is_none() {
            let none = "(none is named)".to_owned();
            self.tests.insert((id.to_owned(), none));
        }
        self.tests
            .extend(names.map(|name| (id.to_owned(), name.to_owned())));
    }

    pub(super) fn has_requirement(&self, id: &str) -> bool {
        self.requirements.contains(id)
    }

    pub(super) fn has_section(&self, document: &str, section: &str) -> bool {
        self.sections
            .get(document)
            .is_some_and(|sections| sections.contains(section))
    }

    /// The document that a path in a file means: below the file's directory or one above it.
    pub(super) fn resolve(&self, file: &str, path: &str) -> Option<String> {
        let mut above = file;
        loop {
            above = above.rsplit_once('/').map_or("", |(parent, _)| parent);
            let document = joined(above, path);
            if self.sections.contains_key(&document) {
                return Some(document);
            }
            if above.is_empty() {
                return None;
            }
        }
    }
}

/// The number of a heading: `2.1` of `### 2.1 Bytes`, `2` of `## 2. Wire`.
fn heading(line: &str) -> Option<&str> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').trim_start();
    let number = title.split_whitespace().next()?.trim_end_matches('.');
    let is_number = number.starts_with(|c: char| c.is_ascii_digit())
        && number.chars().all(|c| c.is_ascii_digit() || c == '.');
    is_number.then_some(number)
}

/// A path below a directory, without `.` and `..`.
fn joined(directory: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in directory.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_have_numbers_with_and_without_a_full_stop() {
        assert_eq!(heading("## 2. Wire"), Some("2"));
        assert_eq!(heading("### 3.10 Execution"), Some("3.10"));
        assert_eq!(heading("## Wire"), None);
        assert_eq!(heading("2. Wire"), None);
    }

    #[test]
    fn path_is_looked_for_beside_the_file_and_above_it() {
        let mut papers = Papers::default();
        papers.add("docs/peer.md", "");
        papers.add("README.md", "");
        let found = |file, path| papers.resolve(file, path);
        assert_eq!(
            found("docs/a.md", "peer.md").as_deref(),
            Some("docs/peer.md")
        );
        assert_eq!(
            found("agent/tests/a.rs", "../docs/peer.md").as_deref(),
            Some("docs/peer.md")
        );
        assert_eq!(
            found("docs/x/a.md", "../../README.md").as_deref(),
            Some("README.md")
        );
        assert_eq!(found("agent/src/a.rs", "peer.md"), None);
    }
}
