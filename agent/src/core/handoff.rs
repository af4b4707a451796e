//! Knowledge of a VM's size that a task passes to the VM's next task in the same process.
//!
//! When a VM gets another pod, its task ends and the next one starts from the object in the watch.
//! A late watch may show a state from before the old task's patches. The new task would then adopt
//! a size that was given up, get it permitted and notify the monitor of it (seed 2926 of `cargo
//! xtask sim`). It therefore takes the newer of the object and the handoff. A patch that was in
//! flight leaves the same uncertainty as one whose response was lost.

use protocol::units::Resources;

use super::machine::Core;
use super::patch_base::PatchBase;
use super::revision::RevisionSource;

/// Size and revisions at the end of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handoff {
    /// Newest version of the object that the task accounted for.
    version: Option<u64>,
    /// Size in use at that version.
    using: Resources,
    /// Smallest and largest size that the VM may have.
    range: (Resources, Resources),
    /// Revision of the newest patch; 0 = none.
    patched: i64,
    /// Newest revision issued.
    revision: i64,
    /// Newest known state of the object that a patch may rest on.
    base: PatchBase,
}

impl Core {
    /// The knowledge that the VM's next task needs.
    #[must_use]
    pub fn handoff(&self) -> Handoff {
        let using = self.using();
        Handoff {
            version: self.vm_patch.version,
            using,
            range: (self.vm_patch.certain(using), self.vm_patch.held(using)),
            patched: self.patch_number,
            revision: self.revisions.last.max(self.patch_number),
            base: self.patch_base,
        }
    }

