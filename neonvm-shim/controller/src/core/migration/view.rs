//! The facts that a plan for a VM's migrations rests on.

use std::collections::{BTreeMap, BTreeSet};

use protocol::object::Pod;
use protocol::runner::RunnerState;
use protocol::vm::{VirtualMachine, VirtualMachineMigration};
use serde::Serialize;

use super::kind::Kind;
use crate::core::missing_pods::MissingPods;
use crate::core::moment::Moment;
use crate::core::settings::Settings;

/// Phases of a migration (docs/compatibility/neonvm.md §1.7); the first one is empty.
pub const PENDING: &str = "Pending";
/// The guest is on its way.
pub const RUNNING: &str = "Running";
/// Phase of a migration whose guest has moved.
pub const SUCCEEDED: &str = "Succeeded";
/// Phase of a migration whose guest has not moved.
pub const FAILED: &str = "Failed";

/// The VM, as far as known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum VmView<'a> {
    /// Nothing: it must be read.
    Unknown,
    /// The VM does not exist.
    Absent,
    /// The VM as last read.
    Present(&'a VirtualMachine),
}

/// A runner, as far as known.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "link", rename_all = "snake_case")]
pub enum KnownRunner {
    /// The runner does not respond.
    Silent {
        /// Text of the last error on the link to the runner.
        error: String,
    },
    /// The runner reported a state, and the link has not failed since.
    Known {
        /// Newest state that the runner reported.
        state: Box<RunnerState>,
    },
}

/// All that a plan rests on.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// Settings of the controller.
    pub settings: &'a Settings,
    /// The VM as the API server stores it.
    pub vm: VmView<'a>,
    /// Every known migration of the VM, by name.
    pub migrations: &'a BTreeMap<String, VirtualMachineMigration>,
    /// Every known pod of the VM, by name.
    pub pods: &'a BTreeMap<String, Pod>,
    /// Pods that do not exist, by the API server's report.
    pub absent: &'a BTreeSet<String>,
    /// Pods of which it is only known that the watch does not show them.
    pub missing_pods: &'a MissingPods,
    /// Newest report of each runner, by pod name.
    pub runners: &'a BTreeMap<String, KnownRunner>,
    /// Actions that keep failing, with the peer's message.
    pub failures: &'a BTreeMap<Kind, String>,
    /// Five characters for the next target pod's name.
    pub suffix: &'a str,
    /// Time of this plan, monotonic and calendar.
    pub at: Moment,
}
