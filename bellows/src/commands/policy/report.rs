//! `bellows policy report`: the recorded answers of a policy beside the built-in goal.

mod coverage;
mod of_sets;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use agent::{Oracle, Reasked, Replay, Seen};
use clap::Args;
use daemon_kit::exit::Exit;
use policy_contract::{Input, Spec};
use protocol::journal::Record;
use protocol::policy::Role;
use protocol::time::WallTime;
use serde::Serialize;
use serde_json::Value;

use self::coverage::Coverage;
pub(super) use self::of_sets::of_sets;
use super::canary::Canary;
use super::whatif;
use crate::api::Kind;
use crate::commands::journal::{calendar, micros, of_state, read};
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, Table, print_value};
use crate::terminal::out;
use crate::view::units::counted;

/// Differences that a report lists.
const MAX_DIFFERENCES: usize = 10;

/// How the recorded answers of a policy differ from the built-in goal.
///
/// Reads the journal of the state directory; nothing has to run. An answer to hold counts as the
/// size in use.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReportArgs {
    /// Name of the policy
    #[arg(value_name = "NAME")]
    name: String,
    /// Length of the time that the report covers, as 90m, 24h or 7d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    since: u64,
    /// Write a page: what the time would have been with the policy's newest recorded version
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

impl ReportArgs {
    /// Begin of the time that the report covers, microseconds since 1970.
    fn from(&self) -> i64 {
        let now = daemon_kit::clock::Clock::new().wall();
        let span = i64::try_from(self.since.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
        now.0.saturating_sub(span)
    }
}

/// Seconds of `90m`, `24h`, `7d` or `30s`.
fn duration(text: &str) -> Result<u64, String> {
    let rule = "it must be a number and s, m, h or d, as 24h";
    let (number, unit) = text.split_at(text.len().saturating_sub(1));
    let factor = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(rule.into()),
    };
    let number: u64 = number.parse().map_err(|_| rule)?;
    number.checked_mul(factor).ok_or_else(|| rule.to_owned())
}

/// Counts of answers about one VM, or about all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Counts {
    /// Answers that were compared with the built-in goal.
    compared: u64,
    equal: u64,
    /// Answers that differ by one unit at most, equal ones included.
    within_one: u64,
    higher: u64,
    lower: u64,
    faults: u64,
    /// Longest time from a question to its answer, microseconds.
    slowest_us: u64,
}

impl Counts {
    fn add(&mut self, answer: &Entry) {
        self.slowest_us = self.slowest_us.max(answer.took_us);
        let Some(difference) = answer.difference() else {
            self.faults += 1;
            return;
        };
        self.compared += 1;
        self.equal += u64::from(difference == 0);
        self.within_one += u64::from(difference.abs() <= 1);
        self.higher += u64::from(difference > 0);
        self.lower += u64::from(difference < 0);
    }

    fn agreement_percent(&self) -> Option<f64> {
        (self.compared > 0).then(|| 100.0 * self.equal as f64 / self.compared as f64)
    }
}

/// A recorded answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    vm: String,
    at: String,
    digest: String,
    role: Role,
    /// Size that the answer asks for, compute units; absent for a fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<u32>,
    builtin: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    took_us: u64,
    /// Answers that differ in this way, this one included. It is the first of them.
    answers: u64,
}

impl Entry {
    /// Whether another answer about the same VM differs in the same way.
    fn is_like(&self, other: &Self) -> bool {
        let what = |entry: &Self| (entry.role, entry.units, entry.builtin);
        what(self) == what(other)
            && self.vm == other.vm
            && self.digest == other.digest
            && self.reason == other.reason
    }

    fn difference(&self) -> Option<i64> {
        Some(i64::from(self.units?) - i64::from(self.builtin))
    }
}

/// A version of the policy in one role.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct VersionReport {
    digest: String,
    role: Role,
    #[serde(flatten)]
    counts: Counts,
    agreement_percent: Option<f64>,
}

