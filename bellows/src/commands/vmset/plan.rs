//! What an order about a set would do, from the set's state alone.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::policy::{MAX_REPLICAS, Rates, member_name, member_ordinal};

use super::view::{MemberView, SetView};
use crate::fail::{Fail, Outcome};
use crate::output::age;

/// What an order would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SetPlan {
    pub(crate) sentences: Vec<String>,
    /// Members that are made, deleted or replaced, in the order in which that happens.
    pub(crate) members: Vec<String>,
    /// Number of members, or the version that they get.
    pub(crate) to: u32,
}

/// Members that stay, by ordinal.
fn staying<'a>(
    view: &SetView,
    members: &'a [MemberView],
) -> impl Iterator<Item = (u32, &'a MemberView)> {
    let name = view.name.clone();
    let staying = members.iter().filter(|member| !member.is_leaving());
    staying.filter_map(move |member| Some((member_ordinal(&name, &member.name)?, member)))
}

/// Seconds that `count` changes take at a rate, rounded up.
fn seconds(count: usize, rate: f64) -> u64 {
    let period = Rates::period(rate).to_duration();
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    period
        .saturating_mul(count)
        .saturating_add(Duration::from_millis(999))
        .as_secs()
}

/// Subject and verb of a sentence about members.
fn members_are(count: usize) -> String {
    match count {
        1 => "One member is".to_owned(),
        count => format!("{count} members are"),
    }
}

/// What a change of the number would do.
///
/// # Errors
///
/// 64 if a set cannot have that many members.
pub(crate) fn scale(view: &SetView, members: &[MemberView], count: u32) -> Outcome<SetPlan> {
    if count > MAX_REPLICAS {
        return Err(Fail::usage(format!("{count} members are too many"))
            .rule(format!("a set has at most {MAX_REPLICAS} members")));
    }
    let have: BTreeSet<u32> = staying(view, members).map(|(ordinal, _)| ordinal).collect();
    let wanted = usize::try_from(count).unwrap_or(usize::MAX);
    let name = |ordinal: u32| member_name(&view.name, ordinal);
    let (sentence, members) = if have.len() < wanted {
        let missing = wanted - have.len();
        let free = (0..).filter(|ordinal| !have.contains(ordinal));
        let within = age(seconds(missing, view.rates.grow));
        let sentence = format!(
            "{} made, the lowest free numbers first, in {within} at the fastest.",
            members_are(missing)
        );
        (sentence, free.take(missing).map(name).collect())
    } else {
        let surplus = have.len() - wanted;
        let within = age(seconds(surplus, view.rates.decline));
        let sentence = match surplus {
            0 => "No member is made or deleted.".to_owned(),
            count => format!(
                "{} deleted with their disks, the highest numbers first, in {within} at the \
                 fastest.",
                members_are(count)
            ),
        };
        let highest = have.iter().rev().take(surplus);
        (sentence, highest.copied().map(name).collect())
    };
    let change = format!("{} members are wanted now, then {count}.", view.replicas);
    Ok(SetPlan {
        sentences: vec![change, sentence],
        members,
        to: count,
    })
}

/// What an upgrade to the newest template would do.
///
/// # Errors
///
/// 1 if the members have it, or an upgrade to it is under way; 75 if it has no number.
pub(crate) fn upgrade(view: &SetView, members: &[MemberView]) -> Outcome<SetPlan> {
    let key = view.key();
    let Some(to) = view.newest else {
        return Err(
            Fail::try_again(format!("VM set {key}: its template has no number yet"))
                .rule("the controller gives each template a number")
                .fix("see whether it runs: bellows status"),
        );
    };
    if view.desired_version == Some(to) && view.version == Some(to) {
        let what = format!("VM set {key} has its newest version {to} already");
        return Err(Fail::not_so(what)
            .fix("change its template first: --image IMAGE, or kubectl edit vmset"));
    }
    if view.desired_version == Some(to) {
        let what = format!("VM set {key}: the upgrade to version {to} has begun already");
        return Err(Fail::not_so(what)
            .rule("an upgrade that has halted goes on only after it is taken back")
            .fix(format!("take it back: bellows vmset undo {key}")));
    }
    Ok(replace(view, members, to))
}

/// What taking an upgrade back would do.
///
/// # Errors
///
/// 1 if there is no version to go back to.
pub(crate) fn undo(view: &SetView, members: &[MemberView]) -> Outcome<SetPlan> {
    let Some(to) = version_before(view) else {
        let what = format!("VM set {} has no version to go back to", view.key());
        return Err(Fail::not_so(what).rule("an upgrade must have begun before"));
    };
    Ok(replace(view, members, to))
}

/// Version that an undo goes back to.
fn version_before(view: &SetView) -> Option<u32> {
    if view.desired_version == view.version && view.upgrade.is_none() {
        view.previous
    } else {
        view.version
    }
}

