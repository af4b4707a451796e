//! Routes watch events to one driver per VM, and restarts a driver that a defect has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api_client::watch::{Error as WatchError, Event as WatchEvent, Events};
use daemon_kit::chain;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::ResourceExt;
use kube::core::DynamicObject;
use protocol::annotations::LABEL_VM_NAME;
use protocol::vm::VirtualMachine;
use rand::Rng;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::clock::{moment, pause};
use super::context::Context;
use super::decode;
use super::events::EventRequest;
use super::mailbox::Mailbox;
use super::migration_drivers::{DRIVER_PAUSE, DriverInputs, MigrationDrivers};
use super::object_key::{ObjectKey, key_of, text_of, unlisted};
use super::runner_key::RunnerKey;
use super::vm_driver::VmDriver;
use super::watch::RunError;
use crate::core::announce::{About, Announcer};
use crate::core::{Event, Moment, Settings, VmCore, VmEvent, migration};

/// How often failing objects are counted and logged.
const FAILING_REFRESH: Duration = Duration::from_secs(15);

struct Running {
    mailbox: Mailbox<Event>,
    newest: Box<VirtualMachine>,
    received: Moment,
    cancel: CancellationToken,
    task: Id,
}

struct KnownPod {
    vm: ObjectKey,
    uid: String,
    received: Moment,
    seen: Event,
}

/// See the module.
pub(super) struct Hub {
    context: Context,
    settings: Settings,
    vms: BTreeMap<ObjectKey, Running>,
    pods: BTreeMap<ObjectKey, KnownPod>,
    listed_vms: BTreeSet<ObjectKey>,
    listed_pods: BTreeSet<ObjectKey>,
    drivers: JoinSet<()>,
    migrations: MigrationDrivers,
    /// Announcer for malformed objects, which have no driver.
    announcer: Announcer,
}

impl Hub {
    pub(super) fn new(context: Context, settings: Settings) -> Self {
        Self {
            migrations: MigrationDrivers::new(context.clone(), settings.clone()),
            context,
            settings,
            vms: BTreeMap::new(),
            pods: BTreeMap::new(),
            listed_vms: BTreeSet::new(),
            listed_pods: BTreeSet::new(),
            drivers: JoinSet::new(),
            announcer: Announcer::default(),
        }
    }

