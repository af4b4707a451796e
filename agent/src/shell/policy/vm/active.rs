//! A policy that a VM has: its past and its memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy_contract::History;
use protocol::journal::{Answered, Bound, BoundLimits, Milli};
use protocol::policy::{Fault, Role};
use protocol::time::{Span, Timestamp};

use super::super::known::Policy;
use super::super::{PolicyRuntime, Request};
use super::pace::Pace;
use crate::core::Core;
use crate::core::questions::{Memory, is_shrink, seconds};
use crate::shell::driver::Context;
use crate::shell::state::wall_of;

/// Time after which the calendar time in questions follows a clock that was set.
const WALL_EVERY: Span = Span::from_secs(600);

pub(super) struct Active {
    pub policy: Arc<Policy>,
    pub role: Role,
    pub memory: Memory,
    /// What the worker has, for the next worker.
    past: History,
    /// Worker that has the past; 0 = none.
    generation: u64,
    /// Time of the first step with this policy.
    since: Option<Timestamp>,
    pub wall: u64,
    wall_at: Timestamp,
    pub open: Option<Open>,
    pub pace: Pace,
    /// The source is refused, or it ended the worker too often.
    pub is_set_aside: bool,
    /// Answer as last shown, and since when it is the same.
    pub last: Option<(Answered, Timestamp)>,
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

impl Active {
    pub(super) fn new(role: Role, policy: Arc<Policy>, core: &Core, now: Timestamp) -> Self {
        Self {
            past: History::new(&policy.spec.all_series()),
            policy,
            role,
            memory: Memory::new(now, core),
            generation: 0,
            since: None,
            wall: 0,
            wall_at: now,
            open: None,
            pace: Pace::default(),
            is_set_aside: false,
            last: None,
        }
    }

    /// Begins the memory with the first step, and follows a clock that was set.
    pub(super) fn begin(&mut self, now: Timestamp, core: &Core, ctx: &Context) {
        let is_first = self.since.is_none();
        if is_first {
            (self.memory, self.since) = (Memory::new(now, core), Some(now));
        }
        if is_first || now.since(self.wall_at) >= WALL_EVERY {
            self.wall_at = now;
            let zero = wall_of(&ctx.clock, Timestamp(0)).0;
            self.wall = u64::try_from(zero).unwrap_or_default();
        }
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

    fn can_ask(&self) -> bool {
        self.open.is_none() && !self.is_set_aside
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

    pub(super) fn bound(&self, labels: &BTreeMap<String, String>) -> Bound {
        let limits = self.policy.limits;
        let feeds = self.policy.spec.feeds.iter();
        Bound {
            feeds: feeds.map(|feed| feed.name.clone()).collect(),
            labels: labels.clone(),
            limits: BoundLimits {
                fallback_after_seconds: limits.fallback_after_seconds,
                max_units: limits.max_units,
                shrink_units_per_minute: limits.shrink_units_per_minute,
                vms_shrunk_at_once_percent: limits.vms_shrunk_at_once_percent,
            },
            name: Some(self.policy.name.clone()),
            roles: [(self.role, self.policy.digest.to_string())].into(),
            since: self.since.unwrap_or_default().0,
            t: 0,
            vm: 0,
            wall: self.wall,
        }
    }

    pub(super) fn fault(&mut self, fault: Fault, text: &str, runtime: &PolicyRuntime) {
        self.is_set_aside = runtime
            .link(self.role)
            .set_aside(&self.policy.digest)
            .is_some();
        let is_repeated = self
            .last
            .as_ref()
            .is_some_and(|(last, _)| last.fault == Some(fault));
        if !is_repeated {
            let (policy, fault) = (&self.policy.name, fault.word());
            tracing::warn!(policy, fault, text, "policy has no valid answer");
        }
    }
}
