//! What a VM's driver publishes: decisions, measurements, stages and the state of its VM.

use std::sync::Arc;

use agent_events::{Goal, GoalComponents};
use api_client::events::Warning;
use protocol::time::Timestamp;
use protocol::trace::{Stage, StageRecord, TraceId};
use protocol::units::Resources;

use super::driver::Driver;
use super::input::Took;
use super::metrics::DriverState;
use super::monitor::request::REQUEST_BOUND;
use super::policy::create_event;
use super::state::{DecisionEntry, text_of, wall_of};
use crate::core::journal::Output;
use crate::core::{Decision, Observation, Path};

impl Driver {
    /// Logs and keeps a decision that differs from the last one.
    pub(super) fn note_decision(&mut self, arrived: Timestamp, output: &Output) {
        let (decision, warnings) = (output.decision, output.warnings);
        let now = self.ctx.clock.now();
        let last = self.last_decision.replace(decision);
        self.slot.lock().latest = Some(decision);
        if last.is_none_or(|last| last.revision.value != decision.revision.value)
            && decision.revision.value != 0
        {
            let took = Took {
                from: arrived,
                span: now.since(arrived),
            };
            self.record(
                Stage::Decision,
                decision.revision.value,
                took,
                decision.current,
                decision.target,
            );
        }
        if last.is_some_and(|last| !decision.differs_from(&last)) {
            return;
        }
        self.ctx.metrics.decided(&decision);
        let is_move = last.is_none_or(|last| decision.moves_from(&last));
        if is_move {
            self.log_decision(&decision);
        }
        let at = text_of(&self.ctx.clock, now);
        self.slot.lock().decided(DecisionEntry {
            at,
            decision,
            warnings,
        });
    }

    fn log_decision(&self, decision: &Decision) {
        let bounded: Vec<&str> = decision
            .bounded_by
            .iter()
            .map(crate::core::Bound::as_str)
            .collect();
        let set = decision.working_set;
        tracing::info!(
            current = %decision.current,
            target = %decision.target,
            reason = decision.reason.as_str(),
            vote_cpu = decision.votes.cpu,
            vote_memory = decision.votes.memory,
            vote_working_set = decision.votes.working_set,
            vote_monitor_estimate = decision.votes.monitor_estimate,
            vote_memory_pressure = decision.votes.memory_pressure,
            vote_policy = decision.votes.policy,
            bounded_by = bounded.join(","),
            revision = decision.revision.value,
            estimate_wss_pages = set.map(|set| set.estimate_pages),
            predicted_next_wss_pages = set.map(|set| set.predicted_pages),
            required_cu = decision.goal_units,
            "decided"
        );
    }

    /// Creates an event about the VM, without waiting for it.
    fn warn(&mut self, event: Option<Warning>) {
        if let Some(event) = event {
            let ctx = Arc::clone(&self.ctx);
            self.io.spawn(create_event(ctx, event));
        }
    }

    /// Publishes the core's measurements and its state.
    pub(super) fn after_decision(&mut self) {
        while let Some(observation) = self.core.poll_observation() {
            match observation {
                Observation::Latency { path, after, flags } => {
                    self.ctx.metrics.observe_latency(path, after, flags);
                    if path == Path::EndToEnd {
                        self.journal.verified(&self.core, after, &self.ctx.stages);
                    }
                }
                Observation::PolicyFellBack { digest } => {
                    let digest = format!("{digest:08x}");
                    tracing::warn!(digest, "PolicyFallback: the built-in goal decides");
                    let policy = self.policy.as_ref();
                    let event = policy.and_then(|one| one.fallback_event(&self.ctx, &self.subject));
                    self.warn(event);
                }
                Observation::ResizeStarted { .. } => {}
            }
        }
        if let Some(policy) = &mut self.policy {
            policy.note_fallback(&self.core);
            let event = policy.lost_event(&self.ctx, &self.subject);
            self.warn(event);
        }
        let computations = self.core.computations();
        self.ctx
            .metrics
            .next_actions
            .inc_by(computations - self.last_computations);
        self.last_computations = computations;
        let faults = self.core.faults();
        if faults.total() > self.last_faults {
            tracing::error!(?faults, "an invariant of the core did not hold");
            self.ctx
                .metrics
                .faults
                .inc_by(faults.total() - self.last_faults);
            self.last_faults = faults.total();
        }
        self.show_desired();
        self.gauge.set_connected(self.monitor.is_some());
        let core = self.core.clone();
        let mut view = self.slot.lock();
        view.core = Some((core, self.ctx.clock));
        view.monitor_waiters = self
            .monitor
            .as_ref()
            .map(|(_, requests)| REQUEST_BOUND.saturating_sub(requests.capacity()));
        view.observed = self.observed;
        view.refusal.clone_from(&self.refusal);
        view.workers = self.io.len();
    }

    fn show_desired(&mut self) {
        let Some(decision) = &self.last_decision else {
            return;
        };
        let unit = self.ctx.config.scaling.compute_unit;
        if decision.has_all_metrics && decision.current.exact_multiple_of(unit).is_some() {
            let goal = Goal {
                current: decision.current,
                units: decision.goal_units,
                components: GoalComponents {
                    cpu: decision.votes.cpu,
                    mem: decision.votes.memory,
                    lfc: decision.votes.working_set,
                },
            };
            let scaling = &self.ctx.scaling;
            scaling.hypothetical(&mut self.last_reported, &self.endpoint_id, &goal);
            let by = self.ctx.config.scaling_events.cu_multiplier;
            let votes = [
                Some(f64::from(decision.goal_units)),
                decision.votes.cpu,
                decision.votes.memory,
                decision.votes.working_set,
            ];
            self.ctx
                .vm_metrics
                .set_desired(&self.labels, votes.map(|vote| vote.map(|v| v * by)));
        }
    }

    pub(super) fn refresh_state(&mut self) {
        let now = self.ctx.clock.now();
        let stuck = self.health.stuck(now);
        let state = if stuck.is_some() {
            DriverState::Stuck
        } else {
            DriverState::Ok
        };
        self.gauge.set(!self.endpoint_id.is_empty(), state);
        let clock = &self.ctx.clock;
        let mut view = self.slot.lock();
        if view.stuck != stuck {
            match stuck {
                Some(reason) => tracing::warn!(?reason, "scaling is stuck"),
                None => tracing::info!("scaling is not stuck any more"),
            }
        }
        if view.state != Some(state) {
            view.state_updated_at = text_of(clock, now);
        }
        view.state = Some(state);
        view.stuck = stuck;
        view.failures = self.health.counts(now);
        view.last_monitor_success = self
            .health
            .last_monitor_success()
            .map(|at| text_of(clock, at));
    }

    pub(super) fn record(
        &self,
        stage: Stage,
        revision: i64,
        took: Took,
        from: Resources,
        to: Resources,
    ) {
        self.ctx.stages.record(StageRecord {
            trace: TraceId {
                vm: self.subject.vm.to_string(),
                revision,
            },
            stage,
            start_unix_us: wall_of(&self.ctx.clock, took.from).0,
            duration_us: took.span.0,
            change: format!("{from} -> {to}"),
        });
    }
}
