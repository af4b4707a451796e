//! The cluster's nodes from their watch, and the addresses to which broadcast frames are sent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// An update from the watch of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// A list begins; nodes that it lacks are gone.
    Begin,
    /// A node in the list, with its internal IPv4 addresses.
    Listed(String, BTreeSet<Ipv4Addr>),
    /// The list is complete.
    Whole,
    /// A node was added or changed, with its internal IPv4 addresses.
    Is(String, BTreeSet<Ipv4Addr>),
    /// A node was deleted.
    Gone(String),
}

/// Nodes of the cluster with their addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    known: Option<BTreeMap<String, BTreeSet<Ipv4Addr>>>,
    /// The list in progress. Until it is complete the last one counts, so that a restarted watch
    /// removes no node.
    coming: BTreeMap<String, BTreeSet<Ipv4Addr>>,
}

impl Nodes {
    /// Applies an update. Returns whether the nodes have changed.
    pub fn hear(&mut self, told: Told) -> bool {
        let before = self.known.clone();
        match told {
            Told::Begin => self.coming.clear(),
            Told::Listed(name, addresses) => drop(self.coming.insert(name, addresses)),
            Told::Whole => self.known = Some(std::mem::take(&mut self.coming)),
            Told::Is(name, addresses) => {
                if let Some(known) = &mut self.known {
                    known.insert(name, addresses);
                }
            }
            Told::Gone(name) => {
                if let Some(known) = &mut self.known {
                    known.remove(&name);
                }
            }
        }
        self.known != before
    }

    /// Destinations of broadcast frames: addresses of all nodes but the one with `own`. `None`
    /// before the first complete list.
    #[must_use]
    pub fn peers(&self, own: Ipv4Addr) -> Option<BTreeSet<Ipv4Addr>> {
        let others = self.known.as_ref()?.values();
        let others = others.filter(|addresses| !addresses.contains(&own));
        // Any address leads to the node, so the first is used.
        Some(
            others
                .filter_map(|addresses| addresses.first().copied())
                .collect(),
        )
    }

    /// Number of nodes, and of those without an IPv4 address.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let known = self.known.iter().flat_map(BTreeMap::values);
        let bare = known.clone().filter(|addresses| addresses.is_empty());
        (known.count(), bare.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, last)
    }

    fn is(name: &str, last: u8) -> Told {
        Told::Is(name.to_owned(), BTreeSet::from([at(last)]))
    }

    fn listed(name: &str, last: u8) -> Told {
        Told::Listed(name.to_owned(), BTreeSet::from([at(last)]))
    }

    fn all(list: &[u8]) -> Option<BTreeSet<Ipv4Addr>> {
        Some(list.iter().copied().map(at).collect())
    }

    #[test]
    fn nothing_is_known_before_the_first_list_is_whole() {
        let mut nodes = Nodes::default();
        for told in [Told::Begin, listed("a", 1), listed("b", 2), is("c", 3)] {
            assert!(!nodes.hear(told));
            assert_eq!(nodes.peers(at(1)), None);
        }
        assert!(nodes.hear(Told::Whole));
        assert_eq!(nodes.peers(at(1)), all(&[2]));
    }

    #[test]
    fn nodes_come_change_and_go() {
        let mut nodes = Nodes::default();
        nodes.hear(Told::Whole);
        assert!(nodes.hear(is("a", 1)) && nodes.hear(is("b", 2)));
        assert!(!nodes.hear(is("b", 2)), "the same again");
        assert!(nodes.hear(is("b", 9)));
        assert_eq!(nodes.peers(at(1)), all(&[9]));
        assert!(nodes.hear(Told::Gone("b".into())));
        assert!(!nodes.hear(Told::Gone("b".into())));
        assert_eq!(nodes.peers(at(1)), all(&[]));
        // A node without an IPv4 address is counted, and has no target.
        nodes.hear(Told::Is("v6".into(), BTreeSet::new()));
        assert_eq!((nodes.peers(at(1)), nodes.counts()), (all(&[]), (2, 1)));
    }

    #[test]
    fn a_list_that_breaks_off_takes_nobody_away() {
        let mut nodes = Nodes::default();
        for told in [Told::Begin, listed("a", 1), listed("b", 2), Told::Whole] {
            nodes.hear(told);
        }
        nodes.hear(Told::Begin);
        nodes.hear(listed("a", 1));
        nodes.hear(Told::Begin);
        assert_eq!(nodes.peers(at(1)), all(&[2]));
        nodes.hear(listed("a", 1));
        nodes.hear(Told::Whole);
        assert_eq!(nodes.peers(at(1)), all(&[]));
    }
}
