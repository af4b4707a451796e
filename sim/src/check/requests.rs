//! Checks of pods that request what their VMs have, and of CPUs that are plugged ahead of that.

use protocol::runner::QuotaState;
use protocol::time::Timestamp;
use protocol::units::{Bytes, MilliCpu, Resources};

use crate::machine::Machine;
use crate::store::Kind;
use crate::world::World;

/// The CPU time a machine's quota lets it use, if it is held to one.
fn quota(machine: &Machine) -> Option<MilliCpu> {
    match machine.state.quota {
        QuotaState::Enforced { milli } => Some(MilliCpu(milli)),
        _ => None,
    }
}

/// The most CPU time a machine may have whose guest is on its way down. Nobody lowers its quota
/// while its runner is away.
fn on_the_way_down(machine: &Machine, now: Timestamp) -> MilliCpu {
    let at = if machine.runner.is_none() {
        machine.quota_bound.at
    } else {
        now
    };
    machine.quota_bound.on_the_way_down(at)
}

impl World {
    /// The machine of a VM that has not ended, and what its pod requests.
    fn machine_and_pod(&self, vm: usize) -> Option<(&Machine, Resources)> {
        let machine = self.vms[vm].machine.as_ref()?;
        let pod = self.store.get(Kind::Pod, &machine.pod.name)?;
        let is_its = machine.ended.is_none() && pod.meta("uid") == machine.pod.uid;
        is_its.then(|| (machine, pod.requested()))
    }

    /// N41: a guest never has more memory, nor may use more CPU time, than its pod requests. Two
    /// exceptions, each bounded, are those of its quota: it boots at the speed of its largest size,
    /// and on its way down keeps the CPU time it had until CPUs and memory have left. After a
    /// refusal it may have more until its pod is resized again.
    pub(crate) fn n41_a_guest_has_no_more_than_its_pod_requests(&mut self, vm: usize) {
        self.checked();
        let Some((machine, requests)) = self.machine_and_pod(vm) else {
            return;
        };
        let cpu = quota(machine).unwrap_or_default();
        let most = requests.cpu.max(on_the_way_down(machine, self.now));
        let is_held = machine.quota_bound.boots || cpu <= most;
        let has = Resources {
            cpu,
            mem: Bytes(machine.memory()),
        };
        if (has.mem > requests.mem || !is_held) && !self.checks.truth[vm].unrequested {
            self.checks.fail(
                "n41_a_guest_has_no_more_than_its_pod_requests",
                Some(vm),
                format!("it has {has}, its pod requests {requests}"),
            );
        }
    }

    /// What a pod requests was resized: from here it covers its guest again, unless that has more
    /// already.
    pub(crate) fn requests_cover_again(&mut self, vm: usize) {
        let covers = self.machine_and_pod(vm).is_none_or(|(machine, requests)| {
            let cpu = quota(machine).unwrap_or_default();
            machine.memory() <= requests.mem.0 && (machine.quota_bound.boots || cpu <= requests.cpu)
        });
        self.checks.truth[vm].unrequested &= !covers;
    }

    /// N20: whatever is plugged ahead of an order, the guest has the time of the last one, or of
    /// the one before it while something leaves.
    pub(crate) fn cpus_plugged_ahead_take_no_time(&mut self, vm: usize) {
        self.checked();
        let Some((machine, _)) = self.machine_and_pod(vm) else {
            return;
        };
        let bound = machine.quota_bound;
        let most = bound.ordered.max(on_the_way_down(machine, self.now));
        let cpu = quota(machine).unwrap_or_default();
        if cpu > most && !bound.boots {
            let text = format!("its quota is {cpu}, ordered {}", bound.ordered);
            self.checks
                .fail("cpus_plugged_ahead_take_no_time", Some(vm), text);
        }
    }

    /// At the end of a quiescent phase no order is in flight, so no CPU is plugged ahead of one.
    /// CPUs whose return could not be paid for stay plugged, and the guest switches them off
    /// (`neonvm-shim/runner/src/core/budget.rs`).
    pub(crate) fn nothing_stays_plugged_ahead(&mut self, vm: usize) {
        self.checked();
        let Some((machine, _)) = self.machine_and_pod(vm) else {
            return;
        };
        let wanted = machine.shape.cpus_for(self.checks.truth[vm].using.cpu);
        let (plugged, ahead) = (machine.plugged_cpus(), machine.state.cpus.ahead);
        let stays = plugged != wanted && machine.budget.is_none();
        if stays || ahead.is_some_and(|cpu| cpu.0 > 0) {
            let text = format!("{plugged} CPUs plugged, {wanted} wanted, ahead {ahead:?}");
            self.checks
                .fail("nothing_stays_plugged_ahead", Some(vm), text);
        }
    }
}
