//! Commands that print nothing for minutes. A line every few seconds says how far a command is and
//! for how long it has run.

mod cargo;

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

pub(crate) use self::cargo::{Cargo, Depends};
use crate::shell;

/// Time between two lines on a terminal.
const ON_TERMINAL: Duration = Duration::from_secs(5);
/// Time between two lines in a log, which is read later.
const IN_LOG: Duration = Duration::from_secs(30);
/// Lines of a Go build's errors that are kept.
const COMPLAINTS: usize = 200;

/// How a command says what it has done. `total` is left out where nobody can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Cargo compiles crates and writes JSON messages to standard output.
    Crates { total: Option<usize> },
    /// `go build -v` or `go install -v` writes names of packages to standard error.
    Packages { total: Option<usize> },
    /// The command says nothing.
    Unknown,
}

/// Runs a command and shows how far it is. A non-zero status is an error.
pub(crate) fn run(what: &str, command: &mut Command, work: Work) -> Result<()> {
    let every = if io::stdout().is_terminal() {
        ON_TERMINAL
    } else {
        IN_LOG
    };
    let began = Instant::now();
    shell::say(&format!("==> {what}"));
    let mut count = Count::new(work);
    let tell = |line: &str| shell::say(&format!("    {what}: {line}"));
    let status = follow(command, &mut count, every, tell)
        .with_context(|| format!("{what}: {}", command.get_program().display()))?;
    if !status.success() {
        let said = count.complaints.join("\n");
        bail!(
            "{what} failed ({status}): {}\n{said}",
            shell::shown(command)
        );
    }
    let seconds = began.elapsed().as_secs_f64();
    shell::say(&format!("    {what}: {seconds:.1} s"));
    Ok(())
}

/// What the thread that reads a command's output sends.
enum Heard {
    Line(String),
    Ended(io::Result<ExitStatus>),
}

/// Runs a command to its end and tells how far it is, at most once in a period of `every`.
fn follow(
    command: &mut Command,
    count: &mut Count,
    every: Duration,
    mut tell: impl FnMut(&str),
) -> io::Result<ExitStatus> {
    let heard = start(command, count.work)?;
    let began = Instant::now();
    let mut pace = Pace::new(every);
    loop {
        match heard.recv_timeout(pace.next.saturating_sub(began.elapsed())) {
            Ok(Heard::Line(line)) => count.hear(line),
            Ok(Heard::Ended(status)) => return status,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the thread that waited for it is gone"));
            }
        }
        if pace.is_due(began.elapsed()) {
            tell(&count.line(began.elapsed()));
        }
    }
}

/// Starts the command, and a thread that reads what it says and waits for its end.
fn start(command: &mut Command, work: Work) -> io::Result<Receiver<Heard>> {
    match work {
        Work::Crates { .. } => command.stdout(Stdio::piped()),
        Work::Packages { .. } => command.stdin(Stdio::null()).stderr(Stdio::piped()),
        Work::Unknown => command,
    };
    let mut child = command.spawn()?;
    let (to, heard) = channel();
    std::thread::spawn(move || {
        let said: Option<Box<dyn Read>> = match work {
            Work::Crates { .. } => child.stdout.take().map(|out| Box::new(out) as _),
            Work::Packages { .. } => child.stderr.take().map(|err| Box::new(err) as _),
            Work::Unknown => None,
        };
        said.into_iter().for_each(|said| pass_on(said, &to));
        // Nobody waits any more if the program is ending.
        let _ = to.send(Heard::Ended(child.wait()));
    });
    Ok(heard)
}

fn pass_on(said: Box<dyn Read>, to: &Sender<Heard>) {
    let lines = BufReader::new(said).split(b'\n');
    for line in lines.map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        if to.send(Heard::Line(line)).is_err() {
            return;
        }
    }
}

/// When the next line is due.
struct Pace {
    every: Duration,
    next: Duration,
}

impl Pace {
    const fn new(every: Duration) -> Self {
        Self { every, next: every }
    }

    fn is_due(&mut self, elapsed: Duration) -> bool {
        let is_due = elapsed >= self.next;
        if is_due {
            self.next = elapsed + self.every;
        }
        is_due
    }
}

/// The members of cargo's messages that are counted.
#[derive(Deserialize)]
struct Message {
    reason: String,
    package_id: Option<String>,
    executable: Option<String>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

/// What a command has done so far.
struct Count {
    work: Work,
    crates: BTreeSet<String>,
    programs: usize,
    packages: usize,
    /// Go's modules that were fetched.
    modules: usize,
    complaints: Vec<String>,
}

impl Count {
    const fn new(work: Work) -> Self {
        Self {
            work,
            crates: BTreeSet::new(),
            programs: 0,
            packages: 0,
            modules: 0,
            complaints: Vec::new(),
        }
    }

    fn hear(&mut self, line: String) {
        match self.work {
            Work::Crates { .. } => self.hear_cargo(&line),
            Work::Packages { .. } => self.hear_go(line),
            Work::Unknown => {}
        }
    }

