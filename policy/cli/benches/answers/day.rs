//! A recorded day with another policy: of one VM, and of many.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use daemon_kit::journal::files;
use protocol::journal::{Record, Step, encode, scan};
use serde_json::Value;

use super::{percentile, sorted};

/// Reports about the day of one VM.
const REPORTS: usize = 5;
const VMS: u64 = 100;
/// Ticks of a second in `/proc`, on every Linux.
const TICKS: f64 = 100.0;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn recorded() -> PathBuf {
    root().join("tests/data/day.bj.zst")
}

fn report(journal: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellows-policy"));
    command.args(["replay", "-o", "json", "--policy"]);
    command.arg(root().join("policy/library/database.lua"));
    let output = command.arg(journal).output().expect("it runs");
    serde_json::from_slice(&output.stdout).expect("a report")
}

/// Time of a whole report about the day of one VM for each question in it, microseconds.
pub(super) fn of_one() -> f64 {
    let mut asked = 0.0;
    let times = sorted(REPORTS, |_| {
        let count = report(&recorded())["total"]["questions"]["asked"].as_f64();
        asked = count.expect("a number of questions");
    });
    percentile(&times, 0.5) / asked
}

/// Seconds of a report about the same day of many VMs, on all processors, and samples in it for
/// each second of one core.
pub(super) fn of_many() -> (f64, f64) {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = files::read(&recorded()).expect("the day");
    let lines = scan(&bytes).lines.into_iter();
    let mut records: Vec<Record> = lines.map(|line| line.record.expect("a record")).collect();
    let samples: usize = records.iter().map(samples).sum();
    for number in 0..VMS {
        let lines: String = records
            .iter_mut()
            .map(|record| renamed(record, number))
            .collect();
        let segment = folder.path().join(format!("{number:010}.bj"));
        std::fs::write(segment, lines).expect("a segment");
    }
    let (used, begun) = (cpu_of_ended(), Instant::now());
    let report = report(folder.path());
    let (took, used) = (begun.elapsed().as_secs_f64(), cpu_of_ended() - used);
    let vms = report["vms"].as_object().map_or(0, |vms| vms.len());
    assert_eq!(vms, usize::try_from(VMS).expect("few"), "VMs of the report");
    (took, samples as f64 * VMS as f64 / used)
}

/// The record as of a VM of another run of the writer.
fn renamed(record: &mut Record, number: u64) -> String {
    match record {
        Record::Head(head) => (head.run, head.prev) = (number + 1, None),
        Record::Checkpoint(checkpoint) => checkpoint.name = format!("default/vm-{number}"),
        _ => {}
    }
    encode(record)
}

fn samples(record: &Record) -> usize {
    let Record::Sampled(sampled) = record else {
        return 0;
    };
    let steps = sampled.block.0.iter();
    steps
        .filter(|(_, step)| matches!(step, Step::System(_)))
        .count()
}

/// Seconds on a processor of the children of this process that have ended, and of theirs.
fn cpu_of_ended() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("its state");
    let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
    // Fields 16 and 17; the third is the first here.
    let times = fields.split_whitespace().skip(13).take(2);
    times
        .map(|ticks| ticks.parse::<f64>().expect("ticks"))
        .sum::<f64>()
        / TICKS
}