/// Shape of `-o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    policy: String,
    /// Times of the first and the last answer, RFC 3339. Absent without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    /// Time of the newest record of the journal, of any policy and VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    journal_to: Option<String>,
    total: Counts,
    agreement_percent: Option<f64>,
    /// The versions that were asked. `total` is the sum of their answers.
    versions: Vec<VersionReport>,
    vms: BTreeMap<String, Counts>,
    largest: Vec<Entry>,
    /// Orders that rest on an answer. A shadow has no way to give one. Absent where a version
    /// decided: its orders are not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    actuator_calls: Option<u64>,
    /// The canary as the gate sees it. Absent without one, and while no API server answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    canary: Option<Canary>,
}

#[derive(Debug, Default)]
struct Gathered {
    policy: String,
    since: i64,
    wall: u64,
    coverage: Coverage,
    total: Counts,
    versions: BTreeMap<(Role, String), Counts>,
    vms: BTreeMap<String, Counts>,
    largest: Vec<Entry>,
}

impl Gathered {
    /// Keeps an answer that differs, if it is among the largest differences.
    fn lists(&mut self, entry: Entry) {
        let size = |entry: &Entry| entry.difference().map_or(0, i64::unsigned_abs);
        if size(&entry) == 0 {
            return;
        }
        let mut known = self.largest.iter_mut();
        if let Some(known) = known.find(|known| known.is_like(&entry)) {
            known.answers += 1;
            return;
        }
        self.largest.push(entry);
        self.largest
            .sort_by_key(|entry| std::cmp::Reverse(size(entry)));
        self.largest.truncate(MAX_DIFFERENCES);
    }
}

/// Gathers the answers of one policy while a journal is decided again.
#[derive(Debug, Clone)]
struct Gatherer(Rc<RefCell<Gathered>>);

impl Oracle for Gatherer {
    fn saw(&mut self, seen: &Seen<'_>) {
        let mut gathered = self.0.borrow_mut();
        let wall = micros(gathered.wall, seen.asked_at.0);
        if seen.policy != gathered.policy || wall < gathered.since {
            return;
        }
        let entry = entry(seen, calendar(gathered.wall, seen.asked_at.0));
        gathered.coverage.answer(wall);
        gathered.total.add(&entry);
        let version = (entry.role, entry.digest.clone());
        gathered.versions.entry(version).or_default().add(&entry);
        let counts = gathered.vms.entry(entry.vm.clone()).or_default();
        counts.add(&entry);
        gathered.lists(entry);
    }

    fn spec(&mut self, _: &str) -> Option<Arc<Spec>> {
        None
    }

    fn forget(&mut self, _: u32) {}

    fn sample(&mut self, _: u32, _: f64, _: BTreeMap<String, f64>) {}

    fn ask(&mut self, _: &str, _: u32, _: f64, _: &Input) -> Option<Reasked> {
        None
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates"
)]
fn entry(seen: &Seen<'_>, at: String) -> Entry {
    let answer = seen.answer;
    let held = answer.hold.then(|| seen.using.ceil() as u32);
    Entry {
        vm: seen.vm.to_owned(),
        at,
        digest: answer.dg.clone(),
        role: answer.role,
        units: answer.cu.or(held).filter(|_| answer.fault.is_none()),
        builtin: seen.builtin,
        reason: answer.r.clone(),
        fault: answer.fault.map(|fault| fault.word().to_owned()),
        took_us: answer.took,
        answers: 1,
    }
}

fn version(((role, digest), counts): ((Role, String), Counts)) -> VersionReport {
    VersionReport {
        digest,
        role,
        agreement_percent: counts.agreement_percent(),
        counts,
    }
}

/// The policy's object. `None` without an API server: the report is of the journal, which needs
/// none.
async fn object(context: &Context, name: &str) -> Option<Outcome<Value>> {
    let api = context.api().await.ok()?;
    Some(api.get(Kind::Policy, "", name).await)
}

