//! `bellows-policy replay` and `judge`: what would a recorded time have been with a policy?

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use daemon_kit::journal::files::{self, SegmentFile};
use policy_cli::adviser::{Refused, WorkerAdviser};
use policy_contract::tally::Tally;
use policy_contract::{Series, Spec};
use policy_whatif::{Candidate, Columns, History, Reader, Report, Title, Tried, Window, page};
use protocol::journal::{Record, scan};
use protocol::policy::Limits;
use protocol::time::WallTime;
use serde_json::{Value, json};

use crate::terminal::{Format, ScopeArg, complain, exit, parameter, say, series, this_program};
use crate::unanswered::{no_answer, not_recorded};

/// An hour in microseconds.
const HOUR: i64 = 3_600_000_000;
/// Time before the one that counts which policies know as their past, microseconds.
const WARM_UP: i64 = HOUR;
/// Priority of the judge, the lowest.
const NICE: i32 = 19;
/// Time without a line of progress.
const SILENCE: Duration = Duration::from_secs(2);
/// Between two lines of progress, for a person and in a log.
const SHOWN_EVERY: Duration = Duration::from_secs(1);
const LOGGED_EVERY: Duration = Duration::from_secs(10);
/// Between two looks at the progress.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct ReplayArgs {
    /// Source of the policy, or a version as the journal keeps it, JSON
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// Name of the policy in the report [default: its file]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Number that the policy reads as i.params.NAME
    #[arg(long = "params", value_name = "NAME=NUMBER", value_parser = parameter)]
    params: Vec<(String, f64)>,
    /// Series that the policy reads beyond load1, load5, used and cached
    #[arg(long, value_name = "NAME", value_parser = series)]
    series: Vec<Series>,
    /// What the policy decides about; no journal has the questions about sets
    #[arg(long, value_enum, default_value_t = ScopeArg::Vm)]
    scope: ScopeArg,
    /// Begin of the time that counts, RFC 3339; what lies before warms the past up
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<WallTime>,
    /// End of the time that counts
    #[arg(long, value_name = "TIME", value_parser = time)]
    to: Option<WallTime>,
    /// One VM alone, as NAMESPACE/NAME; may be given again
    #[arg(long = "vm", value_name = "VM")]
    vms: Vec<String>,
    /// Write the report as a page too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Format of the report
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
    /// Segments of a journal, or directories of them
    #[arg(value_name = "JOURNAL", required = true)]
    files: Vec<PathBuf>,
}

#[derive(Args)]
pub(crate) struct JudgeArgs {
    #[command(flatten)]
    replay: ReplayArgs,
    /// VM that the policy decided about; may be given again
    #[arg(long = "canary", value_name = "VM")]
    canaries: Vec<String>,
}

impl JudgeArgs {
    /// Prints the figures by which the gate decides.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        // An agent runs it beside guests, which come first.
        if let Err(error) = rustix::process::nice(NICE) {
            complain(&format!("warning: the priority stays: {error}"));
        }
        let (spec, histories) = match self.replay.read(Segments::Recent)? {
            Ok(read) => read,
            Err(code) => return Ok(code),
        };
        let tried = self.replay.tried(spec, &histories)?.1;
        say(&format!("{}\n", self.evidence(&Report::of(&tried))))?;
        Ok(ExitCode::SUCCESS)
    }

    fn evidence(&self, report: &Report) -> Value {
        let (mut canary, mut others) = (Tally::default(), Tally::default());
        let mut canary_vms: BTreeMap<&str, Tally> = BTreeMap::new();
        for (name, vm) in &report.vms {
            let own = tally(&vm.recorded);
            if self.canaries.contains(name) {
                canary.add(&own);
                canary_vms.insert(name, own);
            } else {
                others.add(&own);
            }
        }
        let hours = match (self.replay.from, self.replay.to) {
            (Some(from), Some(to)) => to.0.saturating_sub(from.0).max(0) / HOUR,
            _ => 0,
        };
        let total = &report.total;
        json!({
            "hours": hours,
            "decisions": total.questions.asked,
            "vms": report.vms.keys().collect::<Vec<_>>(),
            "faults": total.questions.faults,
            "candidate": tally(&total.candidate),
            "live": tally(&total.modelled),
            "errorPercent": report.error.percent(),
            "gaps": report.gaps,
            "canary": canary,
            "others": others,
            "canaryVms": canary_vms,
        })
    }
}

