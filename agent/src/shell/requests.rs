//! Requests of a VM's driver. Each runs on its own task. Its end updates metrics and stages and
//! becomes an event of the core.

use std::sync::Arc;

use protocol::permit::{AgentRequest, PROTO_VERSION, PluginResponse};
use protocol::revision::RevisionWithTime;
use protocol::time::Timestamp;
use protocol::trace::Stage;
use protocol::units::Resources;
use tokio::sync::{mpsc, oneshot};

use super::driver::Driver;
use super::input::{Input, InputKind, Took};
use super::monitor::request::LinkRequest;
use super::patch::{self, PatchError};
use super::permit::{self, PermitError};
use super::state::{RefusalEntry, text_of};
use crate::core::actions::{MonitorDownscale, MonitorUpscale, PermitRequest, VmPatch};
use crate::core::conversation::{DownscaleResult, MonitorRequestError};
use crate::core::{Action, DownscaleResponse, Event, RequestId};

impl Driver {
    pub(super) fn launch(&mut self, id: RequestId, action: Action) {
        match action {
            Action::Permit(request) => self.launch_permit(id, request),
            Action::VmPatch(request) => self.launch_patch(id, request),
            Action::MonitorUpscale(request) => self.launch_upscale(id, request),
            Action::MonitorDownscale(request) => self.launch_downscale(id, request),
        }
    }

