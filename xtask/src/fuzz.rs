//! `cargo xtask fuzz`: the coverage-guided fuzzer on everything in `fuzz/targets`, and with
//! `--properties` what it needs no nightly compiler for: the property tests of every crate that
//! reads what others wrote, with as many cases as there is patience for.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::progress::{Cargo, Depends};
use crate::shell::{self, Missing};

/// The fuzzer's driver; one version, so that every machine builds targets alike.
const DRIVER: (&str, &str) = ("cargo-fuzz", "0.13.2");
/// Runs cargo-fuzz and compiles the targets: they need instrumentation that stable compilers do not
/// offer.
const TOOLCHAIN: &str = "nightly";
/// What targets are built for.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Most memory one input may make a target take, MiB. What is read here is small, so it must stay
/// so.
const MALLOC_LIMIT_MIB: u32 = 32;
/// Longest an input may take, seconds.
const INPUT_LIMIT_S: u32 = 5;
/// Longest inputs that are tried, bytes: longer ones are cut by what reads them.
const LENGTH_LIMIT_BYTES: u32 = 4096;

/// Options of `fuzz`.
#[derive(Args)]
pub(crate) struct Options {
    /// How long each target is run, seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "properties")]
    seconds: u32,
    /// Run the property tests of all crates that read what others wrote instead, with many cases
    #[arg(long)]
    properties: bool,
    /// Cases of each property
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..), requires = "properties")]
    cases: u32,
    /// Only targets, or properties, with this in their name
    #[arg(value_name = "NAME")]
    only: Option<String>,
}

/// Who reads what others wrote.
const READERS: [&str; 12] = [
    "agent",
    "protocol",
    "vm-monitor",
    "neonvm-guestd",
    "vm-images",
    "apiserver",
    "neonvm-files",
    "neonvm-parts",
    "neonvm-runner",
    "peers-mesh",
    "policy-contract",
    "policy-engine",
];

/// Runs targets or properties. What does not hold is shown with the input it does not hold for.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.properties {
        return properties(options);
    }
    let targets = targets(options.only.as_deref())?;
    ensure_toolchain()?;
    let bins = build(&driver()?)?;
    let (kept, mut found) = (shell::cache_dir()?.join("fuzz"), Vec::new());
    for target in &targets {
        let run = Run::new(&bins, &kept, target, options.seconds)?.finish()?;
        shell::say(&format!("    {target}: {}", run.summary()));
        found.extend(run.finding.map(|finding| format!("{target}: {finding}")));
    }
    if found.is_empty() {
        return Ok(());
    }
    bail!(
        "{} of {} targets have a finding; run its body on it with\n    {}/TARGET FILE\n  {}",
        found.len(),
        targets.len(),
        bins.display(),
        found.join("\n  ")
    )
}

fn properties(options: &Options) -> Result<()> {
    let packages = READERS.map(|package| ["--package", package]).concat();
    let build = Cargo {
        command: shell::cargo()?,
        // Fast, and with every check of arithmetic.
        subcommand: &["test", "--no-run", "--profile", "sim"],
        selection: &packages,
        depends: Depends::Dev,
        trailing: &[],
    };
    build.run("build the properties")?;
    let mut command = shell::cargo()?;
    command.args(["test", "--quiet", "--profile", "sim"]);
    command.args(&packages);
    command.args(&options.only);
    command.env("PROPTEST_CASES", options.cases.to_string());
    let what = format!("{} cases of each property", options.cases);
    shell::run(&what, &mut command)
}

/// The names of the targets, in order.
fn targets(only: Option<&str>) -> Result<Vec<String>> {
    let folder = shell::root().join("fuzz/targets");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).context("fuzz/targets")? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if only.is_none_or(|only| name.contains(only)) {
            names.push(name.into_owned());
        }
    }
    names.sort();
    if names.is_empty() {
        bail!("no target has {:?} in its name", only.unwrap_or_default());
    }
    Ok(names)
}

/// A command under the nightly toolchain, whichever one `cargo xtask` runs under.
fn nightly(program: &Path) -> Command {
    let mut command = Command::new(program);
    for name in ["CARGO", "RUSTC", "RUSTDOC", "CARGO_MANIFEST_DIR"] {
        command.env_remove(name);
    }
    command
        .current_dir(shell::root())
        .env("RUSTUP_TOOLCHAIN", TOOLCHAIN);
    command
}

fn ensure_toolchain() -> Result<()> {
    let mut command = nightly(Path::new("rustc"));
    command.arg("--version").stderr(Stdio::null());
    // Without rustup there is one compiler, whatever the environment asks for.
    let version = shell::output(&mut command).unwrap_or_default();
    if version.contains(TOOLCHAIN) {
        return Ok(());
    }
    let fix = format!("rustup toolchain install {TOOLCHAIN}");
    Err(Missing(format!("the fuzzer needs a {TOOLCHAIN} compiler: {fix}")).into())
}

/// cargo-fuzz, from the project's cache of tools.
fn driver() -> Result<PathBuf> {
    shell::tool(DRIVER, || Ok(nightly(Path::new("cargo"))))
}