pub(super) async fn run(context: &Context, args: &ReportArgs) -> Outcome {
    let since = args.from();
    let gathered = gather(context, &args.name, WallTime(since))?;
    let has_live = gathered
        .versions
        .keys()
        .any(|(role, _)| *role == Role::Live);
    let [from, to, journal_to] = gathered.coverage.texts();
    let object = object(context, &args.name).await;
    let report = Report {
        policy: gathered.policy,
        from,
        to,
        journal_to,
        agreement_percent: gathered.total.agreement_percent(),
        total: gathered.total,
        versions: gathered.versions.into_iter().map(version).collect(),
        vms: gathered.vms,
        largest: gathered.largest,
        actuator_calls: (!has_live).then_some(0),
        canary: object
            .as_ref()
            .and_then(|object| Canary::of(object.as_ref().ok()?)),
    };
    if matches!(args.output, Format::Json | Format::Yaml) {
        print_value(args.output, &report)?;
        return page(context, args, WallTime(since));
    }
    if report.total == Counts::default() {
        if let Some(Err(absent)) = object
            && absent.exit() == Exit::NotSo
        {
            return Err(absent);
        }
        let reaches = report.journal_to;
        let reaches = reaches.map_or_else(String::new, |to| format!("; it reaches {to}"));
        return Err(Fail::not_so(format!(
            "the journal has no answer of policy {} in that time{reaches}",
            args.name
        ))
        .rule("VMs that chose it are asked while bellows up runs")
        .fix(format!(
            "wait, an answer comes up to 30 s later; see it at once: bellows policy show {}",
            args.name
        )));
    }
    print(context, &report);
    page(context, args, WallTime(since))
}

/// Writes the page, where one is wanted.
fn page(context: &Context, args: &ReportArgs, since: WallTime) -> Outcome {
    match &args.html {
        Some(file) => whatif::page(context, &args.name, since, file),
        None => Ok(()),
    }
}

fn gather(context: &Context, policy: &str, since: WallTime) -> Outcome<Gathered> {
    let gatherer = Gatherer(Rc::new(RefCell::new(Gathered {
        policy: policy.to_owned(),
        since: since.0,
        ..Gathered::default()
    })));
    let mut replay: Option<(u64, Replay)> = None;
    // One replay for each run of the writer, so that its calendar is known.
    for file in of_state(context)? {
        let segment = read(file)?;
        let Some(head) = &segment.scan.head else {
            continue;
        };
        if replay.as_ref().is_none_or(|(run, _)| *run != head.run) {
            if let Some((_, ended)) = replay.take() {
                drop(ended.finish());
            }
            gatherer.0.borrow_mut().wall = head.wall;
            let next = Replay::new().with_oracle(Box::new(gatherer.clone()));
            replay = Some((head.run, next));
        }
        let wall = head.wall;
        let records = segment.scan.lines.into_iter();
        let records: Vec<Record> = records.filter_map(|line| line.record.ok()).collect();
        let newest = records.iter().map(Record::at).max();
        if let Some(newest) = newest {
            gatherer
                .0
                .borrow_mut()
                .coverage
                .record(micros(wall, newest));
        }
        if let Some((_, replay)) = &mut replay {
            records.into_iter().for_each(|record| replay.take(record));
        }
    }
    if let Some((_, ended)) = replay {
        drop(ended.finish());
    }
    let gathered = Rc::try_unwrap(gatherer.0);
    let gathered = gathered.map_err(|_| Fail::bug("a replay still runs"))?;
    Ok(gathered.into_inner())
}

