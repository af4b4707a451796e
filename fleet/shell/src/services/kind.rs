//! Parts of the control plane: their `Deployment`s and Leases.

use protocol::parts::PartName;

use crate::workload::Workload;

/// A part of the control plane, as the manifests install it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Name of the `Deployment` and of the part's container.
    pub(crate) name: &'static str,
    /// Lease of the replica that works.
    pub(super) lease: &'static str,
    /// Whether all replicas become ready. Of the scheduler only the leader does.
    pub(super) is_ready_without_lead: bool,
    /// Whether the fleet sets how many pods may be away. The scheduler's budget stays as shipped.
    pub(super) has_budget: bool,
}

const CONTROLLER: Kind = Kind {
    name: "neonvm-controller",
    lease: "a3b22509.neon.tech",
    is_ready_without_lead: true,
    has_budget: true,
};
const SCHEDULER: Kind = Kind {
    name: "autoscale-scheduler",
    lease: "autoscale-scheduler",
    is_ready_without_lead: false,
    has_budget: false,
};
const FLEET: Kind = Kind {
    name: "bellows-fleet",
    lease: "bellows-fleet",
    is_ready_without_lead: true,
    has_budget: true,
};

impl Kind {
    pub(super) fn workload(self, client: kube::Client, namespace: &str) -> Workload {
        Workload::new(client, namespace, "Deployment", self.name)
    }

    /// `None` for a part that no `Deployment` runs.
    pub(crate) const fn of(part: PartName) -> Option<Self> {
        match part {
            PartName::Controller => Some(CONTROLLER),
            PartName::Scheduler => Some(SCHEDULER),
            PartName::Fleet => Some(FLEET),
            PartName::Monitor | PartName::Guestd | PartName::Agent => None,
        }
    }
}
