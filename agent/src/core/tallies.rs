//! What this node saw of each version of a policy, by hours of the calendar, and which hour is
//! judged next. The gate decides by it.
//!
//! # Invariants
//! * An hour is judged once, after it has ended, and only if the version was followed throughout:
//!   `v07_whole_hours_are_judged_once_each`.
//! * No answer is counted in two hours, and none is lost while an hour is kept:
//!   `v07_each_answer_is_counted_in_its_hour`.
//! * What happened before the last ten minutes raises no alarm:
//!   `v07_alarms_end_after_ten_minutes`.

mod recent;

use std::collections::{BTreeMap, VecDeque};

use policy_contract::Digest;
use policy_contract::tally::{Counts, Evidence, HourReport, NodeAlarms, VersionReport};
use protocol::policy::Fault;
use protocol::time::{Span, Timestamp, WallTime};

use self::recent::{Fewest, Recent};

const HOUR: i64 = 3_600_000_000;
/// Time from the end of an hour until it is judged: its records are on disk by then.
const SETTLE: i64 = 60_000_000;
/// Hours that ended and are still reported. The controller reads them once a minute.
const HOURS_KEPT: usize = 4;
/// Time that an OOM kill is an alarm.
const KILL_LASTS: Span = Span::from_secs(600);
const NO_JOURNAL: &str = "the agent keeps no journal";
/// Faults of a version that is not asked any more.
const SET_ASIDE: u32 = 3;

/// A version of a policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Name of the policy.
    pub policy: String,
    /// Digest of the version.
    pub digest: Digest,
}

/// A time on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Monotonic time, by which intervals are counted.
    pub now: Timestamp,
    /// Calendar time, by which hours begin and end.
    pub wall: WallTime,
}

/// End of a question.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    /// Number of the VM on this node.
    pub number: u32,
    /// `namespace/name` of the VM.
    pub vm: &'a str,
    /// Whether the version decides about the VM.
    pub decides: bool,
    /// The fault in the place of an answer.
    pub fault: Option<Fault>,
    /// Faults about this VM since the last answer.
    pub faults_in_a_row: u32,
    /// Whether the answer is smaller than the size in use.
    pub is_shrink: bool,
}

/// An hour of a candidate for the judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The candidate whose hour is judged.
    pub version: Version,
    /// Begin of the hour.
    pub from: WallTime,
    /// End of the hour.
    pub to: WallTime,
    /// VMs that it was asked about.
    pub vms: Vec<String>,
    /// Those among them that it decided about.
    pub decided: Vec<String>,
}

/// See the module.
#[derive(Debug)]
pub struct Tallies {
    has_journal: bool,
    versions: BTreeMap<Version, VersionTally>,
}

#[derive(Debug, Default)]
struct VersionTally {
    is_candidate: bool,
    /// Number of the running hour since 1970.
    hour: i64,
    is_whole: bool,
    running: Counts,
    ended: VecDeque<HourReport>,
    /// When each hour was judged, by its begin.
    judged_at: BTreeMap<WallTime, Timestamp>,
    recent: Recent,
    kills: BTreeMap<u32, Timestamp>,
    /// Faults in a row, by VM.
    rows: BTreeMap<u32, u32>,
    /// Whether each VM that it decides about was wanted smaller.
    shrinks: BTreeMap<u32, bool>,
    fewest: Fewest,
}

impl Tallies {
    /// No versions. Without a journal no hour is judged.
    #[must_use]
    pub fn new(has_journal: bool) -> Self {
        Self {
            has_journal,
            versions: BTreeMap::new(),
        }
    }

    /// Follows these versions, each with whether it is a candidate, and forgets all others.
    pub fn follow(&mut self, at: Moment, used: &BTreeMap<Version, bool>) {
        self.versions
            .retain(|version, _| used.contains_key(version));
        for (version, is_candidate) in used {
            let tally = self.versions.entry(version.clone()).or_insert_with(|| {
                let hour = hour_of(at.wall);
                VersionTally {
                    hour,
                    ..VersionTally::default()
                }
            });
            tally.is_candidate = *is_candidate;
        }
    }

    /// Counts the end of a question.
    pub fn ended(&mut self, at: Moment, version: &Version, end: &Ended<'_>) {
        self.roll(at.wall);
        let Some(tally) = self.versions.get_mut(version) else {
            return;
        };
        tally.recent.call(at.now, end.fault);
        tally.rows.insert(end.number, end.faults_in_a_row);
        let counts = &mut tally.running;
        match end.fault {
            None => counts.answers += 1,
            Some(fault) => *counts.faults.entry(fault).or_default() += 1,
        }
        counts.vms.insert(end.vm.to_owned());
        if end.decides {
            counts.decided.insert(end.vm.to_owned());
            tally.shrinks.insert(end.number, end.is_shrink);
        } else {
            tally.shrinks.remove(&end.number);
        }
        tally.follow_shrinks(at.now);
    }

    /// Counts an OOM kill in a VM that the version decides about.
    pub fn oom_kill(&mut self, at: Moment, version: &Version, number: u32, has_headroom: bool) {
        self.roll(at.wall);
        if let Some(tally) = self.versions.get_mut(version) {
            tally.running.oom_kills += 1;
            if has_headroom {
                tally.kills.insert(number, at.now);
            }
        }
    }

    /// Counts a shrink that the monitor refused in a VM that the version decides about.
    pub fn refused_shrink(&mut self, at: Moment, version: &Version) {
        self.roll(at.wall);
        if let Some(tally) = self.versions.get_mut(version) {
            tally.running.refused_shrinks += 1;
        }
    }

