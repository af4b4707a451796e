//! `cargo xtask bench NAME`: each benchmark is a program of the black-box kit that prints a table
//! and writes one shape of JSON: `{"bench":…,"machine":{cpus,mem,kernel,accel},
//! "figures":[{name,value,unit,target,better,met,samples?}]}`. `bench all` runs all of them.

mod all;
mod name;
mod record;
mod report;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use self::name::Name;
use self::record::{Outcome, Part, Run};
use self::report::Report;
use crate::shell;

/// Options of `bench`.
#[derive(Args)]
pub(crate) struct Options {
    /// Benchmark to run
    name: Which,
    /// Write the figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail when a figure misses its target
    #[arg(long)]
    check: bool,
    /// Append the figures, with commit and machine, to docs/measurements/YYYY-MM.md
    #[arg(long)]
    record: bool,
    /// Repeats of each measurement
    #[arg(long, visible_alias = "runs", default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Numbers of VMs, for `agent`, `flood` and `scheduler` only
    #[arg(long, value_name = "N,N,…")]
    vms: Option<String>,
    /// Options of the benchmark's own program (see `-- --help`)
    #[arg(last = true, value_name = "OPTION")]
    own: Vec<String>,
}

#[derive(Clone, Copy)]
enum Which {
    All,
    One(Name),
}

impl ValueEnum for Which {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::One(Name::Resize),
            Self::One(Name::Cluster),
            Self::One(Name::Monitor),
            Self::One(Name::Agent),
            Self::One(Name::Flood),
            Self::One(Name::Scheduler),
            Self::One(Name::Oom),
            Self::One(Name::Durability),
            Self::One(Name::Walls),
            Self::One(Name::Policy),
            Self::One(Name::Fleet),
            Self::All,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = "All of these, one after the other, and one table of all figures with a target";
        match self {
            Self::One(name) => name.to_possible_value(),
            Self::All => Some(PossibleValue::new("all").help(help)),
        }
    }
}

/// Builds and runs the benchmark, and prints its table.
pub(crate) fn run(options: &Options) -> Result<()> {
    let name = match options.name {
        Which::All => return all::run(options),
        Which::One(name) => name,
    };
    let dir = tempfile::tempdir()?;
    let run = options.begin_record()?;
    let ran = measure(name, options, dir.path())?;
    let counts = ran.counts(options.check);
    if let Some(report) = &ran.report {
        if let Some(file) = &options.json {
            report.write(file)?;
        }
        if let Some(run) = run.filter(|_| counts) {
            let (label, outcome) = (&name.label(), Outcome::Figures(report));
            run.record(&[Part { label, outcome }])?;
        }
        if options.check {
            report.check()?;
        }
    }
    ran.ended
}

/// A benchmark that was run.
struct Ran {
    /// `None`: it failed before it had any figures.
    report: Option<Report>,
    ended: Result<()>,
}

/// Builds and runs one benchmark. Its figures go through a file in `dir`, so that figures of an
/// earlier run are never used.
fn measure(name: Name, options: &Options, dir: &Path) -> Result<Ran> {
    let mut command = name.build(&options.own)?;
    command.args(common_options(name, options));
    Ran::of(&name.label(), &mut command, dir)
}

impl Ran {
    /// Whether the figures are those of a whole run. With `checked`, a missed target makes the
    /// program fail.
    fn counts(&self, checked: bool) -> bool {
        let mut reports = self.report.iter();
        let has_missed = reports.any(|report| report.missed().count() > 0);
        self.ended.is_ok() || checked && has_missed
    }

    fn of(label: &str, command: &mut Command, dir: &Path) -> Result<Self> {
        let json = dir.join(format!("{label}.json"));
        command.arg("--json").arg(&json);
        let ended = shell::run(&format!("benchmark {label}"), command);
        let read = || Report::read(&json).with_context(|| format!("figures of benchmark {label}"));
        let report = json.exists().then(read).transpose()?;
        ensure!(
            report.is_some() || ended.is_err(),
            "benchmark {label} wrote no figures"
        );
        Ok(Self { report, ended })
    }
}

