//! Rules read off the text of the files: lengths, reasons, module docs, golden files, leftovers.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::shell;

/// A file longer than this needs an excuse in [`LONG_FILES`].
const ALARM_LINES: usize = 700;

/// Files over the alarm length, each with its excuse.
const LONG_FILES: [(&str, &str); 1] = [(
    "protocol/src/vm.rs",
    "the tables of one API group, a type each",
)];

/// Wire modules and the golden folder each must have.
const GOLDEN: [(&str, &str); 7] = [
    ("protocol/src/extender.rs", "protocol/testdata/extender"),
    ("protocol/src/journal.rs", "protocol/testdata/journal"),
    ("protocol/src/monitor.rs", "protocol/testdata/monitor"),
    ("protocol/src/permit.rs", "protocol/testdata/permit"),
    ("protocol/src/units.rs", "protocol/testdata/units"),
    ("protocol/src/vm.rs", "protocol/testdata/vm"),
    ("protocol/src/runner.rs", "protocol/testdata/runner"),
];

/// Ways to the Kubernetes API that only crate `api-client` takes, and why; in two halves so that
/// this file does not find itself.
const BYPASSES: [(&str, &str, &str); 3] = [
    ("Client", "::try_default(", SLOW_CLIENT),
    ("Client", "::try_from(", SLOW_CLIENT),
    (
        "kube::",
        "runtime",
        "a watch of its own: take `api_client::watch`",
    ),
];
const SLOW_CLIENT: &str = "a kube client with Nagle's delay: make it by `api_client`";

/// Words that mark something unfinished; written in two halves so that this file does not find
/// itself.
const LEFTOVERS: [(&str, &str); 5] = [
    ("to", "do!("),
    ("unimple", "mented!("),
    ("FIX", "ME"),
    ("TO", "DO"),
    ("#[ign", "ore"),
];

/// Most columns of a comment.
pub(crate) const COLUMNS: usize = 100;

/// Files git knows or would add, below the root, with a given ending.
pub(super) fn tracked_files(ending: &str) -> Result<Vec<String>> {
    let mut command = Command::new("git");
    command.current_dir(shell::root()).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let listing = shell::output(&mut command).context("git lists the files that tidy reads")?;
    Ok(listing
        .lines()
        .filter(|file| file.ends_with(ending) && shell::root().join(file).is_file())
        .map(str::to_owned)
        .collect())
}

/// Everything wrong with the texts.
pub(super) fn findings() -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for file in tracked_files(".rs")? {
        let text = std::fs::read_to_string(shell::root().join(&file))?;
        findings.extend(file_findings(&file, &text));
    }
    for (module, folder) in GOLDEN {
        let files = std::fs::read_dir(shell::root().join(folder))
            .map(Iterator::count)
            .unwrap_or(0);
        if files == 0 {
            findings.push(format!("{module}: no golden files in {folder}"));
        }
    }
    Ok(findings)
}

fn file_findings(file: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let is_test = super::source::is_test(file);
    // Unit tests sit below the code and do not count towards its length.
    let code = super::source::code_of(text);
    let lines = code.lines().count();
    if lines > ALARM_LINES && !is_test && !LONG_FILES.iter().any(|(long, _)| *long == file) {
        findings.push(format!(
            "{file}: {lines} lines, alarm is {ALARM_LINES}: split it by idea"
        ));
    }
    if !is_test && !text.trim_start().starts_with("//!") {
        findings.push(format!("{file}: no module documentation (//!) at the top"));
    }
    if !is_test && !file.starts_with("tests/") && !file.starts_with("api-client/") {
        findings.extend(client_findings(file, code));
    }
    findings.extend(
        wide_comments(text)
            .map(|line| format!("{file}:{line}: a comment of over {COLUMNS} columns")),
    );
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let opens = ["#[allow(", "#![allow(", "#[expect(", "#![expect("]
            .iter()
            .any(|o| trimmed.starts_with(o));
        if opens && !attribute(text, number).contains("reason = ") {
            findings.push(format!(
                "{file}:{}: an allow or expect without a reason",
                number + 1
            ));
        }
        for (first, second) in LEFTOVERS {
            if line.contains(&format!("{first}{second}")) {
                findings.push(format!(
                    "{file}:{}: {first}{second} marks something unfinished",
                    number + 1
                ));
            }
        }
    }
    findings
}

