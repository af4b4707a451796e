//! Leases of the control plane. Renewals are counted from look to look: the clocks of holders are
//! compared with no other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use fleet_core::service::LeaseSigns;
use protocol::time::Timestamp;
use serde_json::Value;

/// Part of the control plane: namespace and name of its `Deployment`.
pub(crate) type Key = (String, String);

/// What earlier looks have shown; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<BTreeMap<Key, Memory>>>);

#[derive(Debug, Clone, Default)]
struct Memory {
    holder: String,
    renewed: String,
    renewals: u32,
    changed: Option<Timestamp>,
    /// Since when fewer replicas are available than wanted.
    short: Option<Timestamp>,
}

impl Seen {
    /// Adds a look at a Lease.
    pub(crate) fn lease(&self, key: &Key, object: &Value, now: Timestamp) -> LeaseSigns {
        let text = |member: &str| object["spec"][member].as_str().unwrap_or_default();
        let (holder, renewed) = (text("holderIdentity"), text("renewTime"));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = all.entry(key.clone()).or_default();
        if memory.holder != holder {
            memory.holder = holder.to_owned();
            memory.renewals = 0;
            memory.changed = Some(now);
        } else if memory.renewed != renewed {
            memory.renewals = memory.renewals.saturating_add(1);
            memory.changed = Some(now);
        }
        memory.renewed = renewed.to_owned();
        let changed = *memory.changed.get_or_insert(now);
        LeaseSigns {
            holder: pod_of(holder).to_owned(),
            renewals: memory.renewals,
            quiet_seconds: seconds(changed, now),
        }
    }

    /// Time for which a part has been short of replicas.
    pub(crate) fn short_seconds(&self, key: &Key, is_short: bool, now: Timestamp) -> u64 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = all.entry(key.clone()).or_default();
        memory.short = is_short.then(|| memory.short.unwrap_or(now));
        memory.short.map_or(0, |since| seconds(since, now))
    }
}

const fn seconds(since: Timestamp, now: Timestamp) -> u64 {
    now.since(since).as_millis() / 1_000
}

/// Pod of an identity. A host's name comes first, and a pod's host is named like it.
fn pod_of(identity: &str) -> &str {
    identity.split('_').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use protocol::time::Span;
    use serde_json::json;

    use super::*;

    fn lease(holder: &str, second: u32) -> Value {
        json!({"spec": {
            "holderIdentity": holder, "renewTime": format!("2026-01-05T12:00:{second:02}.000000Z"),
        }})
    }

    fn key() -> Key {
        ("kube-system".to_owned(), "bellows-fleet".to_owned())
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::default() + Span::from_secs(seconds)
    }

    /// Requirement: B23
    #[test]
    fn renewals_of_one_holder_count_and_those_of_a_former_one_do_not() {
        let seen = Seen::default();
        let renewals = |holder: &str, second| {
            let signs = seen.lease(&key(), &lease(holder, second), at(u64::from(second)));
            (signs.holder, signs.renewals, signs.quiet_seconds)
        };
        let of = |pod: &str, times, quiet| (pod.to_owned(), times, quiet);
        assert_eq!(
            renewals("pod-a_7", 0),
            of("pod-a", 0, 0),
            "it may be an old one"
        );
        assert_eq!(renewals("pod-a_7", 2), of("pod-a", 1, 0));
        assert_eq!(renewals("pod-a_7", 4), of("pod-a", 2, 0));
        assert_eq!(renewals("pod-a_8", 6), of("pod-a", 0, 0), "another process");
        assert_eq!(renewals("", 7), of("", 0, 0));
        let quiet = seen.lease(&key(), &lease("", 7), at(70));
        assert_eq!(quiet.quiet_seconds, 63);
        let other = ("other".to_owned(), "bellows-fleet".to_owned());
        assert_eq!(seen.lease(&other, &lease("", 7), at(70)).quiet_seconds, 0);
    }

    #[test]
    fn lack_of_replicas_is_timed_until_it_ends() {
        let seen = Seen::default();
        assert_eq!(seen.short_seconds(&key(), true, at(1)), 0);
        assert_eq!(seen.short_seconds(&key(), true, at(9)), 8);
        assert_eq!(seen.short_seconds(&key(), false, at(10)), 0);
        assert_eq!(seen.short_seconds(&key(), true, at(11)), 0);
    }
}
