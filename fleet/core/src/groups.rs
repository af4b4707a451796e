//! Which group is a guest of, and which guests of a group go first?

use std::collections::{BTreeMap, BTreeSet};

use protocol::fleet::Group;

use crate::hash;
use crate::world::Guest;

/// Index of the guest's group: the first whose labels it has. `None`: the guest is unassigned.
/// Without groups all guests are of one.
#[must_use]
pub fn group_of(groups: &[Group], labels: &BTreeMap<String, String>) -> Option<usize> {
    if groups.is_empty() {
        return Some(0);
    }
    groups.iter().position(|group| group.matches(labels))
}

/// A guest that may be a canary.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Name of the guest's instance.
    pub name: &'a str,
    /// What the world has of it.
    pub guest: &'a Guest,
    /// Whether the deployment has given it a turn. Such a guest stays a canary.
    pub is_touched: bool,
}

/// Canaries of a group, of different nodes, sizes and images where there are any. A group of fewer
/// guests has fewer.
#[must_use]
pub fn canaries<'a>(candidates: &[Candidate<'a>], count: u32, seed: &str) -> BTreeSet<&'a str> {
    let mut left: Vec<&Candidate<'a>> = candidates.iter().collect();
    left.sort_by_key(|one| {
        (
            !one.is_touched,
            hash::of(&["canary", seed, one.name]),
            one.name,
        )
    });
    let mut chosen: Vec<&Candidate<'a>> = Vec::new();
    for _ in 0..count {
        let likeness = |one: &&Candidate<'a>| {
            let like = |other: &&Candidate<'a>| {
                u32::from(other.guest.node == one.guest.node)
                    + u32::from(other.guest.size == one.guest.size)
                    + u32::from(other.guest.image == one.guest.image)
            };
            chosen.iter().map(like).sum::<u32>()
        };
        // The first of equal ones is the one of the lowest hash.
        let best = left
            .iter()
            .min_by_key(|one| (!one.is_touched, likeness(one)));
        let Some(best) = best.map(|one| one.name) else {
            break;
        };
        if let Some(index) = left.iter().position(|one| one.name == best) {
            chosen.push(left.remove(index));
        }
    }
    chosen.into_iter().map(|one| one.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        owned.collect()
    }

    fn group(name: &str, pairs: &[(&str, &str)]) -> Group {
        Group {
            name: name.to_owned(),
            match_labels: labels(pairs),
            canaries: 1,
            bake_seconds: 600,
        }
    }

    /// Requirement: B02
    #[test]
    fn first_group_that_matches_takes_the_guest() {
        let groups = [
            group("a", &[("tier", "test")]),
            group("b", &[("zone", "x")]),
        ];
        let rows = [
            (vec![("tier", "test")], Some(0)),
            (vec![("tier", "test"), ("zone", "x")], Some(0)),
            (vec![("zone", "x")], Some(1)),
            (vec![("zone", "y")], None),
            (vec![], None),
        ];
        for (pairs, expected) in rows {
            assert_eq!(group_of(&groups, &labels(&pairs)), expected, "{pairs:?}");
        }
        assert_eq!(group_of(&[], &labels(&[])), Some(0));
    }

    #[test]
    fn canaries_differ_in_node_size_and_image() {
        let guests: Vec<(String, Guest)> = (0..12)
            .map(|number| {
                let guest = Guest {
                    node: format!("node-{}", number % 3),
                    size: format!("size-{}", number % 3),
                    image: format!("image-{}", number % 3),
                    ..Guest::default()
                };
                (format!("vm-{number}"), guest)
            })
            .collect();
        let all: Vec<Candidate<'_>> = guests
            .iter()
            .map(|(name, guest)| Candidate {
                name,
                guest,
                is_touched: false,
            })
            .collect();
        for seed in 0..20 {
            let chosen = canaries(&all, 3, &seed.to_string());
            let of_chosen = guests
                .iter()
                .filter(|(name, _)| chosen.contains(name.as_str()));
            let nodes: BTreeSet<&String> = of_chosen.map(|(_, guest)| &guest.node).collect();
            assert_eq!(nodes.len(), 3, "{chosen:?}");
        }
        assert_eq!(canaries(&all[..2], 5, "x").len(), 2, "clamped to the group");
        assert!(canaries(&[], 5, "x").is_empty());
    }

    #[test]
    fn touched_guest_stays_a_canary() {
        let guest = Guest::default();
        let names: Vec<String> = (0..9).map(|number| format!("vm-{number}")).collect();
        for touched in &names {
            let all: Vec<Candidate<'_>> = names
                .iter()
                .map(|name| Candidate {
                    name,
                    guest: &guest,
                    is_touched: name == touched,
                })
                .collect();
            assert!(canaries(&all, 1, "d").contains(touched.as_str()));
        }
    }
}