/// What stands behind the slashes of a line that is a comment.
pub(crate) fn comment(line: &str) -> Option<&str> {
    let trimmed = line.trim_start();
    ["//!", "///", "//"]
        .into_iter()
        .find_map(|marker| trimmed.strip_prefix(marker))
}

/// Numbers of lines that are comments of too many columns and could be broken. Tables, fenced
/// drawings and long words cannot.
pub(crate) fn wide_comments(text: &str) -> impl Iterator<Item = usize> {
    let mut is_fenced = false;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let words = comment(line)?.trim();
        is_fenced ^= words.starts_with("```");
        let may_break = !is_fenced && !words.starts_with('|') && words.contains(' ');
        (may_break && line.chars().count() > COLUMNS).then_some(number)
    })
}

/// Clients and watches of the Kubernetes API that are not made by crate `api-client`.
fn client_findings(file: &str, code: &str) -> Vec<String> {
    let bypasses = BYPASSES.map(|(first, second, why)| (format!("{first}{second}"), why));
    let mut findings = Vec::new();
    for (line, number) in code.lines().zip(1..) {
        for (bypass, why) in &bypasses {
            if line.contains(bypass) && !file.ends_with("/testing.rs") {
                findings.push(format!("{file}:{number}: {why}"));
            }
        }
    }
    findings
}

/// The attribute that begins on a line, up to its closing bracket.
fn attribute(text: &str, first_line: usize) -> String {
    let mut whole = String::new();
    for line in text.lines().skip(first_line).take(12) {
        whole.push_str(line);
        if line.trim_end().ends_with(")]") {
            break;
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_and_a_bare_allow_are_found() {
        let long = format!("//! doc\n{}", "let x = 1;\n".repeat(ALARM_LINES));
        assert!(
            file_findings("a/src/b.rs", &long)
                .iter()
                .any(|f| f.contains("alarm"))
        );
        let late = format!("//! doc\n#[cfg(test)]\nmod tests;\n{long}");
        let found = file_findings("a/src/b.rs", &late);
        assert!(found.iter().any(|it| it.contains("alarm")), "{found:?}");
        let bare = "//! doc\n#[allow(dead_code)]\nfn x() {}\n";
        assert!(
            file_findings("a/src/b.rs", bare)
                .iter()
                .any(|f| f.contains("without a reason"))
        );
        let reasoned =
            "//! doc\n#[expect(\n    dead_code,\n    reason = \"used by a macro\"\n)]\nfn x() {}\n";
        assert!(file_findings("a/src/b.rs", reasoned).is_empty());
    }

    #[test]
    fn wide_comment_is_found_and_what_cannot_be_broken_is_not() {
        let words = "word ".repeat(COLUMNS / 5);
        let found = |text: &str| wide_comments(text).collect::<Vec<_>>();
        for marker in ["//", "///", "    //!"] {
            let text = format!("//! doc\n{marker} {words}end\n");
            assert_eq!(found(&text), [2], "{text}");
        }
        for whole in [
            format!("/// {}", words[..COLUMNS - 4].trim_end()),
            format!("//! | {words} | {words} |"),
            format!("//! ```text\n//! a --> {words}\n//! ```"),
            format!("// {}", words.trim_end().replace(' ', "/")),
            format!("let it = \"{words}{words}\";"),
        ] {
            assert!(found(&whole).is_empty(), "{whole}");
        }
        let file = format!("//! doc\n// {words}{words}\n");
        let found = file_findings("a/src/b.rs", &file);
        assert!(
            found.iter().any(|it| it.contains("a/src/b.rs:2:")),
            "{found:?}"
        );
    }

    #[test]
    fn kube_client_that_is_not_made_by_api_client_is_found() {
        let code = "//! doc\nfn x() { let _ = kube::Client::try_default(); }\n";
        let found = file_findings("agent/src/main.rs", code);
        assert!(
            found
                .iter()
                .any(|it| it.contains("agent/src/main.rs:2: a kube client"))
        );
        assert!(file_findings("agent/tests/peers/mod.rs", code).is_empty());
    }
}
