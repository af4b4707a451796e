//! State of the controller: its process, and the task of each VM with the shipped core.
//!
//! The files of the folder repeat what the controller's shell does between core and wire.

mod actions;
mod tasks;

use std::collections::BTreeMap;

use neonvm_controller::core::VmCore;
use protocol::time::Timestamp;

/// The controller's process; there is one, and its tasks are kept with the VMs.
#[derive(Debug, Default)]
pub struct ControllerPart {
    /// Whether it runs.
    pub up: bool,
    /// Number of the controller's process. Each start raises it.
    pub epoch: u64,
    /// Pods its watch has shown, by name, with their uids.
    pods: BTreeMap<String, String>,
}

/// Its task for a VM.
pub struct Task {
    /// The shipped core.
    pub core: VmCore,
    /// When to wake up.
    pub alarm: Option<Timestamp>,
    /// The pod whose runner it listens to.
    pub(crate) link: Option<String>,
    /// The generation heard last.
    pub(crate) heard: Option<u64>,
    /// A question is open.
    pub(crate) asking: bool,
    /// What the runner was told and waits for its answer, by its number.
    pub(crate) ordering: Option<u64>,
    /// Times in a row that what its pod requests could not be resized.
    unresized: u32,
}
