//! Every `sh` block of the README and of the user documents is run, page by page, in the order in
//! which it stands.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

use bellows_tests::pages::sections;
use bellows_tests::site::known_tcg_bug_of;
use bellows_tests::{bellows_bin, guest_or_skip};
use test_records::retry::Attempts;

const README: &str = "../README.md";
/// Pages whose commands run on the guest of another page, before that page ends it: a guest's boot
/// is what takes the time.
const ON_GUEST_OF: [(&str, &str); 1] = [("../docs/policies.md", README)];
/// How a page ends its guests.
const END_OF_GUESTS: &str = "bellows down";

/// The text of all `sh` blocks of a page.
fn script_of(text: &str) -> String {
    format!("set -euxo pipefail\n{}", commands_of(text))
}

fn commands_of(text: &str) -> String {
    let mut script = String::new();
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

/// The script of a page, with the commands of its guest pages before its guests end.
fn script_with(text: &str, guests: &[String]) -> String {
    let script = script_of(text);
    let is_end = |line: &&str| line.starts_with(END_OF_GUESTS);
    let end = script.lines().position(|line| is_end(&line));
    let end = end.unwrap_or(script.lines().count());
    let own = script.lines().map(str::to_owned);
    let before = own.clone().take(end);
    let between = guests.iter().map(|page| commands_of(page));
    let lines = before.chain(between).chain(own.skip(end));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Texts of the pages that run on the guest of a page.
fn guests_of(page: &Path) -> Vec<String> {
    let pages = ON_GUEST_OF
        .iter()
        .filter(|(_, host)| Path::new(host) == page);
    pages
        .map(|(guest, _)| std::fs::read_to_string(guest).unwrap())
        .collect()
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

/// Runs a script in the checkout's root, on a state directory of its own.
fn run_script(script: &str) -> End {
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
        .arg(script)
        .current_dir("..")
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
        let is_guest = ON_GUEST_OF
            .iter()
            .any(|(guest, _)| Path::new(guest) == page);
        if is_guest || !text.contains("```sh\n") {
            continue;
        }
        let script = script_with(&text, &guests_of(page));
        let mut attempts = Attempts::of(&page.display().to_string());
        loop {
            let end = run_script(&script);
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
fn guest_pages_run_before_the_guests_of_their_host_end() {
    let host = "```sh\nbellows up\nbellows down --stop-vms\nlast\n```\n";
    let guest = "```sh\nfirst\nsecond\n```\n".to_owned();
    let expected =
        "set -euxo pipefail\nbellows up\nfirst\nsecond\n\nbellows down --stop-vms\nlast\n";
    assert_eq!(script_with(host, &[guest]), expected);
    for (guest, host) in ON_GUEST_OF {
        let page = |path: &str| std::fs::read_to_string(path).unwrap();
        assert!(!commands_of(&page(guest)).is_empty(), "{guest}");
        let script = script_of(&page(host));
        assert!(script.contains(&format!("\n{END_OF_GUESTS}")), "{host}");
    }
}

#[test]
fn blocks_are_found() {
    let page = "text\n```sh\na\n```\n```\nnot this\n```\n```sh\nb\n```\n";
    assert_eq!(script_of(page), "set -euxo pipefail\na\nb\n");
}
