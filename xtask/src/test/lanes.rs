//! Three lanes of tests that run side by side: tests of real clusters, tests of real guests, and
//! all others. Most tests wait more than they compute, so one lane leaves the processors idle.
//!
//! Cargo compiles everything first, by one command, so that no lane compiles. The output of the
//! lane of clusters is shown as it comes; that of the others a test binary at a time.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, PipeReader};
use std::process::Command;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::failures::Failures;
use super::seconds::{self, Seconds};
use crate::{crates, shell};

/// Packages whose test binaries run real guests or clusters.
const REAL: [&str; 2] = ["bellows-tests", "neonvm-runner"];
/// Those that run clusters. Two clusters at once would find each other's control groups.
const CLUSTERS: [&str; 16] = [
    "api_contract",
    "attacks",
    "cluster",
    "cluster_agent_state",
    "cluster_policy",
    "cluster_vms",
    "controller_failover",
    "drop_in",
    "fleet_cluster",
    "fleet_quota",
    "guest_certificates",
    "install",
    "install_cluster",
    "kube_scheduler",
    "overlay_addresses",
    "rights",
];
/// Long ones of guests that run after those without guests, so that all lanes end at about the same
/// time.
const AFTER_OTHERS: [&str; 2] = ["docs_commands", "durability"];

/// How often a lane that is silent looks whether its command has ended.
const POLL: Duration = Duration::from_secs(1);
/// Lines that wait to be shown.
const LINES: usize = 1024;

/// Names of test binaries, by lane.
#[derive(Debug, Default, PartialEq, Eq)]
struct Binaries {
    clusters: BTreeSet<String>,
    guests: BTreeSet<String>,
    other: BTreeSet<String>,
    after_others: BTreeSet<String>,
}

/// Runs all tests of the workspace. `give` adds what tests find in their environment, `arguments`
/// go to every test binary.
///
/// # Errors
/// A test failed, or a command could not be started.
pub(super) fn run(give: &dyn Fn(&mut Command), arguments: &[&str]) -> Result<()> {
    let binaries = Binaries::of_workspace()?;
    let command = |selection: &[&str]| -> Result<Command> {
        let mut command = shell::cargo()?;
        command.args(["test", "--workspace", "--no-fail-fast"]);
        command.args(selection);
        give(&mut command);
        Ok(command)
    };
    shell::run("compile all tests", &mut command(&["--no-run"])?)?;
    let mut clusters = command(&[])?;
    let mut other = command(&["--lib", "--bins"])?;
    let mut guests = command(&[])?;
    let mut after_others = command(&[])?;
    for (lane, names) in [
        (&mut clusters, &binaries.clusters),
        (&mut other, &binaries.other),
        (&mut guests, &binaries.guests),
        (&mut after_others, &binaries.after_others),
    ] {
        lane.args(names.iter().flat_map(|name| ["--test", name]));
        lane.arg("--").args(arguments);
    }
    let mut documents = command(&["--doc"])?;
    let ended: Result<Vec<Ended>> = thread::scope(|scope| {
        let others = scope.spawn(|| {
            [
                Lane::new("tests without guests", Shown::ByBinary).run(&mut other),
                Lane::new("examples in documents", Shown::ByBinary).run(&mut documents),
                Lane::new("long tests with guests", Shown::ByBinary).run(&mut after_others),
            ]
        });
        let what = "tests with real guests";
        let guests = scope.spawn(|| Lane::new(what, Shown::ByBinary).run(&mut guests));
        let what = "tests with a real Kubernetes";
        let clusters = Lane::new(what, Shown::AsItComes).run(&mut clusters);
        let guests = guests.join().expect("the lane does not panic");
        let others = others.join().expect("the lane does not panic");
        [clusters, guests].into_iter().chain(others).collect()
    });
    let ended = ended?;
    let lines = seconds::slowest(ended.iter().map(|lane| &lane.seconds));
    lines.iter().for_each(|line| shell::say(line));
    verdict(ended, shell::say)
}

/// Runs one command of tests, and returns how many tests ran.
///
/// # Errors
/// A test failed, or the command could not be started.
pub(super) fn alone(command: &mut Command) -> Result<usize> {
    let ended = Lane::new("tests of the component", Shown::AsItComes).run(command)?;
    let lines = seconds::slowest(std::iter::once(&ended.seconds));
    lines.iter().for_each(|line| shell::say(line));
    let count = ended.seconds.tests();
    verdict(vec![ended], shell::say)?;
    Ok(count)
}

/// Says all failures at the end: where a log is cut, its middle goes first.
fn verdict(ended: Vec<Ended>, say: fn(&str)) -> Result<()> {
    let failed: Vec<&Ended> = ended.iter().filter(|lane| !lane.is_success).collect();
    if failed.is_empty() {
        return Ok(());
    }
    say("\n==> what failed, once more");
    for lane in &failed {
        lane.failures.lines().iter().for_each(|line| say(line));
    }
    let names: Vec<&str> = failed.iter().map(|lane| lane.what).collect();
    bail!("{} failed", names.join(", "))
}

/// The lines that come out of a pipe, read by a thread of its own until the pipe ends.
fn lines_of(reader: PipeReader) -> Receiver<String> {
    let (send, lines) = mpsc::sync_channel(LINES);
    thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            if send
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                return;
            }
        }
    });
    lines
}

/// When the output of a lane is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    AsItComes,
    /// All lines up to the result of a test binary at once.
    ByBinary,
}

/// A command and its output.
struct Lane {
    what: &'static str,
    shown: Shown,
    failures: Failures,
    seconds: Seconds,
    pending: Vec<String>,
    say: fn(&str),
}

