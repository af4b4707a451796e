//! Dependencies that the drivers of all VMs share.

use std::path::PathBuf;
use std::sync::Arc;

use daemon_kit::StageLog;
use daemon_kit::clock::Clock;

use super::api::KubeApi;
use super::clock::moment;
use super::events::{EventRequest, EventSink};
use super::link::{RunnerAddress, RunnerLink};
use super::metrics::Metrics;
use super::overlay::Pools;
use super::state::StateHandle;
use crate::core::VmEvent;
use crate::core::announce::{About, Announcer};
use crate::core::observe::PodRunner;

/// Dependencies of the drivers; clones share them.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) api: Arc<KubeApi>,
    /// Pools of overlay addresses; `None` without an overlay.
    pub(super) pools: Option<Arc<Pools>>,
    pub(super) events: EventSink,
    pub(super) metrics: Metrics,
    pub(super) stages: StageLog,
    pub(super) state: StateHandle,
    pub(super) state_dir: PathBuf,
    pub(super) clock: Clock,
}

impl Context {
    /// Where the runner of a pod listens: at the pod's address where it does so there, else on the
    /// socket in its directory.
    pub(super) fn address(
        &self,
        namespace: &str,
        pod: &str,
        at: Option<PodRunner>,
    ) -> RunnerAddress {
        at.map_or_else(
            || RunnerAddress::Socket(RunnerLink::socket(&self.state_dir, namespace, pod)),
            RunnerAddress::Pod,
        )
    }

    /// Publishes an event of a VM: as a log line, in the metrics and as a Kubernetes event.
    pub(super) fn publish_event(
        &self,
        announcer: &mut Announcer,
        about: About<'_>,
        event: &VmEvent,
    ) {
        let (namespace, vm) = (about.namespace, about.name);
        tracing::info!(vm, namespace, note = event.reason(), "{event}");
        self.metrics.happened(event);
        if let Some(what) = announcer.announce(event, about, moment(&self.clock)) {
            self.events.send(EventRequest {
                namespace: namespace.to_owned(),
                what,
            });
        }
    }
}
