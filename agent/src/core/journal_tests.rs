//! Replay of recorded steps gives the same bytes, and finds each altered record.

use std::collections::VecDeque;

use proptest::prelude::*;
use protocol::core::Core as _;
use protocol::journal::{
    Checkpoint, Gap, Head, NodeState, Record, Size, Step, Why, decode, encode,
};
use protocol::monitor_v2::AskReason;
use protocol::permit::{MigrateResponse, PluginResponse};
use protocol::policy::Fault as PolicyFault;
use protocol::revision::{Revision, RevisionWithTime};
use protocol::time::{Span, Timestamp, WallTime};
use protocol::units::{Bytes, MilliCpu, Resources};
use serde_json::Value;

use super::actions::{Action, RequestId};
use super::advice::{Advice, PolicyState, Said, Terms};
use super::config::{CoreConfig, ScalingConfig, ShrinkStep, Timers};
use super::event::{DownscaleResponse, Event, Failure, Refusal, UpscaleRequest, VmUpdate};
use super::journal::{Output, Recorder, settings};
use super::machine::Core;
use super::metrics::{LfcMetrics, Signals, SystemMetrics};
use super::policy_tests::PolicyTask;
use super::replay::{Replay, Report};
use super::revision::StampedRevision;
use super::vm::{CpuInfo, MemInfo, VmConfig, VmInfo};

const UNIT: Resources = Resources::new(250, 1 << 30);

fn config() -> CoreConfig {
    CoreConfig {
        compute_unit: UNIT,
        default_scaling: ScalingConfig::default(),
        timers: Timers {
            permit_request_tick: Span(15_042_000),
            ..Timers::default()
        },
        system_max_age: Some(Span::from_secs(15)),
        lfc_max_age: None,
    }
}

fn info(max: u32, enable_lfc_metrics: bool) -> VmInfo {
    VmInfo {
        name: "pg".into(),
        namespace: "default".into(),
        cpu: CpuInfo {
            min: MilliCpu(250),
            max: MilliCpu(250 * max),
            r#use: MilliCpu(250),
        },
        mem: MemInfo {
            min: 1,
            max,
            r#use: 1,
            slot_size: Bytes(1 << 30),
        },
        config: VmConfig {
            auto_migration_enabled: false,
            always_migrate: false,
            scaling_enabled: true,
            overrides: None,
            own_mode: None,
            scaling: ScalingConfig {
                enable_lfc_metrics,
                ..ScalingConfig::default()
            },
        },
        current_revision: None,
        actual: None,
        target_revision: None,
        last_revision: 3,
        version: Some(1),
    }
}

/// One VM's driver without its sockets.
pub(super) struct RecordedTask {
    pub(super) core: Core,
    pub(super) recorder: Recorder,
    pub(super) now: Timestamp,
    in_flight: VecDeque<(RequestId, Action)>,
    pub(super) records: Vec<Record>,
    version: u64,
    /// Number of the writer's run.
    runs: u64,
    pub(super) output: Option<Output>,
    /// Candidate that is asked after each step.
    pub(super) policy: Option<PolicyTask>,
}

impl RecordedTask {
    pub(super) fn new() -> Self {
        let mut task = Self {
            core: Core::new(config(), info(8, false)),
            recorder: Recorder::new(17, UNIT),
            now: Timestamp(1_000_000),
            in_flight: VecDeque::new(),
            records: Vec::new(),
            version: 1,
            runs: 5,
            output: None,
            policy: None,
        };
        task.head(1, task.runs);
        task.checkpoint();
        task
    }

    fn head(&mut self, seq: u64, run: u64) {
        self.records.push(Record::Head(Head {
            build: "0.1.0".into(),
            cu: Size::from(UNIT),
            node: "node-1".into(),
            part: "agent".into(),
            prev: None,
            run,
            seq,
            t: self.now.0,
            v: 1,
            wall: 9,
        }));
        self.records.push(Record::Node(NodeState {
            core: Some(settings(&config())),
            engine: None,
            scheduler: None,
            t: self.now.0,
        }));
    }

    /// The agent starts again: another run of the writer, whose core has nothing in flight.
    pub(super) fn restart(&mut self) {
        self.flush();
        let info = self.core.vm().clone();
        (self.core, self.recorder) = (Core::new(config(), info), Recorder::new(17, UNIT));
        self.in_flight.clear();
        self.runs += 1;
        self.head(1, self.runs);
        self.checkpoint();
    }

