//! The requests of a VM's task: how each is started on a task of its own, and what its end means
//! for metrics, stages and the core.

use std::sync::Arc;

use protocol::permit::{AgentRequest, PROTO_VERSION, PluginResponse};
use protocol::time::Timestamp;
use protocol::trace::Stage;
use protocol::units::Resources;
use tokio::sync::{mpsc, oneshot};

use super::input::{Input, InputKind, Took};
use super::monitor::Call;
use super::patch::{self, PatchError};
use super::permit::{self, PermitError};
use super::runner::Runner;
use super::state::{Refusal, text_of};
use crate::core::actions::{MonitorDownscale, MonitorUpscale, NeonVmRequest, PluginRequest};
use crate::core::conversation::{CallError, Downscaled};
use crate::core::{Action, DownscaleAnswer, Event, RequestId};

impl Runner {
    pub(super) fn launch(&mut self, id: RequestId, action: Action) {
        match action {
            Action::Plugin(request) => self.launch_plugin(id, request),
            Action::NeonVm(request) => self.launch_patch(id, request),
            Action::MonitorUpscale(request) => self.launch_upscale(id, request),
            Action::MonitorDownscale(request) => self.launch_downscale(id, request),
        }
    }

    fn launch_plugin(&mut self, id: RequestId, request: PluginRequest) {
        let ctx = Arc::clone(&self.ctx);
        let (inputs, from) = (self.inputs_tx.clone(), self.ctx.clock.now());
        if let Some(last) = request.last_permit {
            ctx.metrics.plugin_requested.count(last, request.target);
        }
        let body = AgentRequest {
            proto_version: PROTO_VERSION,
            pod: self.subject.pod.clone(),
            compute_unit: ctx.config.scaling.compute_unit,
            resources: request.target,
            last_permit: request.last_permit,
            metrics: request.metrics,
        };
        self.io.spawn(async move {
            let scheduler = ctx.schedulers.borrow().clone();
            let result = match scheduler {
                None => Err(PermitError::NoScheduler),
                Some(pod) => {
                    let address =
                        format!("http://{}:{}/", pod.ip, ctx.config.scheduler.request_port);
                    let limit = ctx.config.scheduler.request_timeout.duration();
                    let asked = permit::ask(&ctx.permit_client, &address, &body);
                    tokio::time::timeout(limit, asked)
                        .await
                        .unwrap_or(Err(PermitError::TimedOut))
                }
            };
            let code = result
                .as_ref()
                .map_or_else(PermitError::code, |_| "200".into());
            ctx.metrics.plugin_request(code);
            let arrived = ctx.clock.now();
            let took = Took {
                from,
                span: arrived.since(from),
            };
            let kind = InputKind::PluginDone { id, took, result };
            let _ = inputs.send(Input::new(arrived, kind)).await;
        });
    }

    pub(super) fn plugin_done(
        &mut self,
        now: Timestamp,
        id: RequestId,
        took: Took,
        result: Result<PluginResponse, PermitError>,
    ) -> Event {
        self.scribe.took(took);
        let (before, asked) = (self.core.permit(), self.core.last_request());
        match &result {
            Ok(response) => {
                let permit = response.permit;
                if std::mem::take(&mut self.is_permit_failing) {
                    tracing::info!("permits are answered again");
                }
                if let Some(asked) = asked {
                    if let Some(last) = before {
                        self.ctx.metrics.plugin_accepted.count(last, permit);
                    }
                    let revision = self.core.plugin_revision();
                    if before.is_none_or(|before| before != asked) && revision != 0 {
                        self.record(
                            Stage::Permit,
                            revision,
                            took,
                            before.unwrap_or(permit),
                            permit,
                        );
                    }
                    self.count_approval(now, before, asked, permit);
                }
                if response.migrate.is_some() {
                    tracing::info!(
                        "the scheduler announces a migration: nothing is changed any more"
                    );
                }
            }
            Err(error) => {
                let error = daemon_kit::chain(error);
                // A scheduler that is away fails every VM every few seconds: one line per run of
                // failures.
                if std::mem::replace(&mut self.is_permit_failing, true) {
                    tracing::debug!(error, "still no permit");
                } else {
                    tracing::warn!(error, "no permit");
                }
                self.health.scheduler_failed(now);
                self.refresh_state();
            }
        }
        Event::PluginDone(id, result.map_err(|error| error.failure()))
    }

    fn count_approval(
        &mut self,
        now: Timestamp,
        before: Option<Resources>,
        asked: Resources,
        permit: Resources,
    ) {
        if permit == asked {
            return;
        }
        if before.is_some_and(|before| before != permit) {
            self.ctx.metrics.partially_approved();
        } else {
            self.ctx.metrics.upscale_denied();
            self.health.scheduler_failed(now);
            self.refresh_state();
        }
    }

    fn launch_patch(&mut self, id: RequestId, request: NeonVmRequest) {
        let ctx = Arc::clone(&self.ctx);
        let (inputs, from) = (self.inputs_tx.clone(), self.ctx.clock.now());
        let (api, name) = (self.api.clone(), self.subject.vm.name.clone());
        ctx.metrics
            .neonvm_requested
            .count(request.current, request.target);
        let scaling = &self.ctx.scaling;
        scaling.actual(&self.endpoint_id, request.current, request.target);
        let slot = self.core.vm().mem.slot_size;
        let recorded = self.scribe.ticket();
        self.io.spawn(async move {
            if let Some(recorded) = recorded {
                recorded.handed_over().await;
            }
            let operations =
                patch::operations(request.target, slot, request.revision, ctx.clock.wall());
            let limit = ctx.config.neonvm.request_timeout.duration();
            let result = tokio::time::timeout(limit, patch::patch(&api, &name, operations))
                .await
                .unwrap_or(Err(PatchError::TimedOut));
            let label = result
                .as_ref()
                .map_or_else(|error| error.label(&name), |_| "ok".into());
            ctx.metrics.neonvm_request(label);
            let arrived = ctx.clock.now();
            let took = Took {
                from,
                span: arrived.since(from),
            };
            let kind = InputKind::NeonVmDone { id, took, result };
            let _ = inputs.send(Input::new(arrived, kind)).await;
        });
    }

