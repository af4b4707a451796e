//! What the agent shows of itself: the deployed agent's dump (docs/compatibility/agent.md §4.4)
//! with the decisions beside it.
//!
//! Each VM's task leaves a copy of its core at its place here after every event; what is shown is
//! made of that copy when somebody asks, so asking never waits for a core, and a decision costs no
//! text that nobody reads. A lock, not a task: it is held for one copy.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daemon_kit::clock::Clock;
use protocol::monitor_v2::RefusalReason;
use protocol::permit::NamespacedName;
use protocol::time::{Timestamp, WallTime};
use protocol::units::Resources;
use serde::Serialize;
use serde_json::{Value, json};

use super::metrics::RunnerState;
use crate::core::conversation::Downscaled;
use crate::core::health::StuckReason;
use crate::core::{Core, Decision, DownscaleAnswer, Left, Warnings};

/// Decisions kept per VM.
pub const MAX_DECISIONS: usize = 64;
/// Ends of earlier tasks kept per VM.
const MAX_END_STATES: usize = 16;

/// A decision and when it was made.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DecisionEntry {
    /// When, RFC 3339 with microseconds.
    pub at: String,
    /// What and why.
    #[serde(flatten)]
    pub decision: Decision,
    /// Conditions it was made under.
    pub warnings: Warnings,
}

/// A monitor's no to a shrink, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Refusal {
    /// When, RFC 3339 with microseconds.
    at: String,
    /// The size that was asked about.
    target: Resources,
    /// The smallest size it would have agreed to, where it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    smallest: Option<Resources>,
    /// Why, where it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    status: String,
}

