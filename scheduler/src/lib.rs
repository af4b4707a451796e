//! The permit server and its ledger. On one machine it also places pods.
//!
//! An agent requests a permit for each increase before it uses it. The scheduler grants headroom of
//! the node, writes the permit on the VM object, and then responds. The rules are in `core`, which
//! does no I/O. `shell` does the I/O.
//!
//! ```text
//! agent ──POST──► server ─┐                    ┌─► patch of the VM, bindings, events ──► API server
//!                         ├─► the core's driver┤                                             │
//! watches ────────────────┘                    └─► metrics, state dump                       │
//!    ▲──────────────────────────── nodes, pods, VMs ─────────────────────────────────────────┘
//! ```

#![forbid(unsafe_code)]

pub mod args;
pub mod config;
pub mod core;
mod shell;

pub use shell::{
    ANNOTATION_DRAINED, Callers, CallersError, Leadership, LeaseName, MAX_BODY_BYTES,
    MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ONE, MAX_EXTENDER_BODY_BYTES, Params, REVIEW_LASTS,
    ReviewRule, RunError, StateHandle, TokenFile, run, runtime,
};
