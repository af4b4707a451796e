//! The agent's published state: the deployed agent's dump (docs/compatibility/agent.md §4.4) with
//! the decisions.
//!
//! Each VM's driver stores a copy of its core in a slot after every event. A reader formats that
//! copy. Reading therefore never waits for a core, and a decision costs no formatting. A lock
//! guards each slot for the time of one copy.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use daemon_kit::clock::Clock;
use policy_contract::tally::VersionReport;
use protocol::monitor_v2::RefusalReason;
use protocol::permit::NamespacedName;
use protocol::time::{Timestamp, WallTime};
use protocol::units::Resources;
use serde::Serialize;
use serde_json::{Value, json};

use super::metrics::DriverState;
use super::policy::PolicyRuntime;
use crate::core::conversation::DownscaleResult;
use crate::core::health::StuckReason;
use crate::core::{Core, Decision, DownscaleResponse, Handoff, Warnings};

/// Number of decisions kept per VM; older ones are dropped.
pub const MAX_DECISIONS: usize = 64;
/// Number of ends of earlier tasks kept per VM.
const MAX_END_STATES: usize = 16;

/// A decision with its time.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DecisionEntry {
    /// Time of the decision, RFC 3339 in UTC with microseconds.
    pub at: String,
    /// Desired size and its causes; members of this object in JSON.
    #[serde(flatten)]
    pub decision: Decision,
    /// Abnormal conditions of the decision.
    pub warnings: Warnings,
}

/// A refused shrink, as the dump shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RefusalEntry {
    /// Time of the refusal, RFC 3339 in UTC with microseconds.
    at: String,
    /// The refused size.
    target: Resources,
    /// The smallest size that the monitor would approve, if it named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    smallest: Option<Resources>,
    /// Rule by which the monitor refused, if it named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    status: String,
}

impl RefusalEntry {
    pub(super) fn new(at: String, target: Resources, result: &DownscaleResult) -> Self {
        let smallest = match result.response {
            DownscaleResponse::Denied(refusal) => refusal.smallest,
            DownscaleResponse::Allowed => None,
        };
        Self {
            at,
            target,
            smallest,
            reason: result.reason.map(RefusalReason::label),
            status: result.status.clone(),
        }
    }
}

/// How a VM's task ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndState {
    pub exit_kind: &'static str,
    pub error: Option<String>,
    pub time: String,
}

/// Published state of one VM.
#[derive(Debug, Clone, Default)]
pub(super) struct VmView {
    pub start_time: String,
    pub end_state: Option<EndState>,
    pub previous_end_states: VecDeque<EndState>,
    pub last_monitor_success: Option<String>,
    /// Numbers of failed requests: monitor, scheduler, patches.
    pub failures: [usize; 3],
    /// The core after its newest decision, and the clock of its times.
    pub core: Option<(Core, Clock)>,
    pub endpoint_id: String,
    pub endpoint_assigned_at: Option<String>,
    pub state: Option<DriverState>,
    pub stuck: Option<StuckReason>,
    pub state_updated_at: String,
    pub pod_ip: String,
    pub monitor_waiters: Option<usize>,
    /// Size of the guest in the monitor's last confirmation.
    pub observed: Option<Resources>,
    /// The monitor's last response to a downscale request, if it was a refusal.
    pub refusal: Option<RefusalEntry>,
    pub workers: usize,
    pub decisions: VecDeque<DecisionEntry>,
    /// The newest decision. Its votes may differ from those of the last one in `decisions`.
    pub latest: Option<Decision>,
    /// Policy of the VM and its last answer as JSON, which is smaller than its value; `None`
    /// without one.
    pub policy: Option<Box<str>>,
}

impl VmView {
    pub(super) fn decided(&mut self, entry: DecisionEntry) {
        if self.decisions.len() == MAX_DECISIONS {
            self.decisions.pop_front();
        }
        self.decisions.push_back(entry);
    }

    pub(super) fn ended(&mut self, end: EndState) {
        if let Some(previous) = self.end_state.take() {
            if self.previous_end_states.len() == MAX_END_STATES {
                self.previous_end_states.pop_front();
            }
            self.previous_end_states.push_back(previous);
        }
        self.end_state = Some(end);
    }

