//! `bench NAME --record`: which run gave a figure? Each run appends a section to the page of its
//! month, with its commit and machine and a row for each figure.
//!
//! The section has the values that the reports carry. It names no host and no path.

use std::fmt::Write as _;
use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use jiff::Timestamp;

use super::report::{Better, Figure, Machine, Report};
use crate::shell;

/// Folder of the pages, below the root of the checkout.
const FOLDER: &str = "docs/measurements";

/// Most digits of a value behind its point.
const MOST_DECIMALS: usize = 9;

/// Start of a run. It is taken before the benchmark is built: a checkout may change meanwhile.
pub(super) struct Run {
    started: Timestamp,
    /// Short hash, with `+` if the checkout has changes.
    commit: String,
    processor: String,
    /// Arguments of `cargo xtask bench`.
    arguments: Vec<String>,
}

/// Figures of one benchmark, or the reason why it has none that count.
pub(super) struct Part<'a> {
    pub(super) label: &'a str,
    pub(super) outcome: Outcome<'a>,
}

pub(super) enum Outcome<'a> {
    Figures(&'a Report),
    LeftOut(&'a str),
    /// The reason is not recorded, because it may name paths.
    Failed,
}

impl Run {
    /// # Errors
    /// If git does not know the commit.
    pub(super) fn begin(arguments: Vec<String>) -> Result<Self> {
        Ok(Self {
            started: Timestamp::now(),
            commit: commit(&shell::root())?,
            processor: processor(&std::fs::read_to_string("/proc/cpuinfo")?),
            arguments,
        })
    }

    /// Appends the section of the run. Without any figures there is none.
    pub(super) fn record(&self, parts: &[Part<'_>]) -> Result<()> {
        let Some(section) = self.section(parts)? else {
            shell::say("no figures to record");
            return Ok(());
        };
        let page = self.append(&shell::root().join(FOLDER), &section)?;
        shell::say(&format!("recorded in {FOLDER}/{page}"));
        Ok(())
    }

    fn section(&self, parts: &[Part<'_>]) -> Result<Option<String>> {
        let with_figures = || parts.iter().filter_map(Part::figures);
        let mut machines = Vec::new();
        for (label, report) in with_figures() {
            let machine = report.machine();
            machines.push(machine.with_context(|| format!("machine of benchmark {label}"))?);
        }
        let Some(machine) = machines.first() else {
            return Ok(None);
        };
        let mut text = format!("## {} UTC\n\n", self.started.strftime("%Y-%m-%d %H:%M"));
        let facts = [
            format!("command: `{}`", self.command()),
            format!("commit: `{}`", self.commit),
            format!(
                "machine: {}, {} cores, {} GiB",
                self.processor, machine.cpus, machine.mem
            ),
            format!("kernel: {}, {}", machine.kernel, acceleration(&machines)),
        ];
        let remarks = parts.iter().filter_map(Part::remark);
        for line in facts.into_iter().chain(remarks) {
            let _infallible = writeln!(text, "* {line}");
        }
        text.push_str("\n| figure | target | value | verdict |\n|---|---|---|---|\n");
        for (label, report) in with_figures() {
            for figure in &report.figures {
                let _infallible = writeln!(text, "{}", row(label, figure));
            }
        }
        Ok(Some(text))
    }

    /// The command line, with `…` in place of words that hold a path.
    fn command(&self) -> String {
        let words = self.arguments.iter().map(String::as_str);
        let shown = words.map(|word| if word.contains('/') { "…" } else { word });
        ["cargo", "xtask", "bench"]
            .into_iter()
            .chain(shown)
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Appends a section to the page of the month. Returns the name of the page.
    fn append(&self, folder: &Path, section: &str) -> Result<String> {
        let name = self.started.strftime("%Y-%m.md").to_string();
        let page = folder.join(&name);
        let mut text = match std::fs::read(&page) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.head().into_bytes(),
            read => read.with_context(|| format!("failed to read {FOLDER}/{name}"))?,
        };
        if !text.ends_with(b"\n") {
            text.push(b'\n');
        }
        text.push(b'\n');
        text.extend_from_slice(section.as_bytes());
        replace(&page, &text).with_context(|| format!("failed to write {FOLDER}/{name}"))?;
        Ok(name)
    }

    /// The head of a new page.
    fn head(&self) -> String {
        format!(
            "# Measurements of {}\n\n\
             [SPECIFICATION.md](../../SPECIFICATION.md) has one figure a promise. This page has the \
             runs and the\nmachines behind them. `cargo xtask bench NAME --record` appends a \
             section for each run.\n",
            self.started.strftime("%B %Y")
        )
    }
}

impl<'a> Part<'a> {
    fn figures(&self) -> Option<(&'a str, &'a Report)> {
        match self.outcome {
            Outcome::Figures(report) => Some((self.label, report)),
            _ => None,
        }
    }

    fn remark(&self) -> Option<String> {
        match self.outcome {
            Outcome::Figures(_) => None,
            Outcome::LeftOut(reason) => Some(format!("left out: {} ({reason})", self.label)),
            Outcome::Failed => Some(format!("failed: {}", self.label)),
        }
    }
}

fn row(label: &str, figure: &Figure) -> String {
    let shown = |value| quantity(value, &figure.unit);
    let target = match (figure.target, figure.better) {
        (None, _) => "–".to_owned(),
        (Some(bound), Some(Better::Lower)) => format!("≤ {}", shown(bound)),
        (Some(bound), Some(Better::Higher)) => format!("≥ {}", shown(bound)),
        (Some(bound), None) => shown(bound),
    };
    let value = figure.value.map_or_else(|| "none".to_owned(), shown);
    let verdict = match figure.target {
        None => "no target",
        Some(_) if figure.is_met() => "met",
        Some(_) => "missed",
    };
    format!(
        "| {label}: {} | {target} | {value} | {verdict} |",
        figure.name
    )
}

/// A value with its unit. Small values have four digits, whole numbers all of theirs.
fn quantity(value: f64, unit: &str) -> String {
    let (mut decimals, mut scaled) = (0, value.abs());
    while scaled < 1000.0 && decimals < MOST_DECIMALS {
        scaled *= 10.0;
        decimals += 1;
    }
    let number = format!("{value:.decimals$}");
    let number = match number.split_once('.') {
        Some(_) => number.trim_end_matches('0').trim_end_matches('.'),
        None => &number,
    };
    format!("{number} {unit}").trim_end().to_owned()
}

/// `KVM` or `TCG`, both if the benchmarks differ. Benchmarks without a guest name none.
fn acceleration(machines: &[Machine]) -> String {
    let mut found: Vec<String> = machines
        .iter()
        .map(|machine| machine.accel.to_uppercase())
        .filter(|accel| !["", "NONE"].contains(&accel.as_str()))
        .collect();
    found.sort();
    found.dedup();
    match found.is_empty() {
        true => "no guest".to_owned(),
        false => found.join(" and "),
    }
}

/// The processor as the kernel names it. Where it has no name, the architecture.
fn processor(cpuinfo: &str) -> String {
    let name = cpuinfo.lines().find_map(|line| {
        let (key, name) = line.split_once(':')?;
        (key.trim() == "model name").then(|| name.trim().to_owned())
    });
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The commit of the checkout. Recorded sections are no change of what is measured.
fn commit(checkout: &Path) -> Result<String> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(checkout).args(arguments);
        shell::output(&mut command).context("git names the commit that is measured")
    };
    let hash = git(&["rev-parse", "--short", "HEAD"])?;
    let elsewhere = format!(":(exclude){FOLDER}");
    let changes = git(&["status", "--porcelain", "--", ".", &elsewhere])?;
    let mark = if changes.is_empty() { "" } else { "+" };
    Ok(format!("{}{mark}", hash.trim()))
}

/// Replaces a file as a whole: a reader sees the old text or the new one.
fn replace(file: &Path, text: &[u8]) -> Result<()> {
    let folder = file.parent().context("no folder")?;
    std::fs::create_dir_all(folder)?;
    let mut draft = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    draft.write_all(text)?;
    draft.as_file().sync_all()?;
    draft.persist(file)?;
    Ok(())
}

#[cfg(test)]
mod tests;
