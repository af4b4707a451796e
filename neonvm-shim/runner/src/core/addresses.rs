//! Addresses of pods: one per pod from the instance's loopback block, until the pod is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// First third byte of pods' addresses: 0 is for our own servers.
const FIRST_X: u8 = 1;
const LAST_X: u8 = 254;

/// Content of `addresses.json`: loopback addresses by pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Addresses {
    /// The block's first two bytes, `[127, N]`.
    pub block: [u8; 2],
    /// Addresses by pod, with keys of the form `namespace/name`.
    pub held: BTreeMap<String, Ipv4Addr>,
    /// Address of the last allocation. The search begins behind it, so that a freed address is not
    /// reused while peers may still talk to its old VM.
    pub last: Option<Ipv4Addr>,
}

impl Addresses {
    /// No address is allocated. `block` is the first two bytes, `[127, N]`.
    #[must_use]
    pub fn new(block: [u8; 2]) -> Self {
        Self {
            block,
            held: BTreeMap::new(),
            last: None,
        }
    }

    /// Returns the address of a pod and allocates one if it has none. `None` when all are
    /// allocated.
    pub fn acquire(&mut self, pod: &str) -> Option<Ipv4Addr> {
        if let Some(held) = self.held.get(pod) {
            return Some(*held);
        }
        let taken: BTreeSet<Ipv4Addr> = self.held.values().copied().collect();
        let [a, b] = self.block;
        let all = || {
            (FIRST_X..=LAST_X)
                .flat_map(move |x| (1..=254_u8).map(move |y| Ipv4Addr::new(a, b, x, y)))
        };
        let free = |ip: &Ipv4Addr| !taken.contains(ip);
        let behind = all()
            .filter(|ip| self.last.is_none_or(|last| *ip > last))
            .find(free);
        let ip = behind.or_else(|| all().find(free))?;
        self.held.insert(pod.to_owned(), ip);
        self.last = Some(ip);
        Some(ip)
    }

    /// Frees the address of a pod. An unknown pod is no error.
    pub fn release(&mut self, pod: &str) {
        self.held.remove(pod);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn address_is_stable_and_not_reused_at_once() {
        let mut addresses = Addresses::new([127, 77]);
        let first = addresses.acquire("default/a").unwrap();
        assert_eq!(first, Ipv4Addr::new(127, 77, 1, 1));
        assert_eq!(addresses.acquire("default/a"), Some(first));
        assert_eq!(
            addresses.acquire("default/b"),
            Some(Ipv4Addr::new(127, 77, 1, 2))
        );
        addresses.release("default/a");
        addresses.release("default/a");
        assert_eq!(
            addresses.acquire("default/c"),
            Some(Ipv4Addr::new(127, 77, 1, 3))
        );
    }

    #[test]
    fn allocation_wraps_at_the_end_of_the_block() {
        let mut addresses = Addresses::new([127, 77]);
        addresses.last = Some(Ipv4Addr::new(127, 77, 254, 254));
        assert_eq!(addresses.acquire("x"), Some(Ipv4Addr::new(127, 77, 1, 1)));
    }

    proptest! {
        #[test]
        fn no_two_pods_share(ops in proptest::collection::vec((0..20_u8, any::<bool>()), 0..80)) {
            let mut addresses = Addresses::new([127, 3]);
            for (pod, acquire) in ops {
                if acquire {
                    prop_assert!(addresses.acquire(&pod.to_string()).is_some());
                } else {
                    addresses.release(&pod.to_string());
                }
                let distinct: BTreeSet<_> = addresses.held.values().collect();
                prop_assert_eq!(distinct.len(), addresses.held.len());
            }
        }
    }
}
