//! Addresses of VMs that are gone. The finalizer of such a VM was removed by hand, or its pool is
//! older than the finalizer.

use std::collections::BTreeMap;

use protocol::time::{Span, Timestamp};
use protocol::vm::IpAllocation;

use super::holder::Holder;

/// Since when the holders of addresses have been away. Nothing of it needs to survive.
#[derive(Debug, Clone, Default)]
pub struct Leaks {
    away: BTreeMap<(String, String), Timestamp>,
}

impl Leaks {
    /// Returns the holders that have been away for `grace`. The caller asks the API server about
    /// each of them before it releases the address.
    pub fn look(
        &mut self,
        pool: &str,
        allocations: &BTreeMap<String, IpAllocation>,
        is_known: impl Fn(&str) -> bool,
        grace: Span,
        now: Timestamp,
    ) -> Vec<Holder> {
        let mut due = Vec::new();
        let mut still = BTreeMap::new();
        for by in allocations.values().filter(|by| !is_known(&by.id)) {
            let uid = by.podref.clone().unwrap_or_default();
            // A VM of the same name but another uid has its own time.
            let key = (pool.to_owned(), format!("{} {uid}", by.id));
            let since = self.away.get(&key).copied().unwrap_or(now);
            if now.since(since) >= grace {
                let id = by.id.clone();
                due.push(Holder { id, uid });
            }
            still.insert(key, since);
        }
        self.away.retain(|(of, _), _| of != pool);
        self.away.append(&mut still);
        due
    }
}
