//! `bellows journal` and `bellows replay`: read the decision journal as files. No instance needs to
//! run.

mod fetch;
mod segment;
mod verify;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agent::Replay;
use clap::{Args, Subcommand};
use daemon_kit::journal::files::{self, SegmentFile};
use protocol::journal::Record;
use serde_json::{Value, json};

use super::policy::whatif::WhatIfArgs;
use super::policy::worker::{SOURCES, WorkerOracle};
use crate::actions::{self, FLEET, SETS};
use crate::context::{Context, runtime};
use crate::fail::{Fail, Outcome};
use crate::output::{Cell, Table};
use crate::terminal::out;
pub(crate) use segment::{read, unreadable};

/// Component whose journal is read by default.
const AGENT: &str = "agent";

/// Verify, print, export and measure the decision journal.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum JournalCommand {
    /// Check every line, the chain between the segments, and say what is missing
    Verify(Files),
    /// Print the lines as they are
    Cat(Files),
    /// Print one JSON object per record, samples unpacked, calendar times added
    Export(Files),
    /// Bytes and records by segment and kind
    Stat(Files),
    /// Copy the journals of a cluster's agents to this machine
    Fetch(fetch::FetchArgs),
}

/// Segments of a decision journal to work on.
#[derive(Debug, Clone, Args)]
pub(crate) struct Files {
    /// Segments, or directories of them [default: all in the state directory; for replay the
    /// agent's]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Decide again from a journal's records and compare byte by byte.
///
/// Ends with 0 only if something was compared and all of it is equal. Records before a VM's first
/// checkpoint are counted as warm-up, records after its last checksum as tail; neither is called
/// equal. With --policy the journal runs again with that policy, in a model.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    files: Files,
    /// Do not ask policies again
    #[arg(long)]
    no_policies: bool,
    #[command(flatten)]
    whatif: WhatIfArgs,
}

/// Segments of the agent's journal in the state directory.
pub(crate) fn of_state(context: &Context) -> Outcome<Vec<SegmentFile>> {
    in_folder(&context.state()?.journal().join(AGENT))
}

/// Segments of what policies and controllers did about sets, in the state directory.
pub(crate) fn of_sets(context: &Context) -> Outcome<Vec<SegmentFile>> {
    in_folder(&context.state()?.journal().join(SETS))
}

/// Segments of the actions of people, and of the changes of sets and of the fleet, in the state
/// directory.
pub(crate) fn of_people(context: &Context) -> Outcome<Vec<SegmentFile>> {
    let journal = context.state()?.journal();
    let mut files = in_folder(&journal.join(actions::PART))?;
    for part in [SETS, FLEET] {
        files.extend(in_folder(&journal.join(part))?);
    }
    Ok(files)
}

fn in_folder(folder: &Path) -> Outcome<Vec<SegmentFile>> {
    files::list(folder).map_err(|error| unreadable(folder, &error))
}

/// The named segments, else those of the state directory, `people` included.
fn chosen(context: &Context, chosen: &Files) -> Outcome<Vec<SegmentFile>> {
    let mut files = of_agent(context, chosen)?;
    if chosen.files.is_empty() {
        files.extend(of_people(context)?);
    }
    Ok(files)
}

/// The named segments, else those of the agent in the state directory.
fn of_agent(context: &Context, chosen: &Files) -> Outcome<Vec<SegmentFile>> {
    if chosen.files.is_empty() {
        let found = of_state(context)?;
        if found.is_empty() {
            let folder = context.state()?.journal().join(AGENT);
            return Err(
                Fail::not_so(format!("there is no journal in {}", folder.display()))
                    .fix("start the system: bellows up --detach; or name the files"),
            );
        }
        return Ok(found);
    }
    let mut all = Vec::new();
    for path in &chosen.files {
        if path.is_dir() {
            all.extend(in_folder(path)?);
            continue;
        }
        let metadata = path.metadata().map_err(|error| unreadable(path, &error))?;
        all.push(SegmentFile {
            seq: 0,
            path: path.clone(),
            is_packed: path.extension().is_some_and(|ending| ending == "zst"),
            bytes: metadata.len(),
            modified: metadata
                .modified()
                .map_err(|error| unreadable(path, &error))?,
        });
    }
    Ok(all)
}

pub(crate) fn run(context: &Context, command: &JournalCommand) -> Outcome {
    match command {
        JournalCommand::Verify(files) => verify::run(chosen(context, files)?),
        JournalCommand::Cat(files) => cat(chosen(context, files)?),
        JournalCommand::Export(files) => export(chosen(context, files)?),
        JournalCommand::Stat(files) => stat(context, chosen(context, files)?),
        JournalCommand::Fetch(args) => runtime(false)?.block_on(fetch::run(context, args)),
    }
}

fn cat(found: Vec<SegmentFile>) -> Outcome {
    for file in found {
        let segment = read(file)?;
        let text = String::from_utf8_lossy(&segment.bytes[..segment.scan.good]);
        text.lines().for_each(out);
    }
    Ok(())
}

fn export(found: Vec<SegmentFile>) -> Outcome {
    let mut names: BTreeMap<u32, String> = BTreeMap::new();
    let mut run = None;
    for file in found {
        let segment = read(file)?;
        let Some(head) = &segment.scan.head else {
            continue;
        };
        if run.replace(head.run) != Some(head.run) {
            names.clear();
        }
        for line in &segment.scan.lines {
            let Ok(record) = &line.record else { continue };
            if let Record::Checkpoint(checkpoint) = record {
                names.insert(checkpoint.vm, checkpoint.name.clone());
            }
            let mut value = serde_json::to_value(record)
                .map_err(|error| Fail::bug(format!("a record is no JSON: {error}")))?;
            value["at"] = json!(calendar(head.wall, record.at()));
            if let Some(name) = record.vm().and_then(|vm| names.get(&vm)) {
                value["name"] = json!(name);
            }
            if let Record::Sampled(sampled) = record {
                let steps = &sampled.block.0;
                value["steps"] = steps
                    .iter()
                    .map(|(at, step)| json!([calendar(head.wall, *at), format!("{step:?}")]))
                    .collect::<Vec<Value>>()
                    .into();
            }
            out(&value.to_string());
        }
    }
    Ok(())
}

