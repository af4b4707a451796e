//! Replays a journal and compares. Each VM's core starts at a checkpoint and gets the recorded
//! events at their recorded times. It must produce the recorded outputs: every `D` byte by byte,
//! and every `T` by its checksum over the outputs since the last one.
//!
//! Records that cannot be compared never count as equal. Those before a VM's first checkpoint after
//! a cut or a gap are *warm-up*. Those after the last `T` are *tail*, because a writer that crashes
//! loses its newest samples.
//!
//! With an [`Oracle`] each recorded question to a policy is built again, compared by its checksum,
//! and asked again. Questions of the first hour after a start in the middle of a journal are
//! warm-up too, because the past in them may be incomplete.

pub mod latest;
mod observer;
mod policies;

use std::collections::BTreeMap;

use protocol::core::Core as _;
use protocol::journal::{
    Answered, AnsweredAgain, Bound, Checkpoint, CoreSettings, LinkEvent, Outcome, Record,
    RequestEnd, RequestKind, Stated, Step, Tick, VmObject, encode,
};
use protocol::permit::{MigrateResponse, PluginResponse};
use protocol::policy::Role;
use protocol::time::{Span, Timestamp};

use super::actions::RequestId;
use super::checkpoint::{info_of, lfc_of, stamp_of, system_of, upscale_request_of};
use super::event::{DownscaleResponse, Event, Refusal, VmUpdate};
use super::journal::{Output, failure};
use super::machine::Core;
pub use observer::Observer;
use policies::Policies;
pub use policies::{Oracle, Reasked, Seen};

/// Rank of the events of a core.
const STEP_RANK: u8 = 1;
/// Differences kept in a report; all are counted.
const MAX_MISMATCHES: usize = 100;

/// A recorded output that the replay did not produce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// `namespace/name` of the VM.
    pub vm: String,
    /// Time of the record, microseconds on the writer's clock.
    pub at: u64,
    /// The recorded line.
    pub recorded: String,
    /// The line that the replay produced.
    pub computed: String,
}

/// Result of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Number of VMs with records, counted once per run of the writer.
    pub vms: u64,
    /// Number of replayed steps.
    pub steps: u64,
    /// Number of `D` records that are equal.
    pub decisions: u64,
    /// Number of `T` records that are equal.
    pub runs: u64,
    /// Number of steps that those `T` records cover.
    pub covered: u64,
    /// Number of records before the first checkpoint after a cut.
    pub warm_up: u64,
    /// Number of records after the last `T`.
    pub tail: u64,
    /// Number of gaps that the journal marks.
    pub gaps: u64,
    /// Number of policies' answers that are equal when the question is asked again.
    pub asked_again: u64,
    /// Number of policies' answers that were not asked again: the past in the question may be
    /// incomplete, the source is missing, or there is no oracle.
    pub not_asked: u64,
    /// Number of records that differ.
    pub different: u64,
    /// The first 100 of them.
    pub mismatches: Vec<Mismatch>,
}

impl Report {
    /// Whether at least one record was compared and all compared ones are equal.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.different == 0 && self.runs + self.decisions > 0
    }
}

/// A record of a VM. Of records with the same time the event comes first, then its output, then a
/// checkpoint.
#[derive(Debug)]
enum Item {
    Gap,
    Step(Step),
    Stated(Stated),
    Ended(Outcome),
    Ran(Tick),
    Decided(Box<protocol::journal::Decision>),
    Bound(Box<Bound>),
    /// Values of the feeds.
    Fed(Vec<Option<f64>>),
    /// The time is that of the answer, which is later than the question.
    Answered(u64, Box<Answered>),
    Again(u64, Role, AnsweredAgain),
    Checkpoint(Box<Checkpoint>),
}

impl Item {
    fn rank(&self) -> u8 {
        match self {
            Self::Gap => 0,
            Self::Step(_) | Self::Stated(_) | Self::Ended(_) => STEP_RANK,
            Self::Decided(_) => 2,
            Self::Ran(_) => 3,
            Self::Bound(_) => 4,
            Self::Fed(_) => 5,
            Self::Answered(..) | Self::Again(..) => 6,
            Self::Checkpoint(_) => 7,
        }
    }
}