impl Options {
    /// The start of a run that is to be recorded.
    fn begin_record(&self) -> Result<Option<Run>> {
        let begin = || Run::begin(self.recorded());
        self.record.then(begin).transpose()
    }

    /// Arguments that say what is measured.
    fn recorded(&self) -> Vec<String> {
        let label = match self.name {
            Which::All => "all".to_owned(),
            Which::One(name) => name.label(),
        };
        let mut arguments = vec![label, "--repeats".to_owned(), self.repeats.to_string()];
        if let Some(vms) = &self.vms {
            arguments.extend(["--vms".to_owned(), vms.clone()]);
        }
        if !self.own.is_empty() {
            arguments.push("--".to_owned());
            arguments.extend(self.own.iter().cloned());
        }
        arguments
    }
}

fn common_options(name: Name, options: &Options) -> Vec<String> {
    let mut arguments = vec!["--repeats".to_owned(), options.repeats.to_string()];
    let default_vms = (name == Name::Flood).then(|| "200".to_owned());
    if let Some(vms) = options.vms.clone().or(default_vms) {
        arguments.extend(["--vms".to_owned(), vms]);
    }
    if options.check {
        arguments.push("--check".to_owned());
    }
    arguments.extend(options.own.iter().cloned());
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Options {
        let line = [&["bench"], words].concat();
        let line = <Line as clap::Parser>::try_parse_from(line).expect("a command line");
        line.options
    }

    /// A program that writes these figures and exits with this status.
    fn program(figures: &str, status: u8) -> Command {
        let text = format!(r#"{{"bench":"x","figures":[{figures}]}}"#);
        let line = r#"printf '%s' "$0" > "$3"; exit "$1""#;
        let mut command = Command::new("sh");
        command.args(["-c", line, &text, &status.to_string()]);
        command
    }

    const MISSED: &str = r#"{"name":"a","value":2,"unit":"ms","target":1,"met":false}"#;

    #[test]
    fn every_benchmark_has_a_name_of_the_command_line() {
        for name in Name::value_variants() {
            let label = name.label();
            let chosen = options(&[&label]).name;
            assert!(matches!(chosen, Which::One(one) if one == *name), "{label}");
        }
        assert!(matches!(options(&["all"]).name, Which::All));
    }

    #[test]
    fn check_is_passed_on_to_the_program() {
        let with = common_options(Name::Monitor, &options(&["monitor", "--check"]));
        assert_eq!(with, ["--repeats", "20", "--check"]);
        let without = common_options(Name::Monitor, &options(&["monitor", "--runs", "3"]));
        assert_eq!(without, ["--repeats", "3"]);
    }

    #[test]
    fn flood_has_200_vms_by_default() {
        let arguments = common_options(Name::Flood, &options(&["flood"]));
        assert_eq!(arguments, ["--repeats", "20", "--vms", "200"]);
        let arguments = common_options(Name::Flood, &options(&["flood", "--vms", "50"]));
        assert_eq!(arguments, ["--repeats", "20", "--vms", "50"]);
    }

    #[test]
    fn recorded_arguments_say_what_is_measured() {
        let line = ["oom", "--record", "--check", "--runs", "3", "--", "--x"];
        let recorded = options(&line).recorded();
        assert_eq!(recorded, ["oom", "--repeats", "3", "--", "--x"]);
        let all = options(&["all", "--record", "--json", "/tmp/figures"]);
        assert!(all.record);
        assert_eq!(all.recorded(), ["all", "--repeats", "20"]);
    }

    #[test]
    fn figures_are_read_whatever_the_exit_status() {
        let dir = tempfile::tempdir().expect("a directory");
        let ran = Ran::of("x", &mut program(MISSED, 1), dir.path()).expect("it ran");
        assert!(ran.ended.is_err());
        assert!(ran.report.expect("figures").check().is_err());
    }

    #[test]
    fn program_without_figures_has_failed() {
        let dir = tempfile::tempdir().expect("a directory");
        let run = |line: &str| {
            let mut command = Command::new("sh");
            Ran::of("x", command.args(["-c", line]), dir.path())
        };
        assert!(run("exit 0").is_err());
        let ran = run("exit 3").expect("it ran");
        assert!(ran.report.is_none() && ran.ended.is_err());
    }
}
