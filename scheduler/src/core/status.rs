//! Queries: the standing of this replica, its readiness, and the state dump.

use std::collections::BTreeSet;

use protocol::permit::NamespacedName;
use protocol::time::{Span, Timestamp};
use serde_json::json;

use super::amount::Both;
use super::event::StateDump;
use super::lease::Standing;
use super::ledger::Ledger;
use super::permits::PermitAnomalies;
use super::pod_warnings::PodWarning;
use super::pressure::{DeniedIncrease, Pressure};
use super::standby::{StandbyCache, VersionMarks};
use super::{Core, MAX_SHOWN, Synced};

impl Core {
    /// Whether a call may begin now.
    #[must_use]
    pub fn may_act(&self, now: Timestamp) -> bool {
        let lead = self.lead.as_ref();
        lead.is_none_or(|lead| matches!(lead.standing(now), Standing::Leading { .. }))
    }

    /// Whether permit requests are decided now, rather than refused.
    #[must_use]
    pub fn may_permit(&self, now: Timestamp) -> bool {
        self.is_ready() && self.may_act(now)
    }

    /// The standing in the election. `None` without a Lease.
    #[must_use]
    pub fn standing(&self, now: Timestamp) -> Option<Standing> {
        self.lead.as_ref().map(|lead| lead.standing(now))
    }

    /// Longest duration of a call that begins now. `None` without a Lease: there is no such bound.
    #[must_use]
    pub fn call_bound(&self, now: Timestamp) -> Option<Span> {
        match self.standing(now)? {
            Standing::Leading { left } => Some(left),
            Standing::Following | Standing::Settling { .. } => Some(Span(0)),
        }
    }

    /// Whether nodes, pods and VMs have been listed.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.synced.nodes && self.synced.pods && self.synced.vms
    }

    /// Why this replica does not lead, as text for people. `None` if it leads.
    #[must_use]
    pub fn standby(&self, now: Timestamp) -> Option<&'static str> {
        match self.standing(now)? {
            Standing::Following
                if self
                    .standby_cache
                    .as_ref()
                    .is_some_and(StandbyCache::is_listed) =>
            {
                Some("another replica leads, or none; all is listed for a hand-over")
            }
            Standing::Following => Some("another replica leads, or none"),
            Standing::Settling { .. } => {
                Some("taking over: what the last leader sent may yet land")
            }
            Standing::Leading { .. } => None,
        }
    }

    /// Whether no call is in flight and none has an unknown outcome.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.permits.is_drained()
            && self.placement.is_drained()
            && self.extender.is_drained()
            && self.migrate.is_drained()
    }

    /// The versions that the next leader must have observed to need no lists. `None` while calls
    /// are in flight, or before this replica's watches have shown its own writes.
    #[must_use]
    pub fn version_marks(&self) -> Option<VersionMarks> {
        let mut pods = self.ledger.pods();
        let has_seen = self.is_ready()
            && self.is_drained()
            && self.migrate.has_seen_its_own()
            && pods.all(|pod| pod.bind_hold.is_none());
        self.newest.marks().filter(|_| has_seen)
    }

    /// Whether this replica lists and watches while another leads.
    #[must_use]
    pub const fn caches_on_standby(&self) -> bool {
        self.caches_on_standby
    }

    /// The kinds that are not listed, for `/readyz`.
    #[must_use]
    pub fn waiting_for(&self) -> Vec<&'static str> {
        let Synced { nodes, pods, vms } = self.synced;
        let lists = [(nodes, "nodes"), (pods, "pods"), (vms, "virtualmachines")];
        lists
            .into_iter()
            .filter(|(done, _)| !done)
            .map(|(_, name)| name)
            .collect()
    }

    /// Nodes, pods and VMs with their sums.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether [`Core::take_touched`] would return a node.
    #[must_use]
    pub fn has_touched(&self) -> bool {
        self.ledger.has_touched()
    }

    /// Names of the nodes whose figures changed since the last call.
    pub fn take_touched(&mut self) -> BTreeSet<String> {
        self.ledger.take_touched()
    }

    /// Counters of rare events of permit requests.
    #[must_use]
    pub fn permit_anomalies(&self) -> PermitAnomalies {
        self.permits.anomalies()
    }

    /// The pressure on a node. Zero if the node is unknown and has no pods.
    #[must_use]
    pub fn pressure(&self, node: &str) -> Pressure {
        self.migrate
            .pressure(&self.ledger, &self.denied_increases, node)
    }

    /// The last increase of a VM that was not granted in full. `None` once one was.
    #[must_use]
    pub fn denied_increase(&self, vm: &NamespacedName) -> Option<&DeniedIncrease> {
        self.denied_increases.of_vm(vm)
    }

    /// Number of pods with this warning.
    #[must_use]
    pub fn warned_pods(&self, warning: PodWarning) -> usize {
        self.pod_warnings.count(warning)
    }

    /// The whole state as JSON, with at most [`MAX_SHOWN`] pods and as many VMs.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> StateDump {
        let ledger = &self.ledger;
        // Sums are wider than JSON's integers. No machine has as much as the bound.
        let cut = |sum: Both<u128>| sum.map(|_, sum| u64::try_from(sum).unwrap_or(u64::MAX));
        let show = |it: &Pressure| json!({"logical": cut(it.logical), "capacity": cut(it.capacity), "accounted": cut(it.accounted)});
        let nodes = ledger.nodes().map(|node| {
            let load = ledger.load(&node.name);
            let value = json!({"total": node.total, "watermark": ledger.watermark(node),
                "reserved": cut(load.reserved), "committed": cut(load.committed),
                "migrating": cut(load.migrating), "ignored": cut(load.ignored),
                "cordoned": node.cordoned, "unready": node.unready, "problem": node.problem,
                "pressure": show(&self.pressure(&node.name)), "relief": self.migrate.dump_node(&node.name)});
            (node.name.clone(), value)
        });
        let pods = ledger.pods().take(MAX_SHOWN).map(|entry| {
            let warnings = self.pod_warnings.of(&entry.view.uid);
            let counted = ledger.counted(&entry.view);
            let value = json!({"entry": entry, "counted": counted, "remarks": warnings});
            (entry.view.key.to_string(), value)
        });
        StateDump {
            now,
            ready: self.is_ready(),
            nodes: nodes.collect(),
            pods: pods.collect(),
            vms: ledger
                .vms()
                .take(MAX_SHOWN)
                .map(|vm| (vm.view.key.to_string(), json!(vm)))
                .collect(),
            pods_total: ledger.pods().len(),
            vms_total: ledger.vms().len(),
            placement: self.placement.dump(),
            extender: self.extender.dump(),
            permits: self.permits.dump(),
            refused: self.denied_increases.dump(MAX_SHOWN),
            migrations: self.migrate.dump(),
        }
    }
}
