//! Sets of VMs. The question that the core answers: given a set, its members and the time, which
//! member is made or deleted next, and what do the set's status and the members' file say?
//!
//! Rules:
//! * Names follow ordinals. A new member gets the lowest free ordinal, the highest goes first.
//! * One request of a set is under way at a time. The count changes no faster than the set's rates.
//! * No member moves: no change of the count deletes or remakes a member that stays.
//! * A new template changes no member. An upgrade replaces one member after the other, each time
//!   after the one before is ready. It stops at the first that fails, until the desired version
//!   changes.
//! * The status is written before the request that rests on it, so a new controller goes on where
//!   the last one ended.

mod build;
mod count;
mod event;
mod member;
mod outline;
mod pace;
mod sets;
mod state;
mod status;
mod upgrade;
mod versions;

#[cfg(test)]
mod tests;

pub use event::{Action, Event, Kind, Reason, Response};
pub use outline::{Change, Outline};
pub use sets::{SetKey, Sets};
pub use state::SetCore;