    fn dump(&self, pod: &NamespacedName) -> Value {
        let [monitor, scheduler, vm_patch] = self.failures;
        let last = self.latest.map(|decision| {
            let mut last = json!(decision);
            // The time of the first decision with this target, reason and bounds.
            last["at"] = json!(self.decisions.back().map(|entry| &entry.at));
            if let Some(refusal) = &self.refusal {
                last["refusal"] = json!(refusal);
            }
            last
        });
        let state = |(core, clock): &(Core, Clock)| core.snapshot(&|at| text_of(clock, at));
        let mut dump = json!({
            "podName": pod,
            "status": {
                "startTime": self.start_time,
                "endState": self.end_state,
                "previousEndStates": self.previous_end_states,
                "lastSuccessfulMonitorComm": self.last_monitor_success,
                "failedMonitorRequestCounter": monitor,
                "failedNeonVMRequestCounter": vm_patch,
                "failedSchedulerRequestCounter": scheduler,
                "vmInfo": self.core.as_ref().map(|(core, _)| core.vm()),
                "endpointID": self.endpoint_id,
                "endpointAssignedAt": self.endpoint_assigned_at,
                "state": self.state.map(DriverState::as_str),
                "stateUpdatedAt": self.state_updated_at,
                "stuckReason": self.stuck,
            },
            "runner": {
                "podIP": self.pod_ip,
                "executorState": self.core.as_ref().map(state),
                "monitor": self.monitor_waiters.map(|size| match self.observed {
                    None => json!({ "waitersSize": size }),
                    Some(observed) => json!({ "waitersSize": size, "observed": observed }),
                }),
                "backgroundWorkerCount": self.workers,
            },
            "lastDecision": last,
            "decisions": self.decisions,
        });
        if let Some(policy) = &self.policy {
            dump["policy"] = serde_json::from_str(policy).unwrap_or_default();
        }
        dump
    }
}

/// Slot for the state of one VM.
#[derive(Debug, Clone, Default)]
pub(super) struct StateSlot(Arc<Mutex<VmView>>);

