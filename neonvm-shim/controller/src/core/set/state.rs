//! The state machine of one set.

use std::collections::{BTreeMap, BTreeSet};

use protocol::policy::{
    Rates, VmSet, VmSetStatus, check_template, member_name, member_ordinal, members_name,
};
use protocol::time::{Span, Timestamp};
use protocol::vm::VirtualMachine;
use serde_json::json;

use super::build;
use super::count::{self, Count};
use super::event::{Action, Event, Kind, Reason, Response};
use super::member::{Member, MemberState};
use super::pace::Pace;
use super::upgrade::{self, Step, UpgradeChange};
use super::{status, versions};
use crate::core::action::merge_difference;
use crate::core::backoff::{Backoff, READ_AGAIN, REPORTED_FROM, doubling};
use crate::core::{Moment, Refusal};

/// A name that another VM has is tried again after this long.
const TAKEN_FOR: Span = Span::from_secs(60);
/// First and longest pause before a member that ended again is replaced again.
const REPLACE: [Span; 2] = [Span::from_secs(1), Span::from_secs(300)];
/// A member that was up this long is replaced without a pause.
const STEADY: Span = Span::from_secs(60);

/// Replacements of the member of an ordinal that ended.
#[derive(Debug, Clone, Copy, Default)]
struct Ends {
    in_a_row: u32,
    not_before: Timestamp,
}

/// The core of one set.
#[derive(Debug, Default)]
pub struct SetCore {
    set: Option<VmSet>,
    /// Uid of the set that the rest is about.
    uid: String,
    vms: BTreeMap<String, VirtualMachine>,
    /// Uids of VMs whose deletion was accepted, until they are gone.
    deleted: BTreeSet<String>,
    /// Uid of the VM whose deletion was requested last.
    deleting: Option<String>,
    /// Uids of VMs that went while a creation was under way.
    gone: BTreeSet<String>,
    /// Ordinals whose names other VMs have, and until when that is believed.
    taken: BTreeMap<u32, Timestamp>,
    under_way: Option<Kind>,
    backoff: Backoff<Kind>,
    failures: BTreeMap<Kind, String>,
    grow: Pace,
    decline: Pace,
    step: Option<Step>,
    ends: BTreeMap<u32, Ends>,
    /// Version of the set on which the last write of its status rests.
    written: Option<String>,
    /// Version of the set on which a write was refused.
    stale: Option<String>,
    /// Files as they were written last, and when.
    files: Option<(BTreeMap<String, String>, Timestamp)>,
    deadline: Option<Timestamp>,
}

impl SetCore {
    /// Updates the state by one event.
    pub fn handle(&mut self, at: Moment, event: Event) {
        match event {
            Event::Set(set) => self.observe(*set),
            Event::SetGone => self.set = None,
            Event::Vm(vm) => {
                self.vms.insert(vm.metadata.name.clone(), *vm);
            }
            Event::VmGone { name, uid } => {
                let is_it = |vm: &VirtualMachine| vm.metadata.uid == uid;
                if self.vms.get(&name).is_some_and(is_it) {
                    self.vms.remove(&name);
                }
                self.deleted.remove(&uid);
                if self.under_way == Some(Kind::Create) {
                    self.gone.insert(uid);
                }
            }
            Event::Done { kind, result } => self.done(at.now, kind, result),
        }
    }

    /// Another set of the name has only the VMs of the one before, which go.
    fn observe(&mut self, set: VmSet) {
        if self.uid != set.metadata.uid {
            *self = Self {
                uid: set.metadata.uid.clone(),
                vms: std::mem::take(&mut self.vms),
                under_way: self.under_way.take(),
                ..Self::default()
            };
        }
        self.set = Some(set);
    }

    /// Whether nothing is known of the set.
    pub(super) fn is_empty(&self) -> bool {
        self.set.is_none() && self.vms.is_empty() && self.under_way.is_none()
    }

    fn done(&mut self, now: Timestamp, kind: Kind, result: Result<Response, Refusal>) {
        self.under_way = None;
        let gone = std::mem::take(&mut self.gone);
        let refusal = match result {
            Ok(response) => {
                self.backoff.succeeded(kind);
                self.failures.remove(&kind);
                return self.succeeded(now, response, &gone);
            }
            Err(refusal) => refusal,
        };
        match kind {
            Kind::Members => self.files = None,
            Kind::Delete => {
                let uid = self.deleting.take().unwrap_or_default();
                self.deleted.remove(&uid);
            }
            Kind::Status | Kind::Create => {}
        }
        match refusal {
            // The watch brings the newer version.
            Refusal::Conflict | Refusal::Gone if kind == Kind::Status => {
                self.stale = self.written.take();
            }
            refusal => {
                let times = self.backoff.failed(kind, now);
                if times >= REPORTED_FROM {
                    self.failures.insert(kind, failure_text(kind, refusal));
                }
            }
        }
    }

