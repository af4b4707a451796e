//! Routes what the watches see to one worker per VM, and starts a worker anew that a defect has
//! ended.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::chain;
use futures::{Stream, StreamExt};
use kube::ResourceExt;
use kube::core::DynamicObject;
use kube::runtime::watcher;
use protocol::annotations::LABEL_VM_NAME;
use protocol::vm::VirtualMachine;
use rand::Rng;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::events::EventRequest;
use super::mailbox::Mailbox;
use super::moves::{MOVER_PAUSE, MoverInputs, Moves};
use super::runner_key::RunnerKey;
use super::worker::{Common, Worker};
use super::{RunError, decode, moment, pause};
use crate::core::announce::{About, Announcer};
use crate::core::{Event, Moment, Settings, VmCore, VmEvent, migration};

/// How often failing objects are counted and logged.
const FAILING_REFRESH: Duration = Duration::from_secs(15);
/// A worker that a defect has ended starts again after this long.
const WORKER_PAUSE: Duration = Duration::from_secs(1);

/// Namespace and name of a VM or migration.
pub(super) type Key = (String, String);
/// Item of a watch's stream.
pub(super) type Seen = Result<watcher::Event<DynamicObject>, watcher::Error>;

struct Running {
    mailbox: Mailbox<Event>,
    newest: Box<VirtualMachine>,
    received: Moment,
    cancel: CancellationToken,
    task: Id,
}

struct KnownPod {
    vm: Key,
    uid: String,
    received: Moment,
    seen: Event,
}

/// See the module.
pub(super) struct Hub {
    common: Common,
    settings: Settings,
    vms: BTreeMap<Key, Running>,
    pods: BTreeMap<Key, KnownPod>,
    listed_vms: BTreeSet<Key>,
    listed_pods: BTreeSet<Key>,
    workers: JoinSet<()>,
    moves: Moves,
    /// For objects that have no worker, because they cannot be read.
    announcer: Announcer,
}

impl Hub {
    pub(super) fn new(common: Common, settings: Settings) -> Self {
        Self {
            moves: Moves::new(common.clone(), settings.clone()),
            common,
            settings,
            vms: BTreeMap::new(),
            pods: BTreeMap::new(),
            listed_vms: BTreeSet::new(),
            listed_pods: BTreeSet::new(),
            workers: JoinSet::new(),
            announcer: Announcer::default(),
        }
    }

    /// Routes until `cancel`, then ends every worker.
    pub(super) async fn run(
        mut self,
        vms: impl Stream<Item = Seen>,
        pods: impl Stream<Item = Seen>,
        moves: impl Stream<Item = Seen>,
        cancel: CancellationToken,
    ) -> Result<(), RunError> {
        let (mut vms, mut pods, mut moves) = (pin!(vms), pin!(pods), pin!(moves));
        let mut refresh = tokio::time::interval(FAILING_REFRESH);
        let ended = loop {
            tokio::select! {
                () = cancel.cancelled() => break Ok(()),
                seen = vms.next() => match seen {
                    Some(Ok(event)) => self.vm_event(event),
                    Some(Err(error)) => warn("VirtualMachines", &error),
                    None => break Err(RunError::WatchEnded("VirtualMachines")),
                },
                seen = pods.next() => match seen {
                    Some(Ok(event)) => self.pod_event(event),
                    Some(Err(error)) => warn("Pods", &error),
                    None => break Err(RunError::WatchEnded("Pods")),
                },
                seen = moves.next() => match seen {
                    Some(Ok(event)) => for vm in self.moves.event(event) {
                        self.start_mover(vm, Duration::ZERO);
                    },
                    Some(Err(error)) => warn("VirtualMachineMigrations", &error),
                    None => break Err(RunError::WatchEnded("VirtualMachineMigrations")),
                },
                vm = self.moves.died() => self.start_mover(vm, MOVER_PAUSE),
                Some(ended) = self.workers.join_next_with_id() => self.worker_ended(ended),
                _ = refresh.tick() => self.count_failing(),
            }
        };
        for running in self.vms.values() {
            running.cancel.cancel();
        }
        self.moves.end().await;
        while self.workers.join_next().await.is_some() {}
        ended
    }

