//! Questions to policies, built again and asked again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use policy_contract::{Answer, Fault, Input, Spec};
use protocol::journal::{Answered, AnsweredAgain, Bound, Milli, Record, encode};
use protocol::policy::Role;
use protocol::time::{Span, Timestamp};

use super::{Item, Live, MAX_MISMATCHES, Mismatch, Replay, STEP_RANK};
use crate::core::event::Event;
use crate::core::machine::Core;
use crate::core::questions::{Memory, Surroundings, answered, samples, seconds};
use crate::core::units::units_in;

/// Time after which a question holds nothing from before the start of the replay.
const PAST: Span = Span::from_secs(3600);

/// Result of asking a policy again.
pub type Reasked = Result<Answer, Fault>;

/// A recorded answer beside the built-in goal at the time of its question.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen<'a> {
    /// `namespace/name` of the VM.
    pub vm: &'a str,
    /// Name of the policy.
    pub policy: &'a str,
    /// Time of the question on the writer's clock.
    pub asked_at: Timestamp,
    /// The answer that the journal holds.
    pub answer: &'a Answered,
    /// Built-in goal, compute units.
    pub builtin: u32,
    /// Size in use in compute units: what an answer to hold asks for.
    pub using: f64,
}

/// Answers recorded questions again.
pub trait Oracle: fmt::Debug {
    /// Takes a recorded answer, asked again or not.
    fn saw(&mut self, _seen: &Seen<'_>) {}
    /// The policy with this digest (64 hex digits). `None` if its source is missing.
    fn spec(&mut self, digest: &str) -> Option<Arc<Spec>>;
    /// The past of a VM begins.
    fn forget(&mut self, vm: u32);
    /// Samples of a VM, by series.
    fn sample(&mut self, vm: u32, at: f64, samples: BTreeMap<String, f64>);
    /// Answers a question. `None` if that is impossible.
    fn ask(&mut self, digest: &str, vm: u32, at: f64, input: &Input) -> Option<Reasked>;
}

/// What questions about one VM rest on, beside its core.
#[derive(Debug)]
pub(super) struct Policies {
    vm: u32,
    memory: Memory,
    bound: Option<Bound>,
    answers: BTreeMap<Role, Answered>,
    samples: BTreeMap<String, f64>,
    /// Time from which questions hold the whole past.
    complete_at: Timestamp,
}

impl Policies {
    pub(super) fn new(vm: u32, began: Timestamp, core: &Core) -> Self {
        Self {
            vm,
            memory: Memory::new(began, core),
            bound: None,
            answers: BTreeMap::new(),
            samples: BTreeMap::new(),
            complete_at: began + PAST,
        }
    }

    /// Takes an event before the core handles it.
    pub(super) fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        self.memory.event(now, event, core);
        self.samples = samples(event);
    }

    /// Passes the samples of the last event on.
    pub(super) fn sampled(&self, now: Timestamp, oracle: &mut dyn Oracle) {
        let digest = self.bound.as_ref().and_then(|b| b.roles.values().next());
        let Some(spec) = digest.and_then(|digest| oracle.spec(digest)) else {
            return;
        };
        let mut samples = self.samples.clone();
        samples.retain(|name, _| spec.has_series(name));
        if !samples.is_empty() {
            oracle.sample(self.vm, seconds(now), samples);
        }
    }
}

/// The question that an answer belongs to.
struct Question {
    asked_at: Timestamp,
    role: Role,
    vms: u32,
    starved: Milli,
    checksum: Option<u32>,
}

impl Replay {
    pub(super) fn bound(&mut self, live: &mut Option<Live>, now: Timestamp, vm: u32, bound: Bound) {
        let Some(live) = live.as_mut() else {
            self.report.warm_up += 1;
            return;
        };
        let begins = bound.since == now.0;
        let policies = &mut live.policies;
        policies.bound = Some(bound);
        if begins {
            policies.memory = Memory::new(now, &live.core);
            policies.complete_at = now;
            // The recorder packs an answer that is like the last one, also across this start. So
            // `answers` stay.
            if let Some(oracle) = &mut self.oracle {
                oracle.forget(vm);
                if live.at == now {
                    policies.sampled(now, oracle.as_mut());
                }
            }
        }
    }

