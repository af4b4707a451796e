//! Upgrades: one member after the other, each when the one before is ready.

use std::collections::{BTreeMap, BTreeSet};

use protocol::policy::{Upgrade, VmSet, VmSetStatus, check_template, member_name};
use protocol::time::{Span, Timestamp};

use super::count;
use super::member::Member;

/// A change that an upgrade asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpgradeChange {
    Delete(u32),
    Create(u32),
}

/// Since when this controller has seen the step that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) to: u32,
    pub(super) ordinal: u32,
    pub(super) since: Timestamp,
    /// Since when the replaced member is up.
    pub(super) up_since: Option<Timestamp>,
}

impl Step {
    /// The step of an upgrade; that of `old`, if it is the same.
    pub(super) fn of(
        upgrade: Option<&Upgrade>,
        members: &BTreeMap<u32, Member>,
        old: Option<Self>,
        now: Timestamp,
    ) -> Option<Self> {
        let upgrade = upgrade?;
        let (to, ordinal) = (upgrade.to, upgrade.ordinal?);
        let same = old.filter(|old| (old.to, old.ordinal) == (to, ordinal));
        let mut step = same.unwrap_or(Self {
            to,
            ordinal,
            since: now,
            up_since: None,
        });
        let member = members.get(&ordinal);
        let is_up = member.is_some_and(|member| member.is_up() && member.version == to);
        step.up_since = is_up.then(|| step.up_since.unwrap_or(now));
        Some(step)
    }
}

/// State of the step that is under way.
enum Progress {
    Wait(Timestamp),
    /// The member goes. The end of that is an event.
    Leaving,
    Change(UpgradeChange),
    Halt(String),
    Ready,
}

/// Result of a look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) change: Option<UpgradeChange>,
    /// When to look again though nothing happens.
    pub(super) again: Option<Timestamp>,
}

/// Brings the upgrade in `status` up to date. A change is due only once that status is stored.
pub(super) fn look(
    set: &VmSet,
    members: &BTreeMap<u32, Member>,
    status: &mut VmSetStatus,
    step: Option<Step>,
    now: Timestamp,
) -> Look {
    let mut look = Look::default();
    let Some(current) = status.version else {
        return look;
    };
    let to = set.spec.version.unwrap_or(current);
    if let Some(why) = obstacle(status, current, to) {
        // Its target is no version, so that it ends with what stands in its way.
        status.upgrade = Some(Upgrade {
            halted: Some(why),
            ..Upgrade::default()
        });
        return look;
    }
    let mut upgrade = status.upgrade.take().filter(|upgrade| upgrade.to == to);
    let is_outdated = |member: &&Member| !member.is_leaving() && member.version != to;
    if upgrade.is_none() && members.values().any(|member| is_outdated(&member)) {
        upgrade = Some(Upgrade {
            to,
            ..Upgrade::default()
        });
    }
    let Some(mut upgrade) = upgrade else {
        finish(status, current, to);
        return look;
    };
    if upgrade.halted.is_none() {
        let desired = count::desired(set.spec.replicas, &status.left_out);
        advance(set, &desired, members, &mut upgrade, step, now, &mut look);
        let outdated = members.values().filter(is_outdated);
        if upgrade.ordinal.is_none() && outdated.count() == 0 {
            finish(status, current, to);
            return look;
        }
    }
    status.upgrade = Some(upgrade);
    look
}

/// Why no member can get a version.
fn obstacle(status: &VmSetStatus, current: u32, to: u32) -> Option<String> {
    let Some(template) = status.template(to) else {
        return Some(format!(
            "version {to} is not kept: choose one of status.versions"
        ));
    };
    if current == to {
        return None;
    }
    let errors = check_template(template).err()?;
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Some(format!("version {to} is refused: {}", texts.join("; ")))
}

/// Ends an upgrade. New members get its version.
fn finish(status: &mut VmSetStatus, current: u32, to: u32) {
    if current != to {
        status.previous = Some(current);
        status.version = Some(to);
    }
    status.upgrade = None;
}

/// Follows the step that is under way, and chooses the next one when it is done.
fn advance(
    set: &VmSet,
    desired: &BTreeSet<u32>,
    members: &BTreeMap<u32, Member>,
    upgrade: &mut Upgrade,
    step: Option<Step>,
    now: Timestamp,
    look: &mut Look,
) {
    if upgrade.ordinal.is_some_and(|it| !desired.contains(&it)) {
        upgrade.ordinal = None;
    }
    if let Some(ordinal) = upgrade.ordinal {
        // The step that the status names is the one that this controller has seen.
        let Some(step) = step.filter(|step| step.ordinal == ordinal) else {
            return;
        };
        match progress(set, members, step, now) {
            Progress::Wait(at) => look.again = Some(at),
            Progress::Leaving => {}
            Progress::Change(change) => look.change = Some(change),
            Progress::Halt(why) => upgrade.halted = Some(why),
            Progress::Ready => upgrade.ordinal = choose(members, upgrade.to, desired),
        }
    } else {
        upgrade.ordinal = choose(members, upgrade.to, desired);
    }
}

fn progress(set: &VmSet, members: &BTreeMap<u32, Member>, step: Step, now: Timestamp) -> Progress {
    let Some(member) = members.get(&step.ordinal) else {
        return Progress::Change(UpgradeChange::Create(step.ordinal));
    };
    if member.is_leaving() {
        return Progress::Leaving;
    }
    if member.version != step.to {
        return Progress::Change(UpgradeChange::Delete(step.ordinal));
    }
    if let Some(why) = member.failure() {
        return Progress::Halt(why);
    }
    let seconds = |count: u32| Span::from_secs(u64::from(count));
    if let Some(up) = step.up_since {
        let ready = up + seconds(set.spec.min_ready_seconds);
        return if now >= ready {
            Progress::Ready
        } else {
            Progress::Wait(ready)
        };
    }
    let deadline = step.since + seconds(set.spec.progress_deadline_seconds);
    if now < deadline {
        return Progress::Wait(deadline);
    }
    let name = member_name(&set.metadata.name, step.ordinal);
    let limit = set.spec.progress_deadline_seconds;
    let problem = member.problem.as_deref();
    let problem = problem.map_or_else(String::new, |problem| format!(": {problem}"));
    Progress::Halt(format!("{name} is not ready after {limit} s{problem}"))
}

/// The next member to replace: one that is not up before one that is, then the lowest ordinal. A
/// member that is up stays while one with the new version is not.
fn choose(members: &BTreeMap<u32, Member>, to: u32, desired: &BTreeSet<u32>) -> Option<u32> {
    let staying = || members.values().filter(|member| !member.is_leaving());
    let mut outdated =
        staying().filter(|member| member.version != to && desired.contains(&member.ordinal));
    let first = outdated.clone().next();
    let down = outdated.find(|member| !member.is_up());
    let is_whole = staying().all(|member| member.version != to || member.is_up());
    let chosen = down.or(first.filter(|_| is_whole));
    chosen.map(|member| member.ordinal)
}
