//! What the scheduler's lists and watches tell its core.

use scheduler::core::event::{Event as CoreEvent, ObjectKind, WatchProgress};

use crate::options::Sabotage;
use crate::store::{Change, Kind, Object};
use crate::world::{UNIT, World};

impl World {
    /// A watch has come so far.
    fn scheduler_reached(&mut self, replica: usize, kind: Kind, progress: WatchProgress) {
        if self.schedulers[replica].election.is_some() {
            let kind = match kind {
                Kind::Node => ObjectKind::Nodes,
                Kind::Pod => ObjectKind::Pods,
                Kind::Vm => ObjectKind::VirtualMachines,
            };
            self.tell_scheduler(replica, CoreEvent::WatchProgress(kind, Some(progress)));
        }
    }

    pub(crate) fn scheduler_sees(&mut self, replica: usize, change: &Change) {
        let object = &change.object;
        let key = || object.vm_view().key.clone();
        let event = match (change.kind, change.gone) {
            (Kind::Node, false) => CoreEvent::NodeApplied(object.node_view()),
            (Kind::Node, true) => CoreEvent::NodeDeleted(object.meta("name").to_owned()),
            (Kind::Pod, false) => CoreEvent::PodApplied(object.pod_view().clone()),
            (Kind::Pod, true) => CoreEvent::PodDeleted(object.meta("uid").to_owned()),
            (Kind::Vm, false) => {
                let mut view = object.vm_view().clone();
                if self.cheats(Sabotage::LeakHold) {
                    view.plugged.1.mem.0 = view.in_use.mem.0 + UNIT.mem.0;
                }
                CoreEvent::VmApplied(view)
            }
            (Kind::Vm, true) => CoreEvent::VmDeleted(key(), object.meta("uid").to_owned()),
        };
        self.tell_scheduler(replica, event);
        if self.cheats(Sabotage::ForgetPod) && change.kind == Kind::Pod && !change.gone {
            let event = CoreEvent::PodDeleted(object.meta("uid").to_owned());
            self.tell_scheduler(replica, event);
        }
        let told = change.version;
        let newest = if change.gone { 0 } else { told };
        self.scheduler_reached(
            replica,
            change.kind,
            WatchProgress {
                observed: told,
                newest,
            },
        );
    }

    pub(crate) fn scheduler_lists(
        &mut self,
        replica: usize,
        kind: Kind,
        objects: &[Object],
        told: u64,
    ) {
        let newest = objects.iter().map(|object| object.version).max();
        let all = objects.iter();
        let event = match kind {
            Kind::Node => CoreEvent::NodesListed(all.map(|object| object.node_view()).collect()),
            Kind::Pod => {
                CoreEvent::PodsListed(all.map(|object| object.pod_view().clone()).collect())
            }
            Kind::Vm => CoreEvent::VmsListed(all.map(|object| object.vm_view().clone()).collect()),
        };
        self.tell_scheduler(replica, event);
        let newest = newest.unwrap_or(0);
        self.scheduler_reached(
            replica,
            kind,
            WatchProgress {
                observed: told,
                newest,
            },
        );
    }
}