/// Members of other versions are replaced: those that are not up first, then the lowest numbers.
fn replace(view: &SetView, members: &[MemberView], to: u32) -> SetPlan {
    let version = to.to_string();
    let mut others: Vec<(u32, &MemberView)> = staying(view, members)
        .filter(|(_, member)| member.version != version)
        .collect();
    others.sort_by_key(|(ordinal, member)| (member.up, *ordinal));
    let members: Vec<String> = others
        .into_iter()
        .map(|(_, one)| one.name.clone())
        .collect();
    let sentence = match members.len() {
        0 => format!("All members have version {to}."),
        count => format!(
            "{} replaced by new ones of version {to}, one after the other, each when the one \
             before is ready. Their disks go with them.",
            members_are(count)
        ),
    };
    SetPlan {
        sentences: vec![
            sentence,
            "It stops at the first member that does not come up in time.".to_owned(),
        ],
        members,
        to,
    }
}

#[cfg(test)]
mod tests {
    use daemon_kit::exit::Exit;
    use serde_json::{Value, json};

    use super::*;

    fn view(status: &Value, version: Option<u32>) -> SetView {
        SetView::of(&json!({
            "metadata": {"name": "web", "namespace": "a"},
            "spec": {"replicas": 3, "version": version, "rates": {"grow": 2.0, "decline": 0.5}},
            "status": status,
        }))
    }

    fn member(name: &str, version: &str, up: bool) -> MemberView {
        MemberView {
            name: name.into(),
            version: version.into(),
            up,
            ..MemberView::default()
        }
    }

    /// Requirement: V35
    #[test]
    fn v35_plan_of_a_count_names_the_members_that_come_and_go() {
        let status = json!({"version": 1, "newest": 1});
        let view = view(&status, None);
        let leaving = MemberView {
            phase: "Deleting".into(),
            ..member("web-5", "1", true)
        };
        let have = [
            member("web-0", "1", true),
            member("web-3", "1", true),
            leaving,
            member("other-1", "1", true),
        ];
        let plan = |count| scale(&view, &have, count).expect("a plan");
        assert_eq!(plan(4).members, ["web-1", "web-2"]);
        assert!(plan(4).sentences[1].starts_with("2 members are made"));
        assert!(plan(4).sentences[1].contains("in 1s"), "{:?}", plan(4));
        assert_eq!(plan(1).members, ["web-3"]);
        assert!(plan(1).sentences[1].starts_with("One member is deleted"));
        assert!(plan(1).sentences[1].contains("in 2s"), "{:?}", plan(1));
        assert_eq!(plan(2).members, [""; 0]);
        let refused = scale(&view, &have, MAX_REPLICAS + 1).expect_err("too many");
        assert_eq!(refused.exit(), Exit::Config);
    }

    /// Requirement: V16
    #[test]
    fn v16_undo_goes_back_to_what_members_had() {
        let to = |status: Value, version: u32| {
            let plan = undo(&view(&status, Some(version)), &[]);
            plan.ok().map(|plan| plan.to)
        };
        let under_way = json!({"version": 1, "newest": 2, "upgrade": {"to": 2}});
        assert_eq!(to(under_way, 2), Some(1));
        let whole = json!({"version": 2, "previous": 1, "newest": 2});
        assert_eq!(to(whole, 2), Some(1));
        let first = json!({"version": 1, "newest": 1});
        assert_eq!(to(first, 1), None);
    }

    /// Requirement: V35
    #[test]
    fn v35_plan_of_an_upgrade_names_members_that_are_down_first() {
        let status = json!({"version": 1, "newest": 2});
        let have = [
            member("web-0", "1", true),
            member("web-1", "2", true),
            member("web-2", "1", false),
        ];
        let plan = upgrade(&view(&status, None), &have).expect("a plan");
        assert_eq!((plan.to, plan.members.len()), (2, 2));
        assert_eq!(plan.members, ["web-2", "web-0"]);
    }

    /// Requirement: V16
    #[test]
    fn v16_upgrade_without_anything_to_do_is_refused_with_the_way_out() {
        let refused = |status: Value, version: Option<u32>| {
            let refused = upgrade(&view(&status, version), &[]).expect_err("refused");
            (refused.exit(), refused.to_string())
        };
        let (exit, text) = refused(json!({"version": 2, "newest": 2}), None);
        assert_eq!(exit, Exit::NotSo);
        assert!(text.contains("already"), "{text}");
        let halted = json!({"version": 1, "newest": 2, "upgrade": {"to": 2, "halted": "x"}});
        let (exit, text) = refused(halted, Some(2));
        assert_eq!(exit, Exit::NotSo);
        assert!(text.contains("bellows vmset undo a/web"), "{text}");
        assert_eq!(refused(json!({}), None).0, Exit::TryAgain);
    }
}