fn print(context: &Context, report: &Report) {
    let total = &report.total;
    let calls = report.actuator_calls;
    let calls = calls.map_or_else(String::new, |calls| format!(", actuator calls {calls}"));
    out(&format!(
        "Policy {}: {} answers compared with the built-in goal, {} faults{calls}.",
        report.policy, total.compared, total.faults
    ));
    if let (Some(from), Some(to)) = (&report.from, &report.to) {
        let journal = report.journal_to.as_ref().unwrap_or(to);
        out(&format!(
            "Answers from {from} to {to}; the journal reaches {journal}."
        ));
    }
    if let Some(percent) = report.agreement_percent {
        out(&format!("Agreement {percent:.1} %."));
    }
    for version in &report.versions {
        let place = match version.role {
            Role::Live => "decides",
            Role::Shadow => "in shadow",
        };
        let percent = version.agreement_percent.unwrap_or_default();
        out(&format!(
            "Version {} {place}: {} answers, agreement {percent:.1} %, {} faults.",
            version.digest, version.counts.compared, version.counts.faults
        ));
    }
    let mut table = Table::new(&[
        "VM",
        "COMPARED",
        "EQUAL",
        "WITHIN ONE",
        "HIGHER",
        "LOWER",
        "FAULTS",
        "SLOWEST",
    ]);
    let all = std::iter::once(("all".to_owned(), total));
    let each = report.vms.iter().map(|(vm, counts)| (vm.clone(), counts));
    for (vm, counts) in each.chain(all) {
        let numbers = [
            counts.compared,
            counts.equal,
            counts.within_one,
            counts.higher,
            counts.lower,
            counts.faults,
        ];
        let mut cells = vec![vm.into()];
        cells.extend(numbers.iter().map(|number| number.to_string().into()));
        cells.push(format!("{:.1} ms", counts.slowest_us as f64 / 1000.0).into());
        table.row(cells);
    }
    table.print(context.paint());
    if let Some(canary) = &report.canary {
        canary.print(context.paint());
    }
    if !report.largest.is_empty() {
        out("Largest differences:");
    }
    for entry in &report.largest {
        out(&format!(
            "  {} instead of {} because of {}, {}: bellows why {} --at {}",
            counted(entry.units.unwrap_or_default()),
            entry.builtin,
            entry.reason.as_deref().unwrap_or("?"),
            match entry.answers {
                1 => "once".to_owned(),
                answers => format!("{answers} answers, the first"),
            },
            entry.vm,
            entry.at
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(units: Option<u32>, builtin: u32, took_us: u64) -> Entry {
        Entry {
            vm: "default/pg".into(),
            at: String::new(),
            digest: "77ab90c4".into(),
            role: Role::Shadow,
            units,
            builtin,
            reason: None,
            fault: None,
            took_us,
            answers: 1,
        }
    }

    #[test]
    fn answers_are_counted_by_their_difference() {
        let mut counts = Counts::default();
        for one in [
            entry(Some(4), 4, 100),
            entry(Some(5), 4, 700),
            entry(Some(1), 4, 200),
            entry(None, 4, 50_000),
        ] {
            counts.add(&one);
        }
        let expected = Counts {
            compared: 3,
            equal: 1,
            within_one: 2,
            higher: 1,
            lower: 1,
            faults: 1,
            slowest_us: 50_000,
        };
        assert_eq!(counts, expected);
        let percent = counts.agreement_percent().map(|percent| percent.round());
        assert_eq!(percent, Some(33.0));
    }

    #[test]
    fn answers_that_differ_alike_are_listed_once() {
        let mut gathered = Gathered::default();
        for units in [5, 5, 4, 9, 5] {
            gathered.lists(entry(Some(units), 4, 100));
        }
        let listed = gathered.largest.iter();
        let listed: Vec<_> = listed.map(|entry| (entry.units, entry.answers)).collect();
        assert_eq!(listed, [(Some(9), 1), (Some(5), 3)]);
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("24h"), Ok(86_400));
        assert_eq!(duration("90m"), Ok(5_400));
        assert_eq!(duration("7d"), Ok(604_800));
        for odd in ["", "24", "h", "1w", "-1h", "99999999999999999999d"] {
            assert!(duration(odd).is_err(), "{odd}");
        }
    }
}
