//! A version of a policy that a VM is asked about: its past and its memory. Both belong to the
//! version and stay with it in another role.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy_contract::PackedPast;
use protocol::journal::{Answered, BoundVersion, Milli, Terms};
use protocol::policy::{Fault, Role};
use protocol::time::Timestamp;

use super::super::known::Policy;
use super::super::{PolicyRuntime, Request};
use super::pace::Pace;
use crate::core::questions::{Memory, is_shrink, seconds};
use crate::core::{Core, advice, feeds};

/// Faults without an answer between them after which a version is set aside.
const FAULTS_IN_A_ROW: u32 = 3;

pub(super) struct Active {
    pub policy: Arc<Policy>,
    pub role: Role,
    pub memory: Memory,
    /// What the worker has, for the next worker.
    past: PackedPast,
    /// Worker that has the past; 0 = none.
    generation: u64,
    /// Time of the first step with this version.
    since: Option<Timestamp>,
    pub open: Option<Open>,
    pub pace: Pace,
    /// The source is refused, or it ended the worker too often.
    pub is_set_aside: bool,
    /// Faults about this VM since the last answer.
    pub faults_in_a_row: u32,
    pub last: Option<LastAnswer>,
}

/// The last answer, for people.
pub(super) struct LastAnswer {
    /// What it says, as JSON, which is smaller than the record.
    said: Box<str>,
    pub fault: Option<Fault>,
    pub at: Timestamp,
    /// Since when it asks for the same size. Reason, votes and note may have changed.
    pub since: Timestamp,
    /// Size that it asks for. `None` to hold, and for a fault.
    units: Option<u32>,
}

/// The open question.
pub(super) struct Open {
    pub n: u64,
    pub at: Timestamp,
    pub checksum: u32,
    pub starved: Milli,
    pub vms: u32,
    pub builtin: u32,
}

impl LastAnswer {
    pub(super) fn said(&self) -> Answered {
        serde_json::from_str(&self.said).expect("it was written as a record")
    }
}

impl Active {
    pub(super) fn new(role: Role, policy: Arc<Policy>, core: &Core, now: Timestamp) -> Self {
        Self {
            past: PackedPast::new(&policy.spec.all_series()),
            policy,
            role,
            memory: Memory::new(now, core),
            generation: 0,
            since: None,
            open: None,
            pace: Pace::default(),
            is_set_aside: false,
            faults_in_a_row: 0,
            last: None,
        }
    }

    /// The same version in a role, with limits that may be others. Another role has another worker,
    /// so an open question is given up there, and the next step asks.
    pub(super) fn into_role(self, role: Role, policy: Arc<Policy>) -> Self {
        if role == self.role {
            return Self { policy, ..self };
        }
        Self {
            role,
            policy,
            generation: 0,
            open: None,
            pace: self.pace.restarted(),
            is_set_aside: false,
            faults_in_a_row: 0,
            last: None,
            ..self
        }
    }

    /// Limits for the core, if this version decides.
    pub(super) fn terms(&self) -> Option<Terms> {
        let is_live = self.role == Role::Live;
        is_live.then(|| advice::terms(&self.policy.digest, self.policy.limits))
    }

    /// Begins the memory with the first step.
    pub(super) fn begin(&mut self, now: Timestamp, core: &Core) {
        if self.since.is_none() {
            (self.memory, self.since) = (Memory::new(now, core), Some(now));
        }
        self.pace.stepped();
    }

    /// Keeps the samples of a step, and passes them to the worker.
    pub(super) fn record(
        &mut self,
        now: Timestamp,
        mut samples: BTreeMap<String, f64>,
        (runtime, vm): (&PolicyRuntime, u32),
    ) {
        samples.retain(|name, _| self.policy.spec.has_series(name));
        if samples.is_empty() {
            return;
        }
        let at = seconds(now);
        for (series, value) in &samples {
            #[expect(clippy::cast_possible_truncation, reason = "it is of single precision")]
            self.past.record(series, at, *value as f32);
        }
        let generation = self.generation;
        if generation == 0 {
            return;
        }
        let is_passed = runtime.link(self.role).send(Request::Sample {
            generation,
            vm,
            at,
            samples,
        });
        if !is_passed {
            // The worker's past has a gap now, so it is filled again.
            self.generation = 0;
        }
    }

    /// Takes values of its own feeds, by name. They are news.
    pub(super) fn fed(
        &mut self,
        now: Timestamp,
        values: &[(&str, f64)],
        there: (&PolicyRuntime, u32),
    ) {
        if self.since.is_none() || values.is_empty() {
            return;
        }
        for (name, value) in values {
            self.memory.fed(now, name, *value);
        }
        self.record(now, feeds::samples_of(values), there);
        self.pace.news(true);
    }

