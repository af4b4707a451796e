//! Which VMs this agent scales: watches all VirtualMachines and starts, updates or ends the task of
//! each. No event is dropped. A malformed object affects only its own VM until its next change.
//! Source: docs/compatibility/agent.md §1.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api_client::watch::{self as api_watch, Config, Event, Retry};
use futures::StreamExt;
use kube::api::{Api, DynamicObject};
use protocol::permit::NamespacedName;
use protocol::vm::VirtualMachine;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::context::{Context, Subject};
use super::driver::Driver;
use super::modes::Modes;
use super::patch::vm_resource;
use super::state::{StateHandle, Synced};
use super::supervisor::Supervisor;
use super::vm_feed::VmFeed;
use super::vm_metrics::VmFigures;
use super::vm_object::{choice_of, feed_of, figures_of, key_of, subject_of, with_info};
use crate::core::vm::{Ownership, placement};
use crate::core::{Handoff, ScalingConfig};

/// Time limit for the end of a task; then it is aborted.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// A VM that has a task.
struct Managed {
    subject: Arc<Subject>,
    feed: watch::Sender<VmFeed>,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

/// The task that watches the VMs.
pub(super) struct Vms {
    ctx: Arc<Context>,
    node: String,
    state: StateHandle,
    modes: watch::Receiver<Modes>,
    managed: BTreeMap<NamespacedName, Managed>,
    /// Handoff of the last task of each VM, with the VM's UID. The next pod of a VM may start while
    /// the watch is late.
    handoffs: BTreeMap<NamespacedName, (String, Handoff)>,
    figures: BTreeMap<NamespacedName, VmFigures>,
}

impl Vms {
    pub(super) fn new(
        ctx: Arc<Context>,
        node: String,
        state: StateHandle,
        modes: watch::Receiver<Modes>,
    ) -> Self {
        Self {
            ctx,
            node,
            state,
            modes,
            managed: BTreeMap::new(),
            handoffs: BTreeMap::new(),
            figures: BTreeMap::new(),
        }
    }

