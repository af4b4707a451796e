//! How many VMs of a node one policy may begin to shrink at about the same time. A policy that is
//! wrong about all its VMs harms few of them before somebody notices.

use std::collections::BTreeMap;

use protocol::time::{Span, Timestamp};

/// Time in which beginnings count together.
const WINDOW: Span = Span::from_secs(10);

/// The VMs that policies decide about, and those that they have begun to shrink of late.
#[derive(Debug, Default)]
pub(super) struct ShrinkQuota {
    /// Policy of each VM.
    deciding: BTreeMap<u32, String>,
    /// When each VM began to shrink.
    begun: BTreeMap<u32, Timestamp>,
}

impl ShrinkQuota {
    /// Says which policy decides about a VM. `None`: none does.
    pub(super) fn decides(&mut self, vm: u32, policy: Option<&str>) {
        match policy {
            Some(name) if self.deciding.get(&vm).is_some_and(|known| known == name) => {}
            Some(name) => {
                self.deciding.insert(vm, name.to_owned());
            }
            None => {
                self.deciding.remove(&vm);
                self.begun.remove(&vm);
            }
        }
    }

    /// Whether the policy of `vm` may shrink it at `now`: `percent` of its VMs may begin within
    /// [`WINDOW`], and always one. A VM that has begun goes on.
    pub(super) fn may_shrink(&mut self, vm: u32, now: Timestamp, percent: u32) -> bool {
        self.begun.retain(|_, at| now.since(*at) < WINDOW);
        if self.begun.contains_key(&vm) {
            return true;
        }
        let policy = self.deciding.get(&vm);
        let is_same = |other: &u32| self.deciding.get(other) == policy;
        let all = self.deciding.keys().filter(|other| is_same(other)).count();
        let begun = self.begun.keys().filter(|other| is_same(other)).count();
        let share = usize::try_from(percent).unwrap_or(usize::MAX);
        let may = begun < (all.saturating_mul(share) / 100).max(1);
        if may {
            self.begun.insert(vm, now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(0) + Span::from_secs(seconds)
    }

    fn with_vms(count: u32, policy: &str) -> ShrinkQuota {
        let mut quota = ShrinkQuota::default();
        (0..count).for_each(|vm| quota.decides(vm, Some(policy)));
        quota
    }

    /// Requirement: V33
    #[test]
    fn v33_share_of_vms_begins_to_shrink_and_the_others_wait() {
        let mut quota = with_vms(10, "db");
        let mut begun = |now, percent| {
            let may = |vm: &u32| quota.may_shrink(*vm, now, percent);
            (0..10).filter(may).collect::<Vec<u32>>()
        };
        assert_eq!(begun(at(0), 20), [0, 1]);
        assert_eq!(begun(at(9), 20), [0, 1], "those that began go on");
        assert_eq!(begun(at(10), 20), [0, 1], "the first ten seconds are over");
        assert_eq!(begun(at(10), 30), [0, 1, 2]);
    }

    #[test]
    fn one_vm_may_always_begin_and_policies_do_not_share_a_quota() {
        let mut quota = with_vms(3, "db");
        quota.decides(7, Some("web"));
        assert!(quota.may_shrink(1, at(0), 0));
        assert!(!quota.may_shrink(2, at(0), 0));
        assert!(quota.may_shrink(7, at(0), 0));
        quota.decides(1, None);
        assert!(
            quota.may_shrink(2, at(0), 0),
            "the VM that had begun is gone"
        );
    }
}