    /// Takes over from the VM's last task. Call it before the first event.
    pub fn resume_from(&mut self, last: &Handoff) {
        let is_older = self.vm.version < last.version && self.vm.version.is_some();
        self.patch_base.saw(last.base);
        let is_open = last.range != (last.using, last.using);
        // An object with the newest patch's revision shows how that patch ended.
        let is_shown = !is_older && self.vm.last_revision >= last.patched;
        if is_older {
            self.vm.set_using(last.using);
            self.vm_patch.version = last.version;
        }
        if is_open && !is_shown {
            let using = self.using();
            let (low, high) = last.range;
            self.vm_patch.uncertain = Some((using.field_min(low), using.field_max(high)));
        }
        let is_known = is_older || (is_open && !is_shown);
        self.vm_patch.was_resized |= is_known && last.revision > 0;
        // No revision is issued twice, whatever the object shows.
        if last.revision > self.revisions.last {
            self.revisions = RevisionSource::new(last.revision);
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::core::Core as _;
    use protocol::permit::PluginResponse;
    use protocol::time::Timestamp;
    use protocol::units::Resources;

    use super::super::world::{config, vm};
    use super::super::{Action, Core, Event, Failure};
    use super::Handoff;

    fn units(n: u32) -> Resources {
        config().compute_unit.saturating_mul(n)
    }

    /// A core that starts from the object at `version` with `using` units and revision `revision`.
    fn core(version: u64, using: u32, revision: i64) -> Core {
        let mut info = vm(1, 8, using);
        (info.version, info.last_revision) = (Some(version), revision);
        Core::new(config(), info)
    }

    /// Handoff of a task after a patch from 3 units to 2 with revision 7. `None` = the patch is in
    /// flight.
    fn handoff(end: Option<Result<Option<u64>, Failure>>) -> Handoff {
        handoff_after(2, end)
    }

    /// The same with a patch to `target` units.
    fn handoff_after(target: u32, end: Option<Result<Option<u64>, Failure>>) -> Handoff {
        let now = Timestamp(1_000_000);
        let mut core = core(20, 3, 6);
        let patch = super::super::actions::VmPatch {
            current: units(3),
            target: units(target),
            revision: core.revisions.issue(now, 0),
        };
        let id = core.start(now, &Action::VmPatch(patch));
        if let Some(end) = end {
            core.handle(now, Event::VmPatchDone(id, end));
        }
        core.handoff()
    }

    #[test]
    fn task_with_late_watch_takes_size_from_handoff() {
        let mut core = core(21, 3, 6);
        core.resume_from(&handoff(Some(Ok(Some(30)))));
        assert_eq!(core.using(), units(2), "its own watch is late");
        assert!(core.vm_patch.is_certain() && core.vm_patch.was_resized);
        assert_eq!(
            core.revisions.issue(Timestamp(0), 0).value,
            8,
            "never twice"
        );
        // Later states from before the patch change nothing.
        assert!(!core.vm_patch.is_news(29) && core.vm_patch.is_news(31));
    }

    #[test]
    fn newer_object_wins_over_handoff() {
        let mut core = core(31, 4, 8);
        core.resume_from(&handoff(Some(Ok(Some(30)))));
        assert_eq!((core.using(), core.vm_patch.is_certain()), (units(4), true));
        assert_eq!(core.revisions.issue(Timestamp(0), 0).value, 9);
    }

    #[test]
    fn resize_of_the_last_task_is_one_of_the_next() {
        let resumed = |version: u64, using: u32, revision: i64, last: Handoff| {
            let mut core = core(version, using, revision);
            core.resume_from(&last);
            core.vm_patch.was_resized
        };
        let patched = handoff(Some(Ok(Some(30))));
        assert!(resumed(21, 3, 0, patched), "the object is older");
        assert!(resumed(21, 3, 0, handoff(None)), "the patch is in flight");
        assert!(resumed(31, 4, 8, patched), "the object shows a revision");
        assert!(!resumed(31, 4, 0, patched));
        let never = core(30, 2, 0).handoff();
        assert!(!resumed(21, 3, 0, never), "no revision was issued");
    }

    #[test]
    fn patch_without_response_is_uncertain_unless_object_shows_it() {
        for end in [None, Some(Err(Failure::Unknown))] {
            for (version, is_certain) in [(19, false), (21, false)] {
                let mut core = core(version, 3, 6);
                core.resume_from(&handoff(end));
                assert_eq!(core.vm_patch.is_certain(), is_certain, "{version} {end:?}");
                assert_eq!(core.vm_patch.certain(core.using()), units(2));
                assert_eq!(core.vm_patch.held(core.using()), units(3));
            }
            let mut shown = core(22, 2, 7);
            shown.resume_from(&handoff(end));
            assert_eq!(
                (shown.using(), shown.vm_patch.is_certain()),
                (units(2), true)
            );
        }
    }

    #[test]
    fn refused_patch_and_object_without_version_change_nothing() {
        let mut behind = core(21, 3, 6);
        behind.resume_from(&handoff(Some(Err(Failure::NotApplied))));
        assert_eq!(
            (behind.using(), behind.vm_patch.is_certain()),
            (units(3), true)
        );
        let mut nameless = core(21, 3, 6);
        nameless.vm.version = None;
        nameless.resume_from(&handoff(Some(Ok(Some(30)))));
        assert_eq!(nameless.using(), units(3));
    }

    /// Seed 5554 of the simulation: the task repeated an uncertain patch before its first permit.
    ///
    /// Requirement: N14
    #[test]
    fn uncertain_patch_is_repeated_only_after_a_permit() {
        let now = Timestamp(2_000_000);
        let mut core = core(21, 3, 6);
        core.resume_from(&handoff_after(4, None));
        core.handle(now, Event::MonitorActive);
        let mut requested = None;
        while let Some((id, action)) = core.poll_action(now) {
            match action {
                Action::Permit(request) => requested = Some((id, request.target)),
                Action::VmPatch(request) => panic!("{request:?} before the first permit"),
                Action::MonitorUpscale(_) | Action::MonitorDownscale(_) => {}
            }
        }
        let (id, target) = requested.expect("it requests a permit first");
        assert_eq!(target, units(4), "the most it may have");
        let response = PluginResponse {
            permit: target,
            migrate: None,
        };
        core.handle(now, Event::PermitDone(id, Ok(response)));
        let actions: Vec<Action> = std::iter::from_fn(|| core.poll_action(now))
            .map(|(_, action)| action)
            .collect();
        let patch = actions.iter().find_map(|action| match action {
            Action::VmPatch(request) => Some(request.target),
            _ => None,
        });
        assert_eq!(patch, Some(units(4)), "{actions:?}");
    }
}
