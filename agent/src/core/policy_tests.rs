//! Recorded questions to policies are built again and asked again, with the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use policy_contract::{Answer, Fault, FeedSource, History, Input as Question, Old, Spec};
use proptest::prelude::*;
use protocol::journal::{Answered, Bound, BoundVersion, Checkpoint, Milli, Record, Terms};
use protocol::policy::{Limits, Role};
use protocol::time::{Span, Timestamp};
use serde_json::json;

use super::advice::{advice, terms};
use super::event::Event;
use super::feeds;
use super::journal_tests::{Input, RecordedTask, feed, inputs, replay_by};
use super::machine::Core;
use super::questions::{Memory, Surroundings, answered, samples, seconds};
use super::replay::{Oracle, Reasked, Replay, Report};

const WALL: u64 = 1_795_000_000_000_000;
const FEED_EVERY: Span = Span::from_secs(5);
/// Ports whose feeds are read. The last version has one at another port too.
const PORTS: [u16; 2] = [9200, 9201];

/// Versions of a policy, by number. All have a feed of the same name, the last two at another port.
fn spec(version: usize) -> Spec {
    let feed = |name: &str, port| FeedSource {
        metric: format!("ci_{name}"),
        name: name.to_owned(),
        port,
    };
    let feeds = match version {
        0 => vec![feed("jobs", 9200)],
        1 => vec![feed("jobs", 9201), feed("queue", 9200)],
        _ => vec![feed("jobs", 9201), feed("absent", 9300)],
    };
    Spec {
        feeds,
        ..Spec::of_source(format!("return 'opinion {version}'"))
    }
}

fn version_of(digest: &str) -> Option<usize> {
    (0..3).find(|version| spec(*version).digest().to_string() == digest)
}

/// Versions that decide and that are in shadow.
const ROLES: [(Option<usize>, Option<usize>); 8] = [
    (None, Some(0)),
    (Some(0), None),
    (Some(0), Some(1)),
    (Some(1), Some(0)),
    (Some(1), None),
    (Some(1), Some(2)),
    (None, Some(1)),
    (None, None),
];

/// An answer by the question and the past. Every seventh is a fault.
fn opinion(version: usize, input: &Question, past: &History, now: f64) -> Result<Answer, Fault> {
    let checksum = input.checksum();
    if checksum.is_multiple_of(7) {
        return Err(Fault::Steps);
    }
    let mut votes = BTreeMap::from([("used", past.mean("used", 3600.0, now))]);
    votes.insert("load", past.max("load1", 60.0, now));
    votes.insert("jobs", past.mean("feed:jobs", 3600.0, now).map(|n| n * 1e9));
    votes.retain(|_, vote| vote.is_some());
    // Rarely another answer, so that most are packed into steps.
    let cu = input.builtin.cu + u32::from(checksum.is_multiple_of(11));
    let rounded: BTreeMap<_, _> = votes
        .into_iter()
        .map(|(name, vote)| (name, (vote.unwrap_or_default() / 1e9).round()))
        .collect();
    let reason = format!("opinion_{version}");
    let value = json!({"cu": cu, "reason": reason, "votes": rounded});
    Ok(Answer::read(&value).expect("a valid answer"))
}

/// A version as the driver has it, without worker and clock.
struct AskedVersion {
    version: usize,
    since: Timestamp,
    memory: Memory,
    past: History,
    /// The last answer that was accepted, with its time.
    accepted: Option<(Timestamp, Option<u32>, String)>,
}

impl AskedVersion {
    fn new(version: usize, now: Timestamp, core: &Core) -> Self {
        Self {
            version,
            since: now,
            memory: Memory::new(now, core),
            past: History::new(&spec(version).all_series()),
            accepted: None,
        }
    }

    /// What a question at `now` must have as `i.old`.
    fn old(&self, now: Timestamp) -> Option<Old> {
        let (at, cu, reason) = self.accepted.clone()?;
        Some(Old {
            cu,
            reason,
            age_s: seconds(now) - seconds(at),
        })
    }
}

