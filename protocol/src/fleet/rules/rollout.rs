//! Bounds of a rollout, its groups and its judge.

use super::super::rollout::{Group, Judge, Rollout};
use super::field::invalid;
use crate::admission::FieldError;

/// Most groups of an environment.
const MAX_GROUPS: usize = 16;

pub(super) fn errors(rollout: &Rollout) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if rollout.min_healthy_percent > 99 {
        let rule = "must be 0 to 99: with 100 no guest may ever change. Take 99 for one at a time";
        let percent = rollout.min_healthy_percent;
        errors.push(invalid("rollout.minHealthyPercent", rule, percent));
    }
    let failed = u64::from(rollout.max_failed_percent);
    let bounds = [
        ("maxInFlight", u64::from(rollout.max_in_flight), 1, 1000),
        ("maxPerNode", u64::from(rollout.max_per_node), 1, 1000),
        ("trialSeconds", rollout.trial_seconds, 20, 600),
        ("deadlineSeconds", rollout.deadline_seconds, 60, 31_536_000),
        ("retries", u64::from(rollout.retries), 0, 10),
        ("maxFailedPercent", failed, 0, 100),
    ];
    errors.extend(out_of_bounds("rollout", &bounds));
    errors.extend(groups(&rollout.groups));
    errors.extend(judge(&rollout.judge));
    errors
}

/// Numbers outside their bounds: name, number, least, most.
fn out_of_bounds(path: &str, bounds: &[(&str, u64, u64, u64)]) -> Vec<FieldError> {
    let outside = bounds
        .iter()
        .filter(|(_, value, least, most)| !(least..=most).contains(&value));
    outside
        .map(|(name, value, least, most)| {
            let rule = format!("must be {least} to {most}");
            invalid(&format!("{path}.{name}"), &rule, *value)
        })
        .collect()
}

fn groups(groups: &[Group]) -> Vec<FieldError> {
    if groups.len() > MAX_GROUPS {
        let rule = "must be at most 16: join groups that go together";
        return vec![invalid("rollout.groups", rule, groups.len())];
    }
    let mut errors = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let path = format!("rollout.groups[{index}]");
        let name = group.name.as_str();
        if !(1..=63).contains(&name.len()) || groups[..index].iter().any(|one| one.name == name) {
            let rule = "must have 1 to 63 bytes, and be the name of one group";
            errors.push(invalid(&format!("{path}.name"), rule, name));
        }
        if groups[..index]
            .iter()
            .any(|one| one.match_labels.is_empty())
        {
            let rule = "matches no guest: a group before it takes all. Move that one to the end";
            errors.push(invalid(&format!("{path}.matchLabels"), rule, name));
        }
        let bounds = [
            ("canaries", u64::from(group.canaries), 0, 5),
            ("bakeSeconds", group.bake_seconds, 0, 86_400),
        ];
        errors.extend(out_of_bounds(&path, &bounds));
    }
    errors
}

fn judge(judge: &Judge) -> Vec<FieldError> {
    let bounds = [
        ("oomKills", u64::from(judge.oom_kills), 1, 1000),
        (
            "lostLinksPercent",
            u64::from(judge.lost_links_percent),
            0,
            100,
        ),
        (
            "significancePpm",
            u64::from(judge.significance_ppm),
            1,
            100_000,
        ),
        (
            "resizePercent",
            u64::from(judge.resize_percent),
            101,
            10_000,
        ),
        ("guestMinutes", u64::from(judge.guest_minutes), 1, 100_000),
    ];
    out_of_bounds("rollout.judge", &bounds)
}
