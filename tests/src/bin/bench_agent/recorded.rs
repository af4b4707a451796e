//! A journal of the agent, read for what policies did: when they were asked, how long each answer
//! took, and the bytes that record it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use daemon_kit::journal::files;
use protocol::journal::{Answered, Block, Record, Step, encode, pack, scan};
use protocol::policy::{Fault, Role};

use super::world::as_f64;

/// Period of the metrics after which a VM counts as unanswered, thrice, microseconds.
const THREE_PERIODS: u64 = 15_000_000;
/// Time between two checkpoints, seconds. Each repeats the policies of a VM and their answers.
const CHECKPOINTS_S: f64 = 600.0;
/// Bytes of text for each packed byte.
const BASE64: f64 = 4.0 / 3.0;

/// Span of calendar time, microseconds since 1970.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Window {
    pub from: u64,
    pub to: u64,
}

impl Window {
    fn has(&self, at: u64) -> bool {
        (self.from..self.to).contains(&at)
    }

    fn seconds(&self) -> f64 {
        as_f64(usize::try_from(self.to - self.from).unwrap_or(0)) / 1e6
    }
}

/// Records of one run of the agent.
pub(super) struct Recorded {
    records: Vec<Record>,
    /// Calendar time of the clock's zero, microseconds since 1970.
    wall: u64,
}

/// An answer of a policy.
struct PolicyAnswer {
    vm: u32,
    /// Calendar time, microseconds since 1970.
    at: u64,
    /// Time from the question to the answer, microseconds.
    took: u64,
    fault: Option<Fault>,
}

