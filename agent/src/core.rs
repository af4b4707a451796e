//! The decision core of one VM. The question it answers: *which size should this VM have now, and
//! which request comes next?*
//!
//! ```text
//!   metrics, upscale requests, refusals --> goal --> desired size D (bounds, holds)
//!                                                          |
//!              A <= U <= P at all times                    v
//!   monitor approves A      VM object uses U      scheduler permits P
//!   up:    3. notify  A := U   2. patch U := P    1. request P := D
//!   down:  1. request A := D   2. patch U := A    3. report  P := U
//! ```
//!
//! *Happy path*: an event changes D. `poll_action` returns at most one request per peer.
//! The end of each request is an event and makes the next step possible. Every computation starts
//! from scratch, so new metrics change the plan at once.
//!
//! *Failure paths*: a failed request is repeated after a constant wait. A lost response leaves the
//! peer's state as a range, and each plan uses the unfavourable end (see `scheduler`, `vm_patch`,
//! `monitor`). A lost link drops upscale requests and refusals and stops all shrinks. Missing or
//! stale metrics hold the size. An announced migration freezes it. *Precedence*: see [`desired`].
//!
//! *Cold start*: the first permit request only reports the size in use. Nothing shrinks before a
//! monitor is connected and all metrics have arrived. *Recovery*: only the peers hold state that
//! must not be lost.
//!
//! # Invariants
//! * A ≤ U ≤ P per resource, whatever is lost: `order_holds_under_any_loss` (properties).
//! * At most one request in flight per peer: same test.
//! * Never more than permitted, never less than approved: same test.
//! * The first permit request carries no permit and exactly U:
//!   `first_request_reports_the_size_in_use` (vectors) and same test.
//! * A heartbeat is always due: same test, and `sequence_s02_heartbeat` (vectors).
//! * Stale metrics hold the size, a migration freezes it, and a lost response counts as the worse
//!   case: `lost_responses`.
//! * D is a whole number of units within the bounds when the bounds are:
//!   `desired_size_is_whole_units_within_bounds` (properties).
//! * Observe mode sends no patch and no downscale request; grow mode shrinks nothing: `mode_tests`.
//! * Stabilization delays neither the monitor nor memory, and never raises a goal:
//!   `stabilization_tests`.
//! * The exact sequences of docs/compatibility/agent.md §7.5: `sequence_s01_up_and_down` to
//!   `sequence_s10_metrics_change_while_shrinking` (vectors).

pub mod actions;
pub mod advice;
mod checkpoint;
pub mod config;
pub mod conversation;
pub mod decision;
pub mod desired;
pub mod dump;
mod evaluate;
mod event;
pub mod feeds;
pub mod goal;
mod handoff;
pub mod health;
pub mod journal;
pub mod lfc;
pub mod machine;
pub mod metrics;
mod mode;
mod monitor;
mod observation;
pub mod patch_base;
pub mod questions;
pub mod recent;
pub mod replay;
pub mod restart;
pub mod revision;
mod round;
pub mod scaling;
mod scheduler;
pub mod stabilization;
pub mod tallies;
pub mod units;
pub mod vm;
mod vm_patch;
pub mod warnings;

#[cfg(test)]
mod advice_limits;
#[cfg(test)]
mod advice_properties;
#[cfg(test)]
mod advice_tests;
#[cfg(test)]
mod bench;
#[cfg(test)]
mod journal_tests;
#[cfg(test)]
mod lost_responses;
#[cfg(test)]
mod mode_tests;
#[cfg(test)]
mod policy_tests;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod shrink_steps;
#[cfg(test)]
mod signals;
#[cfg(test)]
mod stabilization_tests;
#[cfg(test)]
mod vectors;
#[cfg(test)]
mod vectors_goal;
#[cfg(test)]
pub(crate) mod world;

pub use actions::{Action, Actions, RequestId};
pub use advice::{Advice, Said, Terms};
pub use config::{CoreConfig, ScalingConfig, ScalingOverrides, ShrinkStep, Timers};
pub use decision::{Bound, Decision, Reason};
pub use event::{DownscaleResponse, Event, Failure, Refusal, UpscaleRequest, VmUpdate};
pub use handoff::Handoff;
pub use machine::{Core, Evaluation};
pub use metrics::{LfcMetrics, SystemMetrics};
pub use observation::{Observation, Path};
pub use patch_base::PatchBase;
pub use stabilization::Stabilization;
pub use vm::VmInfo;
pub use warnings::{Fault, FaultCounts, Warning, Warnings};
