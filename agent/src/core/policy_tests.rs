//! Recorded questions to policies are built again and asked again, with the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use policy_contract::{Answer, Fault, History, Input as Question, Spec};
use proptest::prelude::*;
use protocol::journal::{Answered, Bound, Milli, Record};
use protocol::policy::Role;
use protocol::time::{Span, Timestamp};
use serde_json::json;

use super::event::Event;
use super::journal_tests::{Input, RecordedTask, feed, inputs, replay_by};
use super::machine::Core;
use super::questions::{Memory, Surroundings, answered, samples, seconds};
use super::replay::{Oracle, Reasked, Replay, Report};

const WALL: u64 = 1_795_000_000_000_000;

fn spec() -> Spec {
    Spec::of_source("return 'opinion'")
}

/// An answer by the question and the past. Every seventh is a fault.
fn opinion(input: &Question, past: &History, now: f64) -> Result<Answer, Fault> {
    let checksum = input.checksum();
    if checksum.is_multiple_of(7) {
        return Err(Fault::Steps);
    }
    let mut votes = BTreeMap::from([("used", past.mean("used", 3600.0, now))]);
    votes.insert("load", past.max("load1", 60.0, now));
    votes.retain(|_, vote| vote.is_some());
    // Rarely another answer, so that most are packed into steps.
    let cu = input.builtin.cu + u32::from(checksum.is_multiple_of(11));
    let rounded: BTreeMap<_, _> = votes
        .into_iter()
        .map(|(name, vote)| (name, (vote.unwrap_or_default() / 1e9).round()))
        .collect();
    let value = json!({"cu": cu, "reason": "opinion", "votes": rounded});
    Ok(Answer::read(&value).expect("a valid answer"))
}

/// The driver's part of a policy, without worker and clock.
pub(super) struct PolicyTask {
    memory: Memory,
    since: Timestamp,
    past: History,
    samples: BTreeMap<String, f64>,
    labels: BTreeMap<String, String>,
    /// Steps at which the past begins.
    begins_at: BTreeSet<u32>,
    /// Whether every third step is followed by a second question.
    asks_between_steps: bool,
    steps: u32,
    answers: u32,
}

impl PolicyTask {
    fn new(core: &Core, now: Timestamp, begins_at: BTreeSet<u32>) -> Self {
        Self {
            memory: Memory::new(now, core),
            since: Timestamp(0),
            past: History::new(&spec().all_series()),
            samples: BTreeMap::new(),
            labels: [("app".to_owned(), "pg".to_owned())].into(),
            begins_at,
            asks_between_steps: false,
            steps: 0,
            answers: 0,
        }
    }

    pub(super) fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        self.memory.event(now, event, core);
        self.samples = samples(event);
    }

    pub(super) fn stepped(&mut self, task: &mut RecordedTask) {
        let now = task.now;
        self.steps += 1;
        if self.steps == 1 || self.begins_at.contains(&self.steps) {
            self.memory = Memory::new(now, &task.core);
            self.past = History::new(&spec().all_series());
            self.since = now;
        }
        let bound = Bound {
            labels: self.labels.clone(),
            name: Some("db".into()),
            roles: [(Role::Shadow, spec().digest().to_string())].into(),
            since: self.since.0,
            wall: WALL,
            ..Bound::default()
        };
        task.recorder.bound(now, &bound, &mut task.records);
        for (series, value) in &self.samples {
            #[expect(clippy::cast_possible_truncation, reason = "as the worker does")]
            self.past.record(series, seconds(now), *value as f32);
        }
        self.ask(task);
        if self.asks_between_steps && self.steps.is_multiple_of(3) {
            task.now = task.now + Span::from_millis(1500);
            self.ask(task);
        }
    }

    fn ask(&mut self, task: &mut RecordedTask) {
        let now = task.now;
        let starved = Milli(i64::from(self.steps % 3) * 500);
        let spec = spec();
        let around = Surroundings {
            spec: &spec,
            role: Role::Shadow,
            labels: &self.labels,
            wall: WALL,
            vms: 2,
            starved,
        };
        let Some(input) = self.memory.question(now, &task.core, &around) else {
            return;
        };
        self.answers += 1;
        task.now = now + Span(7);
        let plain = Answered {
            role: Role::Shadow,
            cu: None,
            cut: None,
            dg: spec.digest().short(),
            fault: None,
            hold: false,
            r#in: input.checksum(),
            note: None,
            r: None,
            s: starved,
            t: task.now.0,
            took: 7,
            vm: 0,
            vms: 2,
            votes: BTreeMap::new(),
        };
        let record = match opinion(&input, &self.past, seconds(now)) {
            Ok(answer) => {
                let record = answered(plain, &answer);
                let reason = answer.reason.as_str();
                let memory = &mut self.memory;
                memory.accepted(Role::Shadow, task.now, record.cu, reason);
                record
            }
            Err(fault) => Answered {
                fault: Some(fault),
                ..plain
            },
        };
        task.recorder.answered(record, &mut task.records);
    }
}

