//! Messages to a worker's supervisor, and the ends of questions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use policy_contract::{Answer, Fault, Input, PackedPast, Recheck};
use tokio::sync::Notify;

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
        past: Box<PackedPast>,
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
    pub reply: Replies,
}

/// Ends of the questions about a VM, on their way to its driver. A channel of this kind holds a
/// tenth of what one of tokio does. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub(super) struct Replies(Arc<(Mutex<Vec<Said>>, Notify)>);

impl Replies {
    pub(super) fn send(&self, said: Said) {
        let (waiting, news) = &*self.0;
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(said);
        news.notify_one();
    }

    /// The next end. It is not lost when the future is dropped.
    pub(super) async fn next(&self) -> Said {
        let (waiting, news) = &*self.0;
        loop {
            if let Some(said) = pop(waiting) {
                return said;
            }
            news.notified().await;
        }
    }
}

/// The first that waits. The room is given back with the last.
fn pop(waiting: &Mutex<Vec<Said>>) -> Option<Said> {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    if waiting.len() <= 1 {
        return std::mem::take(&mut *waiting).pop();
    }
    Some(waiting.remove(0))
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

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn lost(n: u64) -> Said {
        Said { n, end: End::Lost }
    }

    #[tokio::test]
    async fn ends_come_in_their_order_and_none_is_lost_with_a_dropped_future() {
        let replies = Replies::default();
        assert!(replies.next().now_or_never().is_none());
        replies.send(lost(1));
        replies.send(lost(2));
        assert_eq!(replies.next().await.n, 1);
        let mut waits = Box::pin(replies.next());
        assert!(
            waits
                .as_mut()
                .now_or_never()
                .is_some_and(|said| said.n == 2)
        );
        let mut waits = Box::pin(replies.next());
        assert!(waits.as_mut().now_or_never().is_none());
        replies.send(lost(3));
        drop(waits);
        let other = replies.clone();
        let task = tokio::spawn(async move { [other.next().await.n, other.next().await.n] });
        tokio::task::yield_now().await;
        replies.send(lost(4));
        assert_eq!(task.await.expect("both come"), [3, 4]);
    }
}
