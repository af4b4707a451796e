//! A policy that gave no valid answer for too long or is gone, so that the built-in goal decides.
//! The VM object gets an event, once. A gauge counts VMs without a valid answer.

use std::sync::Arc;

use api_client::events::Warning;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use kube::api::{Api, PostParams};
use protocol::policy::Role;

use super::VmPolicy;
use crate::core::Core;
use crate::shell::context::{Context, Subject};

const COMPONENT: &str = "autoscaler-agent";
const REASON: &str = "PolicyFallback";
const REASON_LOST: &str = "PolicyUnknown";

impl VmPolicy {
    /// Follows whether the built-in goal has taken over.
    pub(in crate::shell) fn note_fallback(&mut self, core: &Core) {
        let live = self
            .asked
            .get(Role::Live)
            .filter(|_| core.has_fallen_back());
        let now = live.map(|active| active.policy.name.clone());
        if now == self.fallen {
            return;
        }
        let metrics = &self.runtime.0.metrics;
        if let Some(name) = &self.fallen {
            metrics.fell_back(name, -1);
        }
        if let Some(name) = &now {
            metrics.fell_back(name, 1);
        }
        self.fallen = now;
    }

    /// The event for people. `None` if no version decides any more.
    pub(in crate::shell) fn fallback_event(
        &self,
        ctx: &Context,
        subject: &Subject,
    ) -> Option<Warning> {
        let active = self.asked.get(Role::Live)?;
        let last = active.last.as_ref().and_then(|last| last.fault);
        let cause = last.map_or("no answer", |fault| fault.word());
        let message = format!(
            "The built-in goal decides: policy {} ({}) gave no valid answer for too long ({cause})",
            active.policy.name,
            active.policy.digest.short(),
        );
        Some(warning(ctx, subject, REASON, message))
    }

    /// The event about a policy that is not there any more. `None` after the first time.
    pub(in crate::shell) fn lost_event(
        &mut self,
        ctx: &Context,
        subject: &Subject,
    ) -> Option<Warning> {
        let is_due = std::mem::take(&mut self.was_lost);
        let name = self.unknown.as_ref().filter(|_| is_due)?;
        let message = format!(
            "The built-in goal decides: policy {name} is not there any more, or not for this namespace"
        );
        Some(warning(ctx, subject, REASON_LOST, message))
    }
}

fn warning(ctx: &Context, subject: &Subject, reason: &str, message: String) -> Warning {
    Warning {
        about: ObjectReference {
            api_version: Some(protocol::vm::API_VERSION.into()),
            kind: Some("VirtualMachine".into()),
            name: Some(subject.vm.name.clone()),
            namespace: Some(subject.vm.namespace.clone()),
            uid: Some(subject.uid.clone()),
            ..ObjectReference::default()
        },
        component: COMPONENT.to_owned(),
        reason: reason.to_owned(),
        message,
        unix_us: ctx.clock.wall().0,
    }
}

/// Creates an event. A failure is logged only: the log has the same content.
pub(in crate::shell) async fn create(ctx: Arc<Context>, warning: Warning) {
    let events: Api<Event> = Api::namespaced(ctx.kube.clone(), warning.namespace());
    let event = warning.into_event();
    if let Err(error) = events.create(&PostParams::default(), &event).await {
        let error = daemon_kit::chain(&error);
        tracing::warn!(error, "the event about the policy was not created");
    }
}
