//! Which guest gets a new version of a part next, and what follows from its trial? The engine of
//! one environment, without I/O.
//!
//! [`Engine`] gets the objects and what was seen of the guests ([`World`]), and yields writes and
//! calls. Everything that must survive it is in the objects, so a restart is the next world.
//!
//! * [`deployment`]: events and states of a deployment. A missing cell does not compile.
//! * [`step`]: the same for one guest.
//! * [`permit`]: how many guests may be away, and why one has to wait.
//! * [`windows`], [`schedule`]: when guests may change, and two renderings of it.
//! * [`decide`]: whether a guest goes now, and the time between attempts that nobody ordered.
//! * [`groups`], [`judge`]: who goes first, and whether guests fare worse with the new release.
//! * [`order`]: whether a release may run beside what runs already.
//! * [`preflight`]: whether a control plane understands what runs.
//! * [`steady`]: health that does not flap.
//! * [`node`]: how far the trial of a node's agent is.
//! * [`service`]: how far the trial of a part of the control plane is.
//! * [`proof`]: whether a program on trial is good, seen from outside.
//! * [`runners`]: which guest moves to a new runner next. A core of its own.
//!
//! # Invariants
//! * At each grant the settled healthy guests are at least `required`, or one at a time goes where
//!   that would allow no step: `permit_never_takes_more_than_the_budget`.
//! * One deployment of an environment gives turns, and it holds the lock.
//! * A terminal deployment has no lock and no turn.

#![forbid(unsafe_code)]

pub mod cause;
pub mod counts;
pub mod decide;
pub mod deployment;
mod engine;
pub mod groups;
mod hash;
pub mod judge;
pub mod node;
pub mod order;
pub mod permit;
pub mod preflight;
pub mod proof;
pub mod runners;
pub mod schedule;
pub mod service;
pub mod steady;
pub mod step;
pub mod windows;
mod world;

pub use engine::{Action, Call, Engine, Event, Now, Outcome, Write, watched};
pub use world::{
    Degradation, Deployment, Environment, Facts, Guest, ImageCheck, Observed, PartFacts, Returned,
    Revision, World, claim, health_check, is_open, owner_windows,
};
