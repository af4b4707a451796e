//! What needs a person's attention, first things first. Every rule reads what the commands show.

use protocol::units::Resources;

use super::paths::path_of;
use super::snapshot::Snapshot;
use crate::commands::vmset::view::SetView;
use crate::decision::Decision;
use crate::up::status::{PartPhase, Status, orphans_line};
use crate::view::node::NodeView;
use crate::view::units::{cores, memory};
use crate::view::vm::VmView;
use crate::view::why::refusal;

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Something does not work.
    Act,
    /// Something is not as it was asked for.
    Look,
    /// Something to know.
    Note,
}

impl Level {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Act => "Act",
            Self::Look => "Look",
            Self::Note => "Note",
        }
    }

    /// Class of the style sheet.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Act => "act",
            Self::Look => "look",
            Self::Note => "note",
        }
    }
}

/// One thing that needs attention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) level: Level,
    /// What it is about, such as `VM default/pg`.
    pub(super) place: String,
    /// Page about it. Empty if there is none.
    pub(super) href: String,
    /// One or two sentences for a person.
    pub(super) text: String,
}

impl Item {
    fn new(level: Level, place: impl Into<String>, href: String, text: impl Into<String>) -> Self {
        Self {
            level,
            place: place.into(),
            href,
            text: text.into(),
        }
    }
}

/// All that needs attention, the worst first, then by place.
pub(super) fn items(state: &Snapshot) -> Vec<Item> {
    let mut items: Vec<Item> = state.status.iter().flat_map(of_instance).collect();
    items.extend(state.silent.iter().map(|(part, fail)| {
        let text = format!("{}.", fail.what().trim_end_matches('.'));
        Item::new(Level::Act, *part, String::new(), text)
    }));
    items.extend(state.nodes.iter().filter_map(of_node));
    items.extend(of_policies(state));
    items.extend(state.sets.iter().filter_map(|set| of_set(&set.view)));
    items.extend(state.vms.iter().filter_map(|vm| of_vm(vm, state)));
    items.sort_by(|a, b| (a.level, &a.place).cmp(&(b.level, &b.place)));
    items
}

fn of_instance(status: &Status) -> Vec<Item> {
    let part = |part: &crate::up::status::PartStatus| {
        let level = match part.phase {
            PartPhase::Ready => return None,
            PartPhase::Starting => Level::Look,
            PartPhase::Ended => Level::Act,
        };
        let text = format!("It is {}. {}", part.phase.label(), part.note);
        let place = format!("Part {}", part.name);
        Some(Item::new(level, place, String::new(), text.trim_end()))
    };
    let mut items: Vec<Item> = status.parts.iter().filter_map(part).collect();
    items.extend(
        orphans_line(status)
            .map(|line| Item::new(Level::Act, "Guests without objects", String::new(), line)),
    );
    let walls = status.walls.iter().filter(|wall| !wall.stands);
    items.extend(walls.map(|wall| {
        let text = format!("It does not stand: {}.", wall.note);
        let place = format!("Wall {}", wall.name);
        Item::new(Level::Note, place, String::new(), text)
    }));
    items
}

/// What is full of a node, such as `CPU and memory`.
fn full(node: &NodeView) -> Option<&'static str> {
    let cpu = node.granted_cpu_milli >= node.allocatable_cpu_milli;
    let memory = node.granted_memory_bytes >= node.allocatable_memory_bytes;
    match (cpu, memory) {
        (true, true) => Some("CPU and memory"),
        (true, false) => Some("CPU"),
        (false, true) => Some("memory"),
        (false, false) => None,
    }
}

fn of_node(node: &NodeView) -> Option<Item> {
    let (level, text) = if !node.ready {
        (Level::Act, "It is not ready.".to_owned())
    } else {
        let what = full(node)?;
        let text = format!(
            "It is full: all its {what} is granted ({} of {} CPU, {} of {}).",
            cores(node.granted_cpu_milli),
            cores(node.allocatable_cpu_milli),
            memory(node.granted_memory_bytes),
            memory(node.allocatable_memory_bytes),
        );
        (Level::Look, text)
    };
    let href = path_of(&["nodes", &node.name]);
    Some(Item::new(level, format!("Node {}", node.name), href, text))
}

fn of_policies(state: &Snapshot) -> Vec<Item> {
    let item = |row: &crate::commands::policy::state::PolicyRow| {
        let problem = row.problem.as_ref()?;
        let href = path_of(&["policies", &row.name]);
        let text = format!("{}.", problem.trim_end_matches('.'));
        let place = format!("Policy {}", row.name);
        Some(Item::new(Level::Look, place, href, text))
    };
    state.policy_rows.iter().filter_map(item).collect()
}

/// The worst about a set.
pub(super) fn of_set(set: &SetView) -> Option<Item> {
    let (level, text) = match (set.halted(), &set.problem) {
        (Some(why), _) => {
            let why = why.trim_end_matches('.');
            (Level::Act, format!("Its upgrade has halted: {why}."))
        }
        (None, Some(problem)) => (Level::Look, format!("{}.", problem.trim_end_matches('.'))),
        (None, None) => return None,
    };
    let href = path_of(&["sets", &set.namespace, &set.name]);
    Some(Item::new(level, format!("Set {}", set.key()), href, text))
}