/// Takes the records of a journal in the order of the file, and compares them.
#[derive(Debug, Default)]
pub struct Replay {
    run: Option<u64>,
    settings: Option<CoreSettings>,
    vms: BTreeMap<u32, Vec<(u64, Item)>>,
    oracle: Option<Box<dyn Oracle>>,
    /// Number of pasts that have begun.
    pasts: u32,
    observer: Option<Box<dyn Observer>>,
    report: Report,
}

impl Replay {
    /// A replay without records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks policies again by this oracle.
    #[must_use]
    pub fn with_oracle(mut self, oracle: Box<dyn Oracle>) -> Self {
        self.oracle = Some(oracle);
        self
    }

    /// Shows each step to this observer.
    #[must_use]
    pub fn with_observer(mut self, observer: Box<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Takes the next record of the journal.
    pub fn take(&mut self, record: Record) {
        let (at, vm) = (record.at(), record.vm());
        let item = match record {
            Record::Head(head) => {
                if self.run.is_some_and(|run| run != head.run) {
                    self.compare();
                }
                self.run = Some(head.run);
                return;
            }
            Record::Node(node) => {
                self.settings = node.core.or(self.settings);
                return;
            }
            Record::Gap(gap) => {
                self.report.gaps += 1;
                let from = at.saturating_sub(gap.span);
                match vm {
                    Some(vm) => self.put(vm, from, Item::Gap),
                    None => self
                        .vms
                        .values_mut()
                        .for_each(|items| items.push((from, Item::Gap))),
                }
                return;
            }
            Record::Sampled(sampled) => {
                for (at, step) in sampled.block.0 {
                    let (role, again) = match step {
                        Step::Advised(again) => (Role::Live, again),
                        Step::Shadowed(again) => (Role::Shadow, again),
                        Step::Feeds(values) => {
                            self.put(sampled.vm, at, Item::Fed(values));
                            continue;
                        }
                        step => {
                            self.put(sampled.vm, at, Item::Step(step));
                            continue;
                        }
                    };
                    let asked_at = at.saturating_sub(again.took);
                    self.put(sampled.vm, asked_at, Item::Again(at, role, again));
                }
                return;
            }
            // These records are no input of a core.
            Record::Action(_) | Record::SetsAnswered(_) => return,
            Record::Outcome(outcome) if outcome.what == RequestKind::Verified => return,
            Record::Outcome(outcome) => Item::Ended(*outcome),
            Record::Vm(stated) => Item::Stated(*stated),
            Record::Tick(tick) => Item::Ran(tick),
            Record::Decision(decision) => Item::Decided(decision),
            Record::Checkpoint(checkpoint) => Item::Checkpoint(checkpoint),
            Record::Bound(bound) => Item::Bound(bound),
            Record::Answered(answered) => {
                self.put(
                    answered.vm,
                    answered.asked_at(),
                    Item::Answered(answered.t, answered),
                );
                return;
            }
        };
        if let Some(vm) = vm {
            self.put(vm, at, item);
        }
    }

    fn put(&mut self, vm: u32, at: u64, item: Item) {
        self.vms.entry(vm).or_default().push((at, item));
    }

    /// Compares the records taken so far.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.compare();
        self.report
    }

    /// Compares the records of one run of the writer.
    fn compare(&mut self) {
        for mut items in std::mem::take(&mut self.vms).into_values() {
            self.report.vms += 1;
            items.sort_by_key(|(at, item)| (*at, item.rank()));
            let is_run = |(_, (_, item)): &(usize, &(u64, Item))| matches!(item, Item::Ran(_));
            let covered = items
                .iter()
                .enumerate()
                .rfind(is_run)
                .map_or(0, |(index, _)| index + 1);
            let tail = items.split_off(covered);
            self.report.tail += tail.len() as u64;
            let mut live = None;
            for (at, item) in items {
                let now = Timestamp(at);
                match item {
                    Item::Bound(bound) => self.bound(&mut live, now, *bound),
                    Item::Fed(values) => self.fed(&mut live, now, &values),
                    Item::Answered(at, answered) => {
                        self.answered(&mut live, now, Timestamp(at), *answered);
                    }
                    Item::Again(at, role, again) => {
                        self.answered_again(&mut live, now, Timestamp(at), (role, again));
                    }
                    item => self.step(&mut live, now, item),
                }
            }
            self.close(&mut live);
        }
    }

