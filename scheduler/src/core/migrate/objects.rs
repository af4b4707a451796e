//! Observed migrations. All of them show which VMs are leaving. Ours are deleted when they are
//! over, and cancelled when they are stuck.

use std::collections::BTreeSet;

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;

use super::known::{Chosen, Known};
use super::object::{MigrationPhase, MigrationView};
use super::{Call, Migrate, RETRY_PAUSE, Timer};
use crate::core::event::{Action, MigrationOutcome, RemovalCause};
use crate::core::ledger::Ledger;
use crate::core::step::StepContext;

impl Migrate {
    /// Stores a consistent list of all migrations. One that it does not contain is gone.
    pub(in crate::core) fn listed(
        &mut self,
        now: Timestamp,
        ledger: &Ledger,
        views: Vec<MigrationView>,
    ) {
        let here: BTreeSet<(NamespacedName, String)> = views
            .iter()
            .map(|view| (view.key.clone(), view.uid.clone()))
            .collect();
        let known = self.known.values().map(|known| &known.view);
        let known = known.map(|view| (view.key.clone(), view.uid.clone()));
        let gone: Vec<(NamespacedName, String)> = known.filter(|it| !here.contains(it)).collect();
        for (key, uid) in gone {
            self.gone(now, ledger, &key, &uid);
        }
        for view in views {
            self.applied(now, ledger, view);
        }
        self.is_listed = true;
        // Nodes may have come under pressure before migrations were listed.
        for node in ledger.nodes() {
            self.check_node_soon(now, &node.name);
        }
    }

    pub(in crate::core) fn applied(
        &mut self,
        now: Timestamp,
        ledger: &Ledger,
        view: MigrationView,
    ) {
        let old = self
            .known
            .get(&view.key)
            .map(|known| known.view.uid.clone());
        if let Some(old) = old.filter(|old| *old != view.uid) {
            // A new migration has the name, so the old one is gone, even if no watch event said so.
            self.gone(now, ledger, &view.key, &old);
        }
        let (key, vm) = (view.key.clone(), view.vm.clone());
        let known = self.known.get(&key);
        let was_live = known.is_some_and(|known| known.view.is_live());
        if known.is_none() {
            let chosen = self.take_begun(&key);
            if chosen.is_some() && !view.is_live() {
                // An old migration of the same name. The creation met it, so the attempt is over.
                self.pause(now, &vm);
            }
            let fresh = Known {
                view: view.clone(),
                chosen,
                since: now,
                progress: now,
                deletion: None,
            };
            self.known.insert(key.clone(), fresh);
        }
        if let Some(known) = self.known.get_mut(&key) {
            let progress = |view: &MigrationView| (view.phase, view.sent_bytes);
            if progress(&known.view) != progress(&view) {
                known.progress = now;
            }
            known.view = view.clone();
        }
        if view.is_live() {
            let live = self.live.entry(vm.clone()).or_default();
            live.insert(key.clone());
        } else if was_live {
            self.ended(now, &vm, &key);
        }
        self.check_nodes_of(now, ledger, &vm);
        self.timers.set(now, Timer::Check(key));
    }

    /// Removes and returns the choice that was begun under a migration's name.
    fn take_begun(&mut self, key: &NamespacedName) -> Option<Chosen> {
        let mut begun = self.begun.iter();
        let (uid, _) = begun.find(|(_, begun)| begun.new.key == *key)?;
        let uid = uid.clone();
        let begun = self.begun.remove(&uid)?;
        Some(Chosen {
            pod_uid: uid,
            vm: begun.vm,
            target: begun.target,
        })
    }

    pub(in crate::core) fn gone(
        &mut self,
        now: Timestamp,
        ledger: &Ledger,
        key: &NamespacedName,
        uid: &str,
    ) {
        if self
            .known
            .get(key)
            .is_none_or(|known| known.view.uid != uid)
        {
            return;
        }
        if let Some(known) = self.known.remove(key) {
            if known.view.is_live() {
                self.ended(now, &known.view.vm, key);
            }
            self.check_nodes_of(now, ledger, &known.view.vm);
        }
    }

    fn ended(&mut self, now: Timestamp, vm: &NamespacedName, key: &NamespacedName) {
        if let Some(keys) = self.live.get_mut(vm) {
            keys.remove(key);
            if keys.is_empty() {
                self.live.remove(vm);
            }
        }
        self.pause(now, vm);
    }

    /// Checks the nodes of a VM's pods.
    fn check_nodes_of(&mut self, now: Timestamp, ledger: &Ledger, vm: &NamespacedName) {
        let nodes = ledger.pods_of(vm).filter_map(|pod| pod.view.node.clone());
        let nodes: Vec<String> = nodes.collect();
        for node in nodes {
            self.check_node_soon(now, &node);
        }
    }

    /// Deletes a migration of ours that is over or stuck. Otherwise sets a timer for the next
    /// check.
    pub(super) fn check(&mut self, context: &mut StepContext<'_>, key: &NamespacedName) {
        let Some(known) = self.known.get_mut(key) else {
            return;
        };
        let view = &known.view;
        if !view.ours || view.deleting || known.deletion.is_some() {
            return;
        }
        let whole = known.since + view.timeout;
        let (due, cause) = match (view.phase, self.rule.stuck_after()) {
            (MigrationPhase::Succeeded, _) => (context.now, RemovalCause::Succeeded),
            (MigrationPhase::Failed, _) => (context.now, RemovalCause::Failed),
            (_, None) => return,
            // Without a count of sent bytes, progress cannot be observed.
            (MigrationPhase::Running, _) if view.sent_bytes.is_none() => {
                (whole, RemovalCause::Stuck)
            }
            (MigrationPhase::Pending | MigrationPhase::Running, Some(stuck)) => {
                (whole.min(known.progress + stuck), RemovalCause::Stuck)
            }
        };
        if due > context.now {
            self.timers.set(due, Timer::Check(key.clone()));
            return;
        }
        self.last_call += 1;
        known.deletion = Some(self.last_call);
        context.out.push_back(Action::DeleteMigration {
            id: self.last_call,
            migration: key.clone(),
            uid: view.uid.clone(),
            cause,
        });
        self.calls.insert(self.last_call, Call::Delete(key.clone()));
    }

    pub(super) fn deleted(
        &mut self,
        now: Timestamp,
        key: &NamespacedName,
        outcome: &MigrationOutcome,
    ) {
        let Some(known) = self.known.get_mut(key) else {
            return;
        };
        if !matches!(outcome, MigrationOutcome::Done) {
            known.deletion = None;
            self.timers
                .set(now + RETRY_PAUSE, Timer::Check(key.clone()));
        }
    }
}