/// Builds every target; returns the folder that holds them.
fn build(driver: &Path) -> Result<PathBuf> {
    let target_dir = shell::target_dir()?.join("fuzz");
    let mut command = nightly(driver);
    command
        .args(["build", "--fuzz-dir", "fuzz", "--target", TARGET])
        .arg("--target-dir")
        .arg(&target_dir);
    shell::run("build the fuzz targets", &mut command)?;
    Ok(target_dir.join(TARGET).join("release"))
}

/// One target being run.
struct Run {
    what: String,
    command: Command,
    log: PathBuf,
}

/// What came of it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    executions: Option<String>,
    per_second: Option<String>,
    edges: Option<String>,
    /// Where the input is that the target does not hold for, or how else it failed.
    finding: Option<String>,
}

impl Run {
    /// Prepares a run: from the committed seeds and what earlier runs have kept.
    fn new(bins: &Path, kept: &Path, target: &str, seconds: u32) -> Result<Self> {
        let corpus = kept.join("corpus").join(target);
        let findings = kept.join("findings");
        for folder in [&corpus, &findings] {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        let mut command = Command::new(bins.join(target));
        command
            .arg(&corpus)
            .arg(shell::root().join("fuzz/seeds").join(target))
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-malloc_limit_mb={MALLOC_LIMIT_MIB}"))
            .arg(format!("-timeout={INPUT_LIMIT_S}"))
            .arg(format!("-max_len={LENGTH_LIMIT_BYTES}"))
            .arg(format!("-artifact_prefix={}/{target}-", findings.display()))
            .arg("-print_final_stats=1");
        Ok(Self {
            what: format!("fuzz {target} for {seconds} s"),
            command,
            log: kept.join(format!("{target}.log")),
        })
    }

    /// Runs it; its talk goes to a log.
    fn finish(mut self) -> Result<Outcome> {
        shell::say(&format!("==> {}", self.what));
        let log = File::create(&self.log).with_context(|| self.log.display().to_string())?;
        let status = self
            .command
            .stdout(Stdio::null())
            .stderr(log)
            .status()
            .with_context(|| self.what.clone())?;
        let mut outcome = Outcome::default();
        for line in BufReader::new(File::open(&self.log)?).split(b'\n') {
            outcome.note(&String::from_utf8_lossy(&line?));
        }
        if !status.success() && outcome.finding.is_none() {
            let finding = format!("ended with {status}, see {}", self.log.display());
            outcome.finding = Some(finding);
        }
        Ok(outcome)
    }
}

impl Outcome {
    /// Reads a line of the fuzzer's talk.
    fn note(&mut self, line: &str) {
        if let Some(path) = line.split("Test unit written to ").nth(1) {
            self.finding = Some(path.trim().to_owned());
        } else if let Some(rest) = line.strip_prefix("stat::") {
            let value = rest.split_whitespace().nth(1).map(str::to_owned);
            if rest.starts_with("number_of_executed_units:") {
                self.executions = value;
            } else if rest.starts_with("average_exec_per_sec:") {
                self.per_second = value;
            }
        } else if let Some(rest) = line.split(" cov: ").nth(1) {
            self.edges = rest.split_whitespace().next().map(str::to_owned);
        }
    }

    fn summary(&self) -> String {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "?".to_owned());
        format!(
            "{} executions, {} a second, {} edges, {}",
            shown(&self.executions),
            shown(&self.per_second),
            shown(&self.edges),
            self.finding.as_deref().unwrap_or("nothing found")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuzzers_talk_is_read() {
        let mut outcome = Outcome::default();
        for line in [
            "#2\tINITED cov: 55 ft: 56 corp: 1/1b exec/s: 0 rss: 30Mb",
            "#9\tNEW    cov: 57 ft: 60 corp: 2/3b lim: 4 exec/s: 0 rss: 30Mb L: 2/2 MS: 1 CopyPart-",
            "artifact_prefix='/c/x-'; Test unit written to /c/x-crash-da39a3ee",
            "stat::number_of_executed_units: 1234",
            "stat::average_exec_per_sec:     617",
        ] {
            outcome.note(line);
        }
        assert_eq!(
            outcome.summary(),
            "1234 executions, 617 a second, 57 edges, /c/x-crash-da39a3ee"
        );
    }

    /// Whatever ends a target before its time is a finding, with the input if one was written.
    #[test]
    fn a_target_that_fails_is_a_finding() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let run = |body: &str| {
            let program = folder.path().join("target");
            std::fs::write(&program, format!("#!/bin/sh\n{body}\n")).expect("written");
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&program, mode).expect("set");
            let run = Run::new(folder.path(), &folder.path().join("kept"), "target", 1);
            run.expect("prepared").finish().expect("run").finding
        };
        let crash =
            "echo \"artifact_prefix='x'; Test unit written to /kept/target-crash-1\" >&2; exit 77";
        assert_eq!(run(crash).as_deref(), Some("/kept/target-crash-1"));
        let silent = run("exit 1").expect("a finding");
        assert!(silent.contains("exit status: 1") && silent.contains("target.log"));
        assert_eq!(run("echo stat::number_of_executed_units: 5 >&2"), None);
        assert!(folder.path().join("kept/corpus/target").is_dir());
    }

    #[test]
    fn targets_are_chosen_by_name() {
        let all = targets(None).expect("targets");
        assert!(all.len() >= 22 && all.is_sorted());
        assert_eq!(targets(Some("handsh")).expect("one"), ["handshake"]);
        assert!(targets(Some("no such target")).is_err());
    }
}