    pub(super) fn neonvm_done(
        &mut self,
        now: Timestamp,
        id: RequestId,
        took: Took,
        result: Result<Option<u64>, PatchError>,
    ) -> Event {
        self.scribe.took(took);
        match &result {
            Ok(_) => {
                let (revision, target) = self.core.patch_under_way();
                if let Some(target) = target {
                    self.record(Stage::Patch, revision, took, self.core.using(), target);
                }
            }
            Err(error) => {
                let error = daemon_kit::chain(error);
                tracing::error!(error, "the VM object was not patched");
                self.health.neonvm_failed(now);
                self.refresh_state();
            }
        }
        Event::NeonVmDone(id, result.map_err(|error| error.failure()))
    }

    /// The connection to call through, and its generation.
    fn calls(&self) -> (u64, Option<mpsc::Sender<Call>>) {
        match &self.monitor {
            Some((generation, calls)) => (*generation, Some(calls.clone())),
            None => (0, None),
        }
    }

    fn launch_upscale(&mut self, id: RequestId, request: MonitorUpscale) {
        let (clock, inputs) = (self.ctx.clock, self.inputs_tx.clone());
        let (generation, calls) = self.calls();
        self.ctx
            .metrics
            .monitor_requested
            .count(request.current, request.target);
        self.io.spawn(async move {
            let (reply, answer) = oneshot::channel();
            let result = call(calls, Call::Upscale(request.target, reply), answer).await;
            let kind = InputKind::UpscaleDone {
                generation,
                id,
                result,
            };
            let _ = inputs.send(Input::new(clock.now(), kind)).await;
        });
    }

    fn launch_downscale(&mut self, id: RequestId, request: MonitorDownscale) {
        let (clock, inputs, from) = (self.ctx.clock, self.inputs_tx.clone(), self.ctx.clock.now());
        let (generation, calls) = self.calls();
        self.ctx
            .metrics
            .monitor_requested
            .count(request.current, request.target);
        self.io.spawn(async move {
            let (reply, answer) = oneshot::channel();
            let result = call(calls, Call::Downscale(request.target, reply), answer).await;
            let arrived = clock.now();
            let took = Took {
                from,
                span: arrived.since(from),
            };
            let kind = InputKind::DownscaleDone {
                generation,
                id,
                took,
                result,
            };
            let _ = inputs.send(Input::new(arrived, kind)).await;
        });
    }

    fn monitor_failed(&mut self, now: Timestamp, what: &str, error: &CallError) {
        let error = daemon_kit::chain(error);
        tracing::warn!(error, call = what, "a call to the monitor failed");
        self.health.monitor_failed(now);
        self.refresh_state();
    }

    pub(super) fn upscale_done(
        &mut self,
        now: Timestamp,
        id: RequestId,
        result: Result<Option<Resources>, CallError>,
    ) -> Event {
        match &result {
            Ok(observed) => {
                self.observed = observed.or(self.observed);
                self.health.monitor_succeeded(now);
                if let Some((_, from, to)) = self.core.monitor_under_way() {
                    self.ctx.metrics.monitor_approved.count(from, to);
                }
            }
            Err(error) => self.monitor_failed(now, "UpscaleNotification", error),
        }
        let result = result.map(|_| ()).map_err(|error| error.failure());
        Event::MonitorUpscaleDone(id, result)
    }

    pub(super) fn downscale_done(
        &mut self,
        now: Timestamp,
        id: RequestId,
        took: Took,
        result: Result<Downscaled, CallError>,
    ) -> Event {
        self.scribe.took(took);
        match &result {
            Ok(said) => {
                self.health.monitor_succeeded(now);
                if let Some((revision, from, to)) = self.core.monitor_under_way() {
                    if said.answer == DownscaleAnswer::Allowed {
                        self.ctx.metrics.monitor_approved.count(from, to);
                        self.refusal = None;
                    } else {
                        self.ctx.metrics.downscale_denied();
                        let status = &said.status;
                        tracing::info!(%from, %to, status, "the monitor refuses to shrink");
                        let at = text_of(&self.ctx.clock, now);
                        self.refusal = Some(Refusal::new(at, to, said));
                    }
                    self.record(Stage::MonitorApproval, revision, took, from, to);
                }
            }
            Err(error) => self.monitor_failed(now, "DownscaleRequest", error),
        }
        let answer = result.map(|said| said.answer);
        Event::MonitorDownscaleDone(id, answer.map_err(|error| error.failure()))
    }
}

/// Hands a call to the connection and waits for its end; the connection bounds the time.
async fn call<T>(
    calls: Option<mpsc::Sender<Call>>,
    call: Call,
    answer: oneshot::Receiver<Result<T, CallError>>,
) -> Result<T, CallError> {
    let Some(calls) = calls else {
        return Err(CallError::NotSent);
    };
    if calls.try_send(call).is_err() {
        return Err(CallError::NotSent);
    }
    answer.await.unwrap_or(Err(CallError::Disconnected))
}
