//! Requests for the schedule of upgrades, which the agent has: when is the next one due, and since
//! when do they fail?

use protocol::time::{Span, Timestamp};

/// Longest wait for the agent's answer.
const ANSWER_WITHIN: Span = Span::from_secs(10);
/// Time from a failed request to the next one.
const RETRY_AFTER: Span = Span::from_secs(30);

/// A request without an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenRequest {
    pub(super) id: u64,
    pub(super) since: Timestamp,
}

/// Requests for the schedule.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ScheduleRequests {
    pub(super) open: Option<OpenRequest>,
    /// Time of the request whose schedule is being written.
    pub(super) writing_since: Option<Timestamp>,
    /// Time of the next request. `None` without an agent that answers such requests.
    pub(super) next_at: Option<Timestamp>,
    /// Time of the first request after the last success, if it has failed.
    pub(super) failing_since: Option<Timestamp>,
}

impl ScheduleRequests {
    /// An agent has named its capabilities, or speaks a version without any.
    pub(super) fn begin(&mut self, now: Timestamp, is_agreed: bool) {
        *self = Self {
            open: None,
            writing_since: self.writing_since,
            next_at: is_agreed.then_some(now),
            failing_since: self.failing_since.filter(|_| is_agreed),
        };
    }

    /// The link is down. The time of failures goes on.
    pub(super) fn link_lost(&mut self) {
        self.open = None;
        self.next_at = None;
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        match self.open {
            Some(open) => Some(open.since + ANSWER_WITHIN),
            None => self.next_at,
        }
    }

    /// Takes the open request, if it has this id.
    pub(super) fn answered(&mut self, id: u64) -> Option<OpenRequest> {
        self.open.take_if(|open| open.id == id)
    }

    /// The request of `since` has failed. Without a link there is nothing to try again.
    pub(super) fn failed(&mut self, now: Timestamp, since: Timestamp) {
        self.failing_since.get_or_insert(since);
        if self.next_at.is_some() {
            self.next_at = Some(now + RETRY_AFTER);
        }
    }
}
