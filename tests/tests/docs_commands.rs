//! Every `sh` block of the README and of the user documents is run, page by page, in the order in
//! which it stands.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;
use std::process::Command;

use bellows_tests::pages::sections;
use bellows_tests::site::known_tcg_bug_of;
use bellows_tests::{bellows_bin, guest_or_skip};
use test_records::retry::Attempts;

const README: &str = "../README.md";

/// The text of all `sh` blocks of a page.
fn script_of(text: &str) -> String {
    let mut script = String::from("set -euxo pipefail\n");
    let mut inside = false;
    for line in text.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => {
                script.push_str(line);
                script.push('\n');
            }
            _ => {}
        }
    }
    script
}

fn docs() -> PathBuf {
    PathBuf::from("../docs")
}

/// Result of a page's commands.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Well,
    /// Not well, and a guest's console shows this panic, which is the known fault of QEMU.
    Broken(String),
    Badly,
}

/// Runs a page's commands on a state directory of their own.
fn run_page(text: &str) -> End {
    let state = tempfile::Builder::new()
        .prefix("bellows-docs-")
        .tempdir()
        .unwrap();
    let path = format!(
        "{}:{}",
        bellows_bin().parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let status = Command::new("bash")
        .arg("-c")
        .arg(script_of(text))
        .env("PATH", path)
        .env("BELLOWS_STATE_DIR", state.path())
        .status()
        .unwrap();
    if status.success() {
        return End::Well;
    }
    let panic = known_tcg_bug_of(state.path());
    // Guests of a broken page must not stay behind.
    let _ = Command::new(bellows_bin())
        .args(["down", "--stop-vms", "--state-dir"])
        .arg(state.path())
        .status();
    panic.map_or(End::Badly, End::Broken)
}

#[test]
fn every_command_of_the_documents_works() {
    if !guest_or_skip("every_command_of_the_documents_works") {
        return;
    }
    let mut pages: Vec<PathBuf> = std::fs::read_dir(docs())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    pages.push(README.into());
    pages.sort();
    let mut run = 0;
    for page in pages
        .iter()
        .filter(|page| page.extension().is_some_and(|ending| ending == "md"))
    {
        let text = std::fs::read_to_string(page).unwrap();
        if !text.contains("```sh\n") {
            continue;
        }
        let mut attempts = Attempts::of(&page.display().to_string());
        loop {
            let end = run_page(&text);
            let panic = match &end {
                End::Broken(panic) => Some(panic.clone()),
                End::Well | End::Badly => None,
            };
            if !attempts.again(panic) {
                assert_eq!(end, End::Well, "a command of {} failed", page.display());
                break;
            }
        }
        run += 1;
    }
    assert!(run > 0, "no page has a command");
}

/// Commands of the page that need a cluster run in `install_cluster`.
#[test]
fn the_readmes_commands_to_a_cluster_are_the_pages() {
    let commands = |page: &str| -> Vec<String> {
        let text = std::fs::read_to_string(page).unwrap();
        let blocks = sections(&text, "sh cluster");
        let lines = blocks.iter().flat_map(|(_, script)| script.lines());
        let commands = lines.map(|line| line.split("  #").next().unwrap_or(line).trim());
        commands.map(str::to_owned).collect()
    };
    let of_page = commands("../docs/install-cluster.md");
    let of_readme = commands(README);
    assert!(!of_readme.is_empty());
    for command in of_readme {
        // There they may be repeated until they end well.
        let is_run = of_page.iter().any(|line| line.contains(&command));
        assert!(is_run, "{command}");
    }
}

#[test]
fn blocks_are_found() {
    let page = "text\n```sh\na\n```\n```\nnot this\n```\n```sh\nb\n```\n";
    assert_eq!(script_of(page), "set -euxo pipefail\na\nb\n");
}
