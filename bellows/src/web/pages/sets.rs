//! Sets of VMs, and one set with its members and the file that they read.

use askama::Template;
use protocol::policy::{VmSet, VmSetStatus};
use serde::Deserialize;
use serde_json::Value;

use crate::commands::vmset::plan;
use crate::commands::vmset::view::{MemberView, SetView};
use crate::fail::Outcome;
use crate::web::attention::{Item, of_set};
use crate::web::frame::Frame;
use crate::web::paths::path_of;
use crate::web::snapshot::{SetState, Snapshot};

/// Most sets, and most members, on a page.
const ROWS: usize = 100;
/// Most bytes of the members' file on a page.
const FILE_BYTES: usize = 16 << 10;

/// A set in the list.
#[derive(Debug)]
pub(super) struct SetRow {
    key: String,
    href: String,
    mark: Option<Item>,
    /// Such as `2 up of 3 wanted`.
    members: String,
    version: String,
    state: String,
}

impl SetRow {
    fn new(set: &SetState) -> Self {
        let view = &set.view;
        Self {
            key: view.key(),
            href: path_of(&["sets", &view.namespace, &view.name]),
            mark: of_set(view),
            members: format!("{} up of {}", view.ready, view.replicas),
            version: view.version_text(),
            state: view.state(),
        }
    }
}

#[derive(Debug, Template)]
#[template(path = "sets.html", whitespace = "minimize")]
pub(crate) struct SetsPage {
    pub(super) frame: Frame,
    sets: Vec<SetRow>,
    sets_left: usize,
}

impl SetsPage {
    pub(crate) fn new(frame: Frame, state: &Snapshot) -> Self {
        Self {
            sets: state.sets.iter().take(ROWS).map(SetRow::new).collect(),
            sets_left: state.sets.len().saturating_sub(ROWS),
            frame,
        }
    }
}

/// A member, for people.
#[derive(Debug)]
struct MemberRow {
    href: String,
    view: MemberView,
    /// Whether it has the version that members should have.
    is_current: bool,
}

/// The members' file, or why it is not shown.
pub(crate) type MembersFile = Outcome<String>;

