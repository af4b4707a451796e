//! Connections between an agent's task and the monitor in the guest: frames in order or not at all.

mod calls;
mod connections;

use std::collections::BTreeMap;

use agent::core::RequestId;
use protocol::time::{Span, Timestamp};

/// An answer that takes longer is none (`monitor.responseTimeoutSeconds`).
pub(crate) const RESPONSE_PATIENCE: Span = Span::from_secs(5);
/// A connection that takes longer is none (`monitor.connectionTimeoutSeconds`).
pub(crate) const CONNECT_PATIENCE: Span = Span::from_secs(4);
/// Between two attempts to connect (`monitor.connectionRetryMinWaitSeconds`).
pub(crate) const DIAL_PERIOD: Span = Span::from_secs(5);

/// A connection, as both ends see it.
#[derive(Debug, Default)]
pub struct Connection {
    agent_task: u64,
    next_id: u64,
    waiting: BTreeMap<u64, (RequestId, bool)>,
    to_guest: Timestamp,
    tell_agent: Timestamp,
    wished_at: Option<Timestamp>,
    is_broken: bool,
}
