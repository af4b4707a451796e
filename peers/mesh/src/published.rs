//! What a machine publishes by gossip, as text, and the bounds of what is read.

use std::collections::BTreeMap;

use peers_core::{Claim, Counts, Inventory, MachineId, Peer, Plan};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most sets that machines share. With plans of 16 machines everything fits into one datagram.
pub const MAX_SETS: usize = 16;
/// Most members of a set over all machines, and on one.
pub const MAX_MEMBERS: u32 = 1_000;
/// Greatest epoch and revision that is read: far from where a counter ends.
const MAX_NUMBER: u64 = 1 << 53;
/// Longest name of a set or machine, bytes.
const NAME_BYTES: usize = 63;
/// Most free units of a machine.
const MAX_UNITS: u32 = 1 << 20;

/// Keys of the gossip.
pub(crate) const CLAIM: &str = "claim";
pub(crate) const INVENTORY: &str = "inventory";
pub(crate) const PLAN: &str = "plan";
pub(crate) const PRIORITY: &str = "priority";
pub(crate) const WISHES: &str = "wishes";
pub(crate) const RELEASE: &str = "release";

/// The number of members that a person wants of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WantedCount {
    /// One more than the greatest that the machine had heard of. The greatest revision counts.
    pub(crate) revision: u64,
    pub(crate) count: u32,
}

/// Wishes by set.
pub(crate) type Wishes = BTreeMap<String, WantedCount>;

/// What was read of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) peer: Peer,
    pub(crate) plan: Option<Plan>,
    pub(crate) wishes: Wishes,
    pub(crate) release: String,
}

impl Published {
    /// Reads the values of a machine. A value that breaks a bound counts as absent.
    pub(crate) fn read<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Self {
        Self {
            peer: Peer {
                priority: get(PRIORITY).and_then(decode).unwrap_or(u32::MAX),
                claim: get(CLAIM).and_then(decode).filter(is_claim),
                inventory: get(INVENTORY)
                    .and_then(decode)
                    .filter(is_inventory)
                    .unwrap_or_default(),
            },
            plan: get(PLAN).and_then(decode).filter(is_plan),
            wishes: get(WISHES)
                .and_then(decode)
                .filter(are_wishes)
                .unwrap_or_default(),
            release: get(RELEASE)
                .unwrap_or_default()
                .chars()
                .take(NAME_BYTES)
                .collect(),
        }
    }
}

pub(crate) fn decode<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

/// Whether a name can be that of a machine: a DNS label, like that of a node.
pub(crate) fn is_name(name: &str) -> bool {
    let letter =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(letter)
}

fn is_claim(claim: &Claim) -> bool {
    claim.epoch < MAX_NUMBER && is_name(&claim.holder)
}

fn are_counts(counts: &Counts) -> bool {
    counts.len() <= MAX_SETS
        && counts
            .iter()
            .all(|(set, count)| is_name(set) && *count <= MAX_MEMBERS)
}

/// Whether an inventory is within the bounds.
pub(crate) fn is_inventory(inventory: &Inventory) -> bool {
    are_counts(&inventory.counts) && inventory.units_free <= MAX_UNITS
}

fn is_plan(plan: &Plan) -> bool {
    let machine = |(id, counts): (&MachineId, &Counts)| is_name(id) && are_counts(counts);
    is_claim(&plan.claim)
        && plan.counts.len() <= peers_core::MAX_MACHINES
        && plan.counts.iter().all(machine)
}

pub(crate) fn are_wishes(wishes: &Wishes) -> bool {
    let bounded = |wish: &WantedCount| wish.count <= MAX_MEMBERS && wish.revision < MAX_NUMBER;
    wishes.len() <= MAX_SETS
        && wishes
            .iter()
            .all(|(set, wish)| is_name(set) && bounded(wish))
}

/// Takes over newer wishes, within the bounds. True if any was newer.
pub(crate) fn merge(own: &mut Wishes, others: &Wishes) -> bool {
    let mut changed = false;
    for (set, wish) in others {
        let is_newer = own.get(set).is_none_or(|known| known < wish);
        if is_newer && (own.contains_key(set) || own.len() < MAX_SETS) {
            own.insert(set.clone(), *wish);
            changed = true;
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(values: &[(&str, &str)]) -> Published {
        let values: BTreeMap<&str, &str> = values.iter().copied().collect();
        Published::read(|key| values.get(key).copied())
    }

    #[test]
    fn published_values_read_back() {
        let claim = Claim {
            majority: true,
            epoch: 3,
            holder: "a".into(),
        };
        let counts: Counts = [("web".to_owned(), 2)].into();
        let plan = Plan {
            claim: claim.clone(),
            counts: [("b".into(), counts.clone())].into(),
        };
        let inventory = Inventory {
            units_free: 5,
            counts,
        };
        let text = |value: &dyn erased::Text| value.text();
        let published = read(&[
            (PRIORITY, "7"),
            (CLAIM, &text(&claim)),
            (PLAN, &text(&plan)),
            (INVENTORY, &text(&inventory)),
        ]);
        assert_eq!(
            published.peer,
            Peer {
                priority: 7,
                claim: Some(claim),
                inventory
            }
        );
        assert_eq!(published.plan, Some(plan));
    }

    mod erased {
        pub(super) trait Text {
            fn text(&self) -> String;
        }
        impl<T: serde::Serialize> Text for T {
            fn text(&self) -> String {
                serde_json::to_string(self).unwrap()
            }
        }
    }

    /// Requirement: V18
    #[test]
    fn v18_value_beyond_a_bound_counts_as_absent() {
        let wrong = [
            (
                CLAIM,
                r#"{"majority":true,"epoch":18446744073709551615,"holder":"a"}"#,
            ),
            (CLAIM, r#"{"majority":true,"epoch":1,"holder":"A/B"}"#),
            (CLAIM, r#"{"majority":true,"epoch":1,"holder":"a","x":1}"#),
            (INVENTORY, r#"{"units_free":4000000000,"counts":{}}"#),
            (INVENTORY, r#"{"units_free":1,"counts":{"web":1001}}"#),
            (
                PLAN,
                r#"{"claim":{"majority":true,"epoch":1,"holder":"a"},"counts":{"b":{"web":-1}}}"#,
            ),
            (WISHES, r#"{"web":{"revision":1,"count":1001}}"#),
            (WISHES, "not JSON"),
        ];
        let nothing = read(&[]);
        for (key, value) in wrong {
            assert_eq!(read(&[(key, value)]), nothing, "{value}");
        }
    }

    proptest! {
        #[test]
        fn wishes_agree_whatever_the_order_they_are_heard_in(
            heard in prop::collection::vec(("[a-c]", 0u64..9, 0u32..9), 0..12),
        ) {
            let one = |(set, revision, count): &(String, u64, u32)| -> Wishes {
                [(set.clone(), WantedCount { revision: *revision, count: *count })].into()
            };
            let (mut forth, mut back) = (Wishes::new(), Wishes::new());
            for wish in &heard {
                merge(&mut forth, &one(wish));
            }
            for wish in heard.iter().rev() {
                merge(&mut back, &one(wish));
            }
            prop_assert_eq!(forth, back);
        }
    }
}
