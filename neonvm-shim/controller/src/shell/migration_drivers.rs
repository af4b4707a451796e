//! Routes watch events to one migration driver per VM that has migrations, and ends drivers that
//! have nothing left to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api_client::watch::Event as WatchEvent;
use daemon_kit::chain;
use futures::stream::FuturesUnordered;
use kube::ResourceExt;
use kube::core::DynamicObject;
use protocol::object::Pod;
use protocol::vm::VirtualMachine;
use rand::Rng;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::clock::{moment, pause};
use super::context::Context;
use super::decode;
use super::mailbox::Mailbox;
use super::migration_driver::MigrationDriver;
use super::object_key::{ObjectKey, key_of, text_of, unlisted};
use super::runner_key::RunnerKey;
use crate::core::announce::Announcer;
use crate::core::migration::{Event, MigrationCore};
use crate::core::{Moment, Settings};

/// A driver that a defect has ended starts again after this long.
pub(super) const DRIVER_PAUSE: Duration = Duration::from_secs(1);

/// One that runs.
struct Running {
    mailbox: Mailbox<Event>,
    cancel: CancellationToken,
    task: Id,
}

/// State that a migration driver starts from.
pub(super) struct DriverInputs {
    /// The VM, or `None` before the watch has reported it.
    pub(super) vm: Option<(Moment, Box<VirtualMachine>)>,
    pub(super) pods: Vec<(Moment, Event)>,
    /// Delay before the driver's first action.
    pub(super) after: Duration,
}

/// See the module.
pub(super) struct MigrationDrivers {
    context: Context,
    settings: Settings,
    running: BTreeMap<ObjectKey, Running>,
    /// The VM of each migration, and the newest event of the migration.
    migrations: BTreeMap<ObjectKey, (ObjectKey, Moment, Event)>,
    listed: BTreeSet<ObjectKey>,
    tasks: JoinSet<()>,
}

