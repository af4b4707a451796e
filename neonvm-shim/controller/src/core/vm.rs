//! One VM's state machine: events in, actions out, at most one action per peer under way.
//!
//! The core holds the newest known state of the VM, its pods and its runner, and plans from scratch
//! for each action ([`plan`](crate::core::plan::plan)). So an event that is lost, repeated or
//! reordered changes only when the right action happens.
//!
//! Cold start: everything is read from the objects and the runner. Nothing of the core's state
//! needs to survive.

mod claim;
mod done;
mod dump;
mod event;
mod observe;
mod poll;
mod state;

pub use claim::CLAIM_CHECK_AFTER;
pub use dump::Dump;
pub use event::{ActionResponse, Event};
pub use poll::LOOK_AGAIN;
pub use state::VmCore;

#[cfg(test)]
mod tests;