    /// The same task with another core.
    pub(super) fn twin(&self, core: Core) -> Self {
        Self {
            core,
            recorder: Recorder::new(17, UNIT),
            in_flight: self.in_flight.clone(),
            records: Vec::new(),
            output: self.output.clone(),
            policy: None,
            ..*self
        }
    }

    /// Records a checkpoint just before the next step, as the shell does.
    pub(super) fn checkpoint(&mut self) {
        let next = self.now + Span(1);
        self.recorder
            .checkpoint(next, &self.core, &mut self.records);
    }

    pub(super) fn step(&mut self, after: Span, event: Event) {
        self.now = self.now + after + Span(1);
        let took = Some(Span::from_millis(3));
        self.recorder
            .event(self.now, &event, &self.core, took, &mut self.records);
        if let Some(policy) = &mut self.policy {
            policy.event(self.now, &event, &self.core);
        }
        self.core.handle(self.now, event);
        let output = Output::of(&mut self.core, self.now);
        self.recorder.output(self.now, &output, &mut self.records);
        self.in_flight.extend(output.started.iter().cloned());
        self.output = Some(output);
        while self.core.poll_observation().is_some() {}
        if let Some(mut policy) = self.policy.take() {
            policy.stepped(self);
            self.policy = Some(policy);
        }
    }

    pub(super) fn system(&mut self, after: Span, load1: f64, usage: f64) {
        let metrics = SystemMetrics {
            load1,
            load5: load1 / 2.0,
            memory_usage_bytes: usage,
            memory_cached_bytes: 734_003_200.0,
            ..SystemMetrics::default()
        };
        self.step(after, Event::SystemMetrics(metrics));
    }

    /// Ends the oldest request in flight. 5 to 9 are partial or failed ends, others are successes.
    pub(super) fn end_request(&mut self, after: Span, how: u8) {
        let Some((id, action)) = self.in_flight.pop_front() else {
            return self.step(after, Event::Tick);
        };
        let failure = match how {
            7 => Some(Failure::Unknown),
            8 => Some(Failure::NotApplied),
            _ => None,
        };
        let plain = failure.map_or(Ok(()), Err);
        let event = match action {
            Action::Permit(request) => {
                let last = request.last_permit.unwrap_or(request.target);
                let permit = if how == 6 {
                    last.field_min(request.target)
                } else {
                    request.target
                };
                let migrate = (how == 9).then_some(MigrateResponse {});
                Event::PermitDone(id, plain.map(|()| PluginResponse { permit, migrate }))
            }
            Action::VmPatch(_) => Event::VmPatchDone(id, plain.map(|()| self.next_version())),
            Action::MonitorUpscale(_) => Event::MonitorUpscaleDone(id, plain),
            Action::MonitorDownscale(_) => {
                let response = if how == 6 {
                    DownscaleResponse::DENIED
                } else if how == 5 {
                    DownscaleResponse::Denied(Refusal {
                        smallest: Some(self.core.using().saturating_sub(UNIT)),
                        again: Some(Span::from_millis(500)),
                    })
                } else {
                    DownscaleResponse::Allowed
                };
                Event::MonitorDownscaleDone(id, plain.map(|()| response))
            }
        };
        self.step(after, event);
    }

    /// Shows a new state of the core's object, with `change` applied.
    fn update(&mut self, after: Span, change: impl FnOnce(&mut VmUpdate)) {
        let info = VmInfo {
            version: self.next_version(),
            ..self.core.vm().clone()
        };
        let mut update = VmUpdate {
            current_revision: None,
            is_pre_migrating: false,
            info,
        };
        change(&mut update);
        update.current_revision = update.info.current_revision.map(|reached| StampedRevision {
            revision: reached.revision,
            at: self.now,
        });
        self.step(after, Event::VmUpdated(Box::new(update)));
    }

    /// Requests that the last step started.
    pub(super) fn started(&self) -> Vec<(RequestId, Action)> {
        let output = self.output.as_ref();
        output.map_or_else(Vec::new, |output| output.started.clone())
    }

    fn next_version(&mut self) -> Option<u64> {
        self.version += 1;
        Some(self.version)
    }

    pub(super) fn flush(&mut self) {
        self.recorder.flush(&mut self.records);
    }
}

fn reached(value: i64) -> RevisionWithTime {
    RevisionWithTime {
        revision: Revision { value, flags: 1 },
        updated_at: WallTime::default(),
    }
}

fn replay(records: &[Record]) -> Report {
    replay_by(Replay::new(), records)
}

pub(super) fn replay_by(mut replay: Replay, records: &[Record]) -> Report {
    for record in records {
        // Decodes the encoded line, as a reader of the file does.
        replay.take(decode(encode(record).as_bytes()).expect("decodes"));
    }
    replay.finish()
}

