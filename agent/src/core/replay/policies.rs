//! Questions to policies, built again and asked again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use policy_contract::{Answer, Fault, FeedSource, Input, Spec};
use protocol::journal::{Answered, AnsweredAgain, Bound, BoundVersion, Milli, Record, encode};
use protocol::policy::Role;
use protocol::time::{Span, Timestamp};

use super::{Live, MAX_MISMATCHES, Mismatch, Replay};
use crate::core::event::Event;
use crate::core::feeds;
use crate::core::machine::Core;
use crate::core::questions::{Memory, Surroundings, answered, samples, seconds};
use crate::core::units::units_in;

/// Time after which a question holds nothing from before the start of the replay.
pub(super) const PAST: Span = Span::from_secs(3600);

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

/// Answers recorded questions again. Each version that a VM is asked about has a past of its own,
/// known by a number.
pub trait Oracle: fmt::Debug {
    /// Takes a recorded answer, asked again or not.
    fn saw(&mut self, _seen: &Seen<'_>) {}
    /// The policy with this digest (64 hex digits). `None` if its source is missing.
    fn spec(&mut self, digest: &str) -> Option<Arc<Spec>>;
    /// A past begins, or is not needed any more.
    fn forget(&mut self, past: u32);
    /// Samples for a past, by series.
    fn sample(&mut self, past: u32, at: f64, samples: BTreeMap<String, f64>);
    /// Answers a question. `None` if that is impossible.
    fn ask(&mut self, digest: &str, past: u32, at: f64, input: &Input) -> Option<Reasked>;
}

/// What questions about one VM rest on, beside its core.
#[derive(Debug)]
pub(super) struct Policies {
    pub(super) memory: Memory,
    pub(super) bound: Option<Bound>,
    versions: BTreeMap<Role, Version>,
    answers: BTreeMap<Role, Answered>,
    pub(super) samples: BTreeMap<String, f64>,
}

/// A version that the VM is asked about.
#[derive(Debug)]
struct Version {
    of: BoundVersion,
    memory: Memory,
    /// Number of its past.
    past: u32,
    /// Time from which questions hold the whole past.
    complete_at: Timestamp,
}

impl Policies {
    pub(super) fn new(began: Timestamp, core: &Core) -> Self {
        Self {
            memory: Memory::new(began, core),
            bound: None,
            versions: BTreeMap::new(),
            answers: BTreeMap::new(),
            samples: BTreeMap::new(),
        }
    }

    /// Takes an event before the core handles it.
    pub(super) fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        for memory in self.memories() {
            memory.event(now, event, core);
        }
        self.samples = samples(event);
    }

    fn memories(&mut self) -> impl Iterator<Item = &mut Memory> {
        let versions = self.versions.values_mut();
        std::iter::once(&mut self.memory).chain(versions.map(|version| &mut version.memory))
    }

    /// Passes the samples of the last event on.
    pub(super) fn sampled(&self, now: Timestamp, oracle: &mut dyn Oracle) {
        for version in self.versions.values() {
            version.sampled(now, &self.samples, oracle);
        }
    }
}

impl Version {
    fn sampled(&self, now: Timestamp, samples: &BTreeMap<String, f64>, oracle: &mut dyn Oracle) {
        let Some(spec) = oracle.spec(&self.of.digest) else {
            return;
        };
        let mut samples = samples.clone();
        samples.retain(|name, _| spec.has_series(name));
        if !samples.is_empty() {
            oracle.sample(self.past, seconds(now), samples);
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
    pub(super) fn bound(&mut self, live: &mut Option<Live>, now: Timestamp, bound: Bound) {
        let Some(live) = live.as_mut() else {
            self.report.warm_up += 1;
            return;
        };
        let mut before: Vec<Version> = std::mem::take(&mut live.policies.versions)
            .into_values()
            .collect();
        for (role, of) in &bound.roles {
            let place = before.iter().position(|version| version.of == *of);
            let version = match place {
                Some(place) => before.swap_remove(place),
                None => self.begin(live, now, of),
            };
            live.policies.versions.insert(*role, version);
        }
        // The recorder packs an answer that is like the last one of its role, also across this
        // change. So `answers` stay.
        live.policies.bound = Some(bound);
        before.iter().for_each(|version| self.forget(version.past));
    }

    /// The VM gets a version, or the replay begins in the middle of its time.
    fn begin(&mut self, live: &Live, now: Timestamp, of: &BoundVersion) -> Version {
        self.pasts += 1;
        self.forget(self.pasts);
        let is_start = of.since == now.0;
        let version = Version {
            of: of.clone(),
            memory: Memory::new(now, &live.core),
            past: self.pasts,
            complete_at: if is_start { now } else { now + PAST },
        };
        if let Some(oracle) = &mut self.oracle
            && live.at == now
        {
            version.sampled(now, &live.policies.samples, oracle.as_mut());
        }
        version
    }

    /// Values of the feeds that the last `B` names.
    pub(super) fn fed(&mut self, live: &mut Option<Live>, now: Timestamp, values: &[Option<f64>]) {
        let (Some(live), Some(oracle)) = (live.as_mut(), &mut self.oracle) else {
            return;
        };
        let policies = &mut live.policies;
        let sources = feeds_of(policies.bound.as_ref());
        for version in policies.versions.values_mut() {
            let Some(spec) = oracle.spec(&version.of.digest) else {
                continue;
            };
            let own = feeds::values_of(&spec, sources, values);
            for (name, value) in &own {
                version.memory.fed(now, name, *value);
            }
            if !own.is_empty() {
                oracle.sample(version.past, seconds(now), feeds::samples_of(&own));
            }
        }
    }

    fn forget(&mut self, past: u32) {
        if let Some(oracle) = &mut self.oracle {
            oracle.forget(past);
        }
    }

    /// Ends the replay of a VM.
    pub(super) fn close(&mut self, live: &mut Option<Live>) {
        let policies = live.take().map(|live| live.policies);
        for version in policies
            .into_iter()
            .flat_map(|all| all.versions.into_values())
        {
            self.forget(version.past);
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
        let version = live.policies.versions.get(&record.role);
        let is_complete = version.is_some_and(|version| question.asked_at >= version.complete_at);
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

/// The feeds whose values stand in the steps after a `B`.
pub(super) fn feeds_of(bound: Option<&Bound>) -> &[FeedSource] {
    bound.map_or(&[], |bound| &bound.feeds)
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
    let version = policies.versions.get(&question.role)?;
    let digest = &version.of.digest;
    let spec = oracle.spec(digest)?;
    let around = Surroundings {
        spec: &spec,
        labels: &bound.labels,
        wall: bound.wall,
        feed_every: Span(bound.every),
        vms: question.vms,
        starved: question.starved,
    };
    let now = question.asked_at;
    let input = version.memory.question(now, &live.core, &around)?;
    let said = oracle.ask(digest, version.past, seconds(now), &input)?;
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
    let version = live.policies.versions.get_mut(&record.role);
    if let (None, Some(reason), Some(version)) = (record.fault, &record.r, version) {
        version.memory.accepted(at, record.cu, reason);
    }
}
