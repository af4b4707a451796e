//! What the set's status reports: counts and conditions.

use std::collections::BTreeMap;

use protocol::policy::{LABEL_SET, VmSet, VmSetStatus};
use protocol::time::WallTime;

use super::member::Member;
use crate::core::conditions::{self, AVAILABLE, DEGRADED};

/// Condition that is true while an upgrade has stopped at a member.
const UPGRADE_HALTED: &str = "UpgradeHalted";

/// Brings counts and conditions up to date. `problems` are texts for people.
pub(super) fn report(
    set: &VmSet,
    members: &BTreeMap<u32, Member>,
    status: &mut VmSetStatus,
    problems: &[String],
    wall: WallTime,
) {
    let count = |holds: &dyn Fn(&Member) -> bool| {
        let counted = members.values().filter(|it| !it.is_leaving() && holds(it));
        u32::try_from(counted.count()).unwrap_or(u32::MAX)
    };
    let wanted = set.spec.version.or(status.version);
    status.observed_generation = set.metadata.generation;
    status.replicas = count(&|_| true);
    status.ready_replicas = count(&Member::is_up);
    status.updated_replicas = count(&|member| Some(member.version) == wanted);
    status.selector = format!("{LABEL_SET}={}", set.metadata.name);
    let (up, desired) = (status.ready_replicas, set.spec.replicas);
    let is_whole = if up >= desired { "True" } else { "False" };
    let message = format!("{up} of {desired} members are up");
    let list = &mut status.conditions;
    conditions::set(list, AVAILABLE, is_whole, &message, wall);
    let halted = status.upgrade.as_ref();
    match halted.and_then(|upgrade| upgrade.halted.as_deref()) {
        Some(why) => conditions::set(list, UPGRADE_HALTED, "True", why, wall),
        None => conditions::clear(list, UPGRADE_HALTED, wall),
    }
    if problems.is_empty() {
        conditions::clear(list, DEGRADED, wall);
    } else {
        conditions::set(list, DEGRADED, "True", &problems.join("; "), wall);
    }
}

/// The part of a status that requests rest on. It is stored before them.
pub(super) fn decided(status: &VmSetStatus) -> impl PartialEq + '_ {
    (
        status.version,
        status.previous,
        status.newest,
        status.versions.as_slice(),
        status.upgrade.as_ref(),
        status.left_out.as_slice(),
    )
}