    /// Forgets the state of a VM that has other versions now, or is gone.
    pub fn left(&mut self, now: Timestamp, number: u32) {
        for tally in self.versions.values_mut() {
            tally.rows.remove(&number);
            if tally.shrinks.remove(&number).is_some() {
                tally.follow_shrinks(now);
            }
        }
    }

    /// Ends the hours that are over.
    pub fn roll(&mut self, wall: WallTime) {
        for tally in self.versions.values_mut() {
            tally.roll(hour_of(wall), self.has_journal);
        }
    }

    /// The next hour to judge: the oldest one of the first candidate.
    pub fn next_job(&mut self, wall: WallTime) -> Option<Job> {
        self.roll(wall);
        self.versions.iter().find_map(|(version, tally)| {
            let is_due = |hour: &&HourReport| {
                hour.judged.is_none()
                    && hour.problem.is_none()
                    && hour.is_whole
                    && !hour.counts.vms.is_empty()
                    && wall.0 >= hour.from.0 + HOUR + SETTLE
            };
            let candidate = tally.is_candidate.then_some(&tally.ended)?;
            let hour = candidate.iter().find(is_due)?;
            Some(Job {
                version: version.clone(),
                from: hour.from,
                to: WallTime(hour.from.0 + HOUR),
                vms: hour.counts.vms.iter().cloned().collect(),
                decided: hour.counts.decided.iter().cloned().collect(),
            })
        })
    }

    /// Takes the result of a job.
    pub fn judged(&mut self, now: Timestamp, job: &Job, result: Result<Evidence, String>) {
        let Some(tally) = self.versions.get_mut(&job.version) else {
            return;
        };
        let Some(hour) = tally.ended.iter_mut().find(|hour| hour.from == job.from) else {
            return;
        };
        match result {
            Ok(evidence) => {
                hour.judged = Some(evidence);
                tally.judged_at.insert(job.from, now);
            }
            Err(problem) => hour.problem = Some(problem),
        }
    }

    /// What the gate may read. `problem_of` says why a version is not asked.
    #[must_use]
    pub fn reports(
        &mut self,
        at: Moment,
        problem_of: impl Fn(&Digest) -> Option<String>,
    ) -> Vec<VersionReport> {
        self.roll(at.wall);
        let has_journal = self.has_journal;
        let report = |(version, tally): (&Version, &mut VersionTally)| {
            let problem = problem_of(&version.digest);
            let mut alarms = tally.alarms(at.now);
            if problem.is_some() {
                alarms.faults_in_a_row = alarms.faults_in_a_row.max(SET_ASIDE);
            }
            VersionReport {
                policy: version.policy.clone(),
                digest: version.digest.to_string(),
                has_journal,
                problem,
                cut_limits: Vec::new(),
                running: tally.running.clone(),
                hours: tally.hours(at.now),
                alarms,
            }
        };
        self.versions.iter_mut().map(report).collect()
    }
}

fn hour_of(wall: WallTime) -> i64 {
    wall.0.div_euclid(HOUR)
}

impl VersionTally {
    /// Ends the running hour if another one runs by now.
    fn roll(&mut self, hour: i64, has_journal: bool) {
        if hour == self.hour {
            return;
        }
        let follows = hour == self.hour.saturating_add(1);
        let counts = std::mem::take(&mut self.running);
        let is_whole = self.is_whole && follows;
        if hour > self.hour {
            let is_judged = is_whole && self.is_candidate && !counts.vms.is_empty();
            self.ended.push_back(HourReport {
                from: WallTime(self.hour.saturating_mul(HOUR)),
                is_whole,
                counts,
                problem: (is_judged && !has_journal).then(|| NO_JOURNAL.to_owned()),
                ..HourReport::default()
            });
        }
        // Of a clock that was set, no hour before the next one is whole.
        self.is_whole = follows;
        self.hour = hour;
        while self.ended.len() > HOURS_KEPT {
            let first = self.ended.pop_front();
            if let Some(hour) = first {
                self.judged_at.remove(&hour.from);
            }
        }
    }

    fn follow_shrinks(&mut self, now: Timestamp) {
        let count = self
            .shrinks
            .values()
            .filter(|is_shrink| **is_shrink)
            .count();
        self.fewest
            .set(now, u32::try_from(count).unwrap_or(u32::MAX));
    }

    fn hours(&self, now: Timestamp) -> Vec<HourReport> {
        let with_age = |hour: &HourReport| HourReport {
            age_seconds: self
                .judged_at
                .get(&hour.from)
                .map(|at| now.since(*at).as_millis() / 1000),
            ..hour.clone()
        };
        self.ended.iter().map(with_age).collect()
    }

    fn alarms(&mut self, now: Timestamp) -> NodeAlarms {
        self.kills.retain(|_, at| now.since(*at) < KILL_LASTS);
        let sum = self.recent.sum(now);
        NodeAlarms {
            faults_in_a_row: self.rows.values().copied().max().unwrap_or_default(),
            calls: sum.calls,
            faulty_calls: sum.faulty,
            out_of_memory: u32::try_from(self.kills.len()).unwrap_or(u32::MAX),
            worker_deaths: sum.deaths,
            deciding: u32::try_from(self.shrinks.len()).unwrap_or(u32::MAX),
            shrinking: self.fewest.of_minute(now),
        }
    }
}