/// A command that ended.
struct Ended {
    what: &'static str,
    is_success: bool,
    failures: Failures,
    seconds: Seconds,
}

impl Lane {
    fn new(what: &'static str, shown: Shown) -> Self {
        Self {
            what,
            shown,
            failures: Failures::default(),
            seconds: Seconds::default(),
            pending: Vec::new(),
            say: shell::say,
        }
    }

    /// # Errors
    /// The command cannot be started, or its output cannot be read.
    fn run(mut self, command: &mut Command) -> Result<Ended> {
        let started = std::time::Instant::now();
        (self.say)(&format!("==> {}", self.what));
        let (reader, writer) = std::io::pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().context("could not start cargo")?;
        // The pipe ends when its last writer has gone, and the command holds two.
        command.stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        let lines = lines_of(reader);
        loop {
            match lines.recv_timeout(POLL) {
                Ok(line) => self.hear(line),
                Err(RecvTimeoutError::Disconnected) => break,
                // A process that a test left behind may keep the pipe open.
                Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_some() => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.show_pending();
        let is_success = child.wait()?.success();
        let word = if is_success { "passed" } else { "FAILED" };
        let took = started.elapsed().as_secs_f64();
        (self.say)(&format!("    {} {word}: {took:.1} s", self.what));
        Ok(Ended {
            what: self.what,
            is_success,
            failures: self.failures,
            seconds: self.seconds,
        })
    }

    fn hear(&mut self, line: String) {
        self.failures.hear(&line);
        self.seconds.hear(&line);
        let is_last = line.starts_with("test result:");
        self.pending.push(line);
        if is_last || self.shown == Shown::AsItComes {
            self.show_pending();
        }
    }

    fn show_pending(&mut self) {
        if !self.pending.is_empty() {
            (self.say)(&self.pending.join("\n"));
            self.pending.clear();
        }
    }
}

impl Binaries {
    fn of_workspace() -> Result<Self> {
        Ok(Self::of(&crates::workspace()?))
    }

    /// Binaries of one name run together, with those of guests if one of them belongs there.
    fn of(metadata: &Value) -> Self {
        let mut found = Self::default();
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let is_real = REAL.iter().any(|name| package["name"] == *name);
            for target in package["targets"].as_array().into_iter().flatten() {
                let name = target["name"].as_str().unwrap_or_default().to_owned();
                // A target with `test = false` is run by its name alone.
                if target["kind"][0] != "test" || target["test"] == false {
                } else if is_real && CLUSTERS.contains(&&*name) {
                    found.clusters.insert(name);
                } else if is_real && AFTER_OTHERS.contains(&&*name) {
                    found.after_others.insert(name);
                } else if is_real {
                    found.guests.insert(name);
                } else {
                    found.other.insert(name);
                }
            }
        }
        found.other = &(&found.other - &found.clusters) - &found.guests;
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn binary_runs_in_one_lane() {
        let package = |name: &str, targets: &[&str]| {
            let target = |name: &&str| json!({"name": name, "kind": ["test"]});
            let mut targets: Vec<Value> = targets.iter().map(target).collect();
            targets.push(json!({"name": name, "kind": ["lib"]}));
            targets.push(json!({"name": "large", "kind": ["test"], "test": false}));
            json!({"name": name, "targets": targets})
        };
        let packages = [
            package("neonvm-runner", &["moving", "overlay"]),
            package("neonvm-controller", &["overlay", "versions"]),
            package(
                "bellows-tests",
                &["one_machine", "cluster_vms", "durability"],
            ),
        ];
        let names = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(
            Binaries::of(&json!({"packages": packages})),
            Binaries {
                clusters: names(&["cluster_vms"]),
                guests: names(&["moving", "one_machine", "overlay"]),
                other: names(&["versions"]),
                after_others: names(&["durability"]),
            }
        );
    }

    #[test]
    fn packages_and_binaries_of_the_lanes_exist() {
        let found = Binaries::of_workspace().expect("cargo lists the workspace");
        let names = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(found.clusters, names(&CLUSTERS));
        assert_eq!(found.after_others, names(&AFTER_OTHERS));
        assert!(found.guests.contains("one_machine") && found.guests.contains("adoption"));
        assert!(found.other.contains("interleavings"));
        assert!(!found.other.contains("large_models"));
    }

    fn lane(script: &str, shown: Shown) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut lane = Lane::new("a lane", shown);
        // The output of a fixture is not that of this test.
        lane.say = |_| {};
        lane.run(&mut command).expect("it runs")
    }

    #[test]
    fn lane_ends_with_its_command_though_a_process_is_left_behind() {
        let ended = lane("sleep 60 & echo test a ... ok", Shown::ByBinary);
        assert!(ended.is_success);
    }

    #[test]
    fn lane_that_fails_fails_the_run_with_its_output() {
        let words = "test a ... FAILED\\nleft: 1\\ntest result: FAILED. 0 passed\\n";
        let failed = lane(&format!("printf '{words}' >&2; exit 1"), Shown::ByBinary);
        assert_eq!(
            failed.failures.lines()[..2],
            ["test a ... FAILED", "left: 1"]
        );
        let passed = lane("echo test a ... ok", Shown::AsItComes);
        assert!(passed.is_success && passed.failures.lines().is_empty());
        let error = verdict(vec![passed, failed], |_| {}).expect_err("one failed");
        assert_eq!(error.to_string(), "a lane failed");
        verdict(vec![lane("true", Shown::AsItComes)], |_| {}).expect("none failed");
    }
}
