//! Checks of what the parts ask and answer, at the moment they do.

use agent::core::Reason;
use agent::core::actions::VmPatch;
use protocol::permit::AgentRequest;
use protocol::time::Span;
use protocol::units::Resources;

use super::is_older;
use crate::agent::times::METRICS_MAX_AGE;
use crate::store::{Kind, Object};
use crate::world::{UNIT, World};

/// Longest time between two permit requests: the tick, a request that gets no answer, and the pause
/// after it.
const HEARTBEAT: Span = Span::from_secs(15 + 2 + 3 + 1);
/// A task that has just begun waits for its first input at most this long.
const FIRST_INPUT: Span = Span::from_secs(15);

impl World {
    /// N03: a wish is a whole number of units within the VM's bounds.
    pub(crate) fn desired_is_whole_units_in_bounds(&mut self, vm: usize) {
        let Some(agent_task) = self.vms[vm].agent_task.as_ref() else {
            return;
        };
        let Some(evaluation) = agent_task.core.last_evaluation() else {
            return;
        };
        let (decision, info) = (evaluation.decision, agent_task.core.vm());
        let target = decision.target;
        let is_whole =
            target.cpu.0.is_multiple_of(UNIT.cpu.0) && target.mem.0.is_multiple_of(UNIT.mem.0);
        let is_high =
            target.has_field_above(info.max()) && decision.reason != Reason::DeniedDownscale;
        let is_low = target.has_field_below(info.min());
        self.checked();
        if !is_whole || is_high || is_low {
            let text = format!("wants {target}, reason {:?}", decision.reason);
            self.checks
                .fail("n03_desired_is_whole_units_in_bounds", Some(vm), text);
        }
    }

    /// The agent's core counts what it thinks cannot be; nothing here may make it count.
    pub(crate) fn core_counts_no_fault(&mut self, vm: usize) {
        let Some(agent_task) = self.vms[vm].agent_task.as_ref() else {
            return;
        };
        let mut faults = agent_task.core.faults();
        faults.unknown_reply = 0;
        if self.checks.truth[vm].foreign {
            // Somebody else changed the size: that is what these two count.
            (faults.use_above_permit, faults.invalid_permit) = (0, 0);
        }
        self.checked();
        if faults.total() > 0 {
            self.checks.fail(
                "agent_core_counts_no_fault",
                Some(vm),
                format!("{faults:?}"),
            );
        }
    }

    /// N05: a request never reports less than the object uses, so a decrease is told after it
    /// happened.
    pub(crate) fn requests_never_report_less_than_is_used(&mut self, vm: usize, target: Resources) {
        let using = self.checks.truth[vm].using;
        self.checked();
        let is_less = target.has_field_below(using) && !self.checks.truth[vm].orphaned;
        if is_less && !self.is_of_former_pod(vm) {
            let text = format!("reports {target}, in use {using}");
            self.checks.fail(
                "n05_requests_never_report_less_than_is_used",
                Some(vm),
                text,
            );
        }
    }

    /// Whether the VM's task is of a pod that the VM no longer has. The agent of its former node
    /// begins one where it reads old news while the agent of its new node is gone.
    fn is_of_former_pod(&self, vm: usize) -> bool {
        let Some(agent_task) = self.vms[vm].agent_task.as_ref() else {
            return false;
        };
        let object = self.store.get(Kind::Vm, &self.vms[vm].name);
        object.is_none_or(|object| object.value["status"]["podName"] != agent_task.pod.name)
    }

    /// N05, N11, N14: a patch grows to the permit and never past it, and shrinks to the monitor's
    /// approval and never below it.
    pub(crate) fn patches_stay_between_approval_and_permit(
        &mut self,
        vm: usize,
        target: Resources,
    ) {
        let truth = self.checks.truth[vm];
        let most = truth.permitted.field_max(truth.using);
        self.checked();
        if target.has_field_above(most) {
            let text = format!(
                "patch to {target}, permitted {}, in use {}",
                truth.permitted, truth.using
            );
            self.checks.fail("n14_patch_within_permit", Some(vm), text);
        }
        if let Some(monitor) = truth.monitor.filter(|monitor| *monitor != truth.excused)
            && target.mem.0 < monitor
        {
            let text = format!("patch to {target}, the monitor counts on {monitor} bytes");
            self.checks
                .fail("n11_patch_within_approval", Some(vm), text);
        }
    }