#[derive(Debug, Template)]
#[template(path = "set.html", whitespace = "minimize")]
pub(crate) struct SetPage {
    pub(super) frame: Frame,
    key: String,
    sentence: String,
    attention: Option<Item>,
    /// Label and path of each order that can be given.
    orders: Vec<(&'static str, String)>,
    /// What an upgrade is doing. Empty without one.
    upgrade: Vec<String>,
    facts: Vec<(&'static str, String)>,
    members: Vec<MemberRow>,
    members_left: usize,
    /// Number, image and role of each kept version, the newest first.
    versions: Vec<(u32, String, &'static str)>,
    file: Result<String, String>,
    values: Vec<(String, String)>,
    conditions: Vec<String>,
}

impl SetPage {
    pub(crate) fn new(frame: Frame, set: &SetState, file: MembersFile) -> Self {
        let object = VmSet::deserialize(&set.object).unwrap_or_default();
        let status = object.status.unwrap_or_default();
        let view = &set.view;
        let desired = view.desired_version.map(|version| version.to_string());
        let row = |member: &MemberView| MemberRow {
            href: path_of(&["vms", &view.namespace, &member.name]),
            is_current: desired.as_deref() == Some(&member.version),
            view: member.clone(),
        };
        Self {
            key: view.key(),
            sentence: sentence(view),
            attention: of_set(view),
            orders: orders(view, &set.members),
            upgrade: upgrade(view),
            facts: facts(view, &object.spec),
            members: set.members.iter().take(ROWS).map(row).collect(),
            members_left: set.members.len().saturating_sub(ROWS),
            versions: versions(view, &status),
            file: file.map(cut).map_err(|fail| fail.what().to_owned()),
            values: object.spec.kv.into_iter().collect(),
            conditions: conditions(&status),
            frame,
        }
    }
}

fn sentence(view: &SetView) -> String {
    format!(
        "{} members are wanted, {} are there, {} are up, {} have the wanted version.",
        view.replicas, view.members, view.ready, view.updated
    )
}

fn orders(view: &SetView, members: &[MemberView]) -> Vec<(&'static str, String)> {
    let path = |order: &str| path_of(&["sets", &view.namespace, &view.name, order]);
    let mut orders = vec![("Change the number", path("scale"))];
    if plan::upgrade(view, members).is_ok() {
        orders.push(("Upgrade", path("upgrade")));
    }
    if plan::undo(view, members).is_ok() {
        orders.push(("Go back a version", path("undo")));
    }
    orders
}

fn upgrade(view: &SetView) -> Vec<String> {
    let Some(upgrade) = &view.upgrade else {
        return Vec::new();
    };
    let mut lines = vec![format!(
        "To version {}: {} of {} members have it.",
        upgrade.to, view.updated, view.replicas
    )];
    if let Some(ordinal) = upgrade.ordinal {
        let member = protocol::policy::member_name(&view.name, ordinal);
        lines.push(format!("{member} is being replaced."));
    }
    lines.extend(upgrade.halted.as_ref().map(|why| format!("Halted: {why}.")));
    lines
}

fn facts(view: &SetView, spec: &protocol::policy::VmSetSpec) -> Vec<(&'static str, String)> {
    vec![
        ("Members wanted", view.replicas.to_string()),
        ("Members there", view.members.to_string()),
        ("Members up", view.ready.to_string()),
        ("Version", view.version_text()),
        (
            "Rates",
            format!(
                "{} made and {} deleted a second at most",
                spec.rates.grow, spec.rates.decline
            ),
        ),
        (
            "Upgrade",
            format!(
                "a member must be up within {} s, and stay up for {} s",
                spec.progress_deadline_seconds, spec.min_ready_seconds
            ),
        ),
    ]
}

fn versions(view: &SetView, status: &VmSetStatus) -> Vec<(u32, String, &'static str)> {
    let role = |version: u32| {
        if view.version == Some(version) {
            "new members get it"
        } else if view.upgrade.as_ref().map(|upgrade| upgrade.to) == Some(version) {
            "an upgrade brings it"
        } else if view.newest == Some(version) {
            "the newest; no member has it before an upgrade"
        } else if view.previous == Some(version) {
            "the one before"
        } else {
            "kept"
        }
    };
    let image = |spec: &Value| {
        let image = spec["guest"]["rootDisk"]["image"].as_str();
        image.unwrap_or("no image").to_owned()
    };
    let kept = status.versions.iter().rev();
    kept.map(|one| {
        let image = image(&one.template.spec);
        (one.version, image, role(one.version))
    })
    .collect()
}

fn conditions(status: &VmSetStatus) -> Vec<String> {
    let shown = status.conditions.iter().map(|one| {
        let message = if one.message.is_empty() {
            String::new()
        } else {
            format!(": {}", one.message)
        };
        format!("{} is {} ({}){message}", one.kind, one.status, one.reason)
    });
    shown.collect()
}

/// The first lines of a long file.
fn cut(file: String) -> String {
    if file.len() <= FILE_BYTES {
        return file;
    }
    let end = file[..file.floor_char_boundary(FILE_BYTES)].rfind('\n');
    format!(
        "{}\n… the rest is not shown here",
        &file[..end.unwrap_or(0)]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_file_is_cut_at_a_line() {
        let line = "web-0 10.0.0.1 1 up ä\n";
        let shown = cut(line.repeat(2_000));
        assert!(shown.len() <= FILE_BYTES + 100, "{}", shown.len());
        assert!(shown.ends_with("ä\n… the rest is not shown here"));
        assert_eq!(cut(line.to_owned()), line);
    }
}