    /// Gives a new worker the past. Returns whether there is a worker with it.
    pub(super) fn follow_worker(&mut self, (runtime, vm): (&PolicyRuntime, u32)) -> bool {
        let link = runtime.link(self.role);
        let generation = link.generation();
        if generation == 0 || generation == self.generation {
            return generation != 0;
        }
        // The supervisor ends open questions of the worker before.
        self.open = None;
        let past = Box::new(self.past.clone());
        let is_filled = link.send(Request::Forget { generation, vm })
            && link.send(Request::Fill {
                generation,
                vm,
                past,
            });
        self.generation = if is_filled { generation } else { 0 };
        is_filled
    }

    /// Time of the next question without another step. `None` while none can be asked.
    pub(super) fn due_at(&self) -> Option<Timestamp> {
        self.pace.due_at().filter(|_| self.can_ask())
    }

    /// Whether a step at `now` may ask.
    pub(super) fn may_ask(&self, now: Timestamp) -> bool {
        self.can_ask() && self.pace.may_ask(now)
    }

    /// Whether a question is due without a step.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.due_at().is_some_and(|at| at <= now)
    }

    fn can_ask(&self) -> bool {
        self.open.is_none() && !self.is_set_aside
    }

    /// Memory of the past's samples.
    #[cfg(test)]
    pub(super) fn past_bytes(&self) -> usize {
        self.past.held_bytes()
    }

    /// Worker that has the past.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether a live answer would begin a shrink while enough VMs of the policy shrink.
    pub(super) fn is_over_quota(
        &self,
        units: Option<u32>,
        now: Timestamp,
        core: &Core,
        (runtime, vm): (&PolicyRuntime, u32),
    ) -> bool {
        let (Role::Live, Some(units)) = (self.role, units) else {
            return false;
        };
        let Some(percent) = self.policy.limits.vms_shrunk_at_once_percent else {
            return false;
        };
        is_shrink(core, units) && !runtime.quota().may_shrink(vm, now, percent)
    }

    pub(super) fn bound(&self) -> BoundVersion {
        BoundVersion {
            digest: self.policy.digest.to_string(),
            since: self.since.unwrap_or_default().0,
        }
    }

    /// The record of an answer to `open` without its content.
    pub(super) fn plain_record(&self, open: &Open, now: Timestamp) -> Answered {
        Answered {
            role: self.role,
            cu: None,
            cut: None,
            dg: self.policy.digest.short(),
            fault: None,
            hold: false,
            r#in: open.checksum,
            note: None,
            r: None,
            s: open.starved,
            t: now.0,
            took: now.since(open.at).0,
            vm: 0,
            vms: open.vms,
            votes: BTreeMap::new(),
        }
    }

    /// The record of a fault in the place of an answer to `open`.
    pub(super) fn fault_record(&self, fault: Fault, open: &Open, now: Timestamp) -> Answered {
        Answered {
            fault: Some(fault),
            ..self.plain_record(open, now)
        }
    }

    /// Keeps an answer for people.
    pub(super) fn shows(&mut self, record: &Answered, now: Timestamp) {
        let said = serde_json::to_string(&record.said()).expect("a record is JSON");
        let since = match self.last.take() {
            Some(last) if (last.units, last.fault) == (record.cu, record.fault) => last.since,
            _ => now,
        };
        self.last = Some(LastAnswer {
            said: said.into(),
            units: record.cu,
            fault: record.fault,
            at: Timestamp(record.t),
            since,
        });
    }

    /// Takes a fault. The third one in a row ends the questions to this version on the node.
    pub(super) fn fault(&mut self, fault: Fault, text: &str, runtime: &PolicyRuntime) {
        let (link, digest) = (runtime.link(self.role), self.policy.digest);
        self.faults_in_a_row += 1;
        if self.faults_in_a_row >= FAULTS_IN_A_ROW {
            let text = format!("{FAULTS_IN_A_ROW} faults in a row about one VM, the last: {text}");
            link.put_aside(digest, fault, text);
        }
        self.is_set_aside = link.set_aside(&digest).is_some();
        let is_repeated = self
            .last
            .as_ref()
            .is_some_and(|last| last.fault == Some(fault));
        let (policy, fault) = (&self.policy.name, fault.word());
        if self.is_set_aside {
            let digest = digest.short();
            tracing::error!(policy, digest, fault, text, "policy is not asked any more");
        } else if !is_repeated {
            tracing::warn!(policy, fault, text, "policy has no valid answer");
        }
    }
}
