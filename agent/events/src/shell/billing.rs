//! Billing: meters the VMs of this node as the watch shows them. At the end of each period it
//! writes their usage into the log of billing events. Source: docs/compatibility/agent.md §4.6.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use daemon_kit::clock::Clock;
use protocol::annotations::{ANNOTATION_BILLING_ENDPOINT, LABEL_ENABLED};
use protocol::permit::NamespacedName;
use protocol::vm::{VirtualMachine, VmPhase};
use tokio_util::sync::CancellationToken;

use super::metrics::{EventMetrics, VmKind};
use super::settings::BillingSettings;
use super::stream::Stream;
use crate::core::billing::{Billed, BillingEvent, Checkpoint, Meter, Names};

/// Largest number of events kept in memory while the disk takes none.
const MAX_UNWRITTEN: usize = 100_000;
/// Host name in events of a machine without one.
const NO_HOST: &str = "unknown";

/// A VM of this node as the watch last showed it.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    uid: String,
    kind: VmKind,
    billed: Option<Billed>,
}

#[derive(Debug)]
struct Inner {
    meter: Meter,
    vms: BTreeMap<NamespacedName, Seen>,
    /// A list is being read: a VM that is not on it so far may be gone.
    is_listing: bool,
    /// Something changed since the last checkpoint.
    is_dirty: bool,
}

/// Usage of all VMs of this node, fed by the VM watch. Clones share one meter behind a lock, which
/// is held for one change.
#[derive(Debug, Clone)]
pub struct UsageMeter {
    inner: Arc<Mutex<Inner>>,
    clock: Clock,
}

