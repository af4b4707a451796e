//! The cluster's nodes from their watch, and the addresses to which broadcast frames are sent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// An update from the watch of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeUpdate {
    /// A list begins; nodes that it lacks are gone.
    ListBegins,
    /// A node in the list, with its internal IPv4 addresses.
    Listed(String, BTreeSet<Ipv4Addr>),
    /// The list is complete and replaces the last one.
    ListComplete,
    /// A node was added or changed, with its internal IPv4 addresses.
    Applied(String, BTreeSet<Ipv4Addr>),
    /// A node was deleted from the API.
    Deleted(String),
}

/// Nodes of the cluster with their addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    known: Option<BTreeMap<String, BTreeSet<Ipv4Addr>>>,
    /// The list in progress. Until it is complete the last one counts, so that a restarted watch
    /// removes no node.
    listing: BTreeMap<String, BTreeSet<Ipv4Addr>>,
}

impl Nodes {
    /// Applies an update. Returns whether the nodes have changed.
    pub fn apply(&mut self, update: NodeUpdate) -> bool {
        let before = self.known.clone();
        match update {
            NodeUpdate::ListBegins => self.listing.clear(),
            NodeUpdate::Listed(name, addresses) => drop(self.listing.insert(name, addresses)),
            NodeUpdate::ListComplete => self.known = Some(std::mem::take(&mut self.listing)),
            NodeUpdate::Applied(name, addresses) => {
                if let Some(known) = &mut self.known {
                    known.insert(name, addresses);
                }
            }
            NodeUpdate::Deleted(name) => {
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
        let others = self
            .known
            .as_ref()?
            .values()
            .filter(|addresses| !addresses.contains(&own));
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

    fn is(name: &str, last: u8) -> NodeUpdate {
        NodeUpdate::Applied(name.to_owned(), BTreeSet::from([at(last)]))
    }

    fn listed(name: &str, last: u8) -> NodeUpdate {
        NodeUpdate::Listed(name.to_owned(), BTreeSet::from([at(last)]))
    }

    fn all(list: &[u8]) -> Option<BTreeSet<Ipv4Addr>> {
        Some(list.iter().copied().map(at).collect())
    }

    #[test]
    fn peers_are_unknown_before_the_first_complete_list() {
        let mut nodes = Nodes::default();
        for update in [
            NodeUpdate::ListBegins,
            listed("a", 1),
            listed("b", 2),
            is("c", 3),
        ] {
            assert!(!nodes.apply(update));
            assert_eq!(nodes.peers(at(1)), None);
        }
        assert!(nodes.apply(NodeUpdate::ListComplete));
        assert_eq!(nodes.peers(at(1)), all(&[2]));
    }

    #[test]
    fn nodes_are_added_changed_and_deleted() {
        let mut nodes = Nodes::default();
        nodes.apply(NodeUpdate::ListComplete);
        assert!(nodes.apply(is("a", 1)) && nodes.apply(is("b", 2)));
        assert!(!nodes.apply(is("b", 2)), "the same again");
        assert!(nodes.apply(is("b", 9)));
        assert_eq!(nodes.peers(at(1)), all(&[9]));
        assert!(nodes.apply(NodeUpdate::Deleted("b".into())));
        assert!(!nodes.apply(NodeUpdate::Deleted("b".into())));
        assert_eq!(nodes.peers(at(1)), all(&[]));
        // A node without an IPv4 address is counted, and has no target.
        nodes.apply(NodeUpdate::Applied("v6".into(), BTreeSet::new()));
        assert_eq!((nodes.peers(at(1)), nodes.counts()), (all(&[]), (2, 1)));
    }

    #[test]
    fn interrupted_list_removes_no_node() {
        let mut nodes = Nodes::default();
        for update in [
            NodeUpdate::ListBegins,
            listed("a", 1),
            listed("b", 2),
            NodeUpdate::ListComplete,
        ] {
            nodes.apply(update);
        }
        nodes.apply(NodeUpdate::ListBegins);
        nodes.apply(listed("a", 1));
        nodes.apply(NodeUpdate::ListBegins);
        assert_eq!(nodes.peers(at(1)), all(&[2]));
        nodes.apply(listed("a", 1));
        nodes.apply(NodeUpdate::ListComplete);
        assert_eq!(nodes.peers(at(1)), all(&[]));
    }
}
