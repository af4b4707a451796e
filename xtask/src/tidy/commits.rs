//! Subjects of commits: `component: verb object` in at most 72 columns.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::shell;

/// Most columns of a subject.
const COLUMNS: usize = 72;

/// Components that are no folder.
const OTHERS: [&str; 3] = ["all", "ci", "repo"];

/// Checks the commits of a range, merges left out.
///
/// # Errors
/// A subject breaks the rule, or git does not know the range.
pub(super) fn run(range: &str) -> Result<()> {
    let mut command = Command::new("git");
    command
        .current_dir(shell::root())
        .args(["log", "--no-merges", "--format=%h %s", range, "--"]);
    let log = shell::output(&mut command).context("git lists the commits")?;
    let files = super::text::tracked_files("")?;
    let components = components(&files);
    let findings: Vec<String> = log
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(commit, subject)| {
            let finding = finding(subject, &components)?;
            Some(format!("{commit} {subject:?}: {finding}"))
        })
        .collect();
    if findings.is_empty() {
        shell::say(&format!(
            "tidy: {} commits, nothing to mend",
            log.lines().count()
        ));
        return Ok(());
    }
    bail!(
        "tidy found {} subjects to mend:\n  {}",
        findings.len(),
        findings.join("\n  ")
    )
}

/// Names of all folders.
fn components(files: &[String]) -> BTreeSet<&str> {
    let folders = files.iter().filter_map(|file| file.rsplit_once('/'));
    let names = folders.flat_map(|(folder, _)| folder.split('/'));
    names
        .map(|name| name.trim_start_matches('.'))
        .chain(OTHERS)
        .collect()
}

fn finding(subject: &str, components: &BTreeSet<&str>) -> Option<String> {
    let columns = subject.chars().count();
    if columns > COLUMNS {
        return Some(format!("{columns} columns, at most {COLUMNS}"));
    }
    let Some((of, rest)) = subject.split_once(": ") else {
        return Some("begin with a component: `scheduler: refuse …`".to_owned());
    };
    let unknown = of
        .split(", ")
        .find(|component| !components.contains(component));
    if let Some(unknown) = unknown {
        return Some(format!("{unknown:?} is no folder of the repository"));
    }
    let verb = rest.split(' ').next().unwrap_or_default();
    let is_verb = verb.starts_with(|c: char| c.is_ascii_lowercase());
    if !is_verb || !rest.contains(' ') {
        return Some("say a verb in lower case and its object".to_owned());
    }
    rest.ends_with('.')
        .then(|| "no full stop at the end".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_without_component_verb_or_object_is_found() {
        let files = [
            "neonvm-shim/runner/src/a.rs".to_owned(),
            "sim/b.rs".to_owned(),
        ];
        let components = components(&files);
        let of = |subject: &str| finding(subject, &components);
        for good in [
            "runner: refuse a format",
            "sim, runner: name seeds",
            "ci: run tidy",
        ] {
            assert_eq!(of(good), None, "{good}");
        }
        for bad in [
            "Write down what the monitor costs",
            "kitchen: cook a meal",
            "sim: Name seeds",
            "sim: simplify",
            "sim: name seeds.",
        ] {
            assert!(of(bad).is_some(), "{bad}");
        }
        assert!(of(&format!("sim: name {}", "a".repeat(COLUMNS))).is_some());
    }
}