    /// Routes until `cancel`, then ends every driver.
    pub(super) async fn run(
        mut self,
        mut vms: Events<DynamicObject>,
        mut pods: Events<DynamicObject>,
        mut migrations: Events<DynamicObject>,
        cancel: CancellationToken,
    ) -> Result<(), RunError> {
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
                seen = migrations.next() => match seen {
                    Some(Ok(event)) => for vm in self.migrations.event(event) {
                        self.start_migration_driver(vm, Duration::ZERO);
                    },
                    Some(Err(error)) => warn("VirtualMachineMigrations", &error),
                    None => break Err(RunError::WatchEnded("VirtualMachineMigrations")),
                },
                vm = self.migrations.died() => self.start_migration_driver(vm, DRIVER_PAUSE),
                Some(ended) = self.drivers.join_next_with_id() => self.driver_ended(ended),
                _ = refresh.tick() => self.count_failing(),
            }
        };
        for running in self.vms.values() {
            running.cancel.cancel();
        }
        self.migrations.end().await;
        while self.drivers.join_next().await.is_some() {}
        ended
    }

    fn vm_event(&mut self, event: WatchEvent<DynamicObject>) {
        match event {
            WatchEvent::Init => self.listed_vms.clear(),
            WatchEvent::InitApply(object) => {
                self.listed_vms.insert(key_of(&object));
                self.observe_vm(object);
            }
            WatchEvent::InitDone => {
                for key in unlisted(self.vms.keys(), &mut self.listed_vms) {
                    self.lost_vm(&key);
                }
                self.context.state.listed_vms();
            }
            WatchEvent::Apply(object) => self.observe_vm(object),
            WatchEvent::Delete(object) => self.lost_vm(&key_of(&object)),
        }
    }

    fn observe_vm(&mut self, object: DynamicObject) {
        let received = moment(&self.context.clock);
        let (key, uid) = (key_of(&object), object.uid().unwrap_or_default());
        let text = text_of(&key);
        let decoded = decode::vm(object);
        let vm = match decoded {
            Ok(vm) => Box::new(vm),
            Err(error) => return self.left_alone(&key, &uid, chain(&error), received),
        };
        self.context.state.unreadable(&text, None);
        self.migrations.observe_vm(&key, &vm, received);
        if let Some(running) = self.vms.get_mut(&key) {
            running.newest = vm.clone();
            running.received = received;
            running.mailbox.put(received, Event::Vm(vm));
        } else {
            self.start(key, vm, received, Duration::ZERO);
        }
    }

    /// Reports a malformed VM, once per reason, and leaves it alone.
    fn left_alone(&mut self, key: &ObjectKey, uid: &str, why: String, at: Moment) {
        let text = text_of(key);
        tracing::warn!(vm = text, error = why, "malformed VM left alone");
        self.context.state.unreadable(&text, Some(why.clone()));
        let about = About {
            namespace: &key.0,
            name: &key.1,
            uid,
        };
        if let Some(what) = self
            .announcer
            .announce(&VmEvent::Unreadable { why }, about, at)
        {
            self.context.events.send(EventRequest {
                namespace: key.0.clone(),
                what,
            });
        }
    }

    fn lost_vm(&mut self, key: &ObjectKey) {
        if let Some(running) = self.vms.remove(key) {
            running.cancel.cancel();
        }
        self.migrations.lost_vm(key);
        self.context.state.forget(&text_of(key));
    }

    fn pod_event(&mut self, event: WatchEvent<DynamicObject>) {
        match event {
            WatchEvent::Init => self.listed_pods.clear(),
            WatchEvent::InitApply(object) => {
                self.listed_pods.insert(key_of(&object));
                self.observe_pod(object);
            }
            WatchEvent::InitDone => {
                for key in unlisted(self.pods.keys(), &mut self.listed_pods) {
                    self.missed_pod(&key);
                }
                self.context.state.listed_pods();
            }
            WatchEvent::Apply(object) => self.observe_pod(object),
            WatchEvent::Delete(object) => self.missed_pod(&key_of(&object)),
        }
    }

    fn observe_pod(&mut self, object: DynamicObject) {
        let received = moment(&self.context.clock);
        let key = key_of(&object);
        let Some(vm) = object.labels().get(LABEL_VM_NAME).cloned() else {
            return;
        };
        let uid = object.uid().unwrap_or_default();
        let decoded = decode::pod(object);
        let seen = match decoded {
            Ok(pod) => Event::Pod(Box::new(pod)),
            Err(error) => {
                tracing::warn!(
                    pod = text_of(&key),
                    error = chain(&error),
                    "malformed pod ignored"
                );
                return;
            }
        };
        let vm = (key.0.clone(), vm);
        if let Event::Pod(pod) = &seen {
            self.migrations.observe_pod(&vm, pod, received);
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

    fn missed_pod(&mut self, key: &ObjectKey) {
        if let Some(pod) = self.pods.remove(key) {
            self.is_unseen(key, pod);
        }
    }

    /// Reports to the core of a VM that the watch no longer shows a pod. The core finds out whether
    /// the pod is gone.
    fn is_unseen(&self, key: &ObjectKey, pod: KnownPod) {
        self.migrations.missed_pod(&pod.vm, &key.1, &pod.uid);
        if let Some(running) = self.vms.get(&pod.vm) {
            let unseen = Event::PodUnseen {
                name: key.1.clone(),
                uid: Some(pod.uid),
            };
            running.mailbox.put(moment(&self.context.clock), unseen);
        }
    }

    /// Starts the driver of a VM, with all known objects in its mailbox.
    fn start(
        &mut self,
        key: ObjectKey,
        vm: Box<VirtualMachine>,
        received: Moment,
        after: Duration,
    ) {
        let mailbox = Mailbox::default();
        mailbox.put(received, Event::Vm(vm.clone()));
        for pod in self.pods.values().filter(|pod| pod.vm == key) {
            mailbox.put(pod.received, pod.seen.clone());
        }
        let cancel = CancellationToken::new();
        let driver = VmDriver {
            namespace: key.0.clone(),
            name: key.1.clone(),
            core: VmCore::new(self.settings.clone(), rand::rng().random()),
            mailbox: mailbox.clone(),
            context: self.context.clone(),
            slot: self.context.state.vm_slot(&text_of(&key)),
            announcer: Announcer::default(),
            key: Arc::new(RunnerKey::new(
                Arc::clone(&self.context.api),
                &key.0,
                &key.1,
            )),
            under_way: FuturesUnordered::new(),
            held: None,
        };
        let stop = cancel.clone();
        let task = self.drivers.spawn(async move {
            if !after.is_zero() {
                pause(after).await;
            }
            driver.run(stop).await;
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

    /// Starts the migration driver of a VM.
    fn start_migration_driver(&mut self, key: ObjectKey, after: Duration) {
        let vm = self.vms.get(&key);
        let vm = vm.map(|running| (running.received, running.newest.clone()));
        let of_vm = self.pods.values().filter(|pod| pod.vm == key);
        let pods = of_vm
            .filter_map(|pod| match &pod.seen {
                Event::Pod(seen) => Some((pod.received, migration::Event::Pod(seen.clone()))),
                _ => None,
            })
            .collect();
        self.migrations.start(key, DriverInputs { vm, pods, after });
    }

    fn driver_ended(&mut self, ended: Result<(Id, ()), JoinError>) {
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
            "VM driver failed, restarting"
        );
        self.context.state.panicked();
        if let Some(running) = self.vms.remove(&key) {
            self.start(key, running.newest, running.received, DRIVER_PAUSE);
        }
    }

    fn count_failing(&self) {
        for standing in self.context.state.degraded(self.context.clock.now()) {
            let (controller, failing) = (standing.controller, &standing.failing);
            for object in failing.active.iter().chain(&failing.idle) {
                tracing::warn!(controller, object, "has had only failures for a while");
            }
            self.context.metrics.degraded(&standing);
        }
    }
}

fn warn(kind: &str, error: &WatchError) {
    tracing::warn!(kind, error = chain(error), "watch failed, retrying");
}
