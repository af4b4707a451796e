//! Addresses of VMs that are gone: somebody took the finalizer off by hand, or the pool is older
//! than the VMs.

use std::collections::BTreeMap;

use protocol::time::{Span, Timestamp};
use protocol::vm::IpAllocation;

use super::Holder;

/// A VM has to be away for this long before its address is taken back, unless told otherwise.
pub const GRACE: Span = Span::from_secs(600);

/// Since when the holders of addresses have been away. Nothing of it needs to survive.
#[derive(Debug, Clone, Default)]
pub struct Leaks {
    away: BTreeMap<(String, String), Timestamp>,
}

impl Leaks {
    /// Looks at a pool. Gives back the holders to ask the API server about, one by one, before what
    /// they hold is given back.
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