#[derive(Debug, Default)]
struct Opinions {
    pasts: BTreeMap<u32, History>,
}

impl Oracle for Opinions {
    fn spec(&mut self, digest: &str) -> Option<Arc<Spec>> {
        (spec().digest().to_string() == digest).then(|| Arc::new(spec()))
    }

    fn forget(&mut self, vm: u32) {
        self.pasts.insert(vm, History::new(&spec().all_series()));
    }

    fn sample(&mut self, vm: u32, at: f64, samples: BTreeMap<String, f64>) {
        let past = self.pasts.get_mut(&vm).expect("its past has begun");
        for (series, value) in samples {
            #[expect(clippy::cast_possible_truncation, reason = "as the worker does")]
            past.record(&series, at, value as f32);
        }
    }

    fn ask(&mut self, _: &str, vm: u32, at: f64, input: &Question) -> Option<Reasked> {
        Some(opinion(input, self.pasts.get(&vm)?, at))
    }
}

fn asked_again(records: &[Record]) -> Report {
    let oracle = Box::new(Opinions::default());
    replay_by(Replay::new().with_oracle(oracle), records)
}

fn with_policy(begins_at: impl IntoIterator<Item = u32>) -> RecordedTask {
    let mut task = RecordedTask::new();
    let begins_at = begins_at.into_iter().collect();
    task.policy = Some(PolicyTask::new(&task.core, task.now, begins_at));
    task
}