/// One random input: its kind, the microseconds before it, and two numbers.
pub(super) type Input = (u8, u64, u8, f64);

pub(super) fn feed(task: &mut RecordedTask, (what, after, number, value): Input) {
    let after = Span(after);
    match what {
        0..=4 => task.system(after, value, value * 1e9),
        5 => task.step(after, Event::Tick),
        6..=11 => task.end_request(after, number % 10),
        12 => task.step(after, Event::MonitorActive),
        13 => {
            let request = UpscaleRequest {
                reason: (number % 2 == 0).then_some(AskReason::PsiSome),
                wanted: (number > 8).then_some(Bytes(u64::from(number) << 28)),
            };
            task.step(after, Event::MonitorUpscaleRequested(request));
        }
        14 if number < 3 => task.step(after, Event::MonitorReset),
        15 => task.update(after, |update| {
            update.info.cpu.max = MilliCpu(250 * u32::from(4 + number % 8));
            update.info.mem.max = u32::from(4 + number % 8);
            let scaling = &mut update.info.config.scaling;
            scaling.enable_lfc_metrics = number % 3 == 0;
            if number % 2 == 0 {
                scaling.shrink_step = ShrinkStep::Unit;
            }
            if number > 10 {
                scaling.downscale_margin_units = f64::from(number % 4) / 3.0;
                scaling.downscale_hold_seconds = u32::from(number % 5);
                scaling.downscale_cooldown_seconds = u32::from(number % 7);
                scaling.upscale_cooldown_seconds = u32::from(number % 6);
            }
            if number > 20 {
                scaling.enable_monitor_estimate = number % 2 == 1;
                scaling.memory_pressure_hold_percent = f64::from(number % 4) * 2.5;
            }
        }),
        16 => task.update(after, |update| {
            update.info.current_revision = Some(reached(i64::from(number % 8)));
            update.info.last_revision = i64::from(number % 8);
        }),
        // Another writer sets a size, or the state is an old one.
        20 => task.update(after, |update| {
            update
                .info
                .set_using(UNIT.saturating_mul(1 + u32::from(number % 6)));
            if number > 20 {
                update.info.version = Some(u64::from(number));
            }
        }),
        21 => task.update(after, |update| {
            update.info.actual = Some(UNIT.saturating_mul(1 + u32::from(number % 3)));
            update.is_pre_migrating = number > 24;
        }),
        24 => {
            let signals = Signals {
                estimate_bytes: (number % 2 == 0).then_some(value * 3e8),
                pressure_percent: (number % 3 == 0).then_some(value),
            };
            let metrics = SystemMetrics {
                memory_usage_bytes: value * 1e8,
                signals,
                ..SystemMetrics::default()
            };
            task.step(after, Event::SystemMetrics(metrics));
        }
        22 => task.update(after, |update| update.info.version = None),
        23 => task.update(after, |_| {}),
        17 => task.step(
            after,
            Event::LfcMetrics(LfcMetrics {
                hits: value,
                misses: 1.0,
                writes: 2.0,
                working_set_pages: (0..20).map(|minute| f64::from(minute) * value).collect(),
            }),
        ),
        18 if number == 0 => task.checkpoint(),
        19 => task.step(after, Event::VmPatchDone(RequestId(999), Ok(Some(7)))),
        25 => {
            let said = match number {
                0..12 => Said::Want(u32::from(number % 9)),
                12..18 => Said::Hold,
                _ => Said::Fault(PolicyFault::ALL[usize::from(number) % 8]),
            };
            let digest = u32::from(number % 5 == 0);
            task.step(after, Event::Advised(Advice { digest, said }));
        }
        26 => task.step(after, Event::Bound(some_terms(number))),
        _ => task.end_request(after, 0),
    }
}

/// Limits of a policy, or none.
fn some_terms(number: u8) -> Option<Terms> {
    let limit = |is_set: bool| is_set.then_some(u32::from(number));
    (number > 5).then_some(Terms {
        digest: 0,
        fallback_after: number
            .is_multiple_of(2)
            .then_some(Span::from_secs(u64::from(number))),
        max_units: limit(number.is_multiple_of(3)),
        shrink_units_per_minute: limit(number % 5 < 2),
    })
}

