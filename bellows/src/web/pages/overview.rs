//! The first page: what needs attention, then how it stands.

use askama::Template;

use super::node::NodeRow;
use crate::commands::policy::state::PolicyRow;
use crate::output::{age, millis};
use crate::resize::Resize;
use crate::view::resize::is_overtaken;
use crate::view::units::seconds_between;
use crate::web::attention::{Item, Level};
use crate::web::frame::Frame;
use crate::web::snapshot::Snapshot;

/// Most items on the page.
const ITEMS: usize = 50;
/// Most nodes on the page.
const NODES: usize = 10;
/// Most resizes on the page.
const RESIZES: usize = 8;

#[derive(Debug, Template)]
#[template(path = "overview.html", whitespace = "minimize")]
pub(crate) struct Overview {
    pub(super) frame: Frame,
    items: Vec<Item>,
    items_left: usize,
    /// What the list says in one sentence.
    summary: String,
    /// Names and numbers.
    totals: Vec<(&'static str, usize)>,
    nodes: Vec<NodeRow>,
    nodes_left: usize,
    policies: Vec<PolicyRow>,
    resizes: Vec<ResizeRow>,
}

/// A resize, for people.
#[derive(Debug)]
pub(super) struct ResizeRow {
    pub(super) vm: String,
    pub(super) href: String,
    pub(super) change: String,
    pub(super) ago: String,
    /// How long it took, or that it is under way or was overtaken.
    pub(super) took: String,
}

impl ResizeRow {
    pub(super) fn new(resize: &Resize, state: &Snapshot) -> Self {
        let total = millis(resize.total_us);
        let (namespace, name) = resize.vm.split_once('/').unwrap_or(("", &resize.vm));
        Self {
            vm: resize.vm.clone(),
            href: crate::web::paths::path_of(&["vms", namespace, name]),
            change: if resize.change.is_empty() {
                "sizes unknown".to_owned()
            } else {
                resize.change.clone()
            },
            ago: age(seconds_between(resize.start_unix_us, state.at)),
            took: match (resize.is_complete(), is_overtaken(resize, &state.resizes)) {
                (true, _) => format!("{total} ms"),
                (false, true) => format!("overtaken by a later one after {total} ms"),
                (false, false) => format!("under way for {total} ms"),
            },
        }
    }
}

fn summary(items: &[Item]) -> String {
    let count = |level: Level| items.iter().filter(|item| item.level == level).count();
    let (act, look) = (count(Level::Act), count(Level::Look));
    match (act, look) {
        (0, 0) => "Nothing needs attention.".to_owned(),
        (0, look) => format!("Nothing is broken. To look at: {look}."),
        (act, 0) => format!("To act on: {act}."),
        (act, look) => format!("To act on: {act}. To look at: {look}."),
    }
}

impl Overview {
    pub(crate) fn new(frame: Frame, state: &Snapshot) -> Self {
        let vms = &state.vms;
        let count =
            |is: &dyn Fn(&crate::view::vm::VmView) -> bool| vms.iter().filter(|vm| is(vm)).count();
        Self {
            summary: if state.problem.is_some() {
                "The state is not of now, so there may be more.".to_owned()
            } else {
                summary(&state.attention)
            },
            items: state.attention.iter().take(ITEMS).cloned().collect(),
            items_left: state.attention.len().saturating_sub(ITEMS),
            totals: vec![
                ("VMs", vms.len()),
                ("running", count(&|vm| vm.alive)),
                ("autoscaled", count(&|vm| vm.autoscaled)),
                ("being resized", count(&|vm| vm.phase == "Scaling")),
                ("sets", state.sets.len()),
            ],
            nodes: state.nodes.iter().take(NODES).map(NodeRow::new).collect(),
            nodes_left: state.nodes.len().saturating_sub(NODES),
            policies: state.policy_rows.iter().take(NODES).cloned().collect(),
            resizes: state
                .resizes
                .iter()
                .take(RESIZES)
                .map(|resize| ResizeRow::new(resize, state))
                .collect(),
            frame,
        }
    }
}
