//! Rules of counting and granting that the configuration sets.

use std::collections::BTreeSet;

use protocol::units::Resources;
use serde::{Deserialize, Serialize};

use super::overcommit::OvercommitPolicy;
use super::score::Curve;

/// Rules by which the ledger counts and permits are decided.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rules {
    /// The only `spec.schedulerName` that is ours.
    pub scheduler_name: String,
    /// Namespaces whose pods count for placement only.
    pub ignored_namespaces: BTreeSet<String>,
    /// The part of a node that should be in use at most, in millionths of its total.
    pub watermark_ppm: u32,
    /// The scoring curve.
    pub curve: Curve,
    /// Whether resources that a runner reports as plugged count. If so, memory that a guest has
    /// not returned is not granted to another VM.
    pub count_plugged: bool,
    /// How headroom is shared when several VMs want it, and growth rates.
    pub fairness: Fairness,
    /// Bounds of over-commit factors.
    pub overcommit: OvercommitPolicy,
}

/// Sharing of headroom and growth rates. The default turns both off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Fairness {
    /// Whether headroom is divided among the VMs that want more.
    pub sharing: bool,
    /// Growth of each VM per second. A resource of zero has no rate.
    pub vm_growth_per_second: Resources,
    /// Growth of all VMs of a node together per second. A resource of zero has no rate.
    pub node_growth_per_second: Resources,
    /// Seconds of growth that a VM or node may use at once after a time without growth. At least
    /// 1.
    pub burst_seconds: u32,
}

impl Fairness {
    /// Whether sharing and all rates are off.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }
}
