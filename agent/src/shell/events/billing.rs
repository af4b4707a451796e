//! Billing: looks at the VMs of this node as the watch shows them, and writes what they used,
//! period by period, into the log of billing events. Source: docs/compatibility/agent.md §4.6.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daemon_kit::clock::Clock;
use protocol::annotations::{ANNOTATION_BILLING_ENDPOINT, LABEL_ENABLED};
use protocol::permit::NamespacedName;
use protocol::vm::{VirtualMachine, VmPhase};
use tokio_util::sync::CancellationToken;

use super::Stream;
use super::metrics::{EventMetrics, VmKind};
use crate::core::billing::{Billed, BillingEvent, Checkpoint, Meter, Names};
use crate::shell::config;

/// Events kept in memory while the disk does not take them.
const MAX_UNWRITTEN: usize = 100_000;
/// Name of a machine that does not know its own.
const NO_HOST: &str = "unknown";

/// A VM of this node.
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
    /// A list is being read: what is not on it yet may be gone.
    is_listing: bool,
    /// Something changed since the last checkpoint.
    is_dirty: bool,
}

/// The book of what VMs use. Cheap to clone; a lock, not a task: it is held for one change.
#[derive(Debug, Clone)]
pub(crate) struct Book {
    inner: Arc<Mutex<Inner>>,
    clock: Clock,
}

impl Book {
    /// A book that goes on where an earlier process stopped, if it left word.
    pub(crate) fn new(clock: Clock, stream: Option<&Stream>) -> Self {
        let saved = stream.and_then(Stream::checkpoint);
        let saved = saved.and_then(|text| match serde_json::from_str::<Checkpoint>(text) {
            Ok(saved) => Some(saved),
            Err(error) => {
                tracing::error!(%error, "the last billing checkpoint cannot be read");
                None
            }
        });
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

    /// The watch begins a list.
    pub(crate) fn listing(&self) {
        self.lock().is_listing = true;
    }

    /// The list is whole; only these VMs are there.
    pub(crate) fn listed(&self, is_there: impl Fn(&NamespacedName) -> bool) {
        let now = self.clock.now();
        let inner = &mut *self.lock();
        inner.vms.retain(|key, _| is_there(key));
        let uids: std::collections::BTreeSet<&str> =
            inner.vms.values().map(|seen| seen.uid.as_str()).collect();
        inner.meter.retain(now, |uid| uids.contains(uid));
        inner.meter.certain(now);
        (inner.is_listing, inner.is_dirty) = (false, true);
    }

    /// The watch fails: nothing is known from now on.
    pub(crate) fn failing(&self) {
        let now = self.clock.now();
        self.lock().meter.doubt(now);
    }

    /// A VM as it is now; `None` when it is not on this node.
    pub(crate) fn see(&self, key: &NamespacedName, vm: Option<&VirtualMachine>) {
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
        // Changes come in order: whatever else changed while the watch failed has come by now, or
        // comes at once.
        if !inner.is_listing {
            inner.meter.certain(now);
        }
    }

    fn kinds(&self) -> Vec<VmKind> {
        let inner = self.lock();
        inner.vms.values().map(|seen| seen.kind.clone()).collect()
    }

    /// Whether there is something new to save; then it counts as saved.
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
    let word = |is: bool| if is { "true" } else { "false" };
    let phase = serde_json::to_value(phase).ok();
    Seen {
        uid: vm.metadata.uid.clone(),
        kind: VmKind {
            is_endpoint: word(endpoint.is_some()),
            autoscaling_enabled: word(vm.metadata.label_is_true(LABEL_ENABLED)),
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

/// Writes the book's periods.
pub(crate) struct Biller {
    pub book: Book,
    pub stream: Option<Stream>,
    pub metrics: EventMetrics,
    names: Names,
    /// Events that the disk did not take.
    unwritten: Vec<String>,
}

impl Biller {
    pub(crate) fn new(
        book: Book,
        stream: Option<Stream>,
        metrics: EventMetrics,
        config: &config::Billing,
    ) -> Self {
        let host = nix::unistd::gethostname().ok();
        let host = host.and_then(|host| host.into_string().ok());
        Self {
            book,
            stream,
            metrics,
            names: Names {
                cpu_metric: config.cpu_metric_name.clone(),
                active_metric: config.active_time_metric_name.clone(),
                host: host.unwrap_or_else(|| NO_HOST.into()),
            },
            unwritten: Vec::new(),
        }
    }

    /// Runs until cancelled; then the period is ended, so that nothing is left untold.
    pub(crate) async fn run(mut self, config: config::Billing, cancel: CancellationToken) {
        let every = |seconds: config::Seconds| {
            let mut interval = tokio::time::interval(seconds.duration());
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            interval
        };
        let mut collect = every(config.collect_every);
        let mut accumulate = every(config.accumulate_every);
        // The first tick of an interval is now, and the period has only begun.
        accumulate.tick().await;
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                _ = collect.tick() => {
                    self.metrics.looked_at(self.book.kinds().into_iter());
                    if self.stream.is_some() && self.book.take_dirty() {
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
            let events = self.book.accumulate(&self.names);
            self.write(events).await;
        }
    }

    /// Writes events with a checkpoint of right now: together, so that a restart neither loses nor
    /// repeats anything.
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
        let checkpoint = serde_json::to_string(&self.book.checkpoint()).ok();
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