impl MigrationDrivers {
    pub(super) fn new(context: Context, settings: Settings) -> Self {
        Self {
            context,
            settings,
            running: BTreeMap::new(),
            migrations: BTreeMap::new(),
            listed: BTreeSet::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Takes an event of the migrations' watch. Returns the VMs whose drivers are to be started.
    /// After a list they start together, because one migration depends on the others of its VM.
    pub(super) fn event(&mut self, event: WatchEvent<DynamicObject>) -> BTreeSet<ObjectKey> {
        match event {
            WatchEvent::Init => self.listed.clear(),
            WatchEvent::InitApply(object) => {
                self.listed.insert(key_of(&object));
                self.observe(object);
            }
            WatchEvent::InitDone => {
                for key in unlisted(self.migrations.keys(), &mut self.listed) {
                    self.lost(&key, None);
                }
                self.context.state.listed_migrations();
                let all = self.migrations.values().map(|(vm, ..)| vm);
                return all
                    .filter(|vm| !self.running.contains_key(*vm))
                    .cloned()
                    .collect();
            }
            WatchEvent::Apply(object) => return self.observe(object).into_iter().collect(),
            WatchEvent::Delete(object) => self.lost(&key_of(&object), object.uid()),
        }
        BTreeSet::new()
    }

    fn observe(&mut self, object: DynamicObject) -> Option<ObjectKey> {
        let received = moment(&self.context.clock);
        let key = key_of(&object);
        let decoded = decode::migration(object);
        let migration = match decoded {
            Ok(migration) => Box::new(migration),
            Err(error) => {
                // One that cannot be read hurts itself only.
                tracing::warn!(
                    migration = text_of(&key),
                    error = chain(&error),
                    "malformed migration left alone"
                );
                return None;
            }
        };
        let vm = (key.0.clone(), migration.spec.vm_name.clone());
        let event = Event::Migration(migration);
        let known = (vm.clone(), received, event.clone());
        self.migrations.insert(key, known);
        match self.running.get(&vm) {
            Some(running) => {
                running.mailbox.put(received, event);
                None
            }
            None => Some(vm),
        }
    }

    fn lost(&mut self, key: &ObjectKey, uid: Option<String>) {
        let Some((vm, ..)) = self.migrations.remove(key) else {
            return;
        };
        let gone = Event::MigrationGone {
            name: key.1.clone(),
            uid,
        };
        self.send(&vm, moment(&self.context.clock), gone);
        let (of, migration) = (text_of(&vm), text_of(key));
        self.context.state.forget_migration(&of, &migration);
        if !self.migrations.values().any(|(of, ..)| *of == vm) {
            if let Some(running) = self.running.remove(&vm) {
                running.cancel.cancel();
            }
            self.context.state.forget_migrations(&of);
        }
    }

    pub(super) fn observe_vm(&self, key: &ObjectKey, vm: &VirtualMachine, received: Moment) {
        if self.running.contains_key(key) {
            self.send(key, received, Event::Vm(Box::new(vm.clone())));
        }
    }

    pub(super) fn lost_vm(&self, key: &ObjectKey) {
        self.send(key, moment(&self.context.clock), Event::VmGone);
    }

    pub(super) fn observe_pod(&self, vm: &ObjectKey, pod: &Pod, received: Moment) {
        if self.running.contains_key(vm) {
            self.send(vm, received, Event::Pod(Box::new(pod.clone())));
        }
    }

    pub(super) fn missed_pod(&self, vm: &ObjectKey, name: &str, uid: &str) {
        let unseen = Event::PodUnseen {
            name: name.to_owned(),
            uid: Some(uid.to_owned()),
        };
        self.send(vm, moment(&self.context.clock), unseen);
    }

    fn send(&self, vm: &ObjectKey, at: Moment, event: Event) {
        if let Some(running) = self.running.get(vm) {
            running.mailbox.put(at, event);
        }
    }

    /// Starts the migration driver of a VM, with all known objects in its mailbox. The driver reads
    /// a VM that the watch has not shown.
    pub(super) fn start(&mut self, key: ObjectKey, inputs: DriverInputs) {
        let mailbox = Mailbox::default();
        for (of, at, event) in self.migrations.values() {
            if *of == key {
                mailbox.put(*at, event.clone());
            }
        }
        for (at, pod) in inputs.pods {
            mailbox.put(at, pod);
        }
        if let Some((at, vm)) = inputs.vm {
            mailbox.put(at, Event::Vm(vm));
        }
        let after = inputs.after;
        let cancel = CancellationToken::new();
        let driver = MigrationDriver {
            namespace: key.0.clone(),
            name: key.1.clone(),
            core: MigrationCore::new(self.settings.clone(), rand::rng().random()),
            mailbox: mailbox.clone(),
            context: self.context.clone(),
            slot: self.context.state.migration_slot(&text_of(&key)),
            announcer: Announcer::default(),
            key: Arc::new(RunnerKey::new(
                Arc::clone(&self.context.api),
                &key.0,
                &key.1,
            )),
            under_way: FuturesUnordered::new(),
            links: BTreeMap::new(),
        };
        let stop = cancel.clone();
        let task = self.tasks.spawn(async move {
            if !after.is_zero() {
                pause(after).await;
            }
            driver.run(stop).await;
        });
        let running = Running {
            mailbox,
            cancel,
            task: task.id(),
        };
        self.running.insert(key, running);
    }

    /// Waits for a driver that a defect ends. The driver of the returned VM starts again after
    /// [`DRIVER_PAUSE`].
    pub(super) async fn died(&mut self) -> ObjectKey {
        loop {
            match self.tasks.join_next_with_id().await {
                Some(Err(error)) => {
                    if let Some(key) = self.find(&error) {
                        return key;
                    }
                }
                Some(Ok(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    fn find(&mut self, error: &JoinError) -> Option<ObjectKey> {
        let mut all = self.running.iter();
        let found = all.find(|(_, running)| running.task == error.id());
        let key = found.map(|(key, _)| key.clone())?;
        tracing::error!(
            vm = text_of(&key),
            error = chain(error),
            "migration driver failed, restarting"
        );
        self.context.state.panicked();
        self.running.remove(&key);
        Some(key)
    }

    pub(super) async fn end(&mut self) {
        for running in self.running.values() {
            running.cancel.cancel();
        }
        while self.tasks.join_next().await.is_some() {}
    }
}
