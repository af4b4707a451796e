//! Builds with cargo: how many crates there are, and the messages by which they are counted.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use anyhow::Result;

use super::{Work, run};
use crate::shell;

/// Options for [`Work::Crates`]. Cargo still shows warnings and errors.
const MESSAGES: [&str; 2] = ["--quiet", "--message-format=json-render-diagnostics"];

/// Which dependencies a build with cargo needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depends {
    /// Those of libraries and programs.
    Normal,
    /// Those of tests and benchmarks as well.
    Dev,
}

/// A build with cargo.
pub(crate) struct Cargo<'a> {
    pub(crate) command: Command,
    /// Subcommand and its own options, as in `build --bins`.
    pub(crate) subcommand: &'a [&'a str],
    /// Packages, features and target.
    pub(crate) selection: &'a [&'a str],
    pub(crate) depends: Depends,
    /// Arguments after `--`, which cargo passes on.
    pub(crate) trailing: &'a [&'a str],
}

impl Cargo<'_> {
    /// Builds and shows how many crates are done.
    pub(crate) fn run(self, what: &str) -> Result<()> {
        let total = self.crates();
        let mut command = self.command;
        command
            .args(self.subcommand)
            .args(MESSAGES)
            .args(self.selection);
        if !self.trailing.is_empty() {
            command.arg("--").args(self.trailing);
        }
        run(what, &mut command, Work::Crates { total })
    }

    /// Number of crates the build consists of, if cargo can tell. Cargo downloads missing ones
    /// first, and shows that.
    fn crates(&self) -> Option<usize> {
        let edges = match self.depends {
            Depends::Normal => "normal,build",
            Depends::Dev => "normal,build,dev",
        };
        let output = shell::cargo()
            .ok()?
            .args(["tree", "--prefix", "none", "--format", "{p}"])
            .args(["--edges", edges])
            .args(self.selection)
            .stderr(Stdio::inherit())
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        Some(crates_of_tree(&String::from_utf8_lossy(&output.stdout)))
    }
}

/// Number of crates in the output of `cargo tree`, which marks a crate it has shown before.
fn crates_of_tree(text: &str) -> usize {
    let crates = text.lines().map(|line| line.trim_end_matches(" (*)"));
    crates
        .filter(|line| !line.is_empty())
        .collect::<BTreeSet<_>>()
        .len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_lists_a_crate_once() {
        let tree = "agent v0.1.0 (/x/agent)\nserde v1.0.0\nserde v1.0.0 (*)\n\nserde v0.9.0\n";
        assert_eq!(crates_of_tree(tree), 3);
    }

    #[test]
    fn this_workspace_needs_more_crates_for_its_tests() {
        let crates = |depends| {
            let build = Cargo {
                command: Command::new("cargo"),
                subcommand: &[],
                selection: &["--offline", "--package", "xtask"],
                depends,
                trailing: &[],
            };
            build.crates()
        };
        let (normal, all) = (crates(Depends::Normal), crates(Depends::Dev));
        assert!(normal > Some(10), "{normal:?}");
        assert!(all >= normal, "{all:?} {normal:?}");
        let unknown = Cargo {
            command: Command::new("cargo"),
            subcommand: &[],
            selection: &["--package", "no-such-crate"],
            depends: Depends::Normal,
            trailing: &[],
        };
        assert_eq!(unknown.crates(), None);
    }
}
