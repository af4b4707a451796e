//! Which VMs leave a node: a pure function, with its reasons as data.
//!
//! Candidates are the VMs on the node that may be migrated and are not, the oldest pod first, so
//! that what came last stays. One by one they are picked until nothing of the pressure is left
//! (docs/compatibility/scheduler.md §3, vectors §7.7). Passed over is what would be too much for
//! its next node as well, and, unless the deployed behaviour is asked for, what has no node to go
//! to that would stay within its watermark, what was moved lately, and what is one too many at a
//! time.

use std::collections::BTreeMap;

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;
use serde::Serialize;

use super::MigrationRule;
use crate::core::amount::{Both, shares};
use crate::core::ledger::{Ledger, PodEntry, vm_key};
use crate::core::pressure::Wishes;
use crate::core::view::{NodeView, PodView};

/// Why a candidate was not picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PassedOver {
    /// It alone is more than the node's watermark.
    TooLarge,
    /// No other node would stay within its watermark with it.
    NoTarget,
    /// It was moved lately.
    BackingOff,
    /// Its pod is being deleted.
    Deleting,
    /// There is no such VM any more.
    NoVm,
}

impl PassedOver {
    /// The word for logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::NoTarget => "no_target",
            Self::BackingOff => "backing_off",
            Self::Deleting => "deleting",
            Self::NoVm => "no_vm",
        }
    }
}

/// A VM that is to leave.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Picked {
    /// Its pod.
    pub pod: NamespacedName,
    /// The pod's uid.
    pub pod_uid: String,
    /// The VM.
    pub vm: NamespacedName,
    /// The node with room for it, the best by score; where it goes is decided when its new pod is
    /// placed.
    pub target: Option<String>,
    /// What it takes along, of either kind of pressure.
    pub relief: Both<u128>,
}

/// The outcome of a look.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash, Serialize)]
pub struct Choice {
    /// Who leaves.
    pub picked: Vec<Picked>,
    /// Who was passed over, and why.
    pub passed: Vec<(NamespacedName, PassedOver)>,
    /// As many as may be are leaving, and there is pressure left.
    pub at_bound: bool,
    /// The pressure that is left.
    pub left: Both<u128>,
}

/// What a choice rests on.
pub(super) struct Ground<'a> {
    pub(super) now: Timestamp,
    pub(super) ledger: &'a Ledger,
    pub(super) wishes: &'a Wishes,
    pub(super) rule: &'a MigrationRule,
    /// Whether a pod is leaving already.
    pub(super) is_leaving: &'a dyn Fn(&PodView) -> bool,
    /// Until when a VM is left alone.
    pub(super) left_alone: &'a dyn Fn(&NamespacedName) -> Timestamp,
    /// What is on its way to nodes and not counted there yet.
    pub(super) arriving: BTreeMap<String, Both<u128>>,
}

/// Chooses who leaves a node, where `unmet` is to be relieved and `leaving` are leaving already.
pub(super) fn choose(
    mut ground: Ground<'_>,
    name: &str,
    unmet: Both<u128>,
    leaving: usize,
) -> Choice {
    let mut choice = Choice {
        left: unmet,
        ..Choice::default()
    };
    let Some(node) = ground.ledger.node(name) else {
        return choice;
    };
    let most = ground.rule.at_a_time().saturating_sub(leaving);
    for (pod, vm) in candidates(&ground, node) {
        if !choice.left.any(|left| left > 0) {
            break;
        }
        if choice.picked.len() >= most {
            choice.at_bound = true;
            break;
        }
        match judge(&ground, node, pod, &vm) {
            Ok(target) => {
                let view = &pod.view;
                let share = ground.ledger.share_on(view, &node.name);
                let wish = ground.wishes.of(&vm, &node.name);
                let wish = wish.map(|_, wish| if ground.rule.counts_denied() { wish } else { 0 });
                let relief = share.zip(wish).map(|_, (share, wish)| share + wish);
                let left = choice.left.zip(relief);
                choice.left = left.map(|_, (left, relief)| left.saturating_sub(relief));
                if let Some(target) = &target {
                    let coming = ground.arriving.entry(target.clone()).or_default();
                    *coming = coming.zip(share).map(|_, (a, b)| a + b);
                }
                choice.picked.push(Picked {
                    pod: view.key.clone(),
                    pod_uid: view.uid.clone(),
                    vm,
                    target,
                    relief,
                });
            }
            Err(why) => choice.passed.push((pod.view.key.clone(), why)),
        }
    }
    choice
}

/// VMs that may leave, oldest first.
fn candidates<'a>(ground: &Ground<'a>, node: &NodeView) -> Vec<(&'a PodEntry, NamespacedName)> {
    let rules = ground.ledger.rules();
    let mut found: Vec<(&PodEntry, NamespacedName)> = ground
        .ledger
        .pods_on(&node.name)
        .filter(|entry| {
            let view = &entry.view;
            view.migratable
                && view.scheduler_name == rules.scheduler_name
                && !rules.ignored_namespaces.contains(&view.key.namespace)
                && !(ground.is_leaving)(view)
        })
        .filter_map(|entry| Some((entry, vm_key(&entry.view)?)))
        .collect();
    found.sort_by(|(a, _), (b, _)| {
        (a.view.created, &a.view.key).cmp(&(b.view.created, &b.view.key))
    });
    found
}

/// Where a candidate can go, if anyone cares, or why it stays.
fn judge(
    ground: &Ground<'_>,
    node: &NodeView,
    pod: &PodEntry,
    vm: &NamespacedName,
) -> Result<Option<String>, PassedOver> {
    let counted = Both::from(ground.ledger.counted(&pod.view));
    let watermark = ground.ledger.watermark(node);
    if counted
        .zip(watermark)
        .any(|(counted, watermark)| counted > watermark)
    {
        return Err(PassedOver::TooLarge);
    }
    if !ground.rule.needs_target() {
        return Ok(None);
    }
    if pod.view.deleting {
        return Err(PassedOver::Deleting);
    }
    if ground.ledger.vm(vm).is_none() {
        return Err(PassedOver::NoVm);
    }
    if (ground.left_alone)(vm) > ground.now {
        return Err(PassedOver::BackingOff);
    }
    let target = target_of(ground, node, &pod.view, counted);
    target.map(Some).ok_or(PassedOver::NoTarget)
}

/// The best other node that stays within its watermark with the pod, the first by name among
/// equals.
fn target_of(
    ground: &Ground<'_>,
    from: &NodeView,
    pod: &PodView,
    counted: Both<u64>,
) -> Option<String> {
    let ledger = ground.ledger;
    let others = ledger
        .nodes()
        .filter(|node| node.name != from.name && node.is_open());
    let fitting = others.filter(|node| {
        let share = shares(counted, ledger.factors(pod, &node.name));
        let load = ledger.load(&node.name);
        let coming = ground.arriving.get(&node.name).copied().unwrap_or_default();
        let sums = load.reserved.zip(load.ignored).zip(coming.zip(share));
        let sums = sums
            .map(|_, ((reserved, ignored), (coming, share))| reserved + ignored + coming + share);
        !sums
            .zip(ledger.watermark(node))
            .any(|(sum, watermark)| sum > u128::from(watermark))
    });
    // The first of the best: `max_by_key` would take the last.
    let mut best: Option<(u8, &str)> = None;
    for node in fitting {
        let score = ledger.score(pod, &node.name);
        if best.is_none_or(|(highest, _)| score > highest) {
            best = Some((score, &node.name));
        }
    }
    best.map(|(_, name)| name.to_owned())
}