impl UsageMeter {
    /// Continues from the checkpoint of an earlier process, if there is one.
    pub(super) fn new(clock: Clock, stream: Option<&Stream>) -> Self {
        let read = |text: &str| match serde_json::from_str::<Checkpoint>(text) {
            Ok(saved) => Some(saved),
            Err(error) => {
                tracing::error!(%error, "the last billing checkpoint cannot be read");
                None
            }
        };
        let saved = stream.and_then(Stream::checkpoint).and_then(read);
        let (now, wall) = (clock.now(), clock.wall());
        let meter = saved.map_or_else(
            || Meter::new(wall),
            |saved| Meter::restore(&saved, now, wall),
        );
        let inner = Inner {
            meter,
            vms: BTreeMap::new(),
            is_listing: true,
            is_dirty: false,
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            clock,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the watch begins a list.
    pub fn listing(&self) {
        self.lock().is_listing = true;
    }

    /// Notes the end of a list. VMs for which `is_there` is false are gone.
    pub fn listed(&self, is_there: impl Fn(&NamespacedName) -> bool) {
        let now = self.clock.now();
        let inner = &mut *self.lock();
        inner.vms.retain(|key, _| is_there(key));
        let uids: std::collections::BTreeSet<&str> =
            inner.vms.values().map(|seen| seen.uid.as_str()).collect();
        inner.meter.retain(now, |uid| uids.contains(uid));
        inner.meter.certain(now);
        (inner.is_listing, inner.is_dirty) = (false, true);
    }

    /// Notes that the watch failed. Usage from now on is in doubt.
    pub fn failing(&self) {
        let now = self.clock.now();
        self.lock().meter.doubt(now);
    }

    /// Takes the newest state of a VM; `None` when it is not on this node.
    pub fn see(&self, key: &NamespacedName, vm: Option<&VirtualMachine>) {
        let now = self.clock.now();
        let inner = &mut *self.lock();
        let new = vm.map(seen);
        let old = inner.vms.get(key);
        if let Some(old) = old
            && new.as_ref().is_none_or(|new| new.uid != old.uid)
        {
            inner.meter.observe(now, &old.uid, None);
        }
        if let Some(new) = &new {
            inner.meter.observe(now, &new.uid, new.billed.as_ref());
        }
        if old != new.as_ref() {
            inner.is_dirty = true;
            match new {
                Some(new) => inner.vms.insert(key.clone(), new),
                None => inner.vms.remove(key),
            };
        }
        // The watch sends changes in order. Those from before the failure have come by now, or
        // follow at once.
        if !inner.is_listing {
            inner.meter.certain(now);
        }
    }

    fn kinds(&self) -> Vec<VmKind> {
        let inner = self.lock();
        inner.vms.values().map(|seen| seen.kind.clone()).collect()
    }

    /// Returns whether anything changed since the last call.
    fn take_dirty(&self) -> bool {
        std::mem::take(&mut self.lock().is_dirty)
    }

    fn checkpoint(&self) -> Checkpoint {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        self.lock().meter.checkpoint(now, wall)
    }

    fn accumulate(&self, names: &Names) -> Vec<BillingEvent> {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        self.lock().meter.accumulate(now, wall, names)
    }
}

fn seen(vm: &VirtualMachine) -> Seen {
    let (phase, cpus) = match &vm.status {
        Some(status) => (status.phase, status.cpus),
        None => (VmPhase::New, None),
    };
    let endpoint = vm.metadata.annotations.get(ANNOTATION_BILLING_ENDPOINT);
    let is_alive = matches!(
        phase,
        VmPhase::Running | VmPhase::PreMigrating | VmPhase::Scaling | VmPhase::Migrating
    );
    let billed = endpoint.zip(cpus).filter(|_| is_alive);
    let label = |is: bool| if is { "true" } else { "false" };
    let phase = serde_json::to_value(phase).ok();
    Seen {
        uid: vm.metadata.uid.clone(),
        kind: VmKind {
            is_endpoint: label(endpoint.is_some()),
            autoscaling_enabled: label(vm.metadata.label_is_true(LABEL_ENABLED)),
            phase: phase
                .and_then(|phase| phase.as_str().map(str::to_owned))
                .unwrap_or_default(),
        },
        billed: billed.map(|(endpoint, cpu)| Billed {
            endpoint_id: endpoint.clone(),
            cpu,
        }),
    }
}

/// The task that writes billing events.
pub(super) struct Biller {
    usage: UsageMeter,
    stream: Option<Stream>,
    metrics: EventMetrics,
    names: Names,
    /// Events that the disk has not taken so far.
    unwritten: Vec<String>,
}

impl Biller {
    pub(super) fn new(
        usage: UsageMeter,
        stream: Option<Stream>,
        metrics: EventMetrics,
        settings: &BillingSettings,
    ) -> Self {
        let host = nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok());
        Self {
            usage,
            stream,
            metrics,
            names: Names {
                cpu_metric: settings.cpu_metric_name.clone(),
                active_metric: settings.active_time_metric_name.clone(),
                host: host.unwrap_or_else(|| NO_HOST.into()),
            },
            unwritten: Vec::new(),
        }
    }

    /// Runs until cancelled. It then ends the period, so that all usage is in an event.
    pub(super) async fn run(mut self, settings: BillingSettings, cancel: CancellationToken) {
        let every = |period: Duration| {
            let mut interval = tokio::time::interval(period);
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            interval
        };
        let mut collect = every(settings.collect_every);
        let mut accumulate = every(settings.accumulate_every);
        // The first tick of an interval comes at once, when the period has only begun.
        accumulate.tick().await;
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                _ = collect.tick() => {
                    self.metrics.show_vms(self.usage.kinds().into_iter());
                    if self.stream.is_some() && self.usage.take_dirty() {
                        self.write(Vec::new()).await;
                    }
                }
                _ = accumulate.tick() => self.end_period().await,
            }
        }
        self.end_period().await;
    }

    async fn end_period(&mut self) {
        if self.stream.is_some() {
            let events = self.usage.accumulate(&self.names);
            self.write(events).await;
        }
    }

    /// Writes events and a checkpoint of the meter as one group, so that a restart neither loses
    /// nor repeats usage.
    async fn write(&mut self, events: Vec<BillingEvent>) {
        let Some(stream) = &self.stream else { return };
        let lines = events
            .iter()
            .filter_map(|event| serde_json::to_string(event).ok());
        self.unwritten.extend(lines);
        let excess = self.unwritten.len().saturating_sub(MAX_UNWRITTEN);
        if excess > 0 {
            tracing::error!(excess, "billing events are lost: the disk takes none");
            self.unwritten.drain(..excess);
        }
        let checkpoint = serde_json::to_string(&self.usage.checkpoint()).ok();
        let written = stream.append(self.unwritten.clone(), checkpoint).await;
        match written {
            Ok(()) => self.unwritten.clear(),
            Err(error) => {
                let error = daemon_kit::chain(&error);
                let waiting = self.unwritten.len();
                tracing::error!(error, waiting, "billing events are not on disk yet");
            }
        }
    }
}