pub(super) fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let value = prop_oneof![
        (0..1_000_u32).prop_map(|n| f64::from(n) / 100.0),
        0.0..20.0_f64
    ];
    proptest::collection::vec((0..29_u8, 0..6_000_000_u64, 0..32_u8, value), 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn replay_of_a_record_gives_the_same_bytes(inputs in inputs()) {
        let mut task = RecordedTask::new();
        for input in inputs {
            feed(&mut task, input);
        }
        task.system(Span(1), 0.5, 1e9);
        task.flush();
        let report = replay(&task.records);
        prop_assert!(report.is_equal(), "{:#?}", report);
        prop_assert_eq!((report.warm_up, report.tail, report.covered), (0, 0, report.steps));
    }

    #[test]
    fn restored_core_behaves_as_the_original(before in inputs(), after in inputs()) {
        let mut task = RecordedTask::new();
        for input in before {
            feed(&mut task, input);
        }
        let checkpoint = task.core.checkpoint(17, task.now);
        let restored = Core::restore(&settings(&config()), &checkpoint);
        prop_assert_eq!(restored.checkpoint(17, task.now), checkpoint);

        let mut twin = task.twin(restored);
        for input in after {
            feed(&mut task, input);
            feed(&mut twin, input);
            prop_assert_eq!(&task.output, &twin.output);
        }
        prop_assert_eq!(twin.core.checkpoint(17, task.now), task.core.checkpoint(17, task.now));
    }

    #[test]
    fn replay_finds_an_altered_sample(inputs in inputs(), at in any::<prop::sample::Index>()) {
        let mut task = RecordedTask::new();
        for input in inputs {
            feed(&mut task, input);
        }
        task.system(Span(1), 0.5, 1e9);
        task.flush();
        let mut records = task.records.clone();
        let mut samples: Vec<&mut f64> = records
            .iter_mut()
            .filter_map(|record| match record {
                Record::Sampled(sampled) => Some(&mut sampled.block.0),
                _ => None,
            })
            .flatten()
            .filter_map(|(_, step)| match step {
                Step::System(sample) => Some(&mut sample.load1),
                _ => None,
            })
            .collect();
        let at = at.index(samples.len());
        *samples[at] += 40.0;
        let report = replay(&records);
        prop_assert!(!report.is_equal() && report.different > 0);
        let shown = report.different.min(100);
        prop_assert_eq!(report.mismatches.len() as u64, shown);
    }
}

/// A checkpoint with every member in it.
const FULL: &str = include_str!("../../../protocol/testdata/journal/checkpoint_policy.bj");
/// A checkpoint from before there were policies.
const OLD: &str = include_str!("../../../protocol/testdata/journal/checkpoint.bj");

/// Copies of `value` with one changed number, flag or text each, with the path of the change.
fn each_leaf_altered(value: &Value) -> Vec<(String, Value)> {
    fn paths(value: &Value, at: String, out: &mut Vec<String>) {
        match value {
            Value::Object(members) => members
                .iter()
                .for_each(|(key, member)| paths(member, format!("{at}/{key}"), out)),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .for_each(|(index, item)| paths(item, format!("{at}/{index}"), out)),
            _ => out.push(at),
        }
    }
    let mut all = Vec::new();
    paths(value, String::new(), &mut all);
    all.into_iter()
        .map(|path| {
            let mut altered = value.clone();
            let leaf = altered.pointer_mut(&path).expect("a leaf");
            *leaf = match leaf.clone() {
                Value::Bool(flag) => Value::from(!flag),
                Value::Number(number) => Value::from(number.as_i64().expect("whole") + 1),
                Value::String(text) if text == "whole" => Value::from("unit"),
                Value::String(text) if text == "late" => Value::from("steps"),
                Value::String(text) if text == "5be1a7c0" => Value::from("77ab90c4"),
                Value::String(text) => Value::from(format!("{text}1")),
                other => panic!("{path} is {other}"),
            };
            (path, altered)
        })
        .collect()
}

#[test]
fn every_member_of_a_checkpoint_is_restored() {
    let Ok(Record::Checkpoint(full)) = decode(FULL.as_bytes()) else {
        panic!("not a checkpoint");
    };
    let settings = settings(&config());
    let whole = serde_json::to_value(&full).expect("encodes");
    let mut altered_members = 0;
    for (path, altered) in each_leaf_altered(&whole) {
        // The caller sets VM and time. The time of a reached revision is not kept. Packed metrics
        // have their own test.
        if ["/vm", "/t", "/obj/reached/2"].contains(&path.as_str()) || path.starts_with("/metrics")
        {
            continue;
        }
        let altered: Checkpoint = serde_json::from_value(altered).expect("decodes");
        assert_ne!(altered, *full, "{path}");
        let again = Core::restore(&settings, &altered).checkpoint(full.vm, Timestamp(full.t));
        assert_eq!(again, altered, "{path} is lost");
        altered_members += 1;
    }
    assert!(altered_members > 80, "{altered_members} members");
}

