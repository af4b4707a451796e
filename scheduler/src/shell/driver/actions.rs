//! Actions of the core: responses, API calls and reports.

use std::sync::Arc;

use super::{Driver, Input, PermitOutcome};
use crate::core::amount::Resource;
use crate::core::decision::{Limit, Outcome, PermitDecision};
use crate::core::event::{
    Action, CallOutcome, Event, ExtenderResponse, NodeWarning, PermitResponse, RemovalCause,
};
use crate::core::ledger::Fit;
use crate::shell::api::ApiClient;
use crate::shell::messages;

/// Kubernetes events and conditions that are being written at a time. More are dropped.
const REPORTS_AT_ONCE: usize = 32;

impl Driver {
    pub(super) fn carry_out(&mut self, action: Action) {
        match action {
            Action::RespondPermit(response) => self.respond(response),
            Action::WriteVm(write) => {
                let api = self.bounded();
                self.call(async move {
                    let outcome = api.write_vm(&write).await;
                    if let CallOutcome::Refused(error) | CallOutcome::Unclear(error) = &outcome {
                        tracing::warn!(vm = %write.vm, error, "write of the VM failed");
                    }
                    Event::WriteDone(write.id, outcome)
                });
            }
            Action::ReadVm { id, vm } => {
                let api = self.bounded();
                self.call(async move { Event::ReadDone(id, api.read_vm(&vm).await) });
            }
            Action::Bind { id, pod, uid, node } => {
                self.count_overfull(&uid, &node);
                let api = self.bounded();
                self.call(async move {
                    let outcome = api.bind(&pod, &uid, &node).await;
                    tracing::info!(%pod, node, ?outcome, "bound a pod");
                    Event::BindDone(id, outcome)
                });
            }
            Action::ReadPod { id, pod } => {
                let api = self.bounded();
                self.call(async move { Event::PodRead(id, api.read_pod(&pod).await) });
            }
            Action::RespondExtender {
                request_id,
                response,
            } => {
                if let ExtenderResponse::Bound(Err(why)) = &response {
                    tracing::warn!(%why, "binding for kube-scheduler failed");
                }
                if let Some(responder) = self.extender_responders.remove(&request_id) {
                    // kube-scheduler may have closed the connection. It repeats its request.
                    let _sent = responder.send(response);
                }
            }
            Action::Unschedulable { pod, uid, message } => {
                tracing::info!(%pod, why = message, "pod fits on no node");
                let api = self.api.clone();
                self.report(async move { api.unschedulable(&pod, &uid, &message).await });
            }
            Action::RoomAppeared { pod, uid, node } => {
                tracing::info!(%pod, node, "waiting pod has headroom");
                let api = self.api.clone();
                self.report(async move { api.room_appeared(&pod, &uid, &node).await });
            }
            Action::List => {
                self.last_epoch += 1;
                self.epoch = Some(self.last_epoch);
                self.epochs.send_replace(self.epoch);
                tracing::info!("lists requested");
            }
            Action::WarnOnPod { pod, uid, warning } => {
                tracing::warn!(%pod, remark = warning.as_str(), "pod warning");
                let api = self.api.clone();
                self.report(async move { api.warn_on_pod(&pod, &uid, warning).await });
            }
            Action::ScaleUpDenied { uid, decision } => {
                let api = self.api.clone();
                self.report(async move { api.scale_up_denied(&uid, &decision).await });
            }
            migration => self.act_on_migration(migration),
        }
    }

    /// Counts a binding to a node without headroom, which `strictBind: false` allows.
    fn count_overfull(&self, uid: &str, node: &str) {
        let ledger = self.core.ledger();
        let Some(pod) = ledger.pod(uid).map(|entry| &entry.view) else {
            return;
        };
        if let (Fit::NoRoom(_), Some(node)) = (ledger.fits(pod, node), ledger.node(node)) {
            let is_ignored = ledger
                .rules()
                .ignored_namespaces
                .contains(&pod.key.namespace);
            self.metrics
                .reserve_should_deny(node, &self.node_labels, is_ignored);
        }
    }

