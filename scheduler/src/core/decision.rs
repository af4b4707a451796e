//! The decision on a permit request, with its reasons as data.

use protocol::permit::NamespacedName;
use protocol::units::Resources;
use serde::Serialize;

use super::amount::{Both, Resource};

/// Why an increase was not granted in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The node has no headroom for it.
    NoRoom,
    /// The ledger has no such node, so its headroom is unknown.
    NodeMissing,
    /// The agent claims a permit above the approved size. No more than the approved size is
    /// granted.
    Claim,
    /// The increase goes beyond the VM's maximum, or the maximum is unknown.
    VmMax,
    /// The VM is being migrated.
    Migrating,
    /// Another scheduler places this pod.
    ForeignScheduler,
    /// The VM has no autoscaling label, or its namespace is ignored.
    NotAutoscaled,
    /// The pod has ended.
    Ended,
    /// The approved annotation does not parse. The next write repairs it.
    #[serde(rename = "garbled")]
    Malformed,
    /// The compute unit is zero.
    ZeroUnit,
    /// Other VMs on the node want more too. The VM got its share of the headroom.
    FairShare,
    /// VMs of a higher priority on the node want the headroom.
    Priority,
    /// The VM or its node reached its growth rate.
    GrowthRate,
}

impl Limit {
    /// Value of metric labels and log fields.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoRoom => "no_room",
            Self::NodeMissing => "node_missing",
            Self::Claim => "claim",
            Self::VmMax => "vm_max",
            Self::Migrating => "migrating",
            Self::ForeignScheduler => "foreign_scheduler",
            Self::NotAutoscaled => "not_autoscaled",
            Self::Ended => "ended",
            Self::Malformed => "garbled",
            Self::ZeroUnit => "zero_unit",
            Self::FairShare => "fair_share",
            Self::Priority => "priority",
            Self::GrowthRate => "growth_rate",
        }
    }

    /// Whether more headroom on the node would lift the limit.
    #[must_use]
    pub const fn is_want_of_room(self) -> bool {
        matches!(self, Self::NoRoom | Self::FairShare | Self::Priority)
    }
}

/// The outcome of a request for one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The request is no increase.
    Accepted,
    /// The increase is granted in full.
    Granted,
    /// The increase is granted in part.
    Partial(Limit),
    /// Nothing of the increase is granted.
    Denied(Limit),
}

impl Outcome {
    /// Why the increase was not granted in full. `None` if it was, or if there was no increase.
    #[must_use]
    pub const fn limit(self) -> Option<Limit> {
        match self {
            Self::Partial(limit) | Self::Denied(limit) => Some(limit),
            Self::Accepted | Self::Granted => None,
        }
    }
}

/// The decision on one resource. Amounts are in thousandths of a core, or in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct ResourceVerdict {
    /// The requested amount.
    pub asked: u64,
    /// The amount that the VM held before.
    pub held: u64,
    /// The amount that the VM holds from now on.
    pub permit: u64,
    /// The VM's maximum. No permit is above it.
    pub most: u64,
    /// The headroom beyond `held`.
    pub room: u64,
    /// Whether the increase was granted, and what limited it.
    pub outcome: Outcome,
}

/// The decision on one permit request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct PermitDecision {
    /// The VM's pod.
    pub pod: NamespacedName,
    /// The VM that grows or shrinks.
    pub vm: NamespacedName,
    /// The pod's node.
    pub node: String,
    /// The decision on each resource.
    pub verdicts: Both<ResourceVerdict>,
    /// The size to permit.
    pub permit: Resources,
    /// The size to write as approved: the permit, or the size in use if that is larger. An agent
    /// lowers the size in use before it requests less. A request for less than the size in use is
    /// therefore from an agent that has ended, and its successor has grown the VM since.
    pub approved: Resources,
    /// The part of `last_permit` above the approved size that the agent requests again.
    pub claim: Option<Resources>,
    /// Whether `last_permit` is above the approved size and all writes under way.
    pub overclaimed: bool,
    /// Whether the VM's approved annotation does not parse.
    #[serde(rename = "garbled")]
    pub approved_is_malformed: bool,
    /// Whether the scheduler writes the VM's annotations.
    pub autoscaled: bool,
}

impl PermitDecision {
    /// Whether the request asks for more than the VM holds.
    #[must_use]
    pub fn is_increase(&self) -> bool {
        self.verdicts.any(|verdict| verdict.asked > verdict.held)
    }

    /// Whether the request is an increase by an agent that claims a larger permit.
    #[must_use]
    pub fn rests_on_claim(&self) -> bool {
        self.overclaimed && self.is_increase()
    }

    /// The limit of each resource that was not granted in full, CPU first.
    #[must_use]
    pub fn limits(&self) -> Vec<(Resource, Limit)> {
        let limits = Resource::ALL.into_iter();
        limits
            .filter_map(|r| Some((r, self.verdicts.get(r).outcome.limit()?)))
            .collect()
    }
}
