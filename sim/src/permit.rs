//! A permit request, as the agent that waits for the answer has it.

mod link;

use agent::core::RequestId;
use protocol::time::Span;

/// After this the agent gives up (`scheduler.requestTimeoutSeconds`).
pub(crate) const PERMIT_PATIENCE: Span = Span::from_secs(2);

/// A request as the agent sees it.
#[derive(Debug, Clone, Copy)]
pub struct Flight {
    vm: usize,
    agent_task: u64,
    id: RequestId,
    /// The scheduler it was sent to.
    replica: usize,
    /// Nobody listens at the other end: it certainly did not arrive.
    never_left: bool,
}