/// The worst about a VM.
pub(super) fn of_vm(vm: &VmView, state: &Snapshot) -> Option<Item> {
    let (level, text) = broken(vm)
        .or_else(|| refused(vm, state))
        .or_else(|| vm.decision.as_ref().and_then(held))?;
    let href = path_of(&["vms", &vm.namespace, &vm.name]);
    Some(Item::new(level, format!("VM {}", vm.key()), href, text))
}

fn broken(vm: &VmView) -> Option<(Level, String)> {
    if let Some(problem) = &vm.problem {
        let text = format!("{}.", problem.trim_end_matches('.'));
        return Some((Level::Act, text));
    }
    (vm.phase == "Failed").then(|| (Level::Act, "Its guest has failed.".to_owned()))
}

/// A VM that asks and does not get.
fn refused(vm: &VmView, state: &Snapshot) -> Option<(Level, String)> {
    let sentences = refusal(&state.refused[vm.key()]);
    (!sentences.is_empty()).then(|| (Level::Look, sentences.join(" ")))
}

/// Something that keeps a VM from the size that its metrics call for.
fn held(decision: &Decision) -> Option<(Level, String)> {
    let bounds = |name: &str| decision.bounded_by.iter().any(|bound| bound == name);
    let missing = matches!(&*decision.reason, "missing_metrics" | "stale_metrics");
    if missing || !decision.has_all_metrics {
        let text = "Its metrics are missing or old: nothing shrinks until they come.";
        return Some((Level::Look, text.to_owned()));
    }
    if let Some(text) = policy_fault(decision) {
        return Some((Level::Look, text));
    }
    if bounds("max") {
        let text = format!(
            "It asks for {} units and has its upper bound, {}.",
            decision.goal_units,
            size(decision.target)
        );
        return Some((Level::Look, text));
    }
    if bounds("permit") {
        let permit = decision.permit.map_or_else(|| "nothing yet".into(), size);
        let text = format!(
            "It asks for {} units, and the scheduler permits {permit}.",
            decision.goal_units
        );
        return Some((Level::Look, text));
    }
    if bounds("monitor_absent") {
        let text = "No monitor of its guest is connected: nothing shrinks.";
        return Some((Level::Note, text.to_owned()));
    }
    let refusal = decision.refusal.as_ref()?;
    (decision.reason == "denied_downscale").then(|| {
        let words = refusal.status.trim_end_matches('.');
        let text = format!("Its guest's monitor refuses to shrink: {words}.");
        (Level::Note, text)
    })
}

fn policy_fault(decision: &Decision) -> Option<String> {
    let policy = decision.policy.as_ref()?;
    let has_fault = policy
        .answer
        .as_ref()
        .is_some_and(|one| one.fault.is_some());
    (has_fault || policy.unknown.is_some()).then(|| policy.sentences())
}

fn size(size: Resources) -> String {
    format!("{} CPU / {}", cores(size.cpu.0), memory(size.mem.0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::snapshot;
    use super::*;

    fn of_one(change: impl FnOnce(&mut VmView)) -> Option<Item> {
        let mut state = snapshot(1);
        let vm = &mut state.vms[0];
        (vm.problem, vm.phase) = (None, "Running".into());
        if let Some(decision) = &mut vm.decision {
            decision.bounded_by.clear();
        }
        change(vm);
        of_vm(&state.vms[0], &state)
    }

    #[test]
    fn quiet_vm_needs_no_attention() {
        assert_eq!(of_one(|_| {}), None);
    }

    #[test]
    fn worst_thing_about_a_vm_is_shown() {
        let max = of_one(|vm| {
            let decision = vm.decision.as_mut().expect("decided");
            decision.bounded_by = vec!["max".into(), "monitor_absent".into()];
        });
        let max = max.expect("an item");
        assert!(max.text.contains("upper bound"), "{max:?}");
        assert_eq!(
            (max.level, &*max.href),
            (Level::Look, "/vms/default/vm-0000")
        );
        let broken = of_one(|vm| vm.problem = Some("no node has room".into()));
        assert_eq!(broken.map(|item| item.level), Some(Level::Act));
    }

    #[test]
    fn vm_that_asks_and_gets_nothing_is_shown_with_the_reason() {
        let mut state = snapshot(1);
        let bound = of_vm(&state.vms[0], &state).expect("an item");
        assert!(bound.text.contains("permits 0.5 CPU / 2Gi"), "{bound:?}");
        let decision = state.vms[0].decision.as_mut().expect("decided");
        decision.bounded_by = vec!["permit".into()];
        let verdict = json!({"asked": 5_000, "held": 1, "permit": 3_500, "room": 500});
        state.refused = json!({"default/vm-0000": {"limits": [["cpu", "no_room"]],
            "decision": {"node": "n1", "verdicts": {"cpu": verdict}}}});
        let item = of_vm(&state.vms[0], &state).expect("an item");
        assert!(
            item.text.contains("node n1 has room for 0.5 CPU more"),
            "{item:?}"
        );
    }

    #[test]
    fn worst_things_come_first() {
        let mut state = snapshot(3);
        state.nodes[0].ready = false;
        state.vms[1].problem = Some("it fell over".into());
        let items = items(&state);
        let places: Vec<&str> = items.iter().map(|item| &*item.place).take(3).collect();
        let worst = ["Node node-a", "Set default/vm", "VM default/vm-0001"];
        assert_eq!(places, worst);
        assert!(items.is_sorted_by_key(|item| item.level));
    }
}