#[test]
fn checkpoint_from_before_policies_has_none() {
    let Ok(Record::Checkpoint(old)) = decode(OLD.as_bytes()) else {
        panic!("not a checkpoint");
    };
    let core = Core::restore(&settings(&config()), &old);
    assert_eq!(core.policy, PolicyState::default());
}

fn busy() -> RecordedTask {
    let mut task = RecordedTask::new();
    task.step(Span(1), Event::MonitorActive);
    for round in 0..400_u32 {
        let wave = if round % 100 < 50 { 3.0 } else { 0.3 };
        task.system(Span::from_secs(2), wave, 6e8 * wave);
        task.end_request(Span::from_millis(4), 0);
    }
    task
}

#[test]
fn replay_starts_at_a_checkpoint_and_counts_warm_up() {
    let mut task = busy();
    task.checkpoint();
    task.system(Span::from_secs(5), 1.0, 1e9);
    task.flush();
    let first = task
        .records
        .iter()
        .position(|record| matches!(record, Record::Checkpoint(_)));
    task.records.remove(first.expect("a checkpoint"));
    let report = replay(&task.records);
    assert!(
        report.is_equal() && report.warm_up > 400 && report.steps == 1,
        "{report:?}"
    );
    task.records
        .retain(|record| !matches!(record, Record::Checkpoint(_)));
    let report = replay(&task.records);
    assert!(
        !report.is_equal() && report.different == 0,
        "nothing compared is no success"
    );
}

#[test]
fn records_lost_in_a_crash_are_tail_and_a_gap_starts_warm_up() {
    let mut task = busy();
    // Routine steps that are never written, then lines that depend on them.
    task.flush();
    for _ in 0..5 {
        task.system(Span::from_secs(5), 0.31, 6e8);
    }
    task.step(Span(1), Event::VmPatchDone(RequestId(999), Ok(None)));
    let report = replay(&task.records);
    assert!(report.is_equal() && report.tail > 0, "{report:?}");

    let mut task = busy();
    task.recorder.reset();
    let lost = task.now;
    task.system(Span::from_secs(30), 2.0, 6e8);
    task.recorder.reset();
    let span = task.now.since(lost);
    task.records.push(Record::Gap(Gap {
        n: 9,
        span: span.0,
        t: task.now.0,
        vm: Some(17),
        why: Why::Disk,
    }));
    task.system(Span::from_secs(1), 2.0, 6e8);
    task.checkpoint();
    task.system(Span::from_secs(1), 2.5, 6e8);
    task.flush();
    let report = replay(&task.records);
    assert!(
        report.is_equal() && report.gaps == 1 && report.warm_up > 0,
        "{report:?}"
    );
}

#[test]
fn vm_numbers_are_valid_within_one_run_only() {
    let mut task = busy();
    task.flush();
    let mut second = busy();
    second.flush();
    let mut records = task.records;
    let mut others = second.records;
    if let Record::Head(head) = &mut others[0] {
        head.run = 6;
    }
    records.append(&mut others);
    let report = replay(&records);
    assert!(report.is_equal() && report.vms == 2, "{report:?}");
}

/// A quiet hour: a sample every 5 s, a heartbeat every 15 s, a checkpoint every 10 min.
#[test]
fn quiet_vm_costs_at_most_eight_bytes_a_second() {
    let mut task = RecordedTask::new();
    task.step(Span(1), Event::MonitorActive);
    task.records.clear();
    let begin = task.now;
    let mut state = 7_u32;
    for second in (0..3_600_u32).step_by(5) {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let noise = f64::from(state >> 24);
        let usage = (700_000.0 + noise * 37.0).floor() * 1024.0;
        let late = Span(4_998_000 + u64::from(state >> 20));
        task.system(late, (3.0 + noise / 64.0).floor() / 100.0, usage);
        if second % 15 == 0 {
            task.step(Span(2_000), Event::Tick);
            task.end_request(Span(3_141), 0);
        }
        if second % 600 == 0 {
            task.checkpoint();
        }
    }
    task.flush();
    let secs = task.now.since(begin).as_secs_f64();
    let mut by_kind = std::collections::BTreeMap::new();
    for record in &task.records {
        let line = encode(record);
        let kind = line[line.find("\"k\":\"").expect("a kind") + 5..]
            .chars()
            .next();
        *by_kind.entry(kind).or_insert(0) += line.len();
    }
    let total: usize = by_kind.values().sum();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = total as f64 / secs;
    assert!(rate <= 8.0, "{rate:.2} bytes a second, {by_kind:?}");
}
