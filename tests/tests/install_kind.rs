//! `docs/install-kind.md`: every command of it, by a person's shell, where Docker and kind are.

use std::process::{Command, Stdio};
use std::time::Duration;

use bellows_tests::pages::sections;
use bellows_tests::{bellows_bin, checkout};
use test_records::{Missing, skip};

const NAME: &str = "every_command_of_the_page_about_kind_works";
const PAGE: &str = "docs/install-kind.md";
/// The name of the cluster on the page.
const CLUSTER: &str = "bellows";
/// Longest time of a section. One builds all release binaries.
const SECTION: Duration = Duration::from_secs(1800);

/// Ends the page's cluster, whatever became of it.
struct Ended;

impl Drop for Ended {
    fn drop(&mut self) {
        let mut delete = Command::new("kind");
        let _status = delete
            .args(["delete", "cluster", "--name", CLUSTER])
            .status();
    }
}

/// What is missing for kind.
fn missing() -> Option<&'static str> {
    let works = |program: &str, argument: &str| {
        let mut command = Command::new(program);
        command.arg(argument);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    [
        ("docker", "info"),
        ("kind", "version"),
        ("helm", "version"),
        ("kubectl", "--help"),
    ]
    .into_iter()
    .find(|(program, argument)| !works(program, argument))
    .map(|(program, _)| program)
}

fn page() -> String {
    std::fs::read_to_string(checkout().join(PAGE)).expect("the page")
}

#[test]
fn page_about_kind_has_its_sections() {
    let page = page();
    let sections = sections(&page, "sh kind");
    assert_eq!(sections.len(), 5, "{sections:?}");
}

/// Requirement: N47
#[tokio::test]
async fn every_command_of_the_page_about_kind_works() {
    if let Some(what) = missing() {
        let reason = format!("{what} is not there or does not answer");
        return skip(NAME, Missing::Kind, &reason);
    }
    let page = page();
    let sections = sections(&page, "sh kind");
    let listed = Command::new("kind").args(["get", "clusters"]).output();
    let listed = String::from_utf8(listed.expect("kind").stdout).expect("names");
    assert!(
        listed.lines().all(|name| name != CLUSTER),
        "a cluster {CLUSTER} is there, and not this test's: `kind delete cluster --name {CLUSTER}` ends it"
    );
    let dir = tempfile::tempdir().expect("a directory");
    let _ended = Ended;
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).expect("made");
    for name in ["bellows", "kubectl-bellows"] {
        std::os::unix::fs::symlink(bellows_bin(), bin.join(name)).expect("linked");
    }
    let path = std::env::var("PATH").expect("a PATH");
    for (title, script) in &sections {
        let mut bash = tokio::process::Command::new("bash");
        bash.args(["-c", &format!("set -euxo pipefail\n{script}")])
            .current_dir(checkout())
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("KUBECONFIG", dir.path().join("kubeconfig"))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let ended = tokio::time::timeout(SECTION, bash.status()).await;
        let status = ended.unwrap_or_else(|_| panic!("{title} does not end"));
        assert!(
            status.expect("bash").success(),
            "a command of {title} failed"
        );
    }
}
