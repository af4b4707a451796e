//! Which version of a policy decides. A candidate is tried in shadow, then on a few VMs, before it
//! decides about all; a version that does harm is taken back without hands.
//!
//! Policies of sets are asked here, every 10 s: [`core::sets`].
//!
//! [`core`] decides: rules over figures, no clock and no I/O. The shell reads policies and agents,
//! and writes statuses. Entry: [`run`] with [`Params`].

#![forbid(unsafe_code)]

pub mod args;
pub mod core;
mod shell;

pub use shell::{AgentPods, Agents, LOOK_EVERY, Params, ReadReports, SetParams, run};