    fn vm_event(&mut self, event: watcher::Event<DynamicObject>) {
        match event {
            watcher::Event::Init => self.listed_vms.clear(),
            watcher::Event::InitApply(object) => {
                self.listed_vms.insert(key_of(&object));
                self.saw_vm(object);
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut self.listed_vms);
                let gone: Vec<Key> = self
                    .vms
                    .keys()
                    .filter(|key| !listed.contains(*key))
                    .cloned()
                    .collect();
                for key in gone {
                    self.lost_vm(&key);
                }
                self.common.state.listed_vms();
            }
            watcher::Event::Apply(object) => self.saw_vm(object),
            watcher::Event::Delete(object) => self.lost_vm(&key_of(&object)),
        }
    }

    fn saw_vm(&mut self, object: DynamicObject) {
        let received = moment(&self.common.clock);
        let (key, uid) = (key_of(&object), object.uid().unwrap_or_default());
        let text = text_of(&key);
        let decoded = serde_json::to_value(object)
            .map_err(|source| decode::DecodeError {
                kind: "VirtualMachine",
                source,
            })
            .and_then(decode::vm);
        let vm = match decoded {
            Ok(vm) => Box::new(vm),
            Err(error) => return self.left_alone(&key, &uid, chain(&error), received),
        };
        self.common.state.unreadable(&text, None);
        self.moves.saw_vm(&key, &vm, received);
        if let Some(running) = self.vms.get_mut(&key) {
            running.newest = vm.clone();
            running.received = received;
            running.mailbox.put(received, Event::Vm(vm));
        } else {
            self.start(key, vm, received, Duration::ZERO);
        }
    }

    /// A VM that cannot be read: said once per reason, and nothing done to it.
    fn left_alone(&mut self, key: &Key, uid: &str, why: String, at: Moment) {
        let text = text_of(key);
        tracing::warn!(
            vm = text,
            error = why,
            "this object cannot be read and is left alone"
        );
        self.common.state.unreadable(&text, Some(why.clone()));
        let about = About {
            namespace: &key.0,
            name: &key.1,
            uid,
        };
        if let Some(what) = self
            .announcer
            .announce(&VmEvent::Unreadable { why }, about, at)
        {
            self.common.events.send(EventRequest {
                namespace: key.0.clone(),
                what,
            });
        }
    }

    fn lost_vm(&mut self, key: &Key) {
        if let Some(running) = self.vms.remove(key) {
            running.cancel.cancel();
        }
        self.moves.lost_vm(key);
        self.common.state.forget(&text_of(key));
    }

    fn pod_event(&mut self, event: watcher::Event<DynamicObject>) {
        match event {
            watcher::Event::Init => self.listed_pods.clear(),
            watcher::Event::InitApply(object) => {
                self.listed_pods.insert(key_of(&object));
                self.saw_pod(object);
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut self.listed_pods);
                let gone: Vec<Key> = self
                    .pods
                    .keys()
                    .filter(|key| !listed.contains(*key))
                    .cloned()
                    .collect();
                for key in gone {
                    self.missed_pod(&key);
                }
                self.common.state.listed_pods();
            }
            watcher::Event::Apply(object) => self.saw_pod(object),
            watcher::Event::Delete(object) => self.missed_pod(&key_of(&object)),
        }
    }

    fn saw_pod(&mut self, object: DynamicObject) {
        let received = moment(&self.common.clock);
        let key = key_of(&object);
        let Some(vm) = object.labels().get(LABEL_VM_NAME).cloned() else {
            return;
        };
        let uid = object.uid().unwrap_or_default();
        let decoded = serde_json::to_value(object)
            .map_err(|source| decode::DecodeError {
                kind: "Pod",
                source,
            })
            .and_then(decode::pod);
        let seen = match decoded {
            Ok(pod) => Event::Pod(Box::new(pod)),
            Err(error) => {
                tracing::warn!(
                    pod = text_of(&key),
                    error = chain(&error),
                    "this pod cannot be read"
                );
                return;
            }
        };
        let vm = (key.0.clone(), vm);
        if let Event::Pod(pod) = &seen {
            self.moves.saw_pod(&vm, pod, received);
        }
        if let Some(running) = self.vms.get(&vm) {
            running.mailbox.put(received, seen.clone());
        }
        let known = KnownPod {
            vm: vm.clone(),
            uid,
            received,
            seen,
        };
        let before = self.pods.insert(key.clone(), known);
        if let Some(before) = before.filter(|before| before.vm != vm) {
            // Marked as another VM's now, which its own cannot see.
            self.is_unseen(&key, before);
        }
    }

    fn missed_pod(&mut self, key: &Key) {
        if let Some(pod) = self.pods.remove(key) {
            self.is_unseen(key, pod);
        }
    }

    /// Tells the VM of a pod that the watch does not show it any more. Whether it is gone is for
    /// the VM's core to find out.
    fn is_unseen(&self, key: &Key, pod: KnownPod) {
        self.moves.missed_pod(&pod.vm, &key.1, &pod.uid);
        if let Some(running) = self.vms.get(&pod.vm) {
            let unseen = Event::PodUnseen {
                name: key.1.clone(),
                uid: Some(pod.uid),
            };
            running.mailbox.put(moment(&self.common.clock), unseen);
        }
    }

    /// Starts the worker of a VM, with everything known of it in its mailbox.
    fn start(&mut self, key: Key, vm: Box<VirtualMachine>, received: Moment, after: Duration) {
        let mailbox = Mailbox::default();
        mailbox.put(received, Event::Vm(vm.clone()));
        for pod in self.pods.values().filter(|pod| pod.vm == key) {
            mailbox.put(pod.received, pod.seen.clone());
        }
        let cancel = CancellationToken::new();
        let worker = Worker {
            namespace: key.0.clone(),
            name: key.1.clone(),
            core: VmCore::new(self.settings.clone(), rand::rng().random()),
            mailbox: mailbox.clone(),
            common: self.common.clone(),
            slot: self.common.state.vm_slot(&text_of(&key)),
            announcer: Announcer::default(),
            key: Arc::new(RunnerKey::new(Arc::clone(&self.common.api), &key.0, &key.1)),
        };
        let stop = cancel.clone();
        let task = self.workers.spawn(async move {
            if !after.is_zero() {
                pause(after).await;
            }
            worker.run(stop).await;
        });
        let running = Running {
            mailbox,
            newest: vm,
            received,
            cancel,
            task: task.id(),
        };
        self.vms.insert(key, running);
    }

    /// Starts the mover of a VM.
    fn start_mover(&mut self, key: Key, after: Duration) {
        let vm = self.vms.get(&key);
        let vm = vm.map(|running| (running.received, running.newest.clone()));
        let pods = self.pods.values().filter(|pod| pod.vm == key);
        let pods = pods.filter_map(|pod| match &pod.seen {
            Event::Pod(seen) => Some((pod.received, migration::Event::Pod(seen.clone()))),
            _ => None,
        });
        let pods = pods.collect();
        self.moves.start(key, MoverInputs { vm, pods, after });
    }

    fn worker_ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let Err(error) = ended else { return };
        let key = self
            .vms
            .iter()
            .find(|(_, running)| running.task == error.id());
        let Some(key) = key.map(|(key, _)| key.clone()) else {
            return;
        };
        tracing::error!(
            vm = text_of(&key),
            error = chain(&error),
            "a worker died, it starts again"
        );
        self.common.state.panicked();
        if let Some(running) = self.vms.remove(&key) {
            self.start(key, running.newest, running.received, WORKER_PAUSE);
        }
    }

    fn count_failing(&self) {
        for standing in self.common.state.degraded(self.common.clock.now()) {
            let (controller, failing) = (standing.controller, &standing.failing);
            for object in failing.active.iter().chain(&failing.idle) {
                tracing::warn!(controller, object, "has had only failures for a while");
            }
            self.common.metrics.degraded(&standing);
        }
    }
}

fn warn(kind: &str, error: &watcher::Error) {
    tracing::warn!(
        kind,
        error = chain(error),
        "watch broke, it is taken up again"
    );
}

pub(super) fn key_of(object: &DynamicObject) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

pub(super) fn text_of(key: &Key) -> String {
    format!("{}/{}", key.0, key.1)
}