fn tally(columns: &Columns) -> Tally {
    Tally {
        vm_hours: columns.minutes / 60.0,
        oom_risk_minutes: columns.oom_risk_minutes,
        cpu_short_minutes: columns.cpu_short_minutes,
        unit_hours: columns.unit_hours,
        reversals: columns.reversals,
        refused_shrinks: columns.refused_shrinks,
    }
}

fn time(text: &str) -> Result<WallTime, String> {
    WallTime::parse(text).map_err(|error| error.to_string())
}

impl ReplayArgs {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let (spec, histories) = match self.read(Segments::All)? {
            Ok(read) => read,
            Err(code) => return Ok(code),
        };
        let (spec, tried) = self.tried(spec, &histories)?;
        let report = Report::of(&tried);
        self.print(&report, &spec)?;
        if let Some(file) = &self.html {
            self.write_page(file, &report, &tried, &spec)?;
        }
        let unanswered = no_answer(&report.total.questions);
        if let Some(text) = &unanswered {
            complain(text);
        }
        let is_judged = report.error.is_judged() && unanswered.is_none();
        Ok(ExitCode::from(if is_judged { 0 } else { exit::FINDING }))
    }

    /// Reads policy and journal. The exit code, if there is nothing to run.
    fn read(&self, segments: Segments) -> Result<Result<(Spec, Vec<History>), ExitCode>> {
        let spec = self.spec()?;
        if let Some(text) = not_recorded(&spec, &self.policy.display().to_string()) {
            complain(&text);
            return Ok(Err(ExitCode::from(exit::UNAVAILABLE)));
        }
        match WorkerAdviser::start(&this_program()?, &spec) {
            Ok(adviser) => drop(adviser),
            Err(error) => return self.refused(error).map(Err),
        }
        let histories = self.histories(segments)?;
        if histories.is_empty() {
            complain("error: the journal has no VM of that name to run again");
            return Ok(Err(ExitCode::from(exit::FINDING)));
        }
        Ok(Ok((spec, histories)))
    }

    /// Runs the model.
    fn tried(&self, spec: Spec, histories: &[History]) -> Result<(Spec, Vec<Tried>)> {
        let candidate = Candidate {
            spec,
            limits: Limits::default(),
        };
        let window = Window {
            from: self.from.map_or(i64::MIN, |at| at.0),
            to: self.to.map_or(i64::MAX, |at| at.0),
        };
        let tried = all_tried(histories, &candidate, window, &this_program()?)?;
        Ok((candidate.spec, tried))
    }

    fn spec(&self) -> Result<Spec> {
        let source = std::fs::read_to_string(&self.policy)
            .with_context(|| format!("failed to read {}", self.policy.display()))?;
        if self
            .policy
            .extension()
            .is_some_and(|ending| ending == "json")
        {
            let spec = serde_json::from_str(&source);
            return spec.with_context(|| format!("malformed {}", self.policy.display()));
        }
        let mut spec = Spec::of_source(source);
        spec.scope = self.scope.into();
        spec.params = self.params.iter().cloned().collect();
        spec.series.clone_from(&self.series);
        Ok(spec)
    }

    fn refused(&self, error: anyhow::Error) -> Result<ExitCode> {
        let Refused { line, rule } = error.downcast()?;
        complain(&format!("{}:{line}: {rule}", self.policy.display()));
        Ok(ExitCode::from(exit::FINDING))
    }

    fn histories(&self, chosen: Segments) -> Result<Vec<History>> {
        let mut reader = Reader::default();
        let mut damaged = 0;
        let since = match (chosen, self.from) {
            (Segments::Recent, Some(from)) => from.0.saturating_sub(WARM_UP),
            _ => i64::MIN,
        };
        for path in segments(&self.files, since)? {
            let bytes =
                files::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
            let scan = scan(&bytes);
            damaged += scan.damages.len();
            for line in scan.lines {
                match line.record {
                    // Acts of people are no input of a core.
                    Ok(Record::Action(_)) => {}
                    Ok(record) => reader.take(record),
                    Err(_) => damaged += 1,
                }
            }
        }
        if damaged > 0 {
            complain(&format!(
                "warning: {damaged} places are damaged: bellows journal verify"
            ));
        }
        let is_wanted = |history: &History| self.vms.is_empty() || self.vms.contains(&history.name);
        let mut histories = reader.finish();
        histories.retain(is_wanted);
        Ok(histories)
    }

    fn name(&self) -> String {
        let file = || self.policy.display().to_string();
        self.name.clone().unwrap_or_else(file)
    }

    fn print(&self, report: &Report, spec: &Spec) -> Result<()> {
        if self.output == Format::Text {
            return say(&report.text());
        }
        let mut value = serde_json::to_value(report)?;
        value["policy"] = self.name().into();
        value["digest"] = spec.digest().to_string().into();
        say(&format!("{value}\n"))
    }

    fn write_page(&self, file: &Path, report: &Report, vms: &[Tried], spec: &Spec) -> Result<()> {
        let title = Title {
            policy: &self.name(),
            digest: &spec.digest().short(),
        };
        std::fs::write(file, page(title, report, vms))
            .with_context(|| format!("failed to write {}", file.display()))
    }
}

