//! A check of the stored sums.

use std::collections::{BTreeMap, BTreeSet};

use super::Ledger;
use super::entry::{Load, combine};

impl Ledger {
    /// Recomputes every sum from the pods and compares it with the stored sum. For tests.
    ///
    /// # Errors
    /// The names of the nodes whose sums are wrong.
    pub fn audit(&self) -> Result<(), Vec<String>> {
        let mut fresh: BTreeMap<String, Load> = BTreeMap::new();
        for entry in self.pods.values() {
            let node = entry.view.node.as_ref().or(entry.bind_hold.as_ref());
            if let Some(node) = node.filter(|_| !entry.view.terminal) {
                if !self
                    .on_node
                    .get(node)
                    .is_some_and(|uids| uids.contains(&entry.view.uid))
                {
                    return Err(vec![node.clone()]);
                }
                let load = fresh.entry(node.clone()).or_default();
                *load = combine(*load, self.charge_of(&entry.view, node), |sum, part| {
                    sum + part
                });
            }
        }
        let names: BTreeSet<&String> = fresh.keys().chain(self.loads.keys()).collect();
        let due = |name: &String| fresh.get(name).copied().unwrap_or_default();
        let wrong = names
            .into_iter()
            .filter(|name| due(name) != self.load(name));
        let wrong: Vec<String> = wrong.cloned().collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}
