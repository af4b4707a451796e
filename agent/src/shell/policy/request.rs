//! Messages to a worker's supervisor, and the ends of questions.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy_contract::{Answer, Fault, History, Input, Recheck};
use tokio::sync::mpsc;

use super::known::Policy;

/// Message to the worker's supervisor.
#[derive(Debug)]
pub(super) enum Request {
    /// A VM has a policy, so the worker must run.
    Wanted,
    /// The VM is gone, or its past follows.
    Forget { generation: u64, vm: u32 },
    /// The whole past of a VM, for a worker without it.
    Fill {
        generation: u64,
        vm: u32,
        past: Box<History>,
    },
    /// New samples of a VM.
    Sample {
        generation: u64,
        vm: u32,
        at: f64,
        samples: BTreeMap<String, f64>,
    },
    /// A question to one policy.
    Ask(Box<Question>),
}

#[derive(Debug)]
pub(super) struct Question {
    pub generation: u64,
    /// Unique within this process.
    pub n: u64,
    pub vm: u32,
    pub at: f64,
    pub policy: Arc<Policy>,
    pub input: Box<Input>,
    /// Checksum of the question as it is recorded.
    pub checksum: u32,
    /// Answer to the first question, where this is the second one.
    pub first: Option<(Recheck, Box<Answer>)>,
    pub reply: mpsc::Sender<Said>,
}

/// End of a question.
#[derive(Debug)]
pub(super) struct Said {
    pub n: u64,
    pub end: End,
}

#[derive(Debug)]
pub(super) enum End {
    Answer(Box<Answer>),
    Fault(Fault, String),
    /// The version is set aside, so it was not asked.
    Aside(Fault, String),
    /// The worker ended because of another question.
    Lost,
}