/// The driver's part of a policy.
pub(super) struct PolicyTask {
    asked: BTreeMap<Role, AskedVersion>,
    /// Index into [`ROLES`].
    roles: usize,
    samples: BTreeMap<String, f64>,
    labels: BTreeMap<String, String>,
    plan: Plan,
    steps: u32,
    answers: u32,
    /// What each question must have as `i.old`, and what it has.
    olds: Vec<[Option<Old>; 2]>,
    /// For the core, the last one first.
    pending: Vec<Event>,
    terms: Option<Terms>,
    /// Whether a step is the core's alone.
    is_quiet: bool,
}

/// What happens in a run, by the number of the step.
#[derive(Debug, Clone, Default)]
struct Plan {
    /// Pasts of all versions begin.
    begins_at: BTreeSet<u32>,
    /// Versions change their roles.
    roles_at: BTreeMap<u32, usize>,
    /// Whether every third step is followed by a second question.
    asks_between_steps: bool,
    /// Whether every fourth step is followed by values of the feeds.
    has_feeds: bool,
}

impl PolicyTask {
    fn new(plan: Plan) -> Self {
        Self {
            asked: BTreeMap::new(),
            roles: plan.roles_at.get(&0).copied().unwrap_or_default(),
            samples: BTreeMap::new(),
            labels: [("app".to_owned(), "pg".to_owned())].into(),
            plan,
            steps: 0,
            answers: 0,
            olds: Vec::new(),
            pending: Vec::new(),
            terms: None,
            is_quiet: false,
        }
    }

