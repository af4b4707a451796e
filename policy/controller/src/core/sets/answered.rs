//! What a version answered: for its next questions, for people and for the gate.

use std::collections::{BTreeMap, VecDeque};

use policy_contract::sets::SetAnswer;
use policy_contract::tally::{NodeAlarms, VersionReport};
use policy_contract::{Digest, Fault, Role, SetInput};
use protocol::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

use super::hours::{Counted, Hours, Moment, Round};

/// Time over which the gate counts faults.
const RECENT: Span = Span::from_secs(600);

/// What a version answered about a set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SetSaid {
    /// Count that the set had.
    pub has: u32,
    /// Count that the answer comes to, before the rates. Absent for a set that it does not name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wants: Option<u32>,
    /// Version of the template that it chose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Command that it chose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// What a version answered, as the policy's status has it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SetReport {
    /// Digest of the version, 64 hex digits.
    pub digest: String,
    /// Number of valid answers since the controller began.
    pub answers: u64,
    /// Answers among them that left all counts as they were.
    pub same: u64,
    /// Answers that wanted more members in sum.
    pub higher: u64,
    /// Answers that wanted fewer.
    pub lower: u64,
    /// Faults by kind.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub faults: BTreeMap<Fault, u64>,
    /// What is wrong now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The last answer about each set, by `namespace/name`.
    pub sets: BTreeMap<String, SetSaid>,
    /// Nodes that it wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
}

impl SetReport {
    /// Whether people would read the same, but for the numbers of answers.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        let shown = |one: &Self| {
            (
                one.digest.clone(),
                one.problem.clone(),
                one.sets.clone(),
                one.nodes,
            )
        };
        shown(self) == shown(other)
    }
}

/// A version over time.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) role: Role,
    pub(super) report: SetReport,
    pub(super) hours: Hours,
    /// The answers of this round. `None` after a question without a valid answer.
    round: Option<Round>,
    /// Why it is not asked.
    unasked: Option<String>,
    faults_in_a_row: u32,
    /// Ends of the last ten minutes, with the fault.
    recent: VecDeque<(Timestamp, Option<Fault>)>,
}

impl Answered {
    pub(super) fn new(digest: &Digest) -> Self {
        Self {
            role: Role::Shadow,
            report: SetReport {
                digest: digest.to_string(),
                ..SetReport::default()
            },
            hours: Hours::default(),
            round: None,
            unasked: None,
            faults_in_a_row: 0,
            recent: VecDeque::new(),
        }
    }

    /// Begins a round, in which the version is asked.
    pub(super) fn begin(&mut self, role: Role) {
        self.role = role;
        self.round = Some(Round::new());
    }

    /// The answers of the round that ends.
    pub(super) fn round(&self) -> Option<&Round> {
        self.round.as_ref().filter(|round| !round.is_empty())
    }

    /// Adds the round to the hours, beside that of the live version.
    pub(super) fn conclude(&mut self, at: Moment, live: Option<&Round>) {
        let round = self.round.take().filter(|round| !round.is_empty());
        self.hours.add(at, round.as_ref(), live);
    }

    /// Counts a valid answer with the counts that it comes to.
    pub(super) fn answer(
        &mut self,
        now: Timestamp,
        input: &SetInput,
        answer: &SetAnswer,
        counts: &BTreeMap<String, u32>,
    ) {
        self.end(now, None);
        self.hours.answer();
        self.unasked = None;
        let report = &mut self.report;
        report.answers += 1;
        report.problem = None;
        let prefix = format!("{}/", input.namespace);
        report.sets.retain(|set, _| !set.starts_with(&prefix));
        let (mut before, mut after) = (0_u64, 0_u64);
        let mut is_same = true;
        for (name, set) in &input.sets {
            let change = answer.sets.get(name);
            let wants = counts.get(name).copied();
            before += u64::from(set.count);
            after += u64::from(wants.unwrap_or(set.count));
            is_same &= wants.is_none_or(|wants| wants == set.count);
            let said = SetSaid {
                has: set.count,
                wants,
                version: change.and_then(|change| change.version),
                command: change.and_then(|change| change.command.clone()),
            };
            let counted = Counted {
                has: set.count,
                wants: wants.unwrap_or(set.count),
                unit: set.member_cu,
            };
            if let Some(round) = &mut self.round {
                round.insert(format!("{prefix}{name}"), counted);
            }
            report.sets.insert(format!("{prefix}{name}"), said);
        }
        report.same += u64::from(is_same);
        report.higher += u64::from(after > before);
        report.lower += u64::from(after < before);
        report.nodes = answer.nodes.as_ref().map(|wish| wish.want);
    }

    /// Counts a fault.
    pub(super) fn fault(&mut self, now: Timestamp, fault: Fault, text: &str) {
        self.end(now, Some(fault));
        self.hours.fault(fault);
        (self.round, self.unasked) = (None, None);
        *self.report.faults.entry(fault).or_default() += 1;
        self.report.problem = Some(format!("{}: {text}", fault.word()));
    }

    /// A question that was not asked is no fault of the version.
    pub(super) fn not_asked(&mut self, problem: String) {
        self.round = None;
        self.unasked = Some(problem.clone());
        self.report.problem = Some(problem);
    }

    fn end(&mut self, now: Timestamp, fault: Option<Fault>) {
        self.faults_in_a_row = match fault {
            Some(_) => self.faults_in_a_row + 1,
            None => 0,
        };
        self.recent.push_back((now, fault));
        self.recent.retain(|(at, _)| now.since(*at) < RECENT);
    }

    /// What the gate decides by.
    pub(super) fn version_report(&self, policy: &str) -> VersionReport {
        let deaths = self.recent.iter();
        let deaths = deaths.filter(|(_, fault)| *fault == Some(Fault::WorkerDied));
        VersionReport {
            policy: policy.to_owned(),
            digest: self.report.digest.clone(),
            // Hours of sets are judged by counts, which need no journal.
            has_journal: true,
            problem: self.unasked.clone(),
            running: self.hours.running(),
            hours: self.hours.ended(),
            alarms: NodeAlarms {
                // One late answer of the few within ten minutes is no share to judge by.
                faults_in_a_row: self.faults_in_a_row,
                worker_deaths: u32::try_from(deaths.count()).unwrap_or(u32::MAX),
                ..NodeAlarms::default()
            },
            ..VersionReport::default()
        }
    }
}