impl Refusal {
    pub(super) fn new(at: String, target: Resources, said: &Downscaled) -> Self {
        let smallest = match said.answer {
            DownscaleAnswer::Denied(refusal) => refusal.smallest,
            DownscaleAnswer::Allowed => None,
        };
        Self {
            at,
            target,
            smallest,
            reason: said.reason.map(RefusalReason::label),
            status: said.status.clone(),
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

/// What is shown of one VM.
#[derive(Debug, Clone, Default)]
pub(super) struct VmView {
    pub start_time: String,
    pub end_state: Option<EndState>,
    pub previous_end_states: VecDeque<EndState>,
    pub last_monitor_success: Option<String>,
    /// Failed requests: monitor, scheduler, patches.
    pub failures: [usize; 3],
    /// The core as its newest decision left it, and the clock its times are of.
    pub core: Option<(Core, Clock)>,
    pub endpoint_id: String,
    pub endpoint_assigned_at: Option<String>,
    pub state: Option<RunnerState>,
    pub stuck: Option<StuckReason>,
    pub state_updated_at: String,
    pub pod_ip: String,
    pub monitor_waiters: Option<usize>,
    /// What the monitor last confirmed the guest to have.
    pub observed: Option<Resources>,
    /// The monitor's last answer to a shrink, if it was no.
    pub refusal: Option<Refusal>,
    pub workers: usize,
    pub decisions: VecDeque<DecisionEntry>,
    /// The newest decision, with the votes of now, also when it only confirms the last of
    /// `decisions`.
    pub latest: Option<Decision>,
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
        let [monitor, scheduler, neonvm] = self.failures;
        let last = self.latest.map(|decision| {
            let mut last = json!(decision);
            // Since when it stands: later ones had the same target, reason and bounds.
            last["at"] = json!(self.decisions.back().map(|entry| &entry.at));
            if let Some(refusal) = &self.refusal {
                last["refusal"] = json!(refusal);
            }
            last
        });
        let state = |(core, clock): &(Core, Clock)| core.snapshot(&|at| text_of(clock, at));
        json!({
            "podName": pod,
            "status": {
                "startTime": self.start_time,
                "endState": self.end_state,
                "previousEndStates": self.previous_end_states,
                "lastSuccessfulMonitorComm": self.last_monitor_success,
                "failedMonitorRequestCounter": monitor,
                "failedNeonVMRequestCounter": neonvm,
                "failedSchedulerRequestCounter": scheduler,
                "vmInfo": self.core.as_ref().map(|(core, _)| core.vm()),
                "endpointID": self.endpoint_id,
                "endpointAssignedAt": self.endpoint_assigned_at,
                "state": self.state.map(RunnerState::as_str),
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
        })
    }
}

/// One VM's place.
#[derive(Debug, Clone, Default)]
pub(super) struct Place(Arc<Mutex<VmView>>);

impl Place {
    /// What the task here knew of the VM's size, if there was one.
    pub(super) fn left(&self) -> Option<Left> {
        let view = self.lock();
        view.core.as_ref().map(|(core, _)| core.left())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, VmView> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Inner {
    is_stopped: AtomicBool,
    is_ready: [AtomicBool; 3],
    vms: Mutex<BTreeMap<NamespacedName, Place>>,
    unparsable: Mutex<BTreeMap<NamespacedName, String>>,
}

/// Reads the state of a running agent. Cheap to clone; clones see the same.
#[derive(Debug, Clone, Default)]
pub struct StateHandle(Arc<Inner>);

/// The lists that must have been read once before the agent is ready.
#[derive(Debug, Clone, Copy)]
pub(super) enum Synced {
    Vms = 0,
    Schedulers = 1,
    Namespaces = 2,
}

impl StateHandle {
    /// A handle for an agent to be started with it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn vms(&self) -> MutexGuard<'_, BTreeMap<NamespacedName, Place>> {
        self.0.vms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unparsable(&self) -> MutexGuard<'_, BTreeMap<NamespacedName, String>> {
        self.0
            .unparsable
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a pod, made if need be.
    pub(super) fn place(&self, pod: &NamespacedName) -> Place {
        self.vms().entry(pod.clone()).or_default().clone()
    }

    pub(super) fn remove(&self, pod: &NamespacedName) {
        self.vms().remove(pod);
    }

    /// Notes a VM of this node that cannot be read, or that it can be read again. Returns how many
    /// there are.
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

    pub(super) fn synced(&self, list: Synced) {
        self.0.is_ready[list as usize].store(true, Ordering::Relaxed);
    }

    pub(super) fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Whether all lists were read once.
    ///
    /// # Errors
    /// What is missing, for people.
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

    /// Number of managed VMs.
    #[must_use]
    pub fn managed(&self) -> usize {
        self.vms().len()
    }

    /// The whole state, pods sorted by namespace and name:
    /// `{"stopped":false,"pods":[{"podName":…,"status":…,"runner":…,"lastDecision":…,"decisions":[…]}],"unparsable":{…}}`.
    #[must_use]
    pub fn dump(&self) -> Value {
        let places: Vec<(NamespacedName, Place)> = self
            .vms()
            .iter()
            .map(|(pod, place)| (pod.clone(), place.clone()))
            .collect();
        let pods: Vec<Value> = places
            .iter()
            .map(|(pod, place)| place.lock().dump(pod))
            .collect();
        let unparsable: BTreeMap<String, String> = self
            .unparsable()
            .iter()
            .map(|(vm, error)| (vm.to_string(), error.clone()))
            .collect();
        json!({
            "stopped": self.0.is_stopped.load(Ordering::Relaxed),
            "pods": pods,
            "unparsable": unparsable,
        })
    }

    /// Decisions kept of a pod, oldest first; `None` when it is not managed.
    #[must_use]
    pub fn decisions(&self, pod: &NamespacedName) -> Option<Vec<DecisionEntry>> {
        let place = self.vms().get(pod).cloned()?;
        let decisions = place.lock().decisions.iter().cloned().collect();
        Some(decisions)
    }
}

/// The calendar time of a time on the clock, microseconds since 1970.
pub(super) fn wall_of(clock: &Clock, at: Timestamp) -> WallTime {
    let (now, wall) = (clock.now(), clock.wall().0);
    let micros = |span: protocol::time::Span| i64::try_from(span.0).unwrap_or(i64::MAX);
    WallTime(if at <= now {
        wall.saturating_sub(micros(now.since(at)))
    } else {
        wall.saturating_add(micros(at.since(now)))
    })
}

/// The same as text.
pub(super) fn text_of(clock: &Clock, at: Timestamp) -> String {
    wall_of(clock, at).to_micro_string()
}
