//! The guest daemon `neonvmd`: switches the guest's CPUs, reports the guest's size to the runner,
//! writes files into the guest, and lets settings of programs follow its size.
//!
//! ```text
//!  kernel uevents ─┐                       ┌─> sysfs cpuN/online
//!  one-second tick ┼─> keeper (one task) ──┤
//!  PUT /cpu ───────┘        │              └─> watch<GuestState> ─> GET /v1/state (long-poll)
//! ```
//!
//! [`core`] decides (pure), [`shell`] reads and writes. Wire: docs/compatibility/neonvm.md §3.7
//! plus `GET /v1/state` ([`protocol::runner::GuestState`]).
//!
//! Invariants:
//! 1. CPU 0 is never touched (`core::cpus::tests::cpu_zero_is_never_switched`).
//! 2. A CPU that appears, with or without an event, is online after the next sweep unless a target
//!    says less (`shell::keeper::tests::sweep_onlines_a_cpu_without_an_event`).
//! 3. A reader of `/files` sees either all old or all new content
//!    (`neonvm_files::projected::tests`).
//! 4. No program of the guest is served, whichever of the guest's addresses it uses
//!    (`tests/callers.rs`).
//! 5. A program's file is old or new, whole, after a crash at any step, and no signal is lost
//!    ([`core::render`]).
//! 6. If the VM's runtime drive has a key, no request without it is served, from any address
//!    ([`shell::runtime`]).

pub mod core;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod shell;
