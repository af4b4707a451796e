//! The cluster's nodes, as their watch tells of them, and which of their addresses frames are to be
//! sent to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// What the watch of nodes says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// A list begins: what is not in it is gone.
    Begin,
    /// A node of that list.
    Listed(String, BTreeSet<Ipv4Addr>),
    /// The list is whole.
    Whole,
    /// A node is there, with these addresses.
    Is(String, BTreeSet<Ipv4Addr>),
    /// A node is gone.
    Gone(String),
}

/// Everything known of the nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    known: Option<BTreeMap<String, BTreeSet<Ipv4Addr>>>,
    /// A list under way. Until it is whole the last one holds, so that a watch that begins anew
    /// takes nobody away.
    coming: BTreeMap<String, BTreeSet<Ipv4Addr>>,
}

impl Nodes {
    /// Takes note; whether anything is known now that was not.
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

    /// Where frames for everybody go: the addresses of all nodes but the one that has `own`. `None`
    /// before the first whole list.
    #[must_use]
    pub fn peers(&self, own: Ipv4Addr) -> Option<BTreeSet<Ipv4Addr>> {
        let others = self.known.as_ref()?.values();
        let others = others.filter(|addresses| !addresses.contains(&own));
        // The first of several leads to the node as well as any.
        Some(
            others
                .filter_map(|addresses| addresses.first().copied())
                .collect(),
        )
    }

    /// How many nodes are known, and how many of them have no IPv4 address.
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
        // One without an address is counted, and nobody is sent there.
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
