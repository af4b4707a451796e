//! The creation of migrations. A creation whose outcome is unclear is repeated until the watch
//! shows the migration, or until the pod or the time shows that there is none.

use protocol::time::Timestamp;

use super::choose::Picked;
use super::object::NewMigration;
use super::{Begun, Call, Migrate, RETRY_PAUSE, Timer};
use crate::core::event::{Action, MigrationOutcome};
use crate::core::pod_requests::PodRole;
use crate::core::pressure::Pressure;
use crate::core::step::StepContext;

impl Migrate {
    pub(super) fn begin(
        &mut self,
        context: &mut StepContext<'_>,
        node: &str,
        picked: &Picked,
        pressure: Pressure,
    ) {
        let begun = Begun {
            new: NewMigration::of(&picked.pod, &picked.vm),
            vm: picked.vm.clone(),
            node: node.to_owned(),
            target: picked.target.clone(),
            began: context.now,
            flight: None,
            is_shown: false,
        };
        self.begun.insert(picked.pod_uid.clone(), begun);
        let vm = context.ledger.vm(&picked.vm);
        context.out.push_back(Action::MigrationTriggered {
            vm_uid: vm.map(|vm| vm.view.uid.clone()),
            node: node.to_owned(),
            pressure,
            picked: Box::new(picked.clone()),
        });
        self.create(context, &picked.pod_uid);
    }

    fn create(&mut self, context: &mut StepContext<'_>, uid: &str) {
        let Some(begun) = self.begun.get_mut(uid) else {
            return;
        };
        self.last_call += 1;
        begun.flight = Some(self.last_call);
        self.calls
            .insert(self.last_call, Call::Create(uid.to_owned()));
        context.out.push_back(Action::CreateMigration {
            id: self.last_call,
            migration: begun.new.clone(),
        });
    }

    pub(super) fn created(
        &mut self,
        context: &mut StepContext<'_>,
        uid: &str,
        outcome: &MigrationOutcome,
    ) {
        let Some(begun) = self.begun.get_mut(uid) else {
            return;
        };
        begun.flight = None;
        if let MigrationOutcome::Refused(_) = outcome {
            return self.abandon(context.now, uid);
        }
        // Created, there before, or unclear. The watch will show it.
        let again = context.now + RETRY_PAUSE;
        self.timers.set(again, Timer::Retry(uid.to_owned()));
    }

    pub(super) fn retry(&mut self, context: &mut StepContext<'_>, uid: &str) {
        let Some(begun) = self.begun.get(uid).filter(|begun| begun.flight.is_none()) else {
            return;
        };
        let pod = context.ledger.pod(uid).map(|pod| &pod.view);
        let is_source = pod.is_some_and(|pod| pod.role == PodRole::Source);
        let is_gone = pod.is_none_or(|pod| pod.terminal);
        let stuck = self.rule.stuck_after();
        let is_late = stuck.is_some_and(|stuck| begun.began + stuck <= context.now);
        if (is_late && !is_source) || (is_gone && stuck.is_none()) {
            return self.abandon(context.now, uid);
        }
        // The pod shows the migration or is gone with it. The watch of migrations is behind.
        if is_source || is_gone || (begun.is_shown && stuck.is_some()) {
            let again = context.now + RETRY_PAUSE;
            return self.timers.set(again, Timer::Retry(uid.to_owned()));
        }
        self.create(context, uid);
    }

    /// Gives up a migration that was never observed.
    fn abandon(&mut self, now: Timestamp, uid: &str) {
        if let Some(begun) = self.begun.remove(uid) {
            self.check_node_soon(now, &begun.node);
            self.pause(now, &begun.vm);
        }
    }
}
