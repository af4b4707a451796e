//! The gauges of each node. They are removed when the node is gone or its labels changed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::labels::{Amount, Amounts, Labels, float, of_node};
use crate::core::Core;
use crate::core::amount::{Both, Resource};
use crate::core::pressure::Pressure;

/// Values of the label `field` of the metrics of a node.
const AMOUNT_FIELDS: [&str; 5] = ["Total", "Reserved", "Committed", "Migrating", "Watermark"];

/// The series of a node.
#[derive(Default)]
struct NodeSeries {
    base: Labels,
    amounts: Vec<(Labels, Both<Amount>)>,
    pressure: Option<Pressure>,
    pressures: Vec<Labels>,
}

/// Handles of the metrics of nodes. Clones share their values.
#[derive(Clone, Default)]
pub(super) struct NodeMetrics {
    pub(super) cpu: Amounts,
    pub(super) mem: Amounts,
    pub(super) pressure: Amounts,
    /// By the name of the node.
    series: Arc<Mutex<BTreeMap<String, NodeSeries>>>,
}

impl NodeMetrics {
    fn series(&self) -> MutexGuard<'_, BTreeMap<String, NodeSeries>> {
        let shown = self.series.lock();
        shown.unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the gauges of a node. Removes them if the node is gone or its labels changed.
    pub(super) fn update(&self, core: &Core, name: &str, extra: &BTreeMap<String, String>) {
        let ledger = core.ledger();
        let mut all = self.series();
        let Some(node) = ledger.node(name) else {
            let gone = all.remove(name).unwrap_or_default();
            self.forget(gone);
            return;
        };
        let is_labelled = |shown: &NodeSeries| {
            let of_node = |(_, label): (_, &String)| node.labels.get(label).map_or("", |it| it);
            let due = extra.iter().map(of_node);
            shown.base.iter().skip(1).map(|(_, it)| it.as_str()).eq(due)
        };
        if !all.get(name).is_some_and(is_labelled) {
            if let Some(stale) = all.remove(name) {
                self.forget(stale);
            }
            let fresh = self.fresh_series(name, &node.labels, extra);
            all.insert(name.to_owned(), fresh);
        }
        let Some(shown) = all.get_mut(name) else {
            return;
        };
        let load = ledger.load(name);
        let wide = |amount: Both<u64>| amount.map(|_, amount| u128::from(amount));
        let amounts = [
            wide(node.total),
            load.reserved,
            load.committed,
            load.migrating,
            wide(ledger.watermark(node)),
        ];
        for ((_, gauges), amount) in shown.amounts.iter().zip(amounts) {
            gauges.cpu.set(float(amount.cpu) / 1000.0);
            gauges.mem.set(float(amount.mem));
        }
        // Every grant changes a node's amounts, but few change its pressure.
        let pressure = core.pressure(name);
        if shown.pressure != Some(pressure) {
            shown.pressures = self.set_pressure(&shown.base, &pressure);
            shown.pressure = Some(pressure);
        }
    }

    /// The series of a node with these labels.
    fn fresh_series(
        &self,
        name: &str,
        node_labels: &BTreeMap<String, String>,
        extra: &BTreeMap<String, String>,
    ) -> NodeSeries {
        let base = of_node(name, node_labels, extra);
        let amounts = AMOUNT_FIELDS.map(|field| {
            let mut key = base.clone();
            key.push(("field".into(), field.into()));
            let cpu = self.cpu.get_or_create(&key).clone();
            let mem = self.mem.get_or_create(&key).clone();
            (key, Both { cpu, mem })
        });
        NodeSeries {
            base,
            amounts: amounts.into(),
            ..NodeSeries::default()
        }
    }

    /// Sets the gauges of a node's pressure. Returns their labels.
    fn set_pressure(&self, base: &Labels, pressure: &Pressure) -> Vec<Labels> {
        let kinds = [
            ("logical", pressure.logical),
            ("capacity", pressure.capacity),
            ("accounted", pressure.accounted),
        ];
        let mut fresh = Vec::with_capacity(kinds.len() * Resource::ALL.len());
        for (kind, amount) in kinds {
            for resource in Resource::ALL {
                let unit = match resource {
                    Resource::Cpu => 1000.0,
                    Resource::Mem => 1.0,
                };
                let mut key = base.clone();
                key.push(("resource".into(), resource.as_str().into()));
                key.push(("kind".into(), kind.into()));
                let gauge = self.pressure.get_or_create(&key).clone();
                gauge.set(float(amount.get(resource)) / unit);
                fresh.push(key);
            }
        }
        fresh
    }

    fn forget(&self, shown: NodeSeries) {
        for (key, _) in shown.amounts {
            self.cpu.remove(&key);
            self.mem.remove(&key);
        }
        for key in shown.pressures {
            self.pressure.remove(&key);
        }
    }
}
