//! What a worker has still to answer. It answers in the order in which it was asked.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use policy_contract::frames::{FromWorker, MAX_POLICIES};
use policy_contract::{Digest, Recheck};
use tokio::time::Instant;

use super::super::Question;

/// Time limit of an answer, from the question or the answer before.
const ANSWER_LIMIT: Duration = Duration::from_millis(50);
/// Time limit of a load, and of a series. The first one includes the start of the program.
const LOAD_LIMIT: Duration = Duration::from_secs(5);

/// Something that the worker answered.
pub(super) enum Ended {
    Load(Digest),
    Fill,
    Ask(Box<Question>),
}

enum Open {
    Load { id: u32, digest: Digest },
    Fill { vm: u32 },
    Ask(Box<Question>),
}

#[derive(Default)]
pub(super) struct Queue {
    open: VecDeque<Open>,
    ids: BTreeMap<Digest, u32>,
    loads: u32,
    /// When the worker began with the first open one.
    began: Option<Instant>,
}

impl Queue {
    /// Number of a policy in this worker, and whether it must be loaded first.
    pub(super) fn id_of(&self, digest: Digest) -> (u32, bool) {
        match self.ids.get(&digest) {
            Some(id) => (*id, false),
            None => (self.loads % MAX_POLICIES + 1, true),
        }
    }

    pub(super) fn loads(&mut self, id: u32, digest: Digest, now: Instant) {
        if self.ids.get(&digest) != Some(&id) {
            // The number may have been that of a policy which was loaded long ago.
            self.ids.retain(|_, of| *of != id);
            self.ids.insert(digest, id);
            self.loads = self.loads.wrapping_add(1);
        }
        self.push(Open::Load { id, digest }, now);
    }

    pub(super) fn fills(&mut self, vm: u32, now: Instant) {
        self.push(Open::Fill { vm }, now);
    }

    pub(super) fn asks(&mut self, question: Question, now: Instant) {
        self.push(Open::Ask(Box::new(question)), now);
    }

    /// Whether the last question may be asked again. Until its end the past must not change.
    pub(super) fn holds_past(&self) -> bool {
        let last = self.open.back();
        last.is_some_and(
            |open| matches!(open, Open::Ask(question) if Recheck::of(question.checksum).is_some()),
        )
    }

    fn push(&mut self, open: Open, now: Instant) {
        if self.open.is_empty() {
            self.began = Some(now);
        }
        self.open.push_back(open);
    }

    /// Time at which the first open one is late.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let limit = match self.open.front()? {
            Open::Load { .. } | Open::Fill { .. } => LOAD_LIMIT,
            Open::Ask(_) => ANSWER_LIMIT,
        };
        Some(self.began? + limit)
    }

    /// The first open one, if the message ends it.
    pub(super) fn ended(&mut self, message: &FromWorker, now: Instant) -> Option<Ended> {
        let is_its_end = match (self.open.front()?, message) {
            (
                Open::Load { id, .. },
                FromWorker::Loaded { id: of } | FromWorker::Bad { id: of, .. },
            ) => id == of,
            (Open::Fill { vm }, FromWorker::Filled { vm: of }) => vm == of,
            (Open::Ask(question), FromWorker::Said { n, .. } | FromWorker::Fault { n, .. }) => {
                question.n == *n
            }
            _ => false,
        };
        if !is_its_end {
            return None;
        }
        self.began = Some(now);
        self.open.pop_front().map(Ended::from)
    }

    /// All open ones, the first first.
    pub(super) fn into_open(self) -> Vec<Ended> {
        self.open.into_iter().map(Ended::from).collect()
    }
}

impl From<Open> for Ended {
    fn from(open: Open) -> Self {
        match open {
            Open::Load { digest, .. } => Self::Load(digest),
            Open::Fill { .. } => Self::Fill,
            Open::Ask(question) => Self::Ask(question),
        }
    }
}
