//! The VMs that are leaving their node or are on their way to one, and the pressure on a node.

use std::collections::BTreeMap;

use super::Migrate;
use crate::core::amount::Both;
use crate::core::ledger::{Ledger, vm_key};
use crate::core::pod_requests::{PodRole, PodView};
use crate::core::pressure::{DeniedIncreases, Pressure};

impl Migrate {
    pub(super) fn is_leaving(&self, pod: &PodView) -> bool {
        match pod.role {
            PodRole::Source => true,
            PodRole::Target => false,
            PodRole::Settled => {
                self.begun.contains_key(&pod.uid)
                    || vm_key(pod).is_some_and(|vm| self.live.contains_key(&vm))
            }
        }
    }

    /// The pressure on a node, with the accounted part.
    pub(in crate::core) fn pressure(
        &self,
        ledger: &Ledger,
        denied_increases: &DeniedIncreases,
        node: &str,
    ) -> Pressure {
        let load = ledger.load(node);
        let watermark = ledger.node(node).map(|node| ledger.watermark(node));
        let logical = load
            .reserved
            .zip(watermark.unwrap_or_default())
            .map(|_, (reserved, mark)| reserved.saturating_sub(u128::from(mark)));
        let mut pressure = Pressure {
            logical,
            capacity: Both::default(),
            accounted: load.migrating,
        };
        let add = |sum: &mut Both<u128>, more: Both<u128>| {
            *sum = sum.zip(more).map(|_, (a, b)| a.saturating_add(b));
        };
        for (vm, denied) in denied_increases.on(node) {
            add(&mut pressure.capacity, denied);
            let mut pods = ledger.pods_of(vm).map(|entry| &entry.view);
            let is_here = |pod: &&PodView| pod.node.as_deref() == Some(node);
            if self.rule.counts_denied() && pods.any(|pod| is_here(&pod) && self.is_leaving(pod)) {
                add(&mut pressure.accounted, denied);
            }
        }
        for pod in self.leaving_unseen(ledger, node) {
            add(&mut pressure.accounted, ledger.share_on(pod, node));
        }
        pressure
    }

    /// Pods on a node that are leaving but are not the source of a migration.
    fn leaving_unseen<'a>(&'a self, ledger: &'a Ledger, node: &'a str) -> Vec<&'a PodView> {
        let begun = self.begun.keys().filter_map(|uid| ledger.pod(uid));
        let live = self.live.keys().flat_map(|vm| ledger.pods_of(vm));
        let mut pods: BTreeMap<&str, &PodView> = BTreeMap::new();
        for entry in begun.chain(live) {
            let view = &entry.view;
            let is_here = view.node.as_deref() == Some(node) && !view.terminal;
            if is_here && view.role == PodRole::Settled {
                pods.insert(&view.uid, view);
            }
        }
        pods.into_values().collect()
    }

    /// The amount that is on its way to each node and does not count there.
    pub(super) fn arriving(&self, ledger: &Ledger) -> BTreeMap<String, Both<u128>> {
        let mut sums: BTreeMap<String, Both<u128>> = BTreeMap::new();
        let of_begun = self
            .begun
            .iter()
            .map(|(uid, begun)| (uid, &begun.vm, &begun.target));
        let of_known = self
            .known
            .values()
            .filter(|known| known.view.is_live())
            .filter_map(|known| known.chosen.as_ref())
            .map(|chosen| (&chosen.pod_uid, &chosen.vm, &chosen.target));
        for (uid, vm, target) in of_begun.chain(of_known) {
            let (Some(target), Some(pod)) = (target, ledger.pod(uid)) else {
                continue;
            };
            let mut pods = ledger.pods_of(vm).map(|entry| &entry.view);
            if pods.any(|pod| pod.role == PodRole::Target && pod.node.is_some()) {
                continue;
            }
            let from = pod.view.node.as_deref().unwrap_or_default();
            let share = ledger.share_on(&pod.view, from);
            let sum = sums.entry(target.clone()).or_default();
            *sum = sum.zip(share).map(|_, (a, b)| a.saturating_add(b));
        }
        sums
    }
}