/// Converts a time of a writer's clock to a calendar time.
pub(crate) fn calendar(wall: u64, at: u64) -> String {
    protocol::time::WallTime(micros(wall, at)).to_micro_string()
}

/// Microseconds since 1970 of a time of a writer that began at `wall`.
pub(crate) fn micros(wall: u64, at: u64) -> i64 {
    i64::try_from(wall.saturating_add(at)).unwrap_or(i64::MAX)
}

fn stat(context: &Context, found: Vec<SegmentFile>) -> Outcome {
    let mut table = Table::new(&[
        "SEGMENT", "ON DISK", "BYTES", "LINES", "VMS", "SPAN", "B/VM/S", "BY KIND",
    ]);
    for file in found {
        let segment = read(file)?;
        let lines = &segment.scan.lines;
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        let mut vms = std::collections::BTreeSet::new();
        let mut times: Option<(u64, u64)> = None;
        for (index, line) in lines.iter().enumerate() {
            let end = lines
                .get(index + 1)
                .map_or(segment.scan.good, |next| next.offset);
            let Ok(record) = &line.record else { continue };
            let text = serde_json::to_value(record).unwrap_or_default();
            let kind = text["k"].as_str().unwrap_or("?").to_owned();
            *kinds.entry(kind).or_default() += end - line.offset;
            vms.extend(record.vm());
            let at = record.at();
            times = Some(times.map_or((at, at), |(from, to)| (from.min(at), to.max(at))));
        }
        let span_s = times.map_or(0.0, |(from, to)| (to - from) as f64 / 1e6);
        let rate = segment.scan.good as f64 / span_s.max(1.0) / vms.len().max(1) as f64;
        let by_kind: Vec<String> = kinds
            .iter()
            .map(|(kind, bytes)| format!("{kind} {bytes}"))
            .collect();
        let head = segment.scan.head.as_ref();
        let name = segment.file.path.file_name().unwrap_or_default();
        let prefix = match head.map(|head| &*head.part) {
            Some(part @ (actions::PART | SETS | FLEET)) => format!("{part}/"),
            _ => String::new(),
        };
        let cells: Vec<Cell> = vec![
            format!("{prefix}{}", name.to_string_lossy()).into(),
            segment.file.bytes.to_string().into(),
            segment.scan.good.to_string().into(),
            lines.len().to_string().into(),
            vms.len().to_string().into(),
            format!("{span_s:.0}s").into(),
            format!("{rate:.1}").into(),
            by_kind.join(", ").into(),
        ];
        table.row(cells);
    }
    table.print(context.paint());
    Ok(())
}

/// What can ask policies again, and why it cannot where it cannot.
fn oracle(files: &[SegmentFile], no_policies: bool) -> (Option<WorkerOracle>, Option<Fail>) {
    if no_policies {
        return (None, None);
    }
    let folder = files
        .first()
        .and_then(|file| file.path.parent()?.parent())
        .map(|journal| journal.join(SOURCES));
    match WorkerOracle::start(folder) {
        Ok(oracle) => (Some(oracle), None),
        Err(fail) => (None, Some(fail)),
    }
}

pub(crate) fn replay(context: &Context, args: &ReplayArgs) -> Outcome {
    let files = of_agent(context, &args.files)?;
    if args.whatif.policy.is_some() {
        return args.whatif.run(files.into_iter().map(|file| file.path));
    }
    let (oracle, missing) = oracle(&files, args.no_policies);
    let mut replay = Replay::new();
    if let Some(oracle) = oracle {
        replay = replay.with_oracle(Box::new(oracle));
    }
    let mut damages = 0;
    for file in files {
        let segment = read(file)?;
        damages += segment.scan.damages.len();
        for line in segment.scan.lines {
            match line.record {
                Ok(record) => replay.take(record),
                Err(_) => damages += 1,
            }
        }
    }
    let report = replay.finish();
    for mismatch in &report.mismatches {
        out(&format!(
            "{} at {}\n  recorded {}\n  computed {}",
            mismatch.vm, mismatch.at, mismatch.recorded, mismatch.computed
        ));
    }
    out(&format!(
        "{} VMs, {} steps decided again; equal: {} decisions, {} checksums over {} outputs; different: {}; warm-up: {}, tail: {}, gaps: {}",
        report.vms,
        report.steps,
        report.decisions,
        report.runs,
        report.covered,
        report.different,
        report.warm_up,
        report.tail,
        report.gaps
    ));
    if report.asked_again + report.not_asked > 0 {
        out(&format!(
            "policies: {} answers asked again are equal, {} were not asked again",
            report.asked_again, report.not_asked
        ));
    }
    if damages > 0 {
        return Err(Fail::not_so(format!("{damages} places are damaged"))
            .fix("see them: bellows journal verify"));
    }
    if report.different > 0 {
        return Err(Fail::not_so(format!(
            "{} records are not what their inputs give",
            report.different
        )));
    }
    if !report.is_equal() {
        return Err(Fail::not_so("nothing could be compared")
            .rule("a VM's decisions are compared from its first checkpoint on"));
    }
    match missing {
        Some(missing) if report.not_asked > 0 => {
            out("the policies were not asked again: bellows replay --no-policies leaves them out");
            Err(missing)
        }
        _ => Ok(()),
    }
}
