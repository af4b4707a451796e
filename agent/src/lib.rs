//! The autoscaler agent, one per node. It reads metrics from each VM, decides a size, requests a
//! permit of the scheduler, patches the VM object and notifies the monitor in the guest.
//!
//! [`core`] decides, [`shell`] moves bytes. Entry: [`run`] with [`Params`].

#![forbid(unsafe_code)]

pub mod core;
pub mod shell;

pub use core::replay::latest::Latest;
pub use core::replay::{Mismatch, Observer, Oracle, Reasked, Replay, Report as ReplayReport, Seen};
pub use shell::config::{Config, ConfigError, Policies as PolicySettings};
pub use shell::{
    Addresses, Bound, DecisionEntry, EventLogError, EventReceiverError, EventsError, Params, Ports,
    RunError, StateHandle, bind, run,
};