    pub(super) fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        for asked in self.asked.values_mut() {
            asked.memory.event(now, event, core);
        }
        self.samples = samples(event);
    }

    pub(super) fn stepped(&mut self, task: &mut RecordedTask) {
        let now = task.now;
        self.steps += 1;
        if let Some(roles) = self.plan.roles_at.get(&self.steps) {
            self.roles = *roles;
        }
        if self.plan.begins_at.contains(&self.steps) {
            self.asked.clear();
        }
        self.assign(now, &task.core);
        let roles = self.asked.iter().map(|(role, asked)| {
            let digest = spec(asked.version).digest().to_string();
            let since = asked.since.0;
            (*role, BoundVersion { digest, since })
        });
        let bound = Bound {
            labels: self.labels.clone(),
            name: Some("db".into()),
            roles: roles.collect(),
            wall: WALL,
            every: FEED_EVERY.0,
            feeds: self.sources(),
            ..Bound::default()
        };
        task.recorder.bound(now, &bound, &mut task.records);
        for asked in self.asked.values_mut() {
            for (series, value) in &self.samples {
                #[expect(clippy::cast_possible_truncation, reason = "as the worker does")]
                asked.past.record(series, seconds(now), *value as f32);
            }
        }
        if self.is_quiet {
            return;
        }
        if self.plan.has_feeds && self.steps.is_multiple_of(4) {
            task.now = task.now + Span::from_millis(100);
            self.feed(task);
        }
        self.ask_all(task);
        if self.plan.asks_between_steps && self.steps.is_multiple_of(3) {
            task.now = task.now + Span::from_millis(1500);
            self.ask_all(task);
        }
    }

    fn sources(&self) -> Vec<FeedSource> {
        let specs: Vec<Spec> = self
            .asked
            .values()
            .map(|asked| spec(asked.version))
            .collect();
        feeds::sources(specs.iter(), &PORTS)
    }

    /// Reads the feeds. Some have no value.
    fn feed(&mut self, task: &mut RecordedTask) {
        let sources = self.sources();
        let value = |n: u32| (!(self.steps / 4 + n).is_multiple_of(3)).then(|| f64::from(n) + 0.3);
        let values: Vec<_> = (0..).map(value).take(sources.len()).collect();
        for asked in self.asked.values_mut() {
            let own = feeds::values_of(&spec(asked.version), &sources, &values);
            for (name, value) in &own {
                asked.memory.fed(task.now, name, *value);
            }
            for (series, value) in feeds::samples_of(&own) {
                #[expect(clippy::cast_possible_truncation, reason = "as the worker does")]
                asked.past.record(&series, seconds(task.now), value as f32);
            }
        }
        task.recorder.fed(task.now, values, &mut task.records);
    }

    /// Gives each role its version. A version that is there keeps its past and its memory.
    fn assign(&mut self, now: Timestamp, core: &Core) {
        let (live, shadow) = ROLES[self.roles];
        let mut before: Vec<AskedVersion> = std::mem::take(&mut self.asked).into_values().collect();
        for (role, version) in [(Role::Live, live), (Role::Shadow, shadow)] {
            let Some(version) = version else { continue };
            let place = before.iter().position(|asked| asked.version == version);
            let asked = match place {
                Some(place) => before.swap_remove(place),
                None => AskedVersion::new(version, now, core),
            };
            self.asked.insert(role, asked);
        }
        let terms = live.map(|version| terms(&spec(version).digest(), Limits::default()));
        if terms != std::mem::replace(&mut self.terms, terms) {
            self.pending.push(Event::Bound(terms));
        }
    }

    fn ask_all(&mut self, task: &mut RecordedTask) {
        let now = task.now;
        task.now = now + Span(7);
        for role in [Role::Live, Role::Shadow] {
            self.ask(role, now, task);
        }
    }

    /// Asks at `now`; the task's time is that of the answer.
    fn ask(&mut self, role: Role, now: Timestamp, task: &mut RecordedTask) {
        let Some(asked) = self.asked.get_mut(&role) else {
            return;
        };
        let starved = Milli(i64::from(self.steps % 3) * 500);
        let spec = spec(asked.version);
        let around = Surroundings {
            spec: &spec,
            labels: &self.labels,
            wall: WALL,
            feed_every: FEED_EVERY,
            vms: 2,
            starved,
        };
        let Some(input) = asked.memory.question(now, &task.core, &around) else {
            return;
        };
        self.answers += 1;
        self.olds.push([asked.old(now), input.old.clone()]);
        let plain = Answered {
            role,
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
        let said = opinion(asked.version, &input, &asked.past, seconds(now));
        if let (Role::Live, Some(terms)) = (role, &self.terms) {
            let advice = advice(terms, said.as_ref().map_err(|fault| *fault));
            self.pending.insert(0, Event::Advised(advice));
        }
        let record = match said {
            Ok(answer) => {
                let record = answered(plain, &answer);
                let reason = answer.reason.as_str();
                asked.memory.accepted(task.now, record.cu, reason);
                asked.accepted = Some((task.now, record.cu, reason.to_owned()));
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

/// Feeds an input and then what the core gets by it.
fn feed_with_advice(task: &mut RecordedTask, input: Input) {
    feed(task, input);
    while let Some(event) = task.policy.as_mut().and_then(|policy| policy.pending.pop()) {
        task.policy
            .iter_mut()
            .for_each(|policy| policy.is_quiet = true);
        task.step(Span(0), event);
        task.policy
            .iter_mut()
            .for_each(|policy| policy.is_quiet = false);
    }
}

#[derive(Debug, Default)]
struct Opinions {
    pasts: BTreeMap<u32, History>,
}

impl Oracle for Opinions {
    fn spec(&mut self, digest: &str) -> Option<Arc<Spec>> {
        version_of(digest).map(|version| Arc::new(spec(version)))
    }

    fn forget(&mut self, past: u32) {
        let series: Vec<_> = (0..3)
            .flat_map(|version| spec(version).all_series())
            .collect();
        self.pasts.insert(past, History::new(&series));
    }

    fn sample(&mut self, past: u32, at: f64, samples: BTreeMap<String, f64>) {
        let past = self.pasts.get_mut(&past).expect("its past has begun");
        for (series, value) in samples {
            #[expect(clippy::cast_possible_truncation, reason = "as the worker does")]
            past.record(&series, at, value as f32);
        }
    }

    fn ask(&mut self, digest: &str, past: u32, at: f64, input: &Question) -> Option<Reasked> {
        Some(opinion(
            version_of(digest)?,
            input,
            self.pasts.get(&past)?,
            at,
        ))
    }
}

fn asked_again(records: &[Record]) -> Report {
    let oracle = Box::new(Opinions::default());
    replay_by(Replay::new().with_oracle(oracle), records)
}

fn with_plan(plan: Plan) -> RecordedTask {
    let mut task = RecordedTask::new();
    task.policy = Some(PolicyTask::new(plan));
    task
}

fn with_policy(begins_at: impl IntoIterator<Item = u32>) -> RecordedTask {
    with_plan(Plan {
        begins_at: begins_at.into_iter().collect(),
        ..Plan::default()
    })
}

/// The same versions in the same roles all the time.
fn with_roles(roles: usize) -> RecordedTask {
    with_plan(Plan {
        roles_at: [(0, roles)].into(),
        ..Plan::default()
    })
}

/// Replays a run of random inputs, whose last answers are tail. The agent starts again before the
/// inputs of these numbers.
fn replayed(
    mut task: RecordedTask,
    inputs: Vec<Input>,
    restarts: &BTreeSet<usize>,
) -> Result<(), TestCaseError> {
    for (number, input) in inputs.into_iter().enumerate() {
        if restarts.contains(&number) {
            task.restart();
            let policy = task.policy.as_mut().expect("a policy");
            (policy.asked, policy.terms) = (BTreeMap::new(), None);
        }
        feed_with_advice(&mut task, input);
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

/// Decisions and requests of two tasks with the same inputs, and their last checkpoints.
fn decided(tasks: [RecordedTask; 2], inputs: &[Input]) -> [(Vec<Record>, Checkpoint); 2] {
    let [mut one, mut other] = tasks;
    for input in inputs {
        // The answer takes 7 us, which the next input must not shift.
        let at = one.now.max(other.now);
        (one.now, other.now) = (at, at);
        feed_with_advice(&mut one, *input);
        feed_with_advice(&mut other, *input);
    }
    let at = one.now.max(other.now);
    [one, other].map(|task| {
        let kept = |record: &&Record| matches!(record, Record::Decision(_) | Record::Outcome(_));
        let records = task.records.iter().filter(kept).cloned().collect();
        (records, task.core.checkpoint(17, at))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Requirement: V05
    #[test]
    fn v05_every_answer_is_the_same_when_asked_again(
        inputs in inputs(),
        begins_at in prop::collection::btree_set(2..200_u32, 0..3),
        roles_at in prop::collection::btree_map(0..200_u32, 0..ROLES.len(), 0..12),
        restarts in prop::collection::btree_set(0..200_usize, 0..3),
    ) {
        let plan = Plan { begins_at, roles_at, has_feeds: true, ..Plan::default() };
        replayed(with_plan(plan), inputs, &restarts)?;
    }

    /// Requirement: V06
    #[test]
    fn v06_candidate_changes_nothing_but_its_own_records(inputs in inputs()) {
        let [with, without] = decided([with_policy(None), RecordedTask::new()], &inputs);
        prop_assert_eq!(with, without);
    }

    /// Requirement: V06
    #[test]
    fn v06_shadow_of_a_live_version_changes_nothing_but_its_own_records(inputs in inputs()) {
        let [with, without] = decided([with_roles(2), with_roles(1)], &inputs);
        prop_assert_eq!(with, without);
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
        let plan = Plan {
            begins_at,
            asks_between_steps: true,
            has_feeds: true,
            ..Plan::default()
        };
        replayed(with_plan(plan), inputs, &BTreeSet::new())?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Requirement: V09
    #[test]
    fn v09_each_question_has_the_last_accepted_answer_of_its_version(
        inputs in inputs(),
        begins_at in prop::collection::btree_set(2..200_u32, 0..3),
        roles_at in prop::collection::btree_map(0..200_u32, 0..ROLES.len(), 0..12),
    ) {
        let plan = Plan { begins_at, roles_at, asks_between_steps: true, ..Plan::default() };
        let mut task = with_plan(plan);
        for input in inputs {
            feed_with_advice(&mut task, input);
        }
        for [expected, has] in task.policy.expect("a policy").olds {
            let age = |old: &Option<Old>| old.as_ref().map_or(0.0, |old| old.age_s);
            prop_assert!((age(&expected) - age(&has)).abs() < 1e-6, "{:?} {:?}", expected, has);
            let named = |old: Option<Old>| old.map(|old| (old.cu, old.reason));
            prop_assert_eq!(named(expected), named(has));
        }
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
        .latest("default/pg", &spec(0), WALL)
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
    assert_eq!(replay.latest("default/other", &spec(0), WALL), None);
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
