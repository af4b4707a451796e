//! The patch of a VM object, and the state of the object that it rests on, as its condition.
//! Source: docs/compatibility/agent.md §4.3.
//!
//! An API server may carry out a patch long after the agent gave it up. Each patch sets
//! `spec.targetRevision` to a larger value than before and tests that nobody has changed it since
//! the state that the patch rests on. So once a later patch has taken effect, of this agent or of
//! its successor, the API server refuses the late one. No timer is involved.
//!
//! A decision may need two patches, the second after a peer has approved more. Both are for one
//! revision of the core, so the number of the second is one above that of the first
//! ([`PatchBase::number_for`]).

use protocol::revision::RevisionWithTime;
use protocol::units::{Bytes, Resources};
use serde_json::{Value, json};

use super::vm::VmInfo;

/// Where a patch sets the CPU.
pub(crate) const CPU_PATH: &str = "/spec/guest/cpus/use";
/// Where a patch sets the memory, in slots.
pub(crate) const SLOTS_PATH: &str = "/spec/guest/memorySlots/use";

/// Newest known `spec.targetRevision` of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PatchBase {
    /// Version of the object at which it was seen; `None` = never, and patches have no condition.
    version: Option<u64>,
    /// Its number; `None` = the object has no target revision.
    revision: Option<i64>,
}

impl PatchBase {
    /// Starts from a state of the object.
    pub(super) fn of(vm: &VmInfo) -> Self {
        Self {
            version: vm.version,
            revision: vm.target_revision,
        }
    }

    /// Takes a state. An older one than the known one changes nothing.
    pub(super) fn saw(&mut self, state: Self) {
        if state.version > self.version {
            *self = state;
        }
    }

    /// Number that a patch for `revision` sets: larger than that of the state that it rests on.
    pub(super) fn number_for(&self, revision: i64) -> i64 {
        let next = self.revision.map(|base| base.saturating_add(1));
        next.map_or(revision, |next| revision.max(next))
    }

    /// Takes the end of a patch that set `revision` and made `version`, if that is known.
    pub(super) fn patched(&mut self, version: Option<u64>, revision: i64) {
        self.saw(Self {
            // Without a version it is at least newer than the state that the patch tested.
            version: version.or(self.version.map(|version| version + 1)),
            revision: Some(revision),
        });
    }

    /// The operations of a patch to a size: three replacements behind the test of this state. The
    /// CPU amount has the form in which objects store it (`2`, `"750m"`). An API server would
    /// convert any other form by a webhook.
    #[must_use]
    pub fn operations(&self, size: Resources, slot: Bytes, revision: RevisionWithTime) -> Value {
        let mut revision = revision;
        revision.revision.value = self.number_for(revision.revision.value);
        let slots = size.mem.0.checked_div(slot.0).unwrap_or(0);
        let replacements = [
            json!({ "op": "replace", "path": CPU_PATH, "value": size.cpu }),
            json!({ "op": "replace", "path": SLOTS_PATH, "value": slots }),
            json!({ "op": "replace", "path": "/spec/targetRevision", "value": revision }),
        ];
        self.test().into_iter().chain(replacements).collect()
    }

    /// The operation before those that replace. `None` if no state of the object is known.
    ///
    /// A `test` against `null` holds on API servers if the member is absent.
    fn test(&self) -> Option<Value> {
        self.version?;
        Some(match self.revision {
            Some(revision) => json!({
                "op": "test", "path": "/spec/targetRevision/revision/value", "value": revision,
            }),
            None => json!({"op": "test", "path": "/spec/targetRevision", "value": null}),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(version: u64, revision: Option<i64>) -> PatchBase {
        PatchBase {
            version: Some(version),
            revision,
        }
    }

    #[test]
    fn patch_tests_the_newest_revision_seen_or_set() {
        let mut known = base(7, None);
        known.saw(base(9, Some(3)));
        known.saw(base(8, Some(2)));
        assert_eq!(known, base(9, Some(3)), "the older state came late");
        known.patched(Some(12), 5);
        known.saw(base(11, Some(3)));
        assert_eq!(known, base(12, Some(5)));
        let test = known.test().expect("a state is known");
        assert_eq!(test["path"], "/spec/targetRevision/revision/value");
        assert_eq!(test["value"], 5);
    }

    #[test]
    fn second_patch_of_one_revision_has_a_larger_number() {
        assert_eq!(base(9, None).number_for(3), 3);
        assert_eq!(base(9, Some(2)).number_for(3), 3);
        assert_eq!(base(9, Some(3)).number_for(3), 4);
        assert_eq!(base(9, Some(7)).number_for(3), 8);
    }

    #[test]
    fn own_patch_does_not_hide_a_newer_state() {
        let mut known = base(9, Some(3));
        known.saw(base(14, Some(8)));
        known.patched(Some(12), 5);
        assert_eq!(known, base(14, Some(8)));
    }

    #[test]
    fn first_patch_tests_that_nobody_set_a_revision() {
        let test = base(7, None).test().expect("a state is known");
        assert_eq!(test["path"], "/spec/targetRevision");
        assert!(test["value"].is_null());
        assert_eq!(PatchBase::default().test(), None, "nothing to rest on");
    }
}