    fn hear_cargo(&mut self, line: &str) {
        let Ok(message) = serde_json::from_str::<Message>(line) else {
            return;
        };
        let is_script = message
            .target
            .is_some_and(|target| target.kind.iter().any(|kind| kind == "custom-build"));
        if message.reason != "compiler-artifact" || is_script {
            return;
        }
        self.crates.extend(message.package_id);
        self.programs += usize::from(message.executable.is_some());
    }

    fn hear_go(&mut self, line: String) {
        if line.starts_with("go: downloading ") {
            self.modules += 1;
        } else if !line.contains(' ') {
            self.packages += usize::from(!line.is_empty());
        } else if self.complaints.len() < COMPLAINTS {
            self.complaints.push(line);
        }
    }

    /// How far it is after this time.
    fn line(&self, elapsed: Duration) -> String {
        let seconds = format!("{} s", elapsed.as_secs());
        let of = |done: usize, total: Option<usize>| match total {
            Some(total) => format!("{} of {total}", done.min(total)),
            None => done.to_string(),
        };
        match self.work {
            Work::Crates { total } => {
                let crates = of(self.crates.len(), total);
                match self.programs {
                    0 => format!("{crates} crates, {seconds}"),
                    1 => format!("{crates} crates, 1 program, {seconds}"),
                    programs => format!("{crates} crates, {programs} programs, {seconds}"),
                }
            }
            Work::Packages { .. } if self.packages == 0 && self.modules > 0 => {
                format!("{} modules fetched, {seconds}", self.modules)
            }
            Work::Packages { total } => {
                format!("{} packages, {seconds}", of(self.packages, total))
            }
            Work::Unknown => seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_TOTAL: Work = Work::Packages { total: None };

    fn heard(work: Work, lines: &[&str]) -> Count {
        let mut count = Count::new(work);
        for line in lines {
            count.hear((*line).to_owned());
        }
        count
    }

    fn artifact(package: &str, kind: &str, executable: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"{package}","target":{{"kind":["{kind}"],
            "name":"x"}},"executable":{executable},"fresh":false}}"#
        )
    }

    #[test]
    fn crate_counts_once_and_not_by_its_build_script() {
        let lines = [
            artifact("ring", "custom-build", "null"),
            r#"{"reason":"build-script-executed","package_id":"ring"}"#.to_owned(),
            artifact("serde", "lib", "null"),
            artifact("agent", "lib", "null"),
            artifact("agent", "bin", r#""/t/agent""#),
            "no message of cargo's".to_owned(),
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let count = heard(Work::Crates { total: Some(7) }, &lines);
        let line = count.line(Duration::from_millis(12_900));
        assert_eq!(line, "2 of 7 crates, 1 program, 12 s");
        let more_than_known = heard(Work::Crates { total: Some(1) }, &lines[2..4]);
        assert_eq!(
            more_than_known.line(Duration::ZERO),
            "1 of 1 crates, 0 s",
            "never more than all"
        );
    }

    #[test]
    fn go_packages_downloads_and_errors_are_told_apart() {
        let mut count = heard(NO_TOTAL, &["go: downloading k8s.io/api v0.34.0"]);
        let second = Duration::from_secs(1);
        assert_eq!(count.line(second), "1 modules fetched, 1 s");
        for line in ["k8s.io/api/core/v1", "./main.go:3:2: undefined: x", ""] {
            count.hear(line.to_owned());
        }
        assert_eq!(count.line(second), "1 packages, 1 s");
        assert_eq!(count.complaints, ["./main.go:3:2: undefined: x"]);
    }

    #[test]
    fn line_is_due_once_a_period_however_late_the_last_one_was() {
        let mut pace = Pace::new(Duration::from_secs(5));
        let due: Vec<u64> = [1, 4, 5, 6, 9, 17, 18, 21, 22]
            .into_iter()
            .filter(|second| pace.is_due(Duration::from_secs(*second)))
            .collect();
        assert_eq!(due, [5, 17, 22]);
    }

    /// The command runs until its reader has been told of it: silence would never end.
    #[test]
    fn command_that_is_silent_for_long_is_told_of_while_it_runs() {
        let folder = tempfile::tempdir().expect("a folder");
        let told = folder.path().join("told");
        let script = "echo a/package >&2; until [ -e \"$0\" ]; do sleep 0.01; done; exit 3";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&told);
        let mut count = Count::new(NO_TOTAL);
        let mut lines = Vec::new();
        let status = follow(
            &mut command,
            &mut count,
            Duration::from_millis(20),
            |line| {
                lines.push(line.to_owned());
                std::fs::write(&told, "").expect("written");
            },
        );
        assert_eq!(status.expect("it ran").code(), Some(3));
        assert!(lines[0].contains(" packages, "), "{lines:?}");
        assert_eq!(count.packages, 1);
    }

    #[test]
    fn failure_has_the_command_and_what_it_complained_of() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'no such package' >&2; exit 1"]);
        let failure = run("build it", &mut command, NO_TOTAL).expect_err("it failed");
        let text = format!("{failure:#}");
        for part in ["build it failed", "sh -c", "no such package"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
