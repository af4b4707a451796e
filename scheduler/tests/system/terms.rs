//! Terms of the replicas: how they end, are handed over and begin with lists.

use scheduler::core::event::{Event, ObjectKind, WatchProgress};
use scheduler::core::lease::LeaseSeen;
use scheduler::core::standby::VersionMarks;

use super::state::{Cheat, State};
use super::{STRAY, System, host, time};

impl System {
    /// A replica is no more; its calls go on.
    pub(super) fn end(state: &mut State, replica: usize) {
        state.replicas[replica].brain = None;
        state.replicas[replica].lists = false;
        state.replicas[replica].seen.fill(0);
        for call in state.calls.iter_mut().filter(|c| c.replica == replica) {
            call.heard = false;
        }
        for vm in &mut state.vms {
            vm.waits_for = vm.waits_for.filter(|other| *other != replica);
        }
    }

    /// Whether the leader can say that nothing it began is under way, and somebody else is there.
    pub(super) fn can_hand_over(&self, state: &State) -> bool {
        let [from, to] = [state.holder, 1 - state.holder].map(|replica| &state.replicas[replica]);
        let is_drained = from
            .brain
            .as_ref()
            .is_some_and(|brain| brain.core.is_drained());
        is_drained && self.leads(state, state.holder) && to.brain.is_some() && !to.cut
    }

    pub(super) fn hand_over(&self, state: &mut State) {
        let from = state.holder;
        let core = state.replicas[from].brain.as_ref().map(|brain| &brain.core);
        let marks = core.and_then(|core| core.version_marks());
        let marks = match self.bounds.cheat {
            Some(Cheat::NoMarks) => Some(VersionMarks::default()),
            _ => marks,
        };
        Self::end(state, from);
        state.hand_overs += 1;
        state.lists_after_all = false;
        state.holder = 1 - from;
        state.renewed = state.now;
        let seen = LeaseSeen {
            holder: host(state.holder),
            renewed: time(state.now),
            settled: time(state.now),
            handover: marks.map(|marks| marks.to_string()),
        };
        self.tell(state, state.holder, Event::Lease(seen));
    }

    pub(super) fn tick(&self, state: &mut State) {
        state.now += 1;
        // Whoever still waits for a call gives up on it before it can no more take effect.
        for index in 0..state.calls.len() {
            if state.calls[index].heard && state.calls[index].until < state.now + STRAY {
                self.abandon(state, index);
            }
        }
        let now = state.now;
        state.calls.retain(|call| call.until >= now);
        let holder = &state.replicas[state.holder];
        if holder.brain.is_some() && !holder.cut {
            state.renewed = state.now;
        }
        self.renew(state);
    }

    /// Every replica reads the Lease, but one that is cut off sees only what it last saw.
    pub(super) fn renew(&self, state: &mut State) {
        let (holder, renewed) = (host(state.holder), time(state.renewed));
        for replica in 0..2 {
            if state.replicas[replica].cut {
                self.drive(state, replica);
            } else {
                let seen = LeaseSeen {
                    holder: format!("{holder}_scheduler"),
                    renewed,
                    settled: time(state.now) + self.settle(),
                    handover: None,
                };
                self.tell(state, replica, Event::Lease(seen));
            }
        }
    }

    pub(super) fn list(&self, state: &mut State, replica: usize) {
        state.replicas[replica].lists = false;
        let vms = state.vms.iter().enumerate();
        let views =
            vms.map(|(vm, machine)| self.views.vm(vm, machine.now().version, machine.now()));
        let views = views.collect();
        state.lists_after_all |= replica == state.holder;
        state.replicas[replica].seen = state.vms.iter().map(|vm| vm.history.len()).collect();
        for event in [
            Event::NodesListed(self.views.nodes.clone()),
            Event::PodsListed(self.views.pods.clone()),
            Event::VmsListed(views),
        ] {
            self.tell(state, replica, event);
        }
        let newest = state.vms.iter().map(|vm| vm.now().version).max();
        self.reached(state, replica, newest.unwrap_or(0));
    }

    /// A watch of VMs has told all up to a version.
    pub(super) fn reached(&self, state: &mut State, replica: usize, version: u64) {
        if self.caches_on_standby() {
            let (told, newest) = (version, version);
            let reach = Some(WatchProgress {
                observed: told,
                newest,
            });
            let event = Event::WatchProgress(ObjectKind::VirtualMachines, reach);
            self.tell(state, replica, event);
        }
    }
}
