//! A policy that gave no valid answer for too long, so that the built-in goal decides: an event on
//! the VM object, once, and a gauge of such VMs.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use protocol::policy::Role;

use super::VmPolicy;
use crate::core::Core;
use crate::shell::driver::{Context, Subject};

const COMPONENT: &str = "autoscaler-agent";
const REASON: &str = "PolicyFallback";

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
    ) -> Option<Event> {
        let active = self.asked.get(Role::Live)?;
        let last = active.last.as_ref().and_then(|(last, _)| last.fault);
        let cause = last.map_or("no answer", |fault| fault.word());
        let message = format!(
            "The built-in goal decides: policy {} ({}) gave no valid answer for too long ({cause})",
            active.policy.name,
            active.policy.digest.short(),
        );
        Some(event(ctx.clock.wall().0, subject, message))
    }
}

fn event(micros: i64, subject: &Subject, message: String) -> Event {
    let now = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH);
    let (name, namespace) = (subject.vm.name.clone(), subject.vm.namespace.clone());
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{name}.")),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(protocol::vm::API_VERSION.into()),
            kind: Some("VirtualMachine".into()),
            name: Some(name),
            namespace: Some(namespace),
            uid: Some(subject.uid.clone()),
            ..ObjectReference::default()
        },
        reason: Some(REASON.into()),
        message: Some(message),
        type_: Some("Warning".into()),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource {
            component: Some(COMPONENT.into()),
            host: None,
        }),
        reporting_component: Some(COMPONENT.into()),
        ..Event::default()
    }
}

/// Creates an event. A failure is logged only: the log has the same content.
pub(in crate::shell) async fn create(ctx: Arc<Context>, event: Event) {
    let namespace = event.metadata.namespace.clone().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(ctx.kube.clone(), &namespace);
    if let Err(error) = events.create(&PostParams::default(), &event).await {
        let error = daemon_kit::chain(&error);
        tracing::warn!(error, "the event about the policy was not created");
    }
}
