//! The decision core of one VM. The question it answers: *how big should this VM be now, and who
//! has to be asked next?*
//!
//! ```text
//!   metrics, wishes, refusals --> goal --> desired D (bounds, holds)
//!                                             |
//!            A <= U <= P at all times         v
//!   monitor approves A      VM object uses U      scheduler permits P
//!   up:    3. told A := U   2. patched U := P     1. asked   P := D
//!   down:  1. asked  A := D 2. patched U := A     3. told    P := U
//! ```
//!
//! *Happy path*: an event changes D; [`Core::poll_action`] hands out at most one request per peer;
//! the end of each comes back as an event and makes the next step possible. Everything is
//! recomputed from scratch each time, so new metrics re-plan at once. *Failure paths*: a failed
//! request is repeated after a constant wait; an answer lost leaves the peer's state as a range
//! that is treated pessimistically on both sides (see `plugin`, `neonvm`, `monitor`); a lost
//! monitor connection forgets wishes and refusals and stops all shrinking; stale or missing metrics
//! hold the size; an announced migration freezes it. *Precedence*: see [`desired`]. *Cold start*:
//! nothing is known; the first permit request only reports what is in use, and nothing shrinks
//! before a monitor is connected and all metrics came. *Recovery*: there is no state to lose but
//! what the peers hold.
//!
//! # Invariants
//! * A ≤ U ≤ P per resource, whatever is lost: `n05_n11_n13_n14_n16_order_holds_under_any_loss`
//!   (properties).
//! * At most one request in flight per peer: same test.
//! * Never more than permitted, never less than approved: same test.
//! * The first permit request carries no permit and exactly U: `n09_…` (vectors) and same test.
//! * A heartbeat is always due: same test, and `n12_s02_heartbeat` (vectors).
//! * Stale metrics hold, an announced migration freezes, a lost answer is taken at its worst:
//!   `lost_answers`.
//! * D is a whole number of units within the bounds when the bounds are: `n03_…` (properties).
//! * In observe mode nothing is patched and the monitor is asked nothing; in grow mode nothing
//!   shrinks: `mode_tests`.
//! * Calm delays neither the monitor nor memory, and never asks for more than there is:
//!   `calm_tests`.
//! * The exact sequences of docs/compatibility/agent.md §7.5: `s01_…`, `n12_s02_…` to `s10_…`
//!   (vectors).

pub mod actions;
pub mod calm;
mod checkpoint;
pub mod config;
pub mod conversation;
pub mod decision;
pub mod desired;
pub mod dump;
mod evaluate;
pub mod goal;
pub mod health;
pub mod journal;
mod left;
pub mod lfc;
pub mod machine;
pub mod metrics;
mod mode;
mod monitor;
mod neonvm;
mod plugin;
pub mod recent;
pub mod replay;
pub mod revision;
mod round;
pub mod scaling;
pub mod vm;
pub mod warnings;

#[cfg(test)]
mod bench;
#[cfg(test)]
mod calm_tests;
#[cfg(test)]
mod journal_tests;
#[cfg(test)]
mod lost_answers;
#[cfg(test)]
mod mode_tests;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod shrink_steps;
#[cfg(test)]
mod signals;
#[cfg(test)]
mod vectors;
#[cfg(test)]
mod vectors_goal;
#[cfg(test)]
mod world;

pub use actions::{Action, Actions, RequestId};
pub use calm::Calm;
pub use config::{CoreConfig, ScalingConfig, ScalingOverrides, ShrinkStep, Timers};
pub use decision::{Bound, Decision, Reason};
pub use left::Left;
pub use machine::{
    Core, DownscaleAnswer, Evaluation, Event, Failure, Observation, Path, Refusal, VmUpdate,
};
pub use metrics::{LfcMetrics, SystemMetrics};
pub use monitor::Wish;
pub use vm::VmInfo;
pub use warnings::{Fault, FaultCounts, Warning, Warnings};
