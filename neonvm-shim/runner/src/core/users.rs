//! User ids of VMs: each VM's QEMU and passt run as a user that no other process of the machine
//! has.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

const COUNT: u32 = 0x1_0000;
/// First user of instance 0. Distributions, container engines and systemd assign smaller numbers.
const FIRST: u32 = 0x7000_0000;

/// A range of user ids: the first half for guests that may open connections, the second half for
/// guests that may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRange {
    first: u32,
}

impl UserRange {
    /// The range that begins with `first`. `None` if it would contain root or exceed the kernel's
    /// ids.
    #[must_use]
    pub fn new(first: u32) -> Option<Self> {
        // The highest number means "no user".
        (first > 0 && first.checked_add(COUNT).is_some()).then_some(Self { first })
    }

    /// The default range of an instance with this loopback block.
    #[must_use]
    pub fn of_block(block: u8) -> Self {
        Self {
            first: FIRST + u32::from(block) * COUNT,
        }
    }

    /// All users of the range.
    #[must_use]
    pub fn all(self) -> RangeInclusive<u32> {
        self.first..=self.first + (COUNT - 1)
    }

    /// Users of guests that may open no connections.
    #[must_use]
    pub fn closed(self) -> RangeInclusive<u32> {
        self.first + COUNT / 2..=self.first + (COUNT - 1)
    }

    /// Users of guests that may open connections.
    #[must_use]
    pub fn open(self) -> RangeInclusive<u32> {
        // The first id names the range and is never assigned.
        self.first + 1..=self.first + (COUNT / 2 - 1)
    }
}

/// User of a VM, and the pods that hold it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// Number of the user and of its group.
    pub user: u32,
    /// Pods of the VM, `namespace/name`: two during a migration, which share the VM's disks.
    pub pods: BTreeSet<String>,
}

/// Content of `users.json` in the state directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Users {
    /// User ids of the instance.
    pub range: UserRange,
    /// Users by VM, with keys of the form `namespace/name`.
    pub held: BTreeMap<String, Held>,
    /// User of the last allocation. The search begins behind it, so that leftover files and
    /// processes of an earlier pod do not soon belong to another VM.
    pub last: Option<u32>,
}

impl Users {
    /// Content without an allocated user of `range`.
    #[must_use]
    pub fn new(range: UserRange) -> Self {
        Self {
            range,
            held: BTreeMap::new(),
            last: None,
        }
    }

    /// Returns the user of a VM's pod and allocates one if the VM has none of that half. `None`
    /// when all are allocated.
    pub fn acquire(&mut self, vm: &str, pod: &str, outside: bool) -> Option<u32> {
        let half = if outside {
            self.range.open()
        } else {
            self.range.closed()
        };
        if let Some(held) = self
            .held
            .get_mut(vm)
            .filter(|held| half.contains(&held.user))
        {
            held.pods.insert(pod.to_owned());
            return Some(held.user);
        }
        let taken: BTreeSet<u32> = self.held.values().map(|held| held.user).collect();
        let free = |user: &u32| !taken.contains(user);
        let last = self.last;
        let behind = half
            .clone()
            .filter(|user| last.is_none_or(|last| *user > last))
            .find(free);
        let user = behind.or_else(|| half.clone().find(free))?;
        let pods = BTreeSet::from([pod.to_owned()]);
        self.held.insert(vm.to_owned(), Held { user, pods });
        self.last = Some(user);
        Some(user)
    }

    /// Removes a pod; the last pod of a VM frees its user. An unknown pod is no error.
    pub fn release(&mut self, pod: &str) {
        self.held.retain(|_, held| {
            held.pods.remove(pod);
            !held.pods.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_belongs_to_the_vm_and_is_not_reused_at_once() {
        let mut users = Users::new(UserRange::of_block(77));
        let first = users
            .acquire("default/a", "default/a-1", true)
            .expect("a user");
        assert_eq!(first, 0x7000_0000 + 77 * 0x1_0000 + 1);
        let target = users.acquire("default/a", "default/a-2", true);
        assert_eq!(target, Some(first), "both pods of a migration");
        users.release("default/a-1");
        assert_ne!(users.acquire("default/b", "default/b-1", true), Some(first));
        users.release("default/a-2");
        let next = users.acquire("default/c", "default/c-1", true);
        assert_eq!(next, Some(first + 2));
    }

    #[test]
    fn guest_without_outside_connections_has_a_user_of_the_other_half() {
        let range = UserRange::of_block(3);
        let mut users = Users::new(range);
        let closed = users
            .acquire("default/a", "default/a-1", false)
            .expect("a user");
        assert!(range.closed().contains(&closed) && !range.open().contains(&closed));
        let open = users
            .acquire("default/a", "default/a-2", true)
            .expect("a user");
        assert!(range.open().contains(&open));
    }

    #[test]
    fn range_with_root_or_beyond_the_kernels_numbers_is_none() {
        assert_eq!(UserRange::new(0), None);
        assert_eq!(UserRange::new(u32::MAX - 5), None);
        assert!(UserRange::new(1).is_some());
        assert!(UserRange::new(UserRange::of_block(250).first).is_some());
    }
}