impl StateSlot {
    /// Handoff of the last task that used this slot, if there was one.
    pub(super) fn handoff(&self) -> Option<Handoff> {
        let view = self.lock();
        view.core.as_ref().map(|(core, _)| core.handoff())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, VmView> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Inner {
    is_stopped: AtomicBool,
    is_ready: [AtomicBool; 3],
    vms: Mutex<BTreeMap<NamespacedName, StateSlot>>,
    unparsable: Mutex<BTreeMap<NamespacedName, String>>,
    policies: OnceLock<PolicyRuntime>,
}

/// Reads the state of a running agent. Clones read the same state.
#[derive(Debug, Clone, Default)]
pub struct StateHandle(Arc<Inner>);

/// Lists that the agent must read once before it is ready.
#[derive(Debug, Clone, Copy)]
pub(super) enum Synced {
    Vms = 0,
    Schedulers = 1,
    Namespaces = 2,
}

impl StateHandle {
    /// A handle for one agent, to be passed to it at the start.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn vms(&self) -> MutexGuard<'_, BTreeMap<NamespacedName, StateSlot>> {
        self.0.vms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unparsable(&self) -> MutexGuard<'_, BTreeMap<NamespacedName, String>> {
        self.0
            .unparsable
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a pod. An absent one is made.
    pub(super) fn slot(&self, pod: &NamespacedName) -> StateSlot {
        self.vms().entry(pod.clone()).or_default().clone()
    }

    pub(super) fn remove(&self, pod: &NamespacedName) {
        self.vms().remove(pod);
    }

    /// Stores or clears the error of a VM of this node that cannot be read. Returns the number of
    /// such VMs.
    pub(super) fn set_unparsable(&self, vm: &NamespacedName, error: Option<String>) -> usize {
        let mut unparsable = self.unparsable();
        match error {
            Some(error) => unparsable.insert(vm.clone(), error),
            None => unparsable.remove(vm),
        };
        unparsable.len()
    }

    pub(super) fn is_unparsable(&self, vm: &NamespacedName, error: &str) -> bool {
        self.unparsable()
            .get(vm)
            .is_some_and(|known| known == error)
    }

    /// Shows the state of policies too.
    pub(super) fn set_policies(&self, policies: PolicyRuntime) {
        let _ = self.0.policies.set(policies);
    }

    /// What this agent reports of each version of a policy. Empty without policies.
    #[must_use]
    pub fn policy_reports(&self) -> Vec<VersionReport> {
        let policies = self.0.policies.get();
        policies.map(PolicyRuntime::reports).unwrap_or_default()
    }

    pub(super) fn synced(&self, list: Synced) {
        self.0.is_ready[list as usize].store(true, Ordering::Relaxed);
    }

    pub(super) fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Whether all lists have been read once.
    ///
    /// # Errors
    /// A text that names the first missing list.
    pub fn ready(&self) -> Result<(), String> {
        for (list, name) in [
            (Synced::Vms, "VirtualMachines"),
            (Synced::Schedulers, "scheduler pods"),
            (Synced::Namespaces, "namespaces"),
        ] {
            if !self.0.is_ready[list as usize].load(Ordering::Relaxed) {
                return Err(format!("{name} are not listed yet"));
            }
        }
        Ok(())
    }

    /// The first VM whose shrink is under way.
    pub(super) fn shrinking(&self) -> Option<NamespacedName> {
        let slots: Vec<(NamespacedName, StateSlot)> = self
            .vms()
            .iter()
            .map(|(pod, slot)| (pod.clone(), slot.clone()))
            .collect();
        let shrinks = |slot: &StateSlot| {
            let view = slot.lock();
            view.core
                .as_ref()
                .is_some_and(|(core, _)| core.is_shrinking())
        };
        let mut slots = slots.into_iter();
        slots.find_map(|(pod, slot)| shrinks(&slot).then_some(pod))
    }

    /// Number of VMs that this agent scales now.
    #[must_use]
    pub fn managed(&self) -> usize {
        self.vms().len()
    }

    /// The whole state, pods sorted by namespace and name:
    /// `{"stopped":false,"pods":[{"podName":…,"status":…,"runner":…,"lastDecision":…,"decisions":[…]}],"unparsable":{…}}`.
    #[must_use]
    pub fn dump(&self) -> Value {
        let slots: Vec<(NamespacedName, StateSlot)> = self
            .vms()
            .iter()
            .map(|(pod, slot)| (pod.clone(), slot.clone()))
            .collect();
        let pods: Vec<Value> = slots
            .iter()
            .map(|(pod, slot)| slot.lock().dump(pod))
            .collect();
        let unparsable: BTreeMap<String, String> = self
            .unparsable()
            .iter()
            .map(|(vm, error)| (vm.to_string(), error.clone()))
            .collect();
        let mut dump = json!({
            "stopped": self.0.is_stopped.load(Ordering::Relaxed),
            "pods": pods,
            "unparsable": unparsable,
        });
        if let Some(policies) = self.0.policies.get() {
            dump["policies"] = policies.dump();
        }
        dump
    }

    /// Last [`MAX_DECISIONS`] decisions for a pod, oldest first; `None` when it is not managed.
    #[must_use]
    pub fn decisions(&self, pod: &NamespacedName) -> Option<Vec<DecisionEntry>> {
        let slot = self.vms().get(pod).cloned()?;
        let decisions = slot.lock().decisions.iter().cloned().collect();
        Some(decisions)
    }
}

/// Calendar time of a time on the clock.
pub(super) fn wall_of(clock: &Clock, at: Timestamp) -> WallTime {
    let (now, wall) = (clock.now(), clock.wall().0);
    let micros = |span: protocol::time::Span| i64::try_from(span.0).unwrap_or(i64::MAX);
    WallTime(if at <= now {
        wall.saturating_sub(micros(now.since(at)))
    } else {
        wall.saturating_add(micros(at.since(now)))
    })
}

/// Calendar time of a time on the clock, RFC 3339 in UTC with microseconds.
pub(super) fn text_of(clock: &Clock, at: Timestamp) -> String {
    wall_of(clock, at).to_micro_string()
}