/// Segments of a directory that are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Segments {
    All,
    /// Those that were written to since an hour before the time that counts.
    Recent,
}

/// The segments of all files, and those of directories that were written to since a time,
/// microseconds since 1970.
fn segments(chosen: &[PathBuf], since: i64) -> Result<Vec<PathBuf>> {
    let is_recent = |file: &SegmentFile| {
        let age = file.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(age.as_micros()).unwrap_or(i64::MAX) >= since
    };
    let mut paths = Vec::new();
    for path in chosen {
        if path.is_dir() {
            let listed =
                files::list(path).with_context(|| format!("failed to read {}", path.display()))?;
            let recent = listed.into_iter().filter(is_recent);
            paths.extend(recent.map(|file| file.path));
        } else {
            paths.push(path.clone());
        }
    }
    Ok(paths)
}

/// Runs the model for each VM, on all processors.
fn all_tried(
    histories: &[History],
    candidate: &Candidate,
    window: Window,
    program: &Path,
) -> Result<Vec<Tried>> {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let work = |sender: mpsc::Sender<Tried>| -> Result<()> {
        let mut adviser = WorkerAdviser::start(program, &candidate.spec)?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(history) = histories.get(number) else {
                return Ok(());
            };
            let vm = u32::try_from(number).unwrap_or(u32::MAX);
            let tried = Tried::new(history, vm, candidate, &mut adviser, window);
            sender.send(tried).context("nobody takes the report")?;
        }
    };
    let work = &work;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let count = threads.min(histories.len());
    let mut tried = std::thread::scope(|scope| -> Result<Vec<Tried>> {
        let start = |_| {
            let sender = sender.clone();
            scope.spawn(move || work(sender))
        };
        let running: Vec<_> = (0..count).map(start).collect();
        // The receiver ends with the last thread.
        drop(sender);
        let done = gathered(&receiver, histories.len());
        for thread in running {
            let ended = thread.join();
            ended.map_err(|_| anyhow!("the model has failed"))??;
        }
        Ok(done)
    })?;
    tried.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(tried)
}

/// Takes results until no thread is left, and shows how many there are.
fn gathered(receiver: &mpsc::Receiver<Tried>, all: usize) -> Vec<Tried> {
    let (mut done, mut progress) = (Vec::new(), Progress::new(all));
    loop {
        match receiver.recv_timeout(LOOK) {
            Ok(tried) => done.push(tried),
            Err(RecvTimeoutError::Timeout) => progress.show(done.len()),
            Err(RecvTimeoutError::Disconnected) => {
                progress.clear();
                return done;
            }
        }
    }
}

/// A line on standard error after two seconds.
struct Progress {
    all: usize,
    shown_at: Instant,
    wait: Duration,
    is_terminal: bool,
    is_shown: bool,
}

impl Progress {
    fn new(all: usize) -> Self {
        Self {
            all,
            shown_at: Instant::now(),
            wait: SILENCE,
            is_terminal: io::stderr().is_terminal(),
            is_shown: false,
        }
    }

    fn show(&mut self, done: usize) {
        if self.shown_at.elapsed() < self.wait {
            return;
        }
        self.shown_at = Instant::now();
        let text = format!("{done} of {} VMs run again", self.all);
        if self.is_terminal {
            self.wait = SHOWN_EVERY;
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
        } else {
            self.wait = LOGGED_EVERY;
            complain(&text);
        }
        self.is_shown = true;
    }

    fn clear(&self) {
        if self.is_shown && self.is_terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
