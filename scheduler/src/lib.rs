//! The permit server and the ledger behind it; on one machine also the placer of pods.
//!
//! Agents ask for every increase before they use it; this room grants what a node has left, writes
//! the grant on the VM object, and only then answers. The rules are in `core`, which does no I/O;
//! `shell` moves bytes.
//!
//! ```text
//! agent ──POST──► server ─┐                    ┌─► patch of the VM, bindings, events ──► API server
//!                         ├─► owner of the core┤                                             │
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