    fn act_on_migration(&mut self, action: Action) {
        match action {
            Action::CreateMigration { id, migration } => {
                let api = self.bounded();
                self.call(async move {
                    let outcome = api.create_migration(&migration).await;
                    tracing::info!(migration = %migration.key, vm = migration.vm, ?outcome, "created a migration");
                    Event::MigrationDone(id, outcome)
                });
            }
            Action::DeleteMigration {
                id,
                migration,
                uid,
                cause,
            } => {
                self.metrics.migration_removed(cause);
                let api = self.bounded();
                self.call(async move {
                    let outcome = api.delete_migration(&migration, &uid).await;
                    let cause = cause.as_str();
                    if cause == RemovalCause::Succeeded.as_str() {
                        tracing::info!(%migration, cause, ?outcome, "deleted a migration");
                    } else {
                        tracing::warn!(%migration, cause, ?outcome, "deleted a migration");
                    }
                    Event::MigrationDone(id, outcome)
                });
            }
            Action::MigrationTriggered {
                vm_uid,
                node,
                pressure,
                picked,
            } => {
                self.metrics.migration_begun(&node);
                let message = messages::migration(&node, &pressure, &picked);
                tracing::info!(vm = %picked.vm, pod = %picked.pod, node, message, "migration triggered");
                if let Some(uid) = vm_uid {
                    let api = self.api.clone();
                    self.report(async move {
                        api.migration_triggered(&picked.vm, &uid, message).await;
                    });
                }
            }
            Action::WarnOnNode { node, warning } => {
                let message = messages::node(&warning);
                tracing::warn!(node, message, "a node to know about");
                if let NodeWarning::OverBudget(_) = warning {
                    let api = self.api.clone();
                    self.report(async move { api.node_over_budget(&node, message).await });
                }
            }
            _ => {}
        }
    }

    /// A client whose calls end before the lead does.
    fn bounded(&self) -> ApiClient {
        let now = self.clock.now();
        ApiClient {
            context: Arc::clone(&self.api.context),
            until: self.core.call_bound(now).map(|left| now + left),
        }
    }

    fn call(&mut self, call: impl Future<Output = Event> + Send + 'static) {
        let (limit, inputs) = (Arc::clone(&self.call_limit), self.inputs.clone());
        self.in_flight += 1;
        let call = async move {
            let permit = limit.acquire_owned().await;
            let event = call.await;
            drop(permit);
            // The driver ends last.
            let _sent = inputs.send(Input::CallEnded(event)).await;
        };
        self.calls.spawn_on(call, &self.call_runtime);
    }

    fn report(&mut self, report: impl Future<Output = ()> + Send + 'static) {
        if self.reports.len() < REPORTS_AT_ONCE {
            self.reports.spawn_on(report, &self.call_runtime);
        }
    }

    fn respond(&mut self, response: PermitResponse) {
        if let Some(decision) = &response.decision {
            self.count(decision);
        }
        log(&response);
        let PermitResponse {
            request_id,
            node,
            result,
            ..
        } = response;
        if let Some(responder) = self.permit_responders.remove(&request_id) {
            // The agent may have closed the connection. Its next request has the same content.
            let _sent = responder.send(PermitOutcome { node, result });
        }
    }

    fn count(&self, decision: &PermitDecision) {
        for resource in Resource::ALL {
            let verdict = decision.verdicts.get(resource);
            let label = match verdict.outcome {
                Outcome::Accepted => continue,
                Outcome::Granted => "granted",
                Outcome::Partial(_) => "partial",
                Outcome::Denied(_) => "denied",
            };
            let limit = verdict.outcome.limit().map(Limit::as_str);
            self.metrics.decided(resource, label, limit);
        }
    }
}

fn log(response: &PermitResponse) {
    let Some(decision) = &response.decision else {
        match &response.result {
            Err(refusal) if refusal.status() == 500 => {
                tracing::warn!(status = 500, %refusal, node = response.node, "permit refused");
            }
            Err(refusal) => {
                tracing::debug!(status = refusal.status(), %refusal, "permit refused");
            }
            Ok(_) => {}
        }
        return;
    };
    let cpu = decision.verdicts.cpu;
    let mem = decision.verdicts.mem;
    let limits: Vec<String> = decision
        .limits()
        .into_iter()
        .map(|(resource, limit)| format!("{}:{}", resource.as_str(), limit.as_str()))
        .collect();
    if decision.overclaimed {
        tracing::warn!(vm = %decision.vm, pod = %decision.pod, "last permit is above what is approved and in use");
    }
    if response.is_notable {
        tracing::info!(
            vm = %decision.vm, pod = %decision.pod, node = decision.node, permit = %decision.permit,
            asked_cpu_milli = cpu.asked, held_cpu_milli = cpu.held, room_cpu_milli = cpu.room,
            asked_mem_bytes = mem.asked, held_mem_bytes = mem.held, room_mem_bytes = mem.room,
            limits = limits.join(","), granted = limits.is_empty(), "increase decided"
        );
    } else {
        tracing::debug!(vm = %decision.vm, permit = %decision.permit, limits = limits.join(","), "permit");
    }
}
