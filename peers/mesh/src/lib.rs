//! Several machines without Kubernetes that know each other. Each keeps its own API, ledger, agent
//! and VMs; they share who is there, what runs where, and how sets are divided.
//!
//! ```text
//! gossip, sealed UDP ─► Members ─► Leader (peers-core) ─► claim, plan ─► gossip
//! HTTPS, same port ──► join, inventory, sets, policies      └─► counts of this machine ─► Machine
//! ```
//!
//! * [`Keys`]: the key file. Everything that passes between machines is sealed or shown with it.
//! * [`Mesh`]: this machine among the others.
//! * [`MeshMetrics`]: its metrics.
//! * [`Machine`]: what the mesh needs of the machine that it runs on.

#![forbid(unsafe_code)]

mod client;
mod driver;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod gossip;
mod identity;
mod keys;
mod mesh;
mod metrics;
mod ping;
mod published;
mod seal;
mod server;
mod state_file;
mod transport;

pub use driver::Input;
pub use keys::{KeyError, Keys};
pub use mesh::{Config, Machine, Mesh, StartError};
pub use metrics::MeshMetrics;
pub use published::{MAX_MEMBERS, MAX_SETS};
pub use server::{MeshStatus, PeerStatus};