    /// Runs until cancelled, then ends all tasks.
    pub(super) async fn run(mut self, cancel: CancellationToken) {
        let api: Api<DynamicObject> = Api::all_with(self.ctx.kube.clone(), &vm_resource());
        // Most VMs belong to other nodes and are dropped after parsing, so one page of a list
        // bounds the memory for them.
        let events = api_watch::objects(api, Config::default(), Retry::Steady);
        let mut events = self.ctx.metrics.watches.count("VirtualMachines", events);
        let mut listed = BTreeSet::new();
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                Ok(()) = self.modes.changed() => {
                    self.change_modes();
                    continue;
                }
                () = cancel.cancelled() => break,
            };
            match event {
                None => break,
                Some(Ok(event)) => self.take(event, &mut listed).await,
                Some(Err(error)) => {
                    self.ctx.usage.failing();
                    let error = daemon_kit::chain(&error);
                    tracing::warn!(error, "cannot follow the VMs");
                }
            }
        }
        drop(events);
        let keys: Vec<NamespacedName> = self.managed.keys().cloned().collect();
        // All tasks are cancelled before the first is awaited.
        self.managed
            .values()
            .for_each(|managed| managed.cancel.cancel());
        for key in keys {
            self.stop(&key).await;
        }
    }

    async fn take(&mut self, event: Event<DynamicObject>, listed: &mut BTreeSet<NamespacedName>) {
        match event {
            Event::Init => {
                listed.clear();
                self.ctx.usage.listing();
            }
            Event::InitApply(object) => {
                listed.insert(key_of(&object));
                self.apply(&object).await;
            }
            Event::InitDone => {
                let known = self.managed.keys().chain(self.figures.keys());
                let gone: BTreeSet<NamespacedName> = known
                    .chain(self.handoffs.keys())
                    .filter(|key| !listed.contains(*key))
                    .cloned()
                    .collect();
                for key in gone {
                    self.forget(&key).await;
                }
                self.ctx.usage.listed(|key| listed.contains(key));
                self.state.synced(Synced::Vms);
            }
            Event::Apply(object) => self.apply(&object).await,
            // The key is enough, so a malformed object is deleted like any other.
            Event::Delete(object) => self.forget(&key_of(&object)).await,
        }
    }

    /// Starts, updates or ends the task of a VM by its object.
    async fn apply(&mut self, object: &DynamicObject) {
        let arrived = self.ctx.clock.now();
        let key = key_of(object);
        let Ok(value) = serde_json::to_value(object) else {
            return;
        };
        let parsed: Result<VirtualMachine, String> =
            serde_json::from_value(value.clone()).map_err(|error| error.to_string());
        self.show_figures(&key, &value, parsed.as_ref().ok());
        self.bill(&key, &value, parsed.as_ref().ok());
        let ours = Ownership {
            node: &self.node,
            scheduler_name: &self.ctx.config.scheduler.scheduler_name,
        };
        let Some(placement) = placement(&value, ours) else {
            self.unparsable(&key, None);
            self.stop(&key).await;
            return;
        };
        let subject = subject_of(&key, object, placement);
        let is_same = self
            .managed
            .get(&key)
            .is_some_and(|managed| *managed.subject == subject);
        let default = self.default_in(&key.namespace);
        match parsed.and_then(|vm| with_info(vm, &default)) {
            Err(error) => {
                self.unparsable(&key, Some(error));
                // The same pod keeps its last valid settings. Another pod has none.
                if !is_same {
                    self.stop(&key).await;
                }
            }
            Ok((vm, info)) => {
                self.unparsable(&key, None);
                let mut feed = feed_of(&self.ctx.clock, &key, &vm, info, arrived);
                feed.choice = self.ctx.policies.as_ref().map(|_| choice_of(&vm));
                if is_same {
                    if let Some(managed) = self.managed.get(&key) {
                        managed.feed.send_replace(feed);
                    }
                } else {
                    self.stop(&key).await;
                    self.start(key, subject, feed);
                }
            }
        }
    }

    /// Settings of VMs in a namespace that have none of their own.
    fn default_in(&self, namespace: &str) -> ScalingConfig {
        let default = self.ctx.config.scaling.default_config;
        let mode = self.modes.borrow().of(namespace, default.mode);
        ScalingConfig { mode, ..default }
    }

    /// Updates every VM whose mode changes with the modes of namespaces.
    fn change_modes(&mut self) {
        self.modes.mark_unchanged();
        for (key, managed) in &self.managed {
            let default = self.default_in(&key.namespace).mode;
            managed.feed.send_if_modified(|feed| {
                let config = &mut feed.update.info.config;
                let mode = config.own_mode.unwrap_or(default);
                let is_other = config.scaling.mode != mode;
                if is_other {
                    config.scaling.mode = mode;
                    feed.arrived = self.ctx.clock.now();
                    tracing::info!(vm = %key, mode = mode.as_str(), "the VM has another mode");
                }
                is_other
            });
        }
    }

    fn unparsable(&self, key: &NamespacedName, error: Option<String>) {
        if let Some(error) = &error
            && !self.state.is_unparsable(key, error)
        {
            tracing::error!(vm = %key, error, "the VM cannot be scaled until its object changes");
        }
        let count = self.state.set_unparsable(key, error);
        self.ctx
            .metrics
            .unparsable
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    fn start(&mut self, key: NamespacedName, subject: Subject, feed: VmFeed) {
        let subject = Arc::new(subject);
        let (feed, receiver) = watch::channel(feed);
        let cancel = CancellationToken::new();
        let span = tracing::info_span!("vm", vm = %key, pod = %subject.pod);
        let supervisor = Supervisor {
            metrics: self.ctx.metrics.clone(),
            clock: self.ctx.clock,
            slot: self.state.slot(&subject.pod),
            cancel: cancel.clone(),
        };
        let (ctx, vm, stop) = (Arc::clone(&self.ctx), Arc::clone(&subject), cancel.clone());
        let slot = supervisor.slot.clone();
        let handoff = self
            .handoffs
            .remove(&key)
            .filter(|(uid, _)| *uid == subject.uid)
            .map(|(_, handoff)| handoff);
        let make = move || {
            let (ctx, vm, slot) = (Arc::clone(&ctx), Arc::clone(&vm), slot.clone());
            Box::new(Driver::new(ctx, vm, receiver.clone(), slot, handoff)).run(stop.clone())
        };
        let task = tokio::spawn(supervisor.run(make).instrument(span));
        tracing::info!(vm = %key, pod = %subject.pod, ip = subject.pod_ip, "managing the VM");
        self.managed.insert(
            key,
            Managed {
                subject,
                feed,
                cancel,
                task,
            },
        );
    }

    /// Ends a VM's task, if it has one, and waits for its end. The VM's next task starts later.
    async fn stop(&mut self, key: &NamespacedName) {
        let Some(mut managed) = self.managed.remove(key) else {
            return;
        };
        managed.cancel.cancel();
        if tokio::time::timeout(STOP_LIMIT, &mut managed.task)
            .await
            .is_err()
        {
            managed.task.abort();
        }
        if let Some(handoff) = self.state.slot(&managed.subject.pod).handoff() {
            let uid = managed.subject.uid.clone();
            self.handoffs.insert(key.clone(), (uid, handoff));
        }
        self.state.remove(&managed.subject.pod);
        tracing::info!(vm = %key, "not managing the VM any more");
    }

    async fn forget(&mut self, key: &NamespacedName) {
        self.ctx.usage.see(key, None);
        self.unparsable(key, None);
        self.stop(key).await;
        self.handoffs.remove(key);
        if let Some(old) = self.figures.remove(key) {
            self.ctx.vm_metrics.remove(&old);
        }
    }

    /// Passes a VM's state to the usage meter. A malformed VM of this node keeps its last state.
    fn bill(&self, key: &NamespacedName, value: &Value, vm: Option<&VirtualMachine>) {
        let is_here = value.pointer("/status/node").and_then(Value::as_str) == Some(&self.node);
        if vm.is_some() || !is_here {
            self.ctx.usage.see(key, vm.filter(|_| is_here));
        }
    }

    /// Shows the per-VM metrics of every VM of this node, managed or not.
    fn show_figures(&mut self, key: &NamespacedName, value: &Value, vm: Option<&VirtualMachine>) {
        let is_here = value.pointer("/status/node").and_then(Value::as_str) == Some(&self.node);
        match vm {
            Some(vm) if is_here => {
                let figures = figures_of(key, vm);
                let old = self.figures.get(key);
                if old != Some(&figures) {
                    self.ctx.vm_metrics.set(old, &figures);
                    self.figures.insert(key.clone(), figures);
                }
            }
            _ if !is_here => {
                if let Some(old) = self.figures.remove(key) {
                    self.ctx.vm_metrics.remove(&old);
                }
            }
            _ => {}
        }
    }
}