/// Replays a run of random inputs, whose last answers are tail.
fn replayed(mut task: RecordedTask, inputs: Vec<Input>) -> Result<(), TestCaseError> {
    for input in inputs {
        feed(&mut task, input);
    }
    task.system(Span(1), 0.5, 1e9);
    task.flush();
    let report = asked_again(&task.records);
    prop_assert!(report.is_equal(), "{:#?}", report);
    let answers = task.policy.map_or(0, |policy| policy.answers);
    prop_assert!(
        report.not_asked == 0 && report.warm_up == 0,
        "{:#?}",
        report
    );
    // Answers after the last checksum are tail.
    let left = u64::from(answers).saturating_sub(report.asked_again);
    prop_assert!(left <= report.tail, "{answers} {:#?}", report);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Requirement: V05
    #[test]
    fn v05_every_answer_is_the_same_when_asked_again(inputs in inputs(), restart in 2..200_u32) {
        replayed(with_policy(Some(restart)), inputs)?;
    }

    /// Requirement: V06
    #[test]
    fn v06_candidate_changes_nothing_but_its_own_records(inputs in inputs()) {
        let (mut with, mut without) = (with_policy(None), RecordedTask::new());
        for input in inputs {
            // The answer takes 7 us, which the next input must not shift.
            let at = with.now.max(without.now);
            (with.now, without.now) = (at, at);
            feed(&mut with, input);
            feed(&mut without, input);
        }
        let decisions = |task: &RecordedTask| -> Vec<Record> {
            let kept = |record: &&Record| matches!(record, Record::Decision(_) | Record::Outcome(_));
            task.records.iter().filter(kept).cloned().collect()
        };
        prop_assert_eq!(decisions(&with), decisions(&without));
        let at = with.now.max(without.now);
        prop_assert_eq!(with.core.checkpoint(17, at), without.core.checkpoint(17, at));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Requirement: V05, V08
    #[test]
    fn v08_answer_between_two_steps_is_the_same_when_asked_again(
        inputs in inputs(),
        begins_at in prop::collection::btree_set(2..200_u32, 0..6),
    ) {
        let mut task = with_policy(begins_at);
        task.policy.iter_mut().for_each(|policy| policy.asks_between_steps = true);
        replayed(task, inputs)?;
    }
}

fn busy() -> RecordedTask {
    let mut task = with_policy(None);
    task.step(Span(1), Event::MonitorActive);
    for round in 0..900_u32 {
        let wave = if round % 100 < 50 { 3.0 } else { 0.3 };
        task.system(Span::from_secs(5), wave, 6e8 * wave);
    }
    task.flush();
    task
}

/// Requirement: V05
#[test]
fn v05_altered_answer_is_named_with_vm_and_time() {
    let mut task = busy();
    let whole = asked_again(&task.records);
    assert!(whole.is_equal() && whole.asked_again > 800, "{whole:?}");
    let answers: Vec<&mut Box<Answered>> = task
        .records
        .iter_mut()
        .filter_map(|record| match record {
            Record::Answered(answered) if answered.cu.is_some() => Some(answered),
            _ => None,
        })
        .collect();
    let altered = answers.into_iter().nth(1).expect("two answers");
    altered.r#in ^= 1;
    let at = altered.asked_at();
    let report = asked_again(&task.records);
    assert_eq!(report.different, 1, "{report:?}");
    let mismatch = &report.mismatches[0];
    assert_eq!((mismatch.vm.as_str(), mismatch.at), ("default/pg", at));
}

#[test]
fn fault_of_a_second_question_is_a_fact() {
    let records = busy().records;
    let ticks = records.iter().filter_map(|record| match record {
        Record::Tick(tick) => Some(tick.t),
        _ => None,
    });
    let covered = ticks.max().expect("a checksum");
    let last = records.iter().rposition(
        |record| matches!(record, Record::Answered(answered) if answered.asked_at() < covered),
    );
    let last = last.expect("an answer");
    let different = |fault| {
        let mut records = records.clone();
        if let Record::Answered(answered) = &mut records[last] {
            (answered.cu, answered.fault) = (None, Some(fault));
        }
        asked_again(&records).different
    };
    assert!(different(Fault::Memory) > 0);
    assert_eq!(different(Fault::NotFixpoint), 0);
    assert_eq!(different(Fault::Nondeterministic), 0);
}

#[test]
fn first_hour_after_a_start_in_the_middle_is_warm_up() {
    let mut task = with_policy(None);
    task.step(Span(1), Event::MonitorActive);
    for round in 0..1000_u32 {
        if round == 200 {
            task.flush();
            task.records
                .retain(|record| matches!(record, Record::Head(_) | Record::Node(_)));
            task.checkpoint();
        }
        let wave = if round % 100 < 50 { 3.0 } else { 0.3 };
        task.system(Span::from_secs(5), wave, 6e8 * wave);
    }
    task.flush();
    let report = asked_again(&task.records);
    assert!(report.is_equal(), "{report:#?}");
    assert!(
        report.not_asked >= 700 && report.asked_again > 50,
        "{report:?}"
    );
}

#[test]
fn answers_without_an_oracle_are_counted() {
    let report = replay_by(Replay::new(), &busy().records);
    assert!(report.is_equal() && report.not_asked > 800, "{report:?}");
    assert_eq!(report.asked_again, 0);
}

#[test]
fn question_about_the_newest_state_is_built_from_the_records() {
    let task = busy();
    let mut replay = Replay::new();
    task.records
        .iter()
        .cloned()
        .for_each(|record| replay.take(record));
    let latest = replay
        .latest("default/pg", &spec(), WALL)
        .expect("a question");
    assert_eq!(latest.input.vm.name, "pg");
    assert_eq!(
        latest.past["used"].len(),
        720,
        "an hour of samples each 5 s"
    );
    let mut replay = Replay::new();
    task.records
        .iter()
        .cloned()
        .for_each(|record| replay.take(record));
    assert_eq!(replay.latest("default/other", &spec(), WALL), None);
}

/// What an answer that stays the same costs.
#[test]
fn repeated_answer_costs_few_bytes() {
    let count = |task: &RecordedTask| -> usize {
        let lines = task.records.iter().map(protocol::journal::encode);
        lines.map(|line| line.len()).sum()
    };
    let run = |mut task: RecordedTask| {
        task.step(Span(1), Event::MonitorActive);
        for _ in 0..720 {
            task.system(Span::from_secs(5), 0.3, 6e8);
        }
        task.flush();
        count(&task)
    };
    let (with, without) = (run(with_policy(None)), run(RecordedTask::new()));
    let rate = (with - without) as f64 / 3600.0;
    // One of seven made-up answers is a fault, which is a line of its own, and so is the next one.
    assert!(rate < 20.0, "{rate:.1} bytes a second");
}
