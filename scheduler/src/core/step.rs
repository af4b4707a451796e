//! The state that the parts of the core share while they handle one input.

use std::collections::VecDeque;

use protocol::time::Timestamp;

use super::event::Action;
use super::ledger::Ledger;
use super::pressure::DeniedIncreases;

/// Lent to a part of the core for one step.
pub(super) struct StepContext<'a> {
    pub(super) now: Timestamp,
    pub(super) ledger: &'a mut Ledger,
    pub(super) denied_increases: &'a mut DeniedIncreases,
    /// Actions for the shell, in order.
    pub(super) out: &'a mut VecDeque<Action>,
}
