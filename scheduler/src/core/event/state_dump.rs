//! The state that `/debug/state` serves.

use std::collections::BTreeMap;

use protocol::time::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// The whole state as JSON. Decisions never use it.
#[derive(Debug, Clone, Serialize)]
pub struct StateDump {
    /// When the dump was taken, by the monotonic clock.
    pub now: Timestamp,
    /// Whether nodes, pods and VMs have each been listed.
    pub ready: bool,
    /// Nodes with their sums, by name.
    pub nodes: BTreeMap<String, Value>,
    /// Pods by `namespace/name`, at most [`MAX_SHOWN`](crate::core::MAX_SHOWN).
    pub pods: BTreeMap<String, Value>,
    /// VMs by `namespace/name`, at most [`MAX_SHOWN`](crate::core::MAX_SHOWN).
    pub vms: BTreeMap<String, Value>,
    /// Number of pods, including those that `pods` leaves out.
    pub pods_total: usize,
    /// Number of VMs, including those that `vms` leaves out.
    pub vms_total: usize,
    /// Unbound pods and the bindings under way.
    pub placement: Value,
    /// Bindings that a kube-scheduler requested, by the pod's uid, and pods refused for want of
    /// headroom.
    pub extender: Value,
    /// Permit requests, writes and reads under way.
    pub permits: Value,
    /// Per VM, the last increase that was not granted in full, until one is granted in full.
    pub refused: BTreeMap<String, Value>,
    /// Migrations, and the VMs that are in a pause after one.
    pub migrations: Value,
}
