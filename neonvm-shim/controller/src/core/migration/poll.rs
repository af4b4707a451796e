//! The next action for a VM's migrations, by a plan from scratch.

use std::collections::BTreeSet;

use protocol::core::Core;
use protocol::time::{Span, Timestamp};

use super::action::Action;
use super::event::Event;
use super::kind::{Kind, Peer};
use super::plan::{Plan, plan};
use super::state::{KnownVm, MigrationCore};
use super::view::{PlanInput, VmView};
use crate::core::moment::Moment;

/// The migrations of a VM are planned again after this long at the latest.
pub const LOOK_AGAIN: Span = Span::from_secs(15);
/// Objects are read again after this long at the latest.
pub const READ_AGAIN: Span = Span::from_secs(60);

impl Core for MigrationCore {
    type Time = Moment;
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, at: Moment, event: Event) {
        self.observe(at, event);
    }

    fn poll_action(&mut self, at: Moment) -> Option<Action> {
        if self.migrations.is_empty() {
            self.wake_at = None;
            return None;
        }
        self.wake_at = Some(at.now + LOOK_AGAIN);
        if at.now >= self.read_at {
            if self.read_at != Timestamp(0) {
                self.stale_vm = true;
            }
            self.read_at = at.now + READ_AGAIN;
        }
        let action = self.choose(at)?;
        self.busy.insert(action.kind().peer(), action.clone());
        Some(action)
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        self.wake_at
    }
}

impl MigrationCore {
    fn choose(&mut self, at: Moment) -> Option<Action> {
        let api_free = !self.busy.contains_key(&Peer::Api);
        if api_free && self.stale_vm && self.may(Kind::ReadVm, at.now) {
            return Some(Action::ReadVm);
        }
        if api_free
            && let Some(name) = self.stale_migration.clone()
            && self.may(Kind::ReadMigration, at.now)
        {
            return Some(Action::ReadMigration { name });
        }
        if api_free
            && let Some(name) = self.missing_pods.next().map(str::to_owned)
            && self.may(Kind::ReadPod, at.now)
        {
            return Some(Action::ReadPod { name });
        }
        let stale = self.stale_vm || self.stale_migration.is_some();
        let found = self.plan(at);
        if let Some(wake) = found.look_again {
            self.wake_no_later(wake);
        }
        for action in found.actions {
            let kind = action.kind();
            let blocked = stale && kind.peer() == Peer::Api;
            if !blocked && !self.busy.contains_key(&kind.peer()) && self.may(kind, at.now) {
                return Some(action);
            }
        }
        None
    }

    /// Plans, and forgets the failures of actions that are no longer wanted.
    fn plan(&mut self, at: Moment) -> Plan {
        let first = self.plan_once(at);
        let wanted: BTreeSet<Kind> = first.actions.iter().map(Action::kind).collect();
        let busy: BTreeSet<Kind> = self.busy.values().map(Action::kind).collect();
        let before = self.failures.len();
        self.failures
            .retain(|kind, _| wanted.contains(kind) || busy.contains(kind));
        let plan = if self.failures.len() == before {
            first
        } else {
            self.plan_once(at)
        };
        self.turn.clone_from(&plan.turn);
        plan
    }

    fn plan_once(&self, at: Moment) -> Plan {
        plan(&PlanInput {
            settings: &self.settings,
            vm: match &self.vm {
                KnownVm::Unknown => VmView::Unknown,
                KnownVm::Absent => VmView::Absent,
                KnownVm::Present(vm) => VmView::Present(vm),
            },
            migrations: &self.migrations,
            pods: &self.pods,
            absent: &self.absent,
            missing_pods: &self.missing_pods,
            runners: &self.runners,
            failures: &self.failures,
            suffix: &self.suffix,
            at,
        })
    }

    fn may(&mut self, kind: Kind, now: Timestamp) -> bool {
        match self.backoff.waits(kind, now) {
            None => true,
            Some(at) => {
                self.wake_no_later(at);
                false
            }
        }
    }

    fn wake_no_later(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }
}
