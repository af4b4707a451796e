//! What a task knew of its VM's size when it ended, for the next task of that VM in the same
//! process.
//!
//! When a VM gets another pod, its task ends and another one begins, with the object as the watch
//! tells it. A watch that is late may tell of a state from before the last task's own patches,
//! whose answers that task had: the next one would believe a size that was given up, have it
//! permitted and tell the monitor of it (seed 2926 of `cargo xtask sim`). So it goes by whatever is
//! newer, and a patch that was under way is as uncertain to it as one whose answer was lost.

use protocol::units::Resources;

use super::machine::Core;
use super::revision::RevisionSource;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// The newest version of the object whose size was known.
    version: Option<u64>,
    /// The size by that.
    using: Resources,
    /// The smallest and the largest size the VM may have.
    range: (Resources, Resources),
    /// The revision of the newest patch, 0 for none.
    patched: i64,
    /// The newest revision that was used.
    revision: i64,
}

impl Core {
    /// What the next task of this VM has to know.
    #[must_use]
    pub fn left(&self) -> Left {
        let using = self.using();
        Left {
            version: self.neonvm.version,
            using,
            range: (self.neonvm.certain(using), self.neonvm.held(using)),
            patched: self.neonvm.target_revision.revision.value,
            revision: self.revisions.last,
        }
    }

    /// Goes on from what the last task of this VM left. For a core that was told nothing yet.
    pub fn goes_on_from(&mut self, left: &Left) {
        let is_older = self.vm.version < left.version && self.vm.version.is_some();
        let is_open = left.range != (left.using, left.using);
        // A state that shows the newest patch tells how that ended.
        let is_shown = !is_older && self.vm.last_revision >= left.patched;
        if is_older {
            self.vm.set_using(left.using);
            self.neonvm.version = left.version;
        }
        if is_open && !is_shown {
            let using = self.using();
            let (low, high) = left.range;
            self.neonvm.uncertain = Some((using.field_min(low), using.field_max(high)));
        }
        let is_known = is_older || (is_open && !is_shown);
        self.neonvm.was_on_the_way |= is_known && left.revision > 0;
        // No number is used twice, whatever the object says.
        if left.revision > self.revisions.last {
            self.revisions = RevisionSource::new(left.revision);
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::permit::PluginResponse;
    use protocol::time::Timestamp;
    use protocol::units::Resources;

    use super::super::world::{config, vm};
    use super::super::{Action, Core, Event, Failure};
    use super::Left;

    fn units(n: u32) -> Resources {
        config().compute_unit.saturating_mul(n)
    }

    /// The object at that version, using so many units, with the patch of that revision.
    fn core(version: u64, using: u32, revision: i64) -> Core {
        let mut info = vm(1, 8, using);
        (info.version, info.last_revision) = (Some(version), revision);
        Core::new(config(), info)
    }

    /// What a task left that had the size patched from 3 units to 2, as revision 7; `answer` is
    /// what became of that.
    fn left(answer: Option<Result<Option<u64>, Failure>>) -> Left {
        left_after(2, answer)
    }

    /// The same of a patch to so many units.
    fn left_after(target: u32, answer: Option<Result<Option<u64>, Failure>>) -> Left {
        let now = Timestamp(1_000_000);
        let mut core = core(20, 3, 6);
        let patch = super::super::actions::NeonVmRequest {
            current: units(3),
            target: units(target),
            revision: core.revisions.issue(now, 0),
        };
        let id = core.start(now, &Action::NeonVm(patch));
        if let Some(answer) = answer {
            core.handle(now, Event::NeonVmDone(id, answer));
        }
        core.left()
    }

    #[test]
    fn a_task_that_begins_behind_the_last_ones_patch_goes_by_that() {
        let mut core = core(21, 3, 6);
        core.goes_on_from(&left(Some(Ok(Some(30)))));
        assert_eq!(core.using(), units(2), "its own watch is late");
        assert!(core.neonvm.is_certain() && core.neonvm.was_on_the_way);
        assert_eq!(
            core.revisions.issue(Timestamp(0), 0).value,
            8,
            "never twice"
        );
        // What the watch tells next, from before the patch, says nothing.
        assert!(!core.neonvm.is_news(29) && core.neonvm.is_news(31));
    }

    #[test]
    fn a_newer_state_is_believed() {
        let mut core = core(31, 4, 8);
        core.goes_on_from(&left(Some(Ok(Some(30)))));
        assert_eq!((core.using(), core.neonvm.is_certain()), (units(4), true));
        assert_eq!(core.revisions.issue(Timestamp(0), 0).value, 9);
    }

    #[test]
    fn a_patch_without_an_answer_may_have_been_applied_unless_the_object_shows_it() {
        for answer in [None, Some(Err(Failure::Unknown))] {
            for (version, is_certain) in [(19, false), (21, false)] {
                let mut core = core(version, 3, 6);
                core.goes_on_from(&left(answer));
                assert_eq!(core.neonvm.is_certain(), is_certain, "{version} {answer:?}");
                assert_eq!(core.neonvm.certain(core.using()), units(2));
                assert_eq!(core.neonvm.held(core.using()), units(3));
            }
            let mut shown = core(22, 2, 7);
            shown.goes_on_from(&left(answer));
            assert_eq!((shown.using(), shown.neonvm.is_certain()), (units(2), true));
        }
    }

    #[test]
    fn what_was_refused_and_what_has_no_version_change_nothing() {
        let mut behind = core(21, 3, 6);
        behind.goes_on_from(&left(Some(Err(Failure::NotApplied))));
        assert_eq!(
            (behind.using(), behind.neonvm.is_certain()),
            (units(3), true)
        );
        let mut nameless = core(21, 3, 6);
        nameless.vm.version = None;
        nameless.goes_on_from(&left(Some(Ok(Some(30)))));
        assert_eq!(nameless.using(), units(3));
    }

    /// Seed 5554 of the simulation: an open patch was made true before anything was permitted to
    /// this task.
    #[test]
    fn n14_an_open_patch_is_made_true_only_once_it_is_permitted() {
        let now = Timestamp(2_000_000);
        let mut core = core(21, 3, 6);
        core.goes_on_from(&left_after(4, None));
        core.handle(now, Event::MonitorActive);
        let mut asked = None;
        while let Some((id, action)) = core.poll_action(now) {
            match action {
                Action::Plugin(request) => asked = Some((id, request.target)),
                Action::NeonVm(request) => panic!("{request:?} before the first permit"),
                Action::MonitorUpscale(_) | Action::MonitorDownscale(_) => {}
            }
        }
        let (id, target) = asked.expect("it asks first");
        assert_eq!(target, units(4), "the most it may have");
        let response = PluginResponse {
            permit: target,
            migrate: None,
        };
        core.handle(now, Event::PluginDone(id, Ok(response)));
        let patched = std::iter::from_fn(|| core.poll_action(now));
        let patched: Vec<Action> = patched.map(|(_, action)| action).collect();
        let patch = patched.iter().find_map(|action| match action {
            Action::NeonVm(request) => Some(request.target),
            _ => None,
        });
        assert_eq!(patch, Some(units(4)), "{patched:?}");
    }
}
