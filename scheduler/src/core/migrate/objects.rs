//! The migrations that are there: whoever made them they say who is leaving; ours are cleaned up,
//! and cancelled when stuck.

use std::collections::BTreeSet;

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;
use serde::Serialize;

use super::{Call, Migrate, MigrationPhase, MigrationView, TRY_AGAIN, Timer};
use crate::core::event::{Action, CallId, MigrationOutcome, RemovalCause};
use crate::core::ledger::Ledger;
use crate::core::permits::Bench;

/// What was chosen when a migration was begun by this process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Chosen {
    pub(super) pod_uid: String,
    pub(super) vm: NamespacedName,
    pub(super) target: Option<String>,
}

/// A migration that is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Known {
    pub(super) view: MigrationView,
    pub(super) chosen: Option<Chosen>,
    /// When it was seen first.
    since: Timestamp,
    /// When it got on last.
    progress: Timestamp,
    deletion: Option<CallId>,
}

impl Migrate {
    /// A consistent list of all migrations; what is not in it is gone.
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
        // What was under pressure before migrations were known is to be looked at now.
        for node in ledger.nodes() {
            self.look_soon(now, &node.name);
        }
    }

    /// A migration appeared or changed.
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
            // The name was given to a new one, so the old one is gone whether or not we were told.
            self.gone(now, ledger, &view.key, &old);
        }
        let (key, vm) = (view.key.clone(), view.vm.clone());
        let known = self.known.get(&key);
        let was_live = known.is_some_and(|known| known.view.is_live());
        if known.is_none() {
            let chosen = self.take_begun(&key);
            if chosen.is_some() && !view.is_live() {
                // One of the same name, from before: what was begun just now met it and is over
                // too.
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
            let told = |view: &MigrationView| (view.phase, view.sent_bytes);
            if told(&known.view) != told(&view) {
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
        self.look_around(now, ledger, &vm);
        self.timers.set(now, Timer::Check(key));
    }

    /// Takes over what was begun under a migration's name.
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

    /// The migration of this name and uid is gone.
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
            self.look_around(now, ledger, &known.view.vm);
        }
    }

    /// A live migration is so no more.
    fn ended(&mut self, now: Timestamp, vm: &NamespacedName, key: &NamespacedName) {
        if let Some(keys) = self.live.get_mut(vm) {
            keys.remove(key);
            if keys.is_empty() {
                self.live.remove(vm);
            }
        }
        self.pause(now, vm);
    }

    /// What a VM's migration changes, it changes on the nodes of its pods.
    fn look_around(&mut self, now: Timestamp, ledger: &Ledger, vm: &NamespacedName) {
        let nodes = ledger.pods_of(vm).filter_map(|pod| pod.view.node.clone());
        let nodes: Vec<String> = nodes.collect();
        for node in nodes {
            self.look_soon(now, &node);
        }
    }

    /// Deletes a migration of ours that is over or stuck; otherwise says when to check again.
    pub(super) fn check(&mut self, bench: &mut Bench<'_>, key: &NamespacedName) {
        let Some(known) = self.known.get_mut(key) else {
            return;
        };
        let view = &known.view;
        if !view.ours || view.deleting || known.deletion.is_some() {
            return;
        }
        let whole = known.since + view.timeout;
        let (due, cause) = match (view.phase, self.rule.stuck_after()) {
            (MigrationPhase::Succeeded, _) => (bench.now, RemovalCause::Succeeded),
            (MigrationPhase::Failed, _) => (bench.now, RemovalCause::Failed),
            (_, None) => return,
            // Who is silent about what was sent cannot be told from who sends nothing.
            (MigrationPhase::Running, _) if view.sent_bytes.is_none() => {
                (whole, RemovalCause::Stuck)
            }
            (MigrationPhase::Pending | MigrationPhase::Running, Some(stuck)) => {
                (whole.min(known.progress + stuck), RemovalCause::Stuck)
            }
        };
        if due > bench.now {
            self.timers.set(due, Timer::Check(key.clone()));
            return;
        }
        self.last_call += 1;
        known.deletion = Some(self.last_call);
        bench.out.push_back(Action::DeleteMigration {
            id: self.last_call,
            migration: key.clone(),
            uid: view.uid.clone(),
            cause,
        });
        self.calls.insert(self.last_call, Call::Delete(key.clone()));
    }

    /// A deletion ended.
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
            self.timers.set(now + TRY_AGAIN, Timer::Check(key.clone()));
        }
    }
}
