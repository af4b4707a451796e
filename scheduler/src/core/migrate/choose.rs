//! Which VMs leave a node: a pure function, with its reasons as data.
//!
//! Candidates are the VMs on the node that may be migrated and are not leaving, the oldest pod
//! first, so that the newest stays. They are picked one by one until no pressure remains
//! (docs/compatibility/scheduler.md §3, vectors §7.7). A VM that is too large for any node's
//! watermark is passed over. Unless the deployed rule is on, so are VMs that no other node has
//! headroom for within its watermark, VMs in a pause, and those beyond the bound per node.

use std::collections::BTreeMap;

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;
use serde::Serialize;

use super::rule::MigrationRule;
use crate::core::amount::{Both, shares};
use crate::core::ledger::{Ledger, PodEntry, vm_key};
use crate::core::pod_requests::PodView;
use crate::core::pressure::DeniedIncreases;
use crate::core::view::NodeView;

/// Why a candidate was not picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PassedOver {
    /// It counts at more than the node's watermark.
    TooLarge,
    /// No other node would stay within its watermark with it.
    NoTarget,
    /// Its pause after a migration is not over.
    BackingOff,
    /// Its pod is being deleted.
    Deleting,
    /// Its VM is gone.
    NoVm,
}

impl PassedOver {
    /// Value of log fields.
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

/// A VM that leaves.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Picked {
    /// The VM's pod.
    pub pod: NamespacedName,
    /// The pod's uid.
    pub pod_uid: String,
    /// The VM to migrate.
    pub vm: NamespacedName,
    /// The node with headroom and the best score. The placement of the new pod may choose another.
    pub target: Option<String>,
    /// The pressure that leaves with the VM, of both kinds.
    pub relief: Both<u128>,
}

/// The VMs that leave a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash, Serialize)]
pub struct Choice {
    /// The VMs that leave.
    pub picked: Vec<Picked>,
    /// Pods that were passed over, and why.
    pub passed: Vec<(NamespacedName, PassedOver)>,
    /// Pressure remains, but the bound of VMs that may leave at a time is reached.
    pub at_bound: bool,
    /// The pressure that remains.
    pub left: Both<u128>,
}

/// The state that a choice rests on.
pub(super) struct ChoiceInputs<'a> {
    pub(super) now: Timestamp,
    pub(super) ledger: &'a Ledger,
    pub(super) denied_increases: &'a DeniedIncreases,
    pub(super) rule: &'a MigrationRule,
    /// Whether a pod is leaving.
    pub(super) is_leaving: &'a dyn Fn(&PodView) -> bool,
    /// End of a VM's pause.
    pub(super) left_alone: &'a dyn Fn(&NamespacedName) -> Timestamp,
    /// The amount that is on its way to each node and does not count there.
    pub(super) arriving: BTreeMap<String, Both<u128>>,
}

/// Chooses the VMs that leave a node with the pressure `unmet`, of which `leaving` VMs are leaving.
pub(super) fn choose(
    mut inputs: ChoiceInputs<'_>,
    name: &str,
    unmet: Both<u128>,
    leaving: usize,
) -> Choice {
    let mut choice = Choice {
        left: unmet,
        ..Choice::default()
    };
    let Some(node) = inputs.ledger.node(name) else {
        return choice;
    };
    let most = inputs.rule.at_a_time().saturating_sub(leaving);
    for (pod, vm) in candidates(&inputs, node) {
        if !choice.left.any(|left| left > 0) {
            break;
        }
        if choice.picked.len() >= most {
            choice.at_bound = true;
            break;
        }
        match target_for(&inputs, node, pod, &vm) {
            Ok(target) => {
                let view = &pod.view;
                let share = inputs.ledger.share_on(view, &node.name);
                let denied = inputs.denied_increases.amount_on(&vm, &node.name);
                let denied = denied.map(|_, denied| {
                    if inputs.rule.counts_denied() {
                        denied
                    } else {
                        0
                    }
                });
                let relief = share.zip(denied).map(|_, (share, denied)| share + denied);
                let left = choice.left.zip(relief);
                choice.left = left.map(|_, (left, relief)| left.saturating_sub(relief));
                if let Some(target) = &target {
                    let coming = inputs.arriving.entry(target.clone()).or_default();
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

/// VMs that may leave, the oldest pod first.
fn candidates<'a>(
    inputs: &ChoiceInputs<'a>,
    node: &NodeView,
) -> Vec<(&'a PodEntry, NamespacedName)> {
    let rules = inputs.ledger.rules();
    let mut found: Vec<(&PodEntry, NamespacedName)> = inputs
        .ledger
        .pods_on(&node.name)
        .filter(|entry| {
            let view = &entry.view;
            view.migratable
                && view.scheduler_name == rules.scheduler_name
                && !rules.ignored_namespaces.contains(&view.key.namespace)
                && !(inputs.is_leaving)(view)
        })
        .filter_map(|entry| Some((entry, vm_key(&entry.view)?)))
        .collect();
    found.sort_by(|(a, _), (b, _)| {
        (a.view.created, &a.view.key).cmp(&(b.view.created, &b.view.key))
    });
    found
}

/// The node that a candidate can go to. `None` if the rule needs no target.
///
/// # Errors
/// Why the candidate stays.
fn target_for(
    inputs: &ChoiceInputs<'_>,
    node: &NodeView,
    pod: &PodEntry,
    vm: &NamespacedName,
) -> Result<Option<String>, PassedOver> {
    let counted = Both::from(inputs.ledger.counted(&pod.view));
    let watermark = inputs.ledger.watermark(node);
    if counted
        .zip(watermark)
        .any(|(counted, watermark)| counted > watermark)
    {
        return Err(PassedOver::TooLarge);
    }
    if !inputs.rule.needs_target() {
        return Ok(None);
    }
    if pod.view.deleting {
        return Err(PassedOver::Deleting);
    }
    if inputs.ledger.vm(vm).is_none() {
        return Err(PassedOver::NoVm);
    }
    if (inputs.left_alone)(vm) > inputs.now {
        return Err(PassedOver::BackingOff);
    }
    let target = best_target(inputs, node, &pod.view, counted);
    target.map(Some).ok_or(PassedOver::NoTarget)
}

/// The node with the best score that stays within its watermark with the pod, the first by name
/// among equals.
fn best_target(
    inputs: &ChoiceInputs<'_>,
    from: &NodeView,
    pod: &PodView,
    counted: Both<u64>,
) -> Option<String> {
    let ledger = inputs.ledger;
    let others = ledger
        .nodes()
        .filter(|node| node.name != from.name && node.is_open());
    let fitting = others.filter(|node| {
        let share = shares(counted, ledger.factors(pod, &node.name));
        let load = ledger.load(&node.name);
        let coming = inputs.arriving.get(&node.name).copied().unwrap_or_default();
        let sums = load.reserved.zip(load.ignored).zip(coming.zip(share));
        let sums = sums
            .map(|_, ((reserved, ignored), (coming, share))| reserved + ignored + coming + share);
        !sums
            .zip(ledger.watermark(node))
            .any(|(sum, watermark)| sum > u128::from(watermark))
    });
    // `max_by_key` would return the last of the best.
    let mut best: Option<(u8, &str)> = None;
    for node in fitting {
        let score = ledger.score(pod, &node.name);
        if best.is_none_or(|(highest, _)| score > highest) {
            best = Some((score, &node.name));
        }
    }
    best.map(|(_, name)| name.to_owned())
}
