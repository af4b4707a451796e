//! Filter, prioritize and preempt. Each only reads the ledger.

use std::collections::{BTreeMap, BTreeSet};

use super::fit::{unfit, unfit_of};
use crate::core::event::Unfit;
use crate::core::ledger::Ledger;
use crate::core::pod_requests::PodView;

pub(super) fn filter(
    ledger: &Ledger,
    pod: &PodView,
    nodes: Vec<String>,
) -> Vec<(String, Result<(), Unfit>)> {
    let verdict = |node: &str| unfit(ledger, pod, node).map_or(Ok(()), Err);
    let verdicts = nodes.into_iter().map(|node| {
        let verdict = verdict(&node);
        (node, verdict)
    });
    verdicts.collect()
}

pub(super) fn prioritize(ledger: &Ledger, pod: &PodView, nodes: Vec<String>) -> Vec<(String, u8)> {
    let scores = nodes.into_iter().map(|node| {
        let score = ledger.score(pod, &node);
        (node, score)
    });
    scores.collect()
}

/// Keeps the nodes where the pod would fit without the victims. Adds victims of lower priority as
/// needed: pods of ignored namespaces first, then by priority, the youngest first.
pub(super) fn preempt(
    ledger: &Ledger,
    pod: &PodView,
    victims: BTreeMap<String, Vec<String>>,
) -> BTreeMap<String, Vec<String>> {
    let kept = victims.into_iter().filter_map(|(node, mut victims)| {
        let mut gone: BTreeSet<String> = victims.iter().cloned().collect();
        let mut more = candidates(ledger, pod, &node, &gone).into_iter();
        loop {
            match unfit_of(ledger.fits_without(pod, &node, &gone)) {
                None => return Some((node, victims)),
                Some(unfit) if !unfit.is_about_room() => return None,
                Some(_) => {
                    let next = more.next()?;
                    gone.insert(next.clone());
                    victims.push(next);
                }
            }
        }
    });
    kept.collect()
}

fn candidates(ledger: &Ledger, pod: &PodView, node: &str, gone: &BTreeSet<String>) -> Vec<String> {
    let here = ledger.pods().map(|entry| &entry.view);
    let mut here: Vec<&PodView> = here
        .filter(|other| other.node.as_deref() == Some(node) && !other.terminal)
        .filter(|other| other.priority < pod.priority && !gone.contains(&other.uid))
        .collect();
    let ignored = &ledger.rules().ignored_namespaces;
    here.sort_by_key(|other| {
        let is_ours = !ignored.contains(&other.key.namespace);
        (is_ours, other.priority, std::cmp::Reverse(other.created))
    });
    here.into_iter().map(|other| other.uid.clone()).collect()
}
