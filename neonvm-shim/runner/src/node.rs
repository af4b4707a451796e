//! The node driver: a small kubelet. It starts a runner for each pod of this node with the label
//! `vm.neon.tech/name`, writes the pods' status, and keeps the Node object and its Lease.
//!
//! ```text
//!  watch of pods ──> one worker per pod ──> runner process (own session) ──> QEMU
//!                        │                        ▲
//!                        └── status, events       └── control.sock (state by long-poll, stop)
//! ```
//!
//! The driver is level-triggered and keeps nothing important in memory: it finds running guests in
//! the state directory. Runners and guests outlive the driver; only [`stop_all`] ends them all.
//!
//! A guest is ended when its pod was deleted, not because a store lacks the pod: see [`Orphans`].

mod adopt;
mod api;
mod deletions;
mod host_wall;
pub(crate) mod images;
mod kept_logs;
mod link;
mod object;
mod orphans;
mod params;
mod pod_driver;
mod pod_record;
mod prepare;
mod root_disks;
mod saved;
mod stop;
pub mod trash;
mod users;
mod volumes;
mod walls;
mod watch;

pub use crate::core::users::UserRange;
pub use crate::shell::walls::sandbox_refused;
pub use adopt::{AdoptError, Adoption, adoption};
pub use host_wall::{remove as remove_host_wall, rules_refused};
pub use images::{ImageError, Store};
pub use object::{Machine, machine};
pub use orphans::{Orphan, Orphans};
pub use params::{Allocatable, GuestWalls, NodeParams};
pub use pod_record::{StorePosition, seen_stores};
pub use stop::{Stopped, stop_all};
pub use walls::{Standing, standing};
pub use watch::{NodeError, run};
