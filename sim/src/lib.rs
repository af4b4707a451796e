//! The whole system on a virtual clock: the shipped cores of agent, scheduler, controller, monitor
//! and runner, many VMs on several nodes, and a world that does to them whatever a seed says.
//!
//! Everything here is the world: objects with versions and watches, links that lose and delay,
//! guests that lie, machines that give memory back slowly. What is decided is decided by the cores,
//! unchanged. [`run::run`] runs one seed.
//!
//! [`World`] holds the state of all parts. The file of a part, such as `agent.rs`, has the state
//! that the world keeps and the messages to the part. The folder beside it, such as `agent/`, has
//! what the part does, as methods of the world. So no part needs the file of another's actions.

#![forbid(unsafe_code)]

mod agent;
mod api;
mod build;
mod check;
mod controller;
mod drive;
mod election;
mod event;
mod fault_schedule;
pub mod faults;
pub mod journal;
mod link;
mod machine;
pub mod migrations;
mod monitor;
mod node;
pub mod options;
mod orders;
pub mod peers;
mod permit;
mod policy;
mod queue;
mod quota_bound;
mod recording;
mod recovery;
pub mod rng;
pub mod run;
mod scheduler;
mod stall;
mod store;
mod watch;
mod world;

pub use check::Violation;
pub use options::{Level, Options, PolicyKind, Sabotage};
pub use run::{Outcome, recorded, run};
pub use world::World;
