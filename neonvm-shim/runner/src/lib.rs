//! The runner: one process per virtual machine that owns a QEMU, and the node driver that starts
//! runners for pods.
//!
//! ```text
//!            control.sock (orders, state)      podIP:25183 (docs/compatibility/neonvm.md §3.6)
//!                        │                              │
//!                        ▼                              ▼
//!  neonvmd ──state──> supervisor (one task) <──────── HTTP, or TLS
//!  (podIP:25184)         │  core::sizer: what next?
//!                        ├──> qmp.sock ──> QEMU (own process group, outlives us)
//!                        └──> cgroup quota
//! ```
//!
//! * [`shell::run`] runs one runner on a directory: starts QEMU, or adopts the one that is there.
//! * [`node::run`] is the small kubelet: pods of this node become runners.
//! * [`container::run`] is the runner as a container of a real kubelet's pod.
//! * [`accel::probe`] finds out whether KVM boots a guest here.
//!
//! Invariants:
//! 1. No end of a runner, however violent, ends its QEMU (`tests/adoption.rs`).
//! 2. QEMU never makes more vCPUs in its life than its accelerator can bear
//!    (`core::budget::tests`).
//! 3. An order is carried out from the observed state, never from what an earlier order left in
//!    memory (`core::sizer::tests`).
//! 4. CPU and memory never wait for one another
//!    (`core::sizer::tests::stuck_memory_does_not_delay_cpus`).

pub mod accel;
pub mod cli;
pub mod config;
pub mod container;
pub mod core;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod node;
pub mod shell;