    fn launch_permit(&mut self, id: RequestId, request: PermitRequest) {
        let ctx = Arc::clone(&self.ctx);
        let (inputs, from) = (self.inputs_tx.clone(), self.ctx.clock.now());
        if let Some(last) = request.last_permit {
            ctx.metrics.permit_requested.count(last, request.target);
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
                    let request = permit::request(&ctx.permit_client, &address, &body);
                    tokio::time::timeout(limit, request)
                        .await
                        .unwrap_or(Err(PermitError::TimedOut))
                }
            };
            let code = result
                .as_ref()
                .map_or_else(PermitError::code, |_| "200".into());
            ctx.metrics.permit_request(code);
            let arrived = ctx.clock.now();
            let took = Took {
                from,
                span: arrived.since(from),
            };
            let kind = InputKind::PermitDone { id, took, result };
            let _ = inputs.send(Input::new(arrived, kind)).await;
        });
    }

    pub(super) fn permit_done(
        &mut self,
        now: Timestamp,
        id: RequestId,
        took: Took,
        result: Result<PluginResponse, PermitError>,
    ) -> Event {
        self.journal.took(took);
        let (before, requested) = (self.core.permit(), self.core.last_request());
        match &result {
            Ok(response) => {
                let permit = response.permit;
                if std::mem::take(&mut self.is_permit_failing) {
                    tracing::info!("permits are answered again");
                }
                if let Some(requested) = requested {
                    if let Some(last) = before {
                        self.ctx.metrics.permit_accepted.count(last, permit);
                    }
                    let revision = self.core.permit_revision();
                    if before.is_none_or(|before| before != requested) && revision != 0 {
                        self.record(
                            Stage::Permit,
                            revision,
                            took,
                            before.unwrap_or(permit),
                            permit,
                        );
                    }
                    self.count_approval(now, before, requested, permit);
                }
                if response.migrate.is_some() {
                    tracing::info!(
                        "the scheduler announces a migration: nothing is changed any more"
                    );
                }
            }
            Err(error) => {
                let error = daemon_kit::chain(error);
                // An absent scheduler fails the requests of every VM every few seconds. Each VM
                // logs the first of consecutive failures.
                if std::mem::replace(&mut self.is_permit_failing, true) {
                    tracing::debug!(error, "still no permit");
                } else {
                    tracing::warn!(error, "no permit");
                }
                self.health.scheduler_failed(now);
                self.refresh_state();
            }
        }
        Event::PermitDone(id, result.map_err(|error| error.failure()))
    }

    fn count_approval(
        &mut self,
        now: Timestamp,
        before: Option<Resources>,
        requested: Resources,
        permit: Resources,
    ) {
        if permit == requested {
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

    fn launch_patch(&mut self, id: RequestId, request: VmPatch) {
        let ctx = Arc::clone(&self.ctx);
        let (inputs, from) = (self.inputs_tx.clone(), self.ctx.clock.now());
        let (api, name) = (self.api.clone(), self.subject.vm.name.clone());
        ctx.metrics
            .vm_patch_requested
            .count(request.current, request.target);
        let scaling = &self.ctx.scaling;
        scaling.actual(&self.endpoint_id, request.current, request.target);
        let (slot, base) = (self.core.vm().mem.slot_size, self.core.patch_base());
        let recorded = self.journal.ticket();
        self.io.spawn(async move {
            if let Some(recorded) = recorded {
                recorded.handed_over().await;
            }
            let revision = RevisionWithTime {
                revision: request.revision,
                updated_at: ctx.clock.wall(),
            };
            let operations = base.operations(request.target, slot, revision);
            let limit = ctx.config.neonvm.request_timeout.duration();
            let result = tokio::time::timeout(limit, patch::patch(&api, &name, operations))
                .await
                .unwrap_or(Err(PatchError::TimedOut));
            let label = result
                .as_ref()
                .map_or_else(|error| error.label(&name), |_| "ok".into());
            ctx.metrics.vm_patch_request(label);
            let arrived = ctx.clock.now();
            let took = Took {
                from,
                span: arrived.since(from),
            };
            let kind = InputKind::VmPatchDone { id, took, result };
            let _ = inputs.send(Input::new(arrived, kind)).await;
        });
    }

    pub(super) fn vm_patch_done(
        &mut self,
        now: Timestamp,
        id: RequestId,
        took: Took,
        result: Result<Option<u64>, PatchError>,
    ) -> Event {
        self.journal.took(took);
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
                self.health.vm_patch_failed(now);
                self.refresh_state();
            }
        }
        Event::VmPatchDone(id, result.map_err(|error| error.failure()))
    }

    /// Generation and queue of the current link.
    fn link(&self) -> (u64, Option<mpsc::Sender<LinkRequest>>) {
        match &self.monitor {
            Some((generation, requests)) => (*generation, Some(requests.clone())),
            None => (0, None),
        }
    }

    fn launch_upscale(&mut self, id: RequestId, request: MonitorUpscale) {
        let (clock, inputs) = (self.ctx.clock, self.inputs_tx.clone());
        let (generation, link) = self.link();
        self.ctx
            .metrics
            .monitor_requested
            .count(request.current, request.target);
        self.io.spawn(async move {
            let (outcome, response) = oneshot::channel();
            let size = request.target;
            let result = send(link, LinkRequest::Upscale { size, outcome }, response).await;
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
        let (generation, link) = self.link();
        self.ctx
            .metrics
            .monitor_requested
            .count(request.current, request.target);
        self.io.spawn(async move {
            let (outcome, response) = oneshot::channel();
            let size = request.target;
            let result = send(link, LinkRequest::Downscale { size, outcome }, response).await;
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

    fn monitor_failed(&mut self, now: Timestamp, what: &str, error: &MonitorRequestError) {
        let error = daemon_kit::chain(error);
        tracing::warn!(error, call = what, "a call to the monitor failed");
        self.health.monitor_failed(now);
        self.refresh_state();
    }

    pub(super) fn upscale_done(
        &mut self,
        now: Timestamp,
        id: RequestId,
        result: Result<Option<Resources>, MonitorRequestError>,
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
        let ended = result.map(|_| ()).map_err(|error| error.failure());
        Event::MonitorUpscaleDone(id, ended)
    }

    pub(super) fn downscale_done(
        &mut self,
        now: Timestamp,
        id: RequestId,
        took: Took,
        result: Result<DownscaleResult, MonitorRequestError>,
    ) -> Event {
        self.journal.took(took);
        match &result {
            Ok(outcome) => {
                self.health.monitor_succeeded(now);
                if let Some((revision, from, to)) = self.core.monitor_under_way() {
                    if outcome.response == DownscaleResponse::Allowed {
                        self.ctx.metrics.monitor_approved.count(from, to);
                        self.refusal = None;
                    } else {
                        self.ctx.metrics.downscale_denied();
                        let status = &outcome.status;
                        tracing::info!(%from, %to, status, "the monitor refuses to shrink");
                        let at = text_of(&self.ctx.clock, now);
                        self.refusal = Some(RefusalEntry::new(at, to, outcome));
                    }
                    self.record(Stage::MonitorApproval, revision, took, from, to);
                }
            }
            Err(error) => self.monitor_failed(now, "DownscaleRequest", error),
        }
        let response = result
            .map(|outcome| outcome.response)
            .map_err(|error| error.failure());
        Event::MonitorDownscaleDone(id, response)
    }
}

/// Passes a request to the link and waits for its outcome; the link bounds the time.
async fn send<T>(
    link: Option<mpsc::Sender<LinkRequest>>,
    request: LinkRequest,
    response: oneshot::Receiver<Result<T, MonitorRequestError>>,
) -> Result<T, MonitorRequestError> {
    let Some(link) = link else {
        return Err(MonitorRequestError::NotSent);
    };
    if link.try_send(request).is_err() {
        return Err(MonitorRequestError::NotSent);
    }
    response
        .await
        .unwrap_or(Err(MonitorRequestError::Disconnected))
}