impl Recorded {
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let (mut records, mut wall) = (Vec::new(), 0);
        for file in files::list(folder)? {
            let scan = scan(&files::read(&file.path)?);
            ensure!(scan.is_good(), "{:?}", scan.damages);
            for line in scan.lines {
                let record = line.record.context("a line of the journal")?;
                if let Record::Head(head) = &record {
                    wall = head.wall;
                }
                records.push(record);
            }
        }
        Ok(Self { records, wall })
    }

    /// Number of metrics that were recorded.
    pub(super) fn samples(&self) -> usize {
        let steps = self.records.iter().flat_map(steps);
        steps
            .filter(|(_, step)| matches!(step, Step::System(_)))
            .count()
    }

    fn answered(&self, role: Role) -> impl Iterator<Item = &Answered> {
        self.records.iter().filter_map(move |record| match record {
            Record::Answered(answer) if answer.role == role => Some(&**answer),
            _ => None,
        })
    }

    /// Answers of the version that decides, in the order of their times for each VM.
    fn live(&self) -> Vec<PolicyAnswer> {
        let mut answers: Vec<PolicyAnswer> = self
            .answered(Role::Live)
            .map(|one| PolicyAnswer {
                vm: one.vm,
                at: self.wall + one.t,
                took: one.took,
                fault: one.fault,
            })
            .collect();
        for record in &self.records {
            for (at, step) in steps(record) {
                if let (Step::Advised(again), Some(vm)) = (step, record.vm()) {
                    let (at, took) = (self.wall + at, again.took);
                    answers.push(PolicyAnswer {
                        vm,
                        at,
                        took,
                        fault: None,
                    });
                }
            }
        }
        answers.sort_by_key(|answer| (answer.vm, answer.at));
        answers
    }

    /// An error if more than one answer in a hundred of the version that decides was a fault. On a
    /// machine that is too busy answers are late, and the version is set aside.
    pub(super) fn check_live(&self) -> Result<()> {
        let answers = self.live();
        let faults = answers.iter().filter(|one| one.fault.is_some()).count();
        ensure!(
            faults * 100 <= answers.len() && !answers.is_empty(),
            "{faults} of {} answers of the live version are faults: the machine is too busy",
            answers.len()
        );
        Ok(())
    }

    /// Times of answers of the version that decides, microseconds.
    pub(super) fn live_answers(&self, windows: &[Window]) -> Vec<f64> {
        let is_in = |answer: &PolicyAnswer| windows.iter().any(|window| window.has(answer.at));
        let answers = self.live().into_iter().filter(is_in);
        answers.map(|answer| micros(answer.took)).collect()
    }

    /// Seconds from a time to the first question about each VM to a version in shadow.
    pub(super) fn first_asked(&self, since: u64) -> Vec<f64> {
        let mut asked: BTreeMap<u32, u64> = BTreeMap::new();
        for answer in self.answered(Role::Shadow) {
            let at = (self.wall + answer.asked_at()).saturating_sub(since);
            let first = asked.entry(answer.vm).or_insert(at);
            *first = at.min(*first);
        }
        asked.into_values().map(|at| micros(at) / 1e6).collect()
    }

    /// VMs that got a fault, or no answer for three periods, around a time.
    pub(super) fn unanswered(&self, around: u64) -> usize {
        let window = Window {
            from: around.saturating_sub(THREE_PERIODS),
            to: around + THREE_PERIODS,
        };
        let answers: Vec<PolicyAnswer> = self
            .live()
            .into_iter()
            .filter(|one| window.has(one.at))
            .collect();
        let mut missing: BTreeSet<u32> = answers
            .iter()
            .filter(|one| one.fault.is_some())
            .map(|one| one.vm)
            .collect();
        let gaps = answers
            .windows(2)
            .filter(|pair| pair[0].vm == pair[1].vm && pair[1].at - pair[0].at > THREE_PERIODS);
        missing.extend(gaps.map(|pair| pair[0].vm));
        let answered: BTreeSet<u32> = answers.iter().map(|one| one.vm).collect();
        let all: BTreeSet<u32> = self.records.iter().filter_map(Record::vm).collect();
        missing.extend(all.difference(&answered));
        missing.len()
    }

    /// Time of the first answer of each version that the agent's clock ended, milliseconds.
    pub(super) fn first_late(&self) -> Vec<f64> {
        let mut first: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for answer in self.answered(Role::Shadow) {
            if answer.fault == Some(Fault::Late) {
                let known = first.entry(&answer.dg).or_insert((answer.t, answer.took));
                *known = (answer.t, answer.took).min(*known);
            }
        }
        first
            .into_values()
            .map(|(_, took)| micros(took) / 1e3)
            .collect()
    }

    /// Bytes a second and VM that record the policies: the answers of a window, and what each
    /// checkpoint repeats.
    pub(super) fn bytes_of_policies(&self, window: &Window) -> Result<f64> {
        let (mut bytes, mut vms) = (0.0, BTreeSet::new());
        let (mut repeated, mut first) = (0.0, BTreeSet::new());
        for record in &self.records {
            vms.extend(record.vm());
            let length = as_f64(encode(record).len());
            match record {
                Record::Answered(answer) => {
                    if window.has(self.wall + answer.t) {
                        bytes += length;
                    }
                    if first.insert((answer.vm, Some(answer.role))) {
                        repeated += length;
                    }
                }
                Record::Bound(bound) if first.insert((bound.vm, None)) => repeated += length,
                Record::Sampled(sampled) => bytes += self.share(&sampled.block, window),
                _ => {}
            }
        }
        ensure!(!vms.is_empty(), "the journal has no VM");
        Ok((bytes / window.seconds() + repeated / CHECKPOINTS_S) / as_f64(vms.len()))
    }

    /// Bytes of a block that its answers within the window take.
    fn share(&self, block: &Block, window: &Window) -> f64 {
        let is_answer = |step: &Step| {
            matches!(
                step,
                Step::Advised(_) | Step::Shadowed(_) | Step::Advice(_) | Step::Terms(_)
            )
        };
        let (answers, rest): (Vec<_>, Vec<_>) = block
            .0
            .iter()
            .cloned()
            .partition(|(_, step)| is_answer(step));
        if answers.is_empty() {
            return 0.0;
        }
        let within = answers
            .iter()
            .filter(|(at, _)| window.has(self.wall + at))
            .count();
        let more = pack(block).len().saturating_sub(pack(&Block(rest)).len());
        as_f64(more) * BASE64 * as_f64(within) / as_f64(answers.len())
    }
}

fn steps(record: &Record) -> impl Iterator<Item = &(u64, Step)> {
    let block = match record {
        Record::Sampled(sampled) => sampled.block.0.as_slice(),
        _ => &[],
    };
    block.iter()
}

fn micros(took: u64) -> f64 {
    as_f64(usize::try_from(took).unwrap_or(usize::MAX))
}
