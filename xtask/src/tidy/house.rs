//! Rules that start with a list of what breaks them today: circles of files, stub comments, names
//! of types. [`debts`](super::debts) holds the list.

use std::collections::BTreeMap;

use anyhow::Result;

use super::debts::{self, Debts, Found};
use super::{circles, names, source, stubs, text};
use crate::shell;

const CIRCLE: &str = "circle";
const STUB: &str = "stub";
const NAME: &str = "name";

/// Files of a circle from which it is a finding.
const LARGE: usize = 3;

/// What one rule found under one key.
struct Case {
    rule: &'static str,
    key: String,
    amount: usize,
    what: String,
}

/// Every case that is not listed, and every entry that lists too much.
pub(super) fn findings() -> Result<Vec<String>> {
    let files = files()?;
    let debts = Debts::read()?;
    let cases = cases(&files, &debts);
    let mut findings: Vec<String> = files
        .keys()
        .filter(|file| names::is_old_style(file))
        .map(|file| format!("{file}: move it to a file beside the folder"))
        .collect();
    let found = sums(&cases);
    let exceeds = |case: &&Case| found[case.rule][&case.key] > debts.of(case.rule, &case.key);
    findings.extend(cases.iter().filter(exceeds).map(|case| case.what.clone()));
    for rule in [CIRCLE, STUB, NAME] {
        findings.extend(debts.paid(rule, found.get(rule).unwrap_or(&Found::new())));
    }
    Ok(findings)
}

/// Lowers the list to what is found now.
pub(super) fn settle() -> Result<()> {
    debts::settle(&sums(&cases(&files()?, &Debts::read()?)))
}

/// Rust files of the checkout with their texts.
pub(crate) fn files() -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for file in text::tracked_files(".rs")? {
        let text = std::fs::read_to_string(shell::root().join(&file))?;
        files.insert(file, text);
    }
    Ok(files)
}

fn sums(cases: &[Case]) -> BTreeMap<&'static str, Found> {
    let mut sums: BTreeMap<&str, Found> = BTreeMap::new();
    for case in cases {
        let found = sums.entry(case.rule).or_default();
        *found.entry(case.key.clone()).or_default() += case.amount;
    }
    sums
}

fn cases(files: &BTreeMap<String, String>, debts: &Debts) -> Vec<Case> {
    let mut cases = Vec::new();
    for circle in circles::of(files)
        .into_iter()
        .filter(|it| it.len() >= LARGE)
    {
        // A circle goes by the listed file in it, so that it may lose others.
        let listed = circle.iter().find(|file| debts.of(CIRCLE, file) > 0);
        cases.push(Case {
            rule: CIRCLE,
            key: listed.unwrap_or(&circle[0]).clone(),
            amount: circle.len(),
            what: format!("a circle of {} files: {}", circle.len(), circle.join(", ")),
        });
    }
    for (file, text) in files {
        let component = source::component(file);
        cases.extend(stubs::lines(text).into_iter().map(|line| Case {
            rule: STUB,
            key: component.to_owned(),
            amount: 1,
            what: format!("{file}:{line}: a stub comment: say more, or strike it"),
        }));
        cases.extend(
            names::banned(text)
                .into_iter()
                .map(|(line, name, instead)| Case {
                    rule: NAME,
                    key: format!("{component}:{name}"),
                    amount: 1,
                    what: format!("{file}:{line}: {name} is a banned name: {instead}"),
                }),
        );
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_go_by_component_and_by_the_first_file_of_a_circle() {
        let texts = [
            (
                "a/src/lib.rs",
                "mod x;\nmod y;\nuse x::X;\npub struct Desk;\n",
            ),
            ("a/src/x.rs", "/// An X.\npub struct X(crate::y::Y);\n"),
            ("a/src/y.rs", "pub struct Y(crate::Desk);\n"),
        ];
        let files = texts.map(|(file, text)| (file.to_owned(), text.to_owned()));
        let debts = Debts::default();
        let sums = sums(&cases(&BTreeMap::from(files), &debts));
        assert_eq!(sums[CIRCLE], Found::from([("a/src/lib.rs".to_owned(), 3)]));
        assert_eq!(sums[STUB], Found::from([("a".to_owned(), 1)]));
        assert_eq!(sums[NAME], Found::from([("a:Desk".to_owned(), 1)]));
    }
}