    fn step(&mut self, live: &mut Option<Live>, now: Timestamp, item: Item) {
        match (item, live.as_mut()) {
            (Item::Gap, _) => self.close(live),
            (Item::Checkpoint(checkpoint), _) => {
                let policies = live.take().map(|live| live.policies);
                if let (None, Some(observer), Some(settings)) =
                    (&policies, &mut self.observer, &self.settings)
                {
                    observer.begins(settings, &checkpoint);
                }
                *live = self.settings.as_ref().map(|settings| {
                    let mut live = Live::new(settings, &checkpoint);
                    live.policies = policies.unwrap_or(live.policies);
                    live
                });
            }
            (_, None) => self.report.warm_up += 1,
            (Item::Step(step), Some(live)) => {
                self.report.steps += 1;
                if let Some(event) = live.event_of_step(step) {
                    self.feed(live, now, event);
                }
            }
            (Item::Stated(stated), Some(live)) => {
                self.report.steps += 1;
                if let Some(event) = live.event_of_state(stated) {
                    self.feed(live, now, event);
                }
            }
            (Item::Ended(outcome), Some(live)) => {
                self.report.steps += 1;
                self.feed(live, now, event_of_outcome(&outcome));
            }
            (Item::Ran(tick), Some(live)) => {
                let computed = live.run(now, tick.vm);
                if self.equal(live, now, &Record::Tick(tick), computed.map(Record::Tick)) {
                    self.report.runs += 1;
                    self.report.covered += u64::from(tick.n);
                }
            }
            (Item::Decided(decision), Some(live)) => {
                let unit = live.unit;
                let output = live.output.as_ref().filter(|_| live.at == now);
                let computed = output.map(|output| {
                    Record::Decision(Box::new(output.record(decision.vm, now, unit)))
                });
                if self.equal(live, now, &Record::Decision(decision), computed) {
                    self.report.decisions += 1;
                }
            }
            (Item::Bound(_) | Item::Fed(_) | Item::Answered(..) | Item::Again(..), Some(_)) => {}
        }
    }

    fn feed(&mut self, live: &mut Live, now: Timestamp, event: Event) {
        live.policies.event(now, &event, &live.core);
        if let Some(observer) = &mut self.observer {
            observer.event(now, &event, &live.core);
        }
        live.feed(now, event);
        if let (Some(observer), Some(output)) = (&mut self.observer, &live.output) {
            observer.output(now, output, &live.core);
        }
        if let Some(oracle) = &mut self.oracle {
            live.policies.sampled(now, oracle.as_mut());
        }
    }

    fn equal(
        &mut self,
        live: &Live,
        now: Timestamp,
        recorded: &Record,
        computed: Option<Record>,
    ) -> bool {
        let recorded_line = encode(recorded);
        let computed_line = computed.map_or_else(
            || "no step at this time".to_owned(),
            |record| encode(&record),
        );
        if recorded_line == computed_line {
            return true;
        }
        self.report.different += 1;
        if self.report.mismatches.len() < MAX_MISMATCHES {
            self.report.mismatches.push(Mismatch {
                vm: live.name.clone(),
                at: now.0,
                recorded: recorded_line.trim_end().to_owned(),
                computed: computed_line.trim_end().to_owned(),
            });
        }
        false
    }
}

/// A core under replay.
struct Live {
    core: Core,
    name: String,
    unit: protocol::units::Resources,
    object: Option<VmObject>,
    output: Option<Output>,
    at: Timestamp,
    hash: u32,
    steps: u32,
    policies: Policies,
}

