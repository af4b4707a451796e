//! What must hold after every step, of what is true and of what the core believes.

use protocol::permit::AgentRequest;
use protocol::units::Resources;
use scheduler::core::amount::{Both, shares};

use super::{PodObject, UNIT, World};

impl World {
    /// N13: per resource, a decrease is permitted exactly and an increase between what was held and
    /// what is asked.
    pub(super) fn check_permit(&mut self, request: &AgentRequest, permit: Resources) {
        assert!(
            !permit.has_field_above(request.resources),
            "more than was asked"
        );
        let floor = floor_of(request);
        if permit != request.resources && permit != floor {
            self.note("partial");
            if permit.exact_multiple_of(UNIT).is_none() {
                self.note("no multiple");
            }
        }
    }

    /// N13 of an agent that hears the answer. One that is gone may have held more than its
    /// successor kept.
    pub(super) fn check_nothing_is_taken(&self, request: &AgentRequest, permit: Resources) {
        assert!(
            !permit.has_field_below(floor_of(request)),
            "{permit} takes away from {request:?}"
        );
    }

    pub(super) fn check(&self) {
        assert_eq!(self.core.ledger().audit(), Ok(()));
        for (node, total) in &self.nodes {
            self.check_node(node, *total);
        }
        for (name, agent) in &self.agents {
            let Some(permit) = agent.permit else { continue };
            let vm = &self.vms[name];
            assert!(
                vm.stray || !vm.in_use.has_field_above(permit),
                "{name} uses more than it may"
            );
            let approved = vm
                .approved_resources()
                .expect("a permit without any approval");
            assert!(
                !permit.has_field_above(approved),
                "{name} was permitted more than is written"
            );
        }
    }

    /// The sums of a node, and each pod by itself: what is held for one pod beyond its use would
    /// hide that too little is held for another.
    fn check_node(&self, node: &str, total: Both<u64>) {
        let ledger = self.core.ledger();
        let mut sum = Both::<u128>::default();
        for pod in self.pods.values() {
            if pod.node.as_deref() != Some(node) {
                continue;
            }
            let used = self.share(pod);
            sum = sum.zip(used).map(|_, (a, b)| a + b);
            let entry = ledger
                .pod(&pod.uid)
                .expect("a pod is seen before it is bound");
            let held = ledger.share_on(&entry.view, node);
            used.zip(held).map(|resource, (used, held)| {
                let name = &pod.name;
                assert!(
                    used <= held,
                    "{name}: {resource:?} in use {used}, but only {held} held"
                );
            });
        }
        let held = ledger.load(node).reserved;
        sum.zip(held)
            .zip(total)
            .map(|resource, ((used, held), total)| {
                assert!(
                    used <= u128::from(total),
                    "{node}: {resource:?} overcommitted: {used} of {total}"
                );
                assert!(
                    used <= held,
                    "{node}: {resource:?} in use {used}, but only {held} held"
                );
            });
    }

    /// What a pod may really take of its node after over-commit, now or without asking anybody.
    fn share(&self, pod: &PodObject) -> Both<u128> {
        let used = shares(self.truth(pod).into(), Both::same(pod.overcommit_milli));
        let set_aside = Both::<u64>::from(pod.set_aside());
        used.zip(set_aside)
            .map(|_, (used, set_aside)| used.max(u128::from(set_aside)))
    }

    /// What the guest of a pod has, and what it may come to have without asking anybody. An agent
    /// that begins takes what is approved for a permit.
    fn truth(&self, pod: &PodObject) -> Resources {
        let Some(guest) = self.guests.get(&pod.name) else {
            return Resources::default();
        };
        let Some(vm) = self.vm_of(pod) else {
            return guest.most();
        };
        let agent = self.agents.get(&vm.name).and_then(|agent| agent.permit);
        let now = self.time();
        let strays = self.strays.iter();
        strays
            .filter(|stray| stray.vm == vm.name && stray.may_land(now))
            .map(|stray| stray.size)
            .chain([guest.most(), agent.unwrap_or_default()])
            .chain(vm.approved_resources())
            .fold(vm.in_use, Resources::field_max)
    }
}

/// The least that is permitted to an agent: what it holds, as far as it asks for it again.
fn floor_of(request: &AgentRequest) -> Resources {
    let held = request.last_permit.unwrap_or_default();
    held.field_min(request.resources)
}

/// A failure shows what led to it.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("what led to it:");
            self.log.iter().for_each(|line| eprintln!("  {line}"));
        }
    }
}
