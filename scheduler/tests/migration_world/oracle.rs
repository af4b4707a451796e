//! What should be true of migrations, reckoned from what the core was told and what it answered,
//! not from what it thinks.

use std::collections::BTreeMap;

use protocol::permit::NamespacedName;
use scheduler::core::Core;
use scheduler::core::amount::{Both, shares};
use scheduler::core::event::{Event, MigrationOutcome, PermitResponse};
use scheduler::core::migrate::{MigrationPhase, MigrationRule, Picked};
use scheduler::core::view::{PodRole, PodView};

/// What did not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Broken {
    pub(crate) rule: bool,
    pub(crate) alone: bool,
    pub(crate) bound: bool,
}

/// A VM that was sent away.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sent {
    vm: String,
    at: u64,
    is_seen: bool,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Oracle {
    /// By pod: those sent whose migration is not over as far as was told.
    sent: BTreeMap<String, Sent>,
    /// When a VM's last migration ended, as far as was told.
    ended: BTreeMap<String, u64>,
    /// By VM: the node, how much it was denied in thousandths, and when.
    denied: BTreeMap<String, (String, u64, u64)>,
}

/// Seconds for which a wish counts.
const WISH: u64 = 20;
/// Seconds for which a VM is left alone at least, and after which what never shows is given up.
const MINUTE: u64 = 60;

fn pod_of(migration: &NamespacedName) -> String {
    let name = migration.name.trim_start_matches("schedplugin-");
    name.to_owned()
}

impl Oracle {
    /// The core is told something.
    pub(crate) fn before(&mut self, now: u64, event: &Event) {
        match event {
            Event::MigrationApplied(view) => {
                let pod = pod_of(&view.key);
                if let Some(sent) = self.sent.get_mut(&pod) {
                    sent.is_seen = true;
                }
                if matches!(
                    view.phase,
                    MigrationPhase::Succeeded | MigrationPhase::Failed
                ) {
                    self.end(now, &pod);
                }
            }
            Event::MigrationDeleted(key, _) => self.end(now, &pod_of(key)),
            Event::MigrationDone(_, MigrationOutcome::Refused(_)) => {
                unreachable!("nothing is refused here")
            }
            _ => {}
        }
    }

    fn end(&mut self, now: u64, pod: &str) {
        if let Some(sent) = self.sent.remove(pod) {
            self.ended.insert(sent.vm, now);
        }
    }

    /// Time has passed. `creating`: pods whose migration is being created.
    pub(crate) fn pass(&mut self, now: u64, creating: &[String]) {
        let is_lost = |pod: &String, sent: &Sent| {
            !sent.is_seen && sent.at + MINUTE <= now && !creating.contains(pod)
        };
        let lost = self.sent.iter().filter(|(pod, sent)| is_lost(pod, sent));
        let lost: Vec<String> = lost.map(|(pod, _)| pod.clone()).collect();
        lost.iter().for_each(|pod| self.end(now, pod));
        self.denied.retain(|_, (_, _, at)| *at + WISH > now);
    }

    /// A request was answered.
    pub(crate) fn answered(&mut self, now: u64, answer: &PermitResponse) {
        let Some(decision) = &answer.decision else {
            return;
        };
        let verdict = decision.verdicts.cpu;
        self.denied.remove(&decision.vm.name);
        // Those that are moved are denied for that, not for want of room.
        let room = verdict
            .outcome
            .limit()
            .is_some_and(|limit| limit.as_str() == "no_room");
        if room {
            let wish = verdict.asked - verdict.permit;
            let entry = (decision.node.clone(), wish, now);
            self.denied.insert(decision.vm.name.clone(), entry);
        }
    }

    pub(crate) fn has_wish(&self, now: u64, vm: &NamespacedName) -> bool {
        self.denied
            .get(&vm.name)
            .is_some_and(|(_, _, at)| *at + WISH > now)
    }

    fn is_leaving(&self, pod: &PodView) -> bool {
        pod.role == PodRole::Source
            || (pod.role == PodRole::Settled && self.sent.contains_key(&pod.key.name))
    }

    /// How many pods are leaving a node.
    pub(crate) fn leaving(&self, core: &Core, node: &str) -> usize {
        let pods = core.ledger().pods();
        let here = pods.filter(|pod| pod.view.node.as_deref() == Some(node));
        here.filter(|pod| self.is_leaving(&pod.view)).count()
    }

    /// A VM is sent away.
    pub(crate) fn begun(
        &mut self,
        now: u64,
        core: &Core,
        rule: &MigrationRule,
        (node, picked): (&str, &Picked),
        broken: &mut Broken,
    ) {
        let on_node = |(_, entry): &(&String, &(String, u64, u64))| entry.0 == node;
        let denied = self.denied.iter().filter(on_node);
        let denied: Vec<(String, u64)> = denied
            .map(|(vm, (_, wish, _))| (vm.clone(), *wish))
            .collect();
        let capacity: u64 = denied.iter().map(|(_, wish)| wish).sum();
        let load = core.ledger().load(node).reserved.cpu;
        let logical = load.saturating_sub(u128::from(1000 * super::WATERMARK));
        let mut accounted = 0;
        for pod in core.ledger().pods() {
            let view = &pod.view;
            if view.node.as_deref() == Some(node) && self.is_leaving(view) {
                accounted += u128::from(core.ledger().counted(view).cpu.0);
                let vm = view.vm.clone().unwrap_or_default();
                let wish = denied.iter().find(|(of, _)| *of == vm);
                accounted += u128::from(wish.map_or(0, |(_, wish)| *wish));
            }
        }
        let capacity = if rule.counts_denied() { capacity } else { 0 };
        broken.rule |= logical + u128::from(capacity) <= accounted;
        let ended = self.ended.get(&picked.vm.name);
        broken.alone |= ended.is_some_and(|ended| now < ended + MINUTE);
        broken.alone |= self.sent.values().any(|sent| sent.vm == picked.vm.name);
        let most = match rule.max_per_node {
            0 => usize::MAX,
            most => most as usize,
        };
        broken.bound |= self.leaving(core, node) >= most;
        let sent = Sent {
            vm: picked.vm.name.clone(),
            at: now,
            is_seen: false,
        };
        self.sent.insert(picked.pod.name.clone(), sent);
    }
}

/// Whether a node is above its watermark and a pod of it would stay below that of another.
pub(crate) fn could_relieve(core: &Core, name: &str) -> bool {
    let ledger = core.ledger();
    let mark = |node: &str| ledger.watermark(ledger.node(node).expect("is there"));
    let is_above = |load: Both<u128>, mark: Both<u64>| {
        load.zip(mark).any(|(load, mark)| load > u128::from(mark))
    };
    if !is_above(ledger.load(name).reserved, mark(name)) {
        return false;
    }
    let pods = ledger.pods().map(|entry| &entry.view);
    let here = pods.filter(|pod| pod.node.as_deref() == Some(name) && pod.role == PodRole::Settled);
    let mut others = ledger.nodes().filter(|node| node.name != name);
    let other = others.next().expect("there are two").name.clone();
    here.into_iter().any(|pod| {
        let share = shares(ledger.counted(pod).into(), Both::same(1000));
        let sum = ledger
            .load(&other)
            .reserved
            .zip(share)
            .map(|_, (a, b)| a + b);
        !is_above(sum, mark(&other))
    })
}
