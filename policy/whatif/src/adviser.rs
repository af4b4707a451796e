//! Asks a candidate: when, with which question, and what the core is advised.

use std::collections::BTreeMap;

use agent::core::advice::{advice, terms};
use agent::core::questions::{Memory, Surroundings, is_news, refused_units, samples, seconds};
use agent::core::{Advice, Core, Event, Terms};
use policy_contract::{ASK_AT_LATEST, ASK_EVERY, Answer, Digest, Fault, Input, Spec, Want};
use protocol::journal::Milli;
use protocol::policy::Limits;
use protocol::time::{Span, Timestamp};
use serde::Serialize;

/// Answers questions about one VM after the other. `at` is in seconds on the writer's clock.
pub trait Adviser {
    /// The past of a VM begins.
    fn forget(&mut self, vm: u32);
    /// Samples of a VM, by series.
    fn sample(&mut self, vm: u32, at: f64, samples: BTreeMap<String, f64>);
    /// Answers a question.
    ///
    /// # Errors
    /// With the fault of the policy.
    fn ask(&mut self, vm: u32, at: f64, input: &Input) -> Result<Answer, Fault>;
}

/// A policy that did not decide.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Source, parameters and series of the policy.
    pub spec: Spec,
    /// Limits that the core holds its answers to.
    pub limits: Limits,
}

/// Number of questions in the time that counts, and what came of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Questions {
    /// Questions that were asked.
    pub asked: u64,
    /// Faults in the place of answers, by kind.
    pub faults: BTreeMap<String, u64>,
}

impl Questions {
    pub(crate) fn add(&mut self, other: &Self) {
        self.asked += other.asked;
        for (kind, count) in &other.faults {
            *self.faults.entry(kind.clone()).or_default() += count;
        }
    }
}

/// The VM that questions are about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) vm: u32,
    pub(crate) labels: &'a BTreeMap<String, String>,
    /// Calendar time of the clock's zero, microseconds since 1970.
    pub(crate) wall: u64,
    /// VMs in the journal.
    pub(crate) vms: u32,
    /// Begin and end of the time whose questions count.
    pub(crate) counted: (Timestamp, Timestamp),
}

/// The questions of one stretch.
pub(crate) struct Asking<'a> {
    candidate: &'a Candidate,
    digest: Digest,
    adviser: &'a mut dyn Adviser,
    subject: Subject<'a>,
    memory: Memory,
    asked_at: Option<Timestamp>,
    has_news: bool,
    questions: Questions,
}

impl<'a> Asking<'a> {
    pub(crate) fn new(
        candidate: &'a Candidate,
        adviser: &'a mut dyn Adviser,
        subject: Subject<'a>,
        (now, core): (Timestamp, &Core),
    ) -> Self {
        adviser.forget(subject.vm);
        Self {
            digest: candidate.spec.digest(),
            candidate,
            adviser,
            subject,
            memory: Memory::new(now, core),
            asked_at: None,
            has_news: false,
            questions: Questions::default(),
        }
    }

    pub(crate) fn terms(&self) -> Terms {
        terms(&self.digest, self.candidate.limits)
    }

    /// Takes an event before the core handles it.
    pub(crate) fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        let is_cut = refused_units(event, core).is_some_and(|units| units.0 > 0);
        self.has_news |= is_cut || is_news(event);
        self.memory.event(now, event, core);
        let mut of_event = samples(event);
        of_event.retain(|name, _| self.candidate.spec.has_series(name));
        if !of_event.is_empty() {
            self.adviser.sample(self.subject.vm, seconds(now), of_event);
        }
    }

    /// When the next question is due. `None` before anything has happened.
    pub(crate) fn due_at(&self, now: Timestamp) -> Option<Timestamp> {
        match (self.asked_at, self.has_news) {
            (None, false) => None,
            (None, true) => Some(now),
            (Some(at), true) => Some(at + ASK_EVERY),
            (Some(at), false) => Some(at + ASK_AT_LATEST),
        }
    }

    /// Asks. Returns what the core is advised, if there is a question.
    pub(crate) fn ask(&mut self, now: Timestamp, core: &Core) -> Option<Advice> {
        self.asked_at = Some(now);
        self.has_news = false;
        let subject = self.subject;
        let around = Surroundings {
            spec: &self.candidate.spec,
            labels: subject.labels,
            wall: subject.wall,
            // The model has no feeds.
            feed_every: Span::default(),
            vms: subject.vms,
            starved: Milli(0),
        };
        let input = self.memory.question(now, core, &around)?;
        let (from, to) = subject.counted;
        let counts = u64::from((from..to).contains(&now));
        self.questions.asked += counts;
        let said = self.adviser.ask(subject.vm, seconds(now), &input);
        match &said {
            Ok(answer) => {
                let units = match answer.want {
                    Want::Units(units) => Some(units),
                    Want::Hold => None,
                };
                let reason = answer.reason.as_str();
                self.memory.accepted(now, units, reason);
            }
            Err(fault) if counts > 0 => {
                let faults = &mut self.questions.faults;
                *faults.entry(fault.word().to_owned()).or_default() += 1;
            }
            Err(_) => {}
        }
        Some(advice(&self.terms(), said.as_ref().map_err(|fault| *fault)))
    }

    pub(crate) fn questions(self) -> Questions {
        self.questions
    }
}
