//! Who carries out what the engine of a rollout decides? The driver of all environments, a part of
//! `bellows up` and of `bellows-fleet`.
//!
//! A look lists the objects, the VMs, their namespaces and nodes. Each environment has a task with
//! its engine, which reads the guests of its part of the look. Its writes are carried out one after
//! another, its calls to guests beside.
//!
//! * [`run`]: the loop.
//! * `lane`: the task of an environment.
//! * `look`: reads what the engines decide from.
//! * `guest`: one guest, seen from outside.
//! * `nodes`: agents of nodes, seen and changed by the API.
//! * `images`: whether the images of revisions are signed.
//! * `refused`: events about images that are not used.
//! * `schedules`: when updaters of guests upgrade, as an annotation of their VMs.
//! * `services`: the control plane, seen and changed by the API.
//! * `workload`: a `DaemonSet` or `Deployment` as it is read and written.
//! * `watch`: what guests go through while a judge watches them.
//! * `runners`: ways to guests, on one machine and in a cluster.
//! * `calls`: orders to a guest.
//! * `changes`, `records`, [`Metrics`]: what was done, for log, journal and metrics.
//! * [`Channels`]: versions of environments that follow a channel.
//! * [`Mover`]: moves guests to new runners.
//! * [`planned_world`]: one look for a command.
//! * [`preflight`]: whether a control plane understands what runs.
//! * `wanted`: programs that this host lacks.
//! * [`Pulses`]: whether the tasks get on.
//!
//! # Rules
//! * An engine's number of writes is read before the first list of a look.
//! * Every exchange has a time limit. A call to one guest delays neither another nor a write, and
//!   an environment delays no other.
//! * Without a running deployment nothing is written, and guests are read every 30 s.

#![forbid(unsafe_code)]

mod calls;
mod changes;
mod channels;
mod driver;
mod events;
mod guest;
mod image;
mod images;
mod lane;
mod lease;
mod look;
mod metrics;
mod moves;
mod names;
mod node;
mod nodes;
mod planned;
mod preflight;
mod pulse;
mod records;
mod runners;
mod schedules;
mod services;
mod wanted;
mod watch;
mod workload;

pub use channels::Channels;
pub use driver::{Location, Params, run};
pub use fleet_core::preflight::Findings;
pub use fleet_core::runners::{Settings as MoveSettings, Wanted as WantedRunner};
pub use metrics::Metrics;
pub use moves::{MoveParams, Mover, Standing, own_program, program_of};
pub use planned::planned_world;
pub use preflight::{Preflight, PreflightError, preflight};
pub use pulse::Pulses;