    pub(super) fn answered(
        &mut self,
        live: &mut Option<Live>,
        asked_at: Timestamp,
        at: Timestamp,
        record: Answered,
    ) {
        let Some(live) = live.as_mut() else {
            self.report.warm_up += 1;
            return;
        };
        let question = Question {
            asked_at,
            role: record.role,
            vms: record.vms,
            starved: record.s,
            checksum: Some(record.r#in),
        };
        live.policies.answers.insert(record.role, record.clone());
        self.compare_answer(live, &question, &record);
        accept(live, at, &record);
    }

    pub(super) fn answered_again(
        &mut self,
        live: &mut Option<Live>,
        asked_at: Timestamp,
        at: Timestamp,
        (role, again): (Role, AnsweredAgain),
    ) {
        let known = live.as_mut().and_then(|live| {
            let record = live.policies.answers.get(&role)?.clone();
            Some((live, record))
        });
        let Some((live, last)) = known else {
            self.report.warm_up += 1;
            return;
        };
        let starved = Milli(i64::try_from(again.starved).unwrap_or(i64::MAX));
        let question = Question {
            asked_at,
            role,
            vms: again.vms,
            starved,
            checksum: None,
        };
        let record = Answered {
            s: starved,
            t: at.0,
            took: again.took,
            vms: again.vms,
            ..last
        };
        self.compare_answer(live, &question, &record);
        accept(live, at, &record);
    }

    fn compare_answer(&mut self, live: &Live, question: &Question, record: &Answered) {
        if let (Some(oracle), Some(bound)) = (&mut self.oracle, &live.policies.bound) {
            oracle.saw(&Seen {
                vm: &live.name,
                policy: bound.name.as_deref().unwrap_or_default(),
                asked_at: question.asked_at,
                answer: record,
                builtin: live
                    .output
                    .as_ref()
                    .map_or(0, |output| output.decision.goal_units),
                using: units_in(live.core.using(), live.unit),
            });
        }
        // The clock, the end of the worker and the result of a second question are facts.
        let facts = [
            Fault::Late,
            Fault::WorkerDied,
            Fault::Nondeterministic,
            Fault::NotFixpoint,
        ];
        if record.fault.is_some_and(|fault| facts.contains(&fault)) {
            return;
        }
        let is_complete = question.asked_at >= live.policies.complete_at;
        let computed = match self.oracle.as_mut() {
            Some(oracle) if is_complete => reask(live, question, record, oracle.as_mut()),
            _ => None,
        };
        let Some(computed) = computed else {
            self.report.not_asked += 1;
            return;
        };
        if computed == *record {
            self.report.asked_again += 1;
            return;
        }
        self.report.different += 1;
        if self.report.mismatches.len() < MAX_MISMATCHES {
            let line = |record: &Answered| {
                let line = encode(&Record::Answered(Box::new(record.clone())));
                line.trim_end().to_owned()
            };
            self.report.mismatches.push(Mismatch {
                vm: live.name.clone(),
                at: question.asked_at.0,
                recorded: line(record),
                computed: line(&computed),
            });
        }
    }
}

/// A question about the newest recorded state of a VM.
#[derive(Debug, Clone, PartialEq)]
pub struct Latest {
    /// The question as it was built again.
    pub input: Input,
    /// Time of the question, seconds on the writer's clock.
    pub now: f64,
    /// Samples of the last hour by series, oldest first.
    pub past: BTreeMap<String, Vec<(f64, f64)>>,
}

impl Replay {
    /// The question to a policy about the newest state of a VM (`namespace/name`) among the records
    /// taken. `wall` is the calendar time of the clock's zero. `None` without such a VM, or
    /// without fresh metrics.
    #[must_use]
    pub fn latest(mut self, name: &str, spec: &Spec, wall: u64) -> Option<Latest> {
        let is_of_vm = |item: &Item| matches!(item, Item::Checkpoint(k) if k.name == name);
        let vms = std::mem::take(&mut self.vms);
        let found = vms
            .into_iter()
            .rfind(|(_, items)| items.iter().any(|(_, item)| is_of_vm(item)));
        let (_, mut items) = found?;
        items.sort_by_key(|(at, item)| (*at, item.rank()));
        let mut live = None;
        let mut past: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for (at, item) in items {
            let is_step = item.rank() == STEP_RANK;
            if item.rank() > STEP_RANK && !matches!(item, Item::Checkpoint(_)) {
                continue;
            }
            self.step(&mut live, Timestamp(at), item);
            let samples = live.as_ref().map(|live: &Live| &live.policies.samples);
            for (series, value) in samples.into_iter().flatten().filter(|_| is_step) {
                let of_series = past.entry(series.clone()).or_default();
                of_series.push((seconds(Timestamp(at)), *value));
            }
        }
        let live = live?;
        let around = Surroundings {
            spec,
            role: Role::Shadow,
            labels: &BTreeMap::new(),
            wall,
            vms: 1,
            starved: Milli(0),
        };
        let input = live
            .policies
            .memory
            .question(live.at, &live.core, &around)?;
        let now = seconds(live.at);
        let oldest = now - PAST.as_secs_f64();
        past.retain(|series, samples| {
            samples.retain(|(at, _)| *at > oldest);
            spec.has_series(series)
        });
        Some(Latest { input, now, past })
    }
}

/// The record that the answer to the same question gives now. `None` if it cannot be asked.
fn reask(
    live: &Live,
    question: &Question,
    record: &Answered,
    oracle: &mut dyn Oracle,
) -> Option<Answered> {
    let policies = &live.policies;
    let bound = policies.bound.as_ref()?;
    let digest = bound.roles.get(&question.role)?;
    let spec = oracle.spec(digest)?;
    let around = Surroundings {
        spec: &spec,
        role: question.role,
        labels: &bound.labels,
        wall: bound.wall,
        vms: question.vms,
        starved: question.starved,
    };
    let now = question.asked_at;
    let input = policies.memory.question(now, &live.core, &around)?;
    let said = oracle.ask(digest, policies.vm, seconds(now), &input)?;
    let plain = Answered {
        cu: None,
        fault: None,
        hold: false,
        r#in: question.checksum.map_or(record.r#in, |_| input.checksum()),
        note: None,
        r: None,
        votes: BTreeMap::new(),
        ..record.clone()
    };
    Some(match said {
        Ok(answer) => answered(plain, &answer),
        Err(fault) => Answered {
            fault: Some(fault),
            ..plain
        },
    })
}

fn accept(live: &mut Live, at: Timestamp, record: &Answered) {
    if let (None, Some(reason)) = (record.fault, &record.r) {
        let memory = &mut live.policies.memory;
        memory.accepted(record.role, at, record.cu, reason);
    }
}
