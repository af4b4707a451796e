//! Divides the members of sets among machines.
//!
//! A machine that reported gets a count. The members of a machine that is silent stay counted as
//! they were last heard of, and it gets none. Members never move: a plan adds to the machines with
//! the most free units, or takes from those with the most members, never both for one set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::claim::MachineId;

/// Members of each set, by its name.
pub type Counts = BTreeMap<String, u32>;

/// What runs on a machine, by its own account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inventory {
    /// Compute units that no VM has.
    pub units_free: u32,
    /// Members that each set has here. A set without an entry does not exist on the machine.
    pub counts: Counts,
}

/// Counts of each machine of `known`, so that each set has its `wanted` members over all machines.
/// `reserved` are members on machines that did not report.
#[must_use]
pub fn divide(
    wanted: &Counts,
    known: &BTreeMap<MachineId, Inventory>,
    reserved: &Counts,
) -> BTreeMap<MachineId, Counts> {
    let mut plan: BTreeMap<MachineId, Inventory> = known.clone();
    for machine in plan.values_mut() {
        machine.counts.retain(|set, _| wanted.contains_key(set));
    }
    for (set, wanted) in wanted {
        let elsewhere = u64::from(reserved.get(set).copied().unwrap_or(0));
        loop {
            let here: u64 = plan.values().map(|machine| count(machine, set)).sum();
            let have = here + elsewhere;
            let changed = match have.cmp(&u64::from(*wanted)) {
                std::cmp::Ordering::Less => add(&mut plan, set),
                std::cmp::Ordering::Greater => take(&mut plan, set),
                std::cmp::Ordering::Equal => false,
            };
            if !changed {
                break;
            }
        }
    }
    let counts = plan.into_iter().map(|(id, machine)| (id, machine.counts));
    counts.collect()
}

fn count(machine: &Inventory, set: &str) -> u64 {
    machine.counts.get(set).copied().unwrap_or(0).into()
}

/// Adds a member on the machine with the most free units. False if none has a free unit.
fn add(plan: &mut BTreeMap<MachineId, Inventory>, set: &str) -> bool {
    let able = plan
        .values_mut()
        .rev()
        .filter(|machine| machine.units_free > 0 && machine.counts.contains_key(set))
        .max_by_key(|machine| machine.units_free);
    let Some(machine) = able else {
        return false;
    };
    machine.units_free -= 1;
    if let Some(count) = machine.counts.get_mut(set) {
        *count += 1;
    }
    true
}

/// Takes a member from the machine with the most. False if none has one.
fn take(plan: &mut BTreeMap<MachineId, Inventory>, set: &str) -> bool {
    let most = plan.values_mut().max_by_key(|machine| count(machine, set));
    let Some(machine) = most else {
        return false;
    };
    machine.units_free += 1;
    match machine.counts.get_mut(set) {
        Some(count) if *count > 0 => *count -= 1,
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn machine(units_free: u32, web: u32) -> Inventory {
        Inventory {
            units_free,
            counts: [("web".to_owned(), web)].into(),
        }
    }

    fn web(plan: &BTreeMap<MachineId, Counts>) -> Vec<u32> {
        plan.values().map(|counts| counts["web"]).collect()
    }

    /// Requirement: V18
    #[test]
    fn v18_members_go_where_most_is_free_and_leave_where_most_are() {
        let known = [
            ("a", machine(3, 1)),
            ("b", machine(5, 0)),
            ("c", machine(0, 4)),
        ];
        let known = known.map(|(id, machine)| (id.into(), machine)).into();
        let divided = |wanted, reserved| {
            let wanted = [("web".to_owned(), wanted)].into();
            web(&divide(
                &wanted,
                &known,
                &[("web".to_owned(), reserved)].into(),
            ))
        };
        assert_eq!(divided(5, 0), [1, 0, 4]);
        assert_eq!(divided(8, 0), [2, 2, 4]);
        assert_eq!(divided(3, 0), [1, 0, 2]);
        assert_eq!(
            divided(99, 0),
            [4, 5, 4],
            "no machine gets more than it has free"
        );
        assert_eq!(
            divided(9, 4),
            [1, 0, 4],
            "members of a silent machine count"
        );
        assert_eq!(divided(2, 9), [0, 0, 0]);
    }

    #[test]
    fn machine_without_the_set_gets_no_member() {
        let known = [
            (
                "a".into(),
                Inventory {
                    units_free: 9,
                    ..Inventory::default()
                },
            ),
            ("b".into(), machine(1, 0)),
        ]
        .into();
        let plan = divide(&[("web".to_owned(), 3)].into(), &known, &Counts::new());
        assert_eq!(plan["a"], Counts::new());
        assert_eq!(plan["b"]["web"], 1);
    }

    proptest! {
        /// Requirement: V20
        #[test]
        fn v20_no_plan_moves_a_member(
            machines in prop::collection::vec((0u32..20, 0u32..20), 1..16),
            wanted in 0u32..200,
            reserved in 0u32..40,
        ) {
            let known: BTreeMap<MachineId, Inventory> = machines.iter().enumerate()
                .map(|(n, (free, count))| (format!("m{n:02}").into(), machine(*free, *count)))
                .collect();
            let plan = divide(
                &[("web".to_owned(), wanted)].into(), &known, &[("web".to_owned(), reserved)].into(),
            );
            let after = web(&plan);
            let grown = machines.iter().zip(&after).any(|((_, was), is)| is > was);
            let shrunk = machines.iter().zip(&after).any(|((_, was), is)| is < was);
            prop_assert!(!(grown && shrunk), "{machines:?} {after:?}");
            for ((free, was), is) in machines.iter().zip(&after) {
                prop_assert!(*is <= was + free);
            }
            let sum: u32 = after.iter().sum();
            let most: u32 = machines.iter().map(|(free, was)| free + was).sum();
            let fits = wanted.saturating_sub(reserved).min(most);
            prop_assert_eq!(sum, fits);
        }
    }
}
