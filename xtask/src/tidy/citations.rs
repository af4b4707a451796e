//! Citations: a document that is named is a file, a section that is named is a heading of it, an id
//! of a requirement is in the list of requirements, and each test that the list names exists.
//!
//! *Where*: comments and the reasons of attributes in Rust, Markdown outside of fences, and whole
//! files of settings and scripts. The change log is left out: it names documents of its time.
//!
//! *Sections*: the number behind `§` is one of the document that was cited last. In Markdown that
//! holds within one paragraph, and a section without a document is one of the page itself. Sections
//! of RFCs are left out.

mod papers;
mod prose;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};

use crate::shell;
use papers::{Papers, REQUIREMENTS};
use prose::Prose;

/// The change log names documents as they were when a line was written.
const HISTORY: &str = "CHANGELOG.md";

/// Endings of the files whose citations are checked.
const ENDINGS: [&str; 6] = [".rs", ".md", ".toml", ".yaml", ".yml", ".sh"];

/// Every citation that leads nowhere.
pub(crate) fn findings() -> Result<Vec<String>> {
    let files: BTreeSet<String> = super::text::tracked_files("")?.into_iter().collect();
    let mut papers = Papers::default();
    for file in files.iter().filter(|file| file.ends_with(".md")) {
        papers.add(file, &read(file)?);
    }
    let mut tests = BTreeSet::new();
    let mut findings = Vec::new();
    let is_cited_from = |file: &&String| {
        file.as_str() != HISTORY && ENDINGS.iter().any(|ending| file.ends_with(ending))
    };
    for file in files.iter().filter(is_cited_from) {
        let text = read(file)?;
        findings.extend(file_findings(&papers, file, &text));
        if file.ends_with(".rs") {
            for name in prose::names_in(&text) {
                tests.insert(name.to_owned());
            }
        }
    }
    let is_missing = |test: &String| !tests.contains(test) && !files.contains(test);
    findings.extend(
        papers
            .tests
            .iter()
            .filter(|(_, test)| is_missing(test))
            .map(|(id, test)| format!("{REQUIREMENTS}: {id}: there is no test {test}")),
    );
    Ok(findings)
}

fn read(file: &str) -> Result<String> {
    let bytes = std::fs::read(shell::root().join(file)).with_context(|| file.to_owned())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn file_findings(papers: &Papers, file: &str, text: &str) -> Vec<String> {
    let mut reader = Reader {
        papers,
        file,
        cited: None,
        before: [String::new(), String::new()],
        in_requirement: false,
        findings: Vec::new(),
    };
    reader.begin_paragraph();
    for line in prose::lines(file, text) {
        match line {
            Prose::Break => reader.begin_paragraph(),
            Prose::Words(number, words) => {
                for word in words.split_whitespace() {
                    reader.read(number, word);
                }
            }
            Prose::TestName(number, name) => {
                for id in prose::ids_of_name(name) {
                    reader.require(number, &id);
                }
            }
        }
    }
    reader.findings
}

/// Goes through the words of one file.
struct Reader<'a> {
    papers: &'a Papers,
    file: &'a str,
    /// Document that a section belongs to.
    cited: Option<String>,
    /// The last two words.
    before: [String; 2],
    /// The words are ids that follow `Requirement:`.
    in_requirement: bool,
    findings: Vec<String>,
}