    fn succeeded(&mut self, now: Timestamp, response: Response, gone: &BTreeSet<String>) {
        match response {
            Response::Set(set) => self.observe(*set),
            Response::Members | Response::Deleted => {}
            Response::Vm(vm) => {
                let name = vm.metadata.name.clone();
                let is_known = self.vms.contains_key(&name) || gone.contains(&vm.metadata.uid);
                let Some(set) = self.set.as_ref().filter(|_| !is_known) else {
                    return;
                };
                if Member::of(set, &vm).is_some() {
                    self.vms.insert(name, *vm);
                } else if let Some(ordinal) = member_ordinal(&set.metadata.name, &name) {
                    self.taken.insert(ordinal, now + TAKEN_FOR);
                }
            }
        }
    }

    /// The next action. The core counts it as under way.
    pub fn poll_action(&mut self, at: Moment) -> Option<Action> {
        if self.under_way.is_some() {
            return None;
        }
        self.deadline = None;
        let set = self.set.take()?;
        let action = if set.metadata.deletion_timestamp.is_some() {
            None
        } else {
            self.plan(&set, at)
        };
        self.set = Some(set);
        self.under_way = action.as_ref().map(Action::kind);
        action
    }

    /// When [`Self::poll_action`] is due if no event comes first.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        self.deadline.filter(|_| self.under_way.is_none())
    }

    fn plan(&mut self, set: &VmSet, at: Moment) -> Option<Action> {
        if self.stale.as_ref() == Some(&set.metadata.resource_version) {
            return None;
        }
        let now = at.now;
        let members = self.members(set);
        let stored = set.status.clone().unwrap_or_default();
        let mut wanted = stored.clone();
        let used = members.values().map(|member| member.version).collect();
        versions::observe(set, &mut wanted, &used);
        self.taken.retain(|_, until| *until > now);
        let taken = self.taken.keys().copied().collect();
        let reserved = wanted.upgrade.as_ref().and_then(|upgrade| upgrade.ordinal);
        let replicas = set.spec.replicas;
        wanted.left_out = count::left_out(replicas, &stored.left_out, &members, reserved, &taken);
        self.step = Step::of(wanted.upgrade.as_ref(), &members, self.step, now);
        let look = upgrade::look(set, &members, &mut wanted, self.step, now);
        self.wake(look.again);
        let is_stored = status::decided(&wanted) == status::decided(&stored);
        if !is_stored {
            status::report(set, &members, &mut wanted, &self.problems(), at.wall);
            return self.write_status(set, &stored, &wanted, now);
        }
        // The members' file comes before the first member.
        if let Some(action) = self.write_files(set, &members, now) {
            return Some(action);
        }
        let change = if self.files.is_some() {
            self.change(set, &members, &wanted, look.change, now)
        } else {
            None
        };
        status::report(set, &members, &mut wanted, &self.problems(), at.wall);
        change.or_else(|| self.write_status(set, &stored, &wanted, now))
    }

    fn members(&self, set: &VmSet) -> BTreeMap<u32, Member> {
        let members = self.vms.values().filter_map(|vm| Member::of(set, vm));
        let members = members.map(|mut member| {
            if self.deleted.contains(&member.uid) {
                member.state = MemberState::Leaving;
            }
            (member.ordinal, member)
        });
        members.collect()
    }

    fn problems(&self) -> Vec<String> {
        let taken = self.taken.keys();
        let taken = taken.map(|ordinal| format!("another VM has the name of member {ordinal}"));
        self.failures.values().cloned().chain(taken).collect()
    }

    /// The next change of the members that may be made now.
    fn change(
        &mut self,
        set: &VmSet,
        members: &BTreeMap<u32, Member>,
        status: &VmSetStatus,
        upgrade: Option<UpgradeChange>,
        now: Timestamp,
    ) -> Option<Action> {
        let step = status.upgrade.as_ref();
        let to = step.map_or(0, |upgrade| upgrade.to);
        let why = Reason::Upgrade { to };
        match upgrade {
            Some(UpgradeChange::Delete(ordinal)) => {
                return self.delete(members.get(&ordinal), why, now);
            }
            Some(UpgradeChange::Create(ordinal)) => {
                return self.create(set, status, (ordinal, to), why, now);
            }
            None => {}
        }
        let reserved = step.and_then(|upgrade| upgrade.ordinal);
        let taken = self.taken.keys().copied().collect();
        let desired = count::desired(set.spec.replicas, &status.left_out);
        let counted = count::next(&desired, members, reserved, &taken);
        if let Some(action) = self.count(set, members, status, counted, now) {
            return Some(action);
        }
        self.replace_ended(members, status, now)
    }

    fn count(
        &mut self,
        set: &VmSet,
        members: &BTreeMap<u32, Member>,
        status: &VmSetStatus,
        counted: Count,
        now: Timestamp,
    ) -> Option<Action> {
        let rates = set.spec.rates;
        let why = Reason::Count {
            wanted: set.spec.replicas,
        };
        match counted {
            Count::Same => {
                self.grow.rest();
                self.decline.rest();
                None
            }
            Count::Delete(ordinal) => {
                self.grow.rest();
                if let Some(at) = self.decline.wait(now) {
                    self.wake(Some(at));
                    return None;
                }
                let action = self.delete(members.get(&ordinal), why, now)?;
                self.decline.take(now, Rates::period(rates.decline));
                Some(action)
            }
            Count::Create(ordinal) => {
                self.decline.rest();
                let due = self.grow.wait(now);
                let due = due.max(self.ends.get(&ordinal).map(|ends| ends.not_before));
                if let Some(at) = due.filter(|at| *at > now) {
                    self.wake(Some(at));
                    return None;
                }
                let version = status.version?;
                let action = self.create(set, status, (ordinal, version), why, now)?;
                self.grow.take(now, Rates::period(rates.grow));
                Some(action)
            }
        }
    }

    /// Deletes a member that has ended, so that a new one takes its place. The member at which an
    /// upgrade has halted stays for a look at it.
    fn replace_ended(
        &mut self,
        members: &BTreeMap<u32, Member>,
        status: &VmSetStatus,
        now: Timestamp,
    ) -> Option<Action> {
        let steady = |ends: &Ends| now.since(ends.not_before) >= STEADY;
        self.ends.retain(|ordinal, ends| {
            !(members.get(ordinal).is_some_and(Member::is_up) && steady(ends))
        });
        let step = status.upgrade.as_ref().and_then(|upgrade| upgrade.ordinal);
        let mut ended = members
            .values()
            .filter(|member| member.has_ended() && Some(member.ordinal) != step);
        let member = ended.next()?;
        let action = self.delete(Some(member), Reason::Ended, now)?;
        let ends = self.ends.entry(member.ordinal).or_default();
        let [first, longest] = REPLACE;
        ends.not_before = now + doubling(first, longest, ends.in_a_row);
        ends.in_a_row = ends.in_a_row.saturating_add(1);
        Some(action)
    }

    fn create(
        &mut self,
        set: &VmSet,
        status: &VmSetStatus,
        (ordinal, version): (u32, u32),
        why: Reason,
        now: Timestamp,
    ) -> Option<Action> {
        self.may(Kind::Create, now)?;
        let name = member_name(&set.metadata.name, ordinal);
        let template = status.template(version)?;
        if let Err(errors) = check_template(template) {
            // No request of ours may give a guest what its owner may not give it.
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            let why = format!("version {version} is refused: {}", texts.join("; "));
            self.failures.insert(Kind::Create, why);
            return None;
        }
        let vm = build::member(set, &name, version, template);
        Some(Action::Create { name, vm, why })
    }

    fn delete(&mut self, member: Option<&Member>, why: Reason, now: Timestamp) -> Option<Action> {
        self.may(Kind::Delete, now)?;
        let member = member?;
        self.deleted.insert(member.uid.clone());
        self.deleting = Some(member.uid.clone());
        Some(Action::Delete {
            name: member.name.clone(),
            uid: member.uid.clone(),
            why,
        })
    }

    fn write_files(
        &mut self,
        set: &VmSet,
        members: &BTreeMap<u32, Member>,
        now: Timestamp,
    ) -> Option<Action> {
        let data = build::files(set, members);
        if let Some((written, at)) = &self.files
            && *written == data
        {
            // Somebody may have changed or deleted it.
            let again = *at + READ_AGAIN;
            if now < again {
                self.wake(Some(again));
                return None;
            }
        }
        self.may(Kind::Members, now)?;
        self.files = Some((data.clone(), now));
        Some(Action::WriteMembers {
            name: members_name(&set.metadata.name),
            owner: build::owner(set),
            data,
        })
    }

    fn write_status(
        &mut self,
        set: &VmSet,
        stored: &VmSetStatus,
        wanted: &VmSetStatus,
        now: Timestamp,
    ) -> Option<Action> {
        let change = merge_difference(&json!(stored), &json!(wanted))?;
        self.may(Kind::Status, now)?;
        self.written = Some(set.metadata.resource_version.clone());
        Some(Action::WriteStatus {
            patch: json!({
                "metadata": {"resourceVersion": set.metadata.resource_version},
                "status": change,
            }),
        })
    }

    /// `None` while an action of this kind must pause.
    fn may(&mut self, kind: Kind, now: Timestamp) -> Option<()> {
        let waits = self.backoff.waits(kind, now);
        self.wake(waits);
        waits.is_none().then_some(())
    }

    fn wake(&mut self, at: Option<Timestamp>) {
        self.deadline = self.deadline.into_iter().chain(at).min();
    }
}

fn failure_text(kind: Kind, refusal: Refusal) -> String {
    let what = match kind {
        Kind::Status => "failed to write the status",
        Kind::Members => "failed to write the config map of the members",
        Kind::Create => "failed to create a member",
        Kind::Delete => "failed to delete a member",
    };
    match refusal {
        Refusal::Failed { message, .. } => format!("{what}: {message}"),
        Refusal::Conflict => format!("{what}: the object has another owner"),
        Refusal::Gone => format!("{what}: the object is gone"),
    }
}