impl Live {
    fn new(settings: &CoreSettings, checkpoint: &Checkpoint) -> Self {
        let core = Core::restore(settings, checkpoint);
        Self {
            policies: Policies::new(Timestamp(checkpoint.t), &core),
            core,
            name: checkpoint.name.clone(),
            unit: settings.unit.into(),
            object: None,
            output: None,
            at: Timestamp::default(),
            hash: 0,
            steps: 0,
        }
    }

    fn feed(&mut self, now: Timestamp, event: Event) {
        self.core.handle(now, event);
        let output = Output::of(&mut self.core, now);
        while self.core.poll_observation().is_some() {}
        self.hash = output.fold(self.hash);
        self.steps += 1;
        self.at = now;
        self.output = Some(output);
    }

    /// The `T` record that the journal should have at `now`.
    fn run(&mut self, now: Timestamp, vm: u32) -> Option<Tick> {
        let (h, n) = (self.hash, self.steps);
        (self.hash, self.steps) = (0, 0);
        (self.at == now).then_some(Tick { h, n, t: now.0, vm })
    }

    fn event_of_step(&mut self, step: Step) -> Option<Event> {
        Some(match step {
            Step::Tick => Event::Tick,
            Step::System(sample) => Event::SystemMetrics(system_of(&sample)),
            Step::Lfc(sample) => Event::LfcMetrics(lfc_of(&sample)),
            Step::Renewed => {
                let response = PluginResponse {
                    permit: self.core.last_request()?,
                    migrate: None,
                };
                Event::PermitDone(self.core.scheduler.ongoing?, Ok(response))
            }
            Step::Again(version) => {
                let object = VmObject {
                    version,
                    ..self.object.clone()?
                };
                self.update_of(&object)
            }
            Step::Advice(advice) => Event::Advised(advice),
            Step::Terms(terms) => Event::Bound(terms),
            Step::Advised(_) | Step::Shadowed(_) | Step::Feeds(_) => return None,
        })
    }

    fn event_of_state(&mut self, stated: Stated) -> Option<Event> {
        Some(match stated.monitor {
            Some(LinkEvent::Up) => Event::MonitorActive,
            Some(LinkEvent::Down) => Event::MonitorReset,
            Some(LinkEvent::Wish) => {
                Event::MonitorUpscaleRequested(upscale_request_of(stated.wish))
            }
            None => {
                let object = stated.obj?;
                let event = self.update_of(&object);
                self.object = Some(object);
                event
            }
        })
    }

    fn update_of(&self, object: &VmObject) -> Event {
        let default = &self.core.config.default_scaling;
        Event::VmUpdated(Box::new(VmUpdate {
            info: info_of(object, &self.name, default),
            current_revision: object.reached.map(stamp_of),
            is_pre_migrating: object.migrating,
        }))
    }
}

fn event_of_outcome(outcome: &Outcome) -> Event {
    let id = RequestId(outcome.id);
    let failed = failure(outcome.end);
    match (outcome.what, outcome.end, outcome.got) {
        (RequestKind::Permit, _, Some(permit)) => {
            let response = PluginResponse {
                permit: permit.into(),
                migrate: outcome.migrate.then_some(MigrateResponse {}),
            };
            Event::PermitDone(id, Ok(response))
        }
        (RequestKind::Permit, _, None) => Event::PermitDone(id, Err(failed)),
        (RequestKind::Patch, RequestEnd::Done, _) => Event::VmPatchDone(id, Ok(outcome.version)),
        (RequestKind::Patch, ..) => Event::VmPatchDone(id, Err(failed)),
        (RequestKind::Up, RequestEnd::Done, _) => Event::MonitorUpscaleDone(id, Ok(())),
        (RequestKind::Up, ..) => Event::MonitorUpscaleDone(id, Err(failed)),
        (_, RequestEnd::Done, _) => Event::MonitorDownscaleDone(id, Ok(DownscaleResponse::Allowed)),
        (_, RequestEnd::Refused, _) => {
            let answer = DownscaleResponse::Denied(Refusal {
                smallest: outcome.least.map(Into::into),
                again: outcome.again.map(Span),
            });
            Event::MonitorDownscaleDone(id, Ok(answer))
        }
        _ => Event::MonitorDownscaleDone(id, Err(failed)),
    }
}