impl Reader<'_> {
    /// Sections of a page's paragraph belong to the page until another one is cited.
    fn begin_paragraph(&mut self) {
        if self.file.ends_with(".md") {
            self.cited = Some(self.file.to_owned());
        }
        self.in_requirement = false;
    }

    fn read(&mut self, number: usize, word: &str) {
        if prose::may_cite(word) {
            self.citations(number, word);
        }
        self.requirement(number, word);
        self.before.swap(0, 1);
        word.clone_into(&mut self.before[1]);
    }

    fn citations(&mut self, number: usize, word: &str) {
        for path in prose::documents_in(word) {
            let found = self.papers.resolve(self.file, path);
            if found.is_none() {
                self.find(number, &format!("there is no document {path}"));
            }
            self.cited = found;
        }
        let is_foreign = prose::is_rfc(&self.before);
        for section in prose::sections_in(word).filter(|_| !is_foreign) {
            self.section(number, section);
        }
        for id in prose::ids_in(word) {
            self.require(number, id);
        }
    }

    fn section(&mut self, number: usize, section: &str) {
        match &self.cited {
            Some(document) if self.papers.has_section(document, section) => {}
            Some(document) => {
                self.find(number, &format!("{document} has no section §{section}"));
            }
            None => self.find(number, &format!("§{section} is of no document")),
        }
    }

    /// Ids behind `Requirement:`, of any kind, as a list with commas.
    fn requirement(&mut self, number: usize, word: &str) {
        if self.in_requirement {
            let id = word.trim_end_matches(|c: char| c.is_ascii_punctuation());
            if !self.papers.has_requirement(id) {
                self.find(number, &format!("{REQUIREMENTS} has no {id}"));
            }
            self.in_requirement = word.ends_with(',');
        } else {
            self.in_requirement = word == "Requirement:" && self.file.ends_with(".rs");
        }
    }

    fn require(&mut self, number: usize, id: &str) {
        if !self.papers.has_requirement(id) {
            self.find(number, &format!("{REQUIREMENTS} has no {id}"));
        }
    }

    fn find(&mut self, number: usize, what: &str) {
        let finding = format!("{}:{number}: {what}", self.file);
        // An id behind `Requirement:` is also an id in the text.
        if self.findings.last() != Some(&finding) {
            self.findings.push(finding);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn papers() -> Papers {
        let mut papers = Papers::default();
        papers.add("docs/peer.md", "# Peer\n\n## 2. Wire\n\n### 2.1 Bytes\n");
        papers.add(
            REQUIREMENTS,
            "- **N01** It starts. Test: `starts`,\n  `ends`. Open: `none`.\n- **W1** Test: `holds`.\n",
        );
        papers
    }

    fn found(file: &str, text: &str) -> Vec<String> {
        file_findings(&papers(), file, text)
    }

    #[test]
    fn every_citation_in_the_repository_leads_somewhere() {
        let found = findings().expect("the files are read");
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn citation_of_a_document_that_is_not_there_is_found() {
        let text = "//! Source: spec/peer.md §2.1.\nlet x = \"spec/other.md\";\n";
        assert_eq!(
            found("agent/src/a.rs", text),
            [
                "agent/src/a.rs:1: there is no document spec/peer.md",
                "agent/src/a.rs:1: §2.1 is of no document",
            ]
        );
        assert_eq!(
            found("docs/a.md", "See [it](gone.md#part) and\n`../gone.md`.\n").len(),
            2
        );
    }

    #[test]
    fn citation_of_a_section_that_is_not_there_is_found() {
        let text = "//! By docs/peer.md §2.1 and\n//! §2.2 (RFC 6455\n//! §7.1). Also §2.\n";
        assert_eq!(
            found("agent/src/a.rs", text),
            ["agent/src/a.rs:2: docs/peer.md has no section §2.2"]
        );
        let attribute = "#[expect(missing_docs, reason = \"keys of docs/peer.md §3\")]\n";
        assert_eq!(found("agent/src/a.rs", attribute).len(), 1);
    }

    #[test]
    fn section_without_a_document_is_one_of_the_page_itself() {
        assert!(found("docs/peer.md", "As in §2.1.\n").is_empty());
        let text = "By docs/peer.md §2.1.\n\nAs in §2.1.\n```\n§9\n```\n";
        assert_eq!(
            found("docs/a.md", text),
            ["docs/a.md:3: docs/a.md has no section §2.1"]
        );
    }

    #[test]
    fn requirement_that_is_not_listed_is_found() {
        let text = "/// Requirement: N01, S7. Said so.\nfn n01_n02_it_starts() {} // W1, W2\n";
        assert_eq!(
            found("agent/tests/a.rs", text),
            [
                "agent/tests/a.rs:1: docs/requirements.md has no S7",
                "agent/tests/a.rs:2: docs/requirements.md has no N02",
                "agent/tests/a.rs:2: docs/requirements.md has no W2",
            ]
        );
        assert_eq!(found("a/b.rs", "/// Requirement: soon\n").len(), 1);
    }

    #[test]
    fn tests_of_a_requirement_are_read_up_to_what_is_open() {
        let names: Vec<String> = papers()
            .tests
            .iter()
            .map(|(id, test)| format!("{id} {test}"))
            .collect();
        assert_eq!(names, ["N01 ends", "N01 starts", "W1 holds"]);
    }

    #[test]
    fn requirement_without_a_test_is_found() {
        let mut papers = Papers::default();
        papers.add(REQUIREMENTS, "- **N01** It starts.\n");
        assert_eq!(
            papers.tests.into_iter().collect::<Vec<_>>(),
            [("N01".to_owned(), "(none is named)".to_owned())]
        );
    }
}
