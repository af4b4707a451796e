//! `docs/install-kind.md`: every command of it, by a person's shell, where Docker and kind are.

use std::process::{Command, Stdio};
use std::time::Duration;

use bellows_tests::pages::sections;
use bellows_tests::{bellows_bin, checkout};

const NAME: &str = "n47_every_command_of_the_page_about_kind_works";
const PAGE: &str = "docs/install-kind.md";
/// The name of the cluster on the page.
const CLUSTER: &str = "bellows";
/// How long a section may take: one compiles everything as it is shipped.
const SECTION: Duration = Duration::from_secs(1800);
/// A run in which the test may not be skipped.
const REQUIRED: &str = "BELLOWS_REQUIRE_KIND";

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

/// What is missing for kind, if anything is.
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

#[expect(
    clippy::print_stdout,
    reason = "the one uniform line of a skipped test"
)]
fn kind_or_skip() -> bool {
    let Some(what) = missing() else {
        return true;
    };
    assert!(
        std::env::var_os(REQUIRED).is_none(),
        "{NAME} needs {what}, which is not there or does not answer"
    );
    println!("SKIP(missing: {what}): {NAME}");
    false
}

#[tokio::test]
async fn n47_every_command_of_the_page_about_kind_works() {
    let page = std::fs::read_to_string(checkout().join(PAGE)).expect("the page");
    let sections = sections(&page, "sh kind");
    assert_eq!(sections.len(), 5, "{sections:?}");
    if !kind_or_skip() {
        return;
    }
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