    /// Invariant 4: no shrink without fresh metrics and a monitor that answers, unless the bounds
    /// demand it.
    pub(crate) fn shrinks_are_never_blind(&mut self, vm: usize, request: &VmPatch) {
        let now = self.now;
        let Some(agent_task) = self.vms[vm].agent_task.as_ref() else {
            return;
        };
        let max = agent_task.core.vm().max();
        if !request.target.has_field_below(request.current) || request.current.has_field_above(max)
        {
            return;
        }
        let is_fresh = agent_task
            .metrics_at
            .is_some_and(|at| !is_older(now, at, METRICS_MAX_AGE));
        let has_monitor = agent_task.connection.is_some();
        self.checked();
        if !is_fresh || !has_monitor {
            let text = format!(
                "from {} to {}, metrics fresh: {is_fresh}, monitor: {has_monitor}",
                request.current, request.target
            );
            self.checks.fail("shrinks_are_never_blind", Some(vm), text);
        }
    }

    /// N13, N26 per resource: a decrease is permitted as asked, an increase between the old permit
    /// and what is asked; N09: a first contact is permitted exactly what it tells, when that is
    /// what the object uses. A request whose task is gone gives back nothing that its successor has
    /// given up: its answer, which nobody awaits, may be less.
    pub(crate) fn permits_stay_between_old_and_asked(
        &mut self,
        vm: usize,
        request: &AgentRequest,
        permit: Resources,
        is_awaited: bool,
    ) {
        let (asked, last) = (request.resources, request.last_permit);
        let low = last.unwrap_or(asked).field_min(asked);
        self.checked();
        if permit.has_field_above(asked) || is_awaited && permit.has_field_below(low) {
            let text = format!("asked {asked}, last {last:?}, permit {permit}");
            self.checks
                .fail("n13_permits_stay_between_old_and_asked", Some(vm), text);
        }
    }

    /// Invariant 3: a permit is answered only when what it rests on is written.
    pub(crate) fn permits_are_durable_before_said(
        &mut self,
        vm: usize,
        request: &AgentRequest,
        permit: Resources,
    ) {
        let approved = self.checks.truth[vm].approved;
        self.checked();
        if approved.is_none_or(|approved| permit.has_field_above(approved)) {
            let text = format!(
                "asked {}, permit {permit}, written {approved:?}",
                request.resources
            );
            self.checks
                .fail("permits_are_durable_before_said", Some(vm), text);
        }
    }

    /// N12: whatever is lost, a task asks again in bounded time.
    pub(crate) fn heartbeats_are_never_missed(&mut self, vm: usize) {
        let now = self.now;
        self.checked();
        let Some(agent_task) = self.vms[vm].agent_task.as_ref() else {
            return;
        };
        let late = match agent_task.asked_at {
            Some(at) => is_older(now, at, HEARTBEAT),
            None => is_older(now, agent_task.began_at, FIRST_INPUT),
        };
        if late {
            let text = format!("last permit request at {:?}", agent_task.asked_at);
            self.checks
                .fail("n12_heartbeats_are_never_missed", Some(vm), text);
        }
    }

    /// The controller asks for no name twice: one pod of a name came of the other's request, which
    /// arrived again.
    pub(crate) fn pod_names_are_never_reused(&mut self, pod: &Object) {
        self.checked();
        if self.checks.names.is_reused(pod) {
            self.checks.fail(
                "pod_names_are_never_reused",
                self.vm_named(pod.meta("name")),
                format!("{} is made again", pod.meta("name")),
            );
        }
    }

    /// Never two pods of one VM that both may run.
    pub(crate) fn never_two_pods(&mut self, pod: &Object) {
        let Some(vm) = self.vm_named(pod.meta("name")) else {
            return;
        };
        let name = &self.vms[vm].name;
        let of_vm = |pod: &&Object| pod.meta("name").starts_with(name.as_str());
        let living = self
            .store
            .all(Kind::Pod)
            .filter(of_vm)
            .filter(|pod| !pod.pod().is_terminal() && !self.checks.names.is_stray(pod))
            .count();
        self.checked();
        if living > 1 {
            self.checks.fail(
                "guests_outlive_us_never_two_pods",
                Some(vm),
                format!("{living} living pods"),
            );
        }
    }

    /// Invariant 7: a pod whose guest runs is never deleted.
    pub(crate) fn guests_never_restart_because_of_us(&mut self, pod: &Object) {
        let Some(vm) = self.vm_named(pod.meta("name")) else {
            return;
        };
        let machine = self.vms[vm].machine.as_ref();
        let runs = machine
            .is_some_and(|machine| machine.pod.uid == pod.meta("uid") && machine.ended.is_none());
        self.checked();
        if runs && !self.checks.names.is_stray(pod) {
            self.checks.fail(
                "guests_never_restart_because_of_us",
                Some(vm),
                "a running guest's pod is deleted".into(),
            );
        }
    }
}
