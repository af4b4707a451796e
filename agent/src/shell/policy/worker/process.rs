//! A running worker and what it is sent.

use policy_contract::frames::{self, MAX_LINE_BYTES, ToWorker};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::Instant;
use tokio_util::codec::{FramedRead, LinesCodec};

use super::super::known::Policy;
use super::super::{End, Question, Said};
use super::queue::Queue;
use super::rechecks::{self, Next};

/// A running worker.
pub(super) struct Worker {
    pub child: Child,
    pub stdin: ChildStdin,
    pub lines: FramedRead<ChildStdout, LinesCodec>,
    pub unsent: Vec<u8>,
    pub queue: Queue,
}

impl Worker {
    pub(super) fn new(mut child: Child) -> Self {
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = child.stdout.take().expect("it is piped");
        let codec = LinesCodec::new_with_max_length(MAX_LINE_BYTES);
        Self {
            child,
            stdin,
            lines: FramedRead::new(stdout, codec),
            unsent: Vec::new(),
            queue: Queue::default(),
        }
    }

    /// Returns whether the message will be sent.
    pub(super) fn send(&mut self, message: &ToWorker) -> bool {
        match frames::encode(message) {
            Ok(line) => self.unsent.extend(line),
            Err(error) => {
                tracing::error!(%error, "a message to the worker is too long");
                return false;
            }
        }
        true
    }

    /// Loads a policy, in the place of the same policy where it is loaded.
    pub(super) fn load(&mut self, policy: &Policy) {
        let (id, _) = self.queue.id_of(policy.digest);
        let spec = &policy.spec;
        self.send(&ToWorker::Load {
            id,
            digest: policy.digest,
            scope: spec.scope,
            source: spec.source.clone(),
            params: spec.params.clone(),
        });
        self.queue.loads(id, policy.digest, Instant::now());
    }

    /// Asks a policy that is loaded.
    pub(super) fn ask(&mut self, question: Question) {
        let (id, _) = self.queue.id_of(question.policy.digest);
        self.send(&ToWorker::Ask {
            n: question.n,
            vm: question.vm,
            id,
            t: question.at,
            i: question.input.clone(),
        });
        self.queue.asks(question, Instant::now());
    }

    /// Ends a question, or asks it again.
    pub(super) fn conclude(&mut self, question: Box<Question>, said: End) {
        match rechecks::next(question, said) {
            Next::End(question, said) => end(&question, said),
            Next::Again(question) => self.ask(*question),
            Next::LoadAndAgain(question) => {
                self.load(&question.policy);
                self.ask(*question);
            }
        }
    }
}

/// Tells the driver the end of its question.
pub(super) fn end(question: &Question, end: End) {
    question.reply.send(Said { n: question.n, end });
}
