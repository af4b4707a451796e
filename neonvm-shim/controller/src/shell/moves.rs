//! Routes what the watches see to one mover per VM that has migrations, and ends those that have
//! nothing left to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::chain;
use kube::ResourceExt;
use kube::core::DynamicObject;
use kube::runtime::watcher;
use protocol::object::Pod;
use protocol::vm::VirtualMachine;
use rand::Rng;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::hub::{Key, key_of, text_of};
use super::mailbox::Mailbox;
use super::mover::Mover;
use super::runner_key::RunnerKey;
use super::worker::Common;
use super::{decode, moment, pause};
use crate::core::announce::Announcer;
use crate::core::migration::{Event, MoveCore};
use crate::core::{Moment, Settings};

/// A mover that a defect has ended starts again after this long.
pub(super) const MOVER_PAUSE: Duration = Duration::from_secs(1);

/// One that runs.
struct Running {
    mailbox: Mailbox<Event>,
    cancel: CancellationToken,
    task: Id,
}

/// State that a mover starts from.
pub(super) struct MoverInputs {
    /// The VM, or `None` before the watch has reported it.
    pub(super) vm: Option<(Moment, Box<VirtualMachine>)>,
    pub(super) pods: Vec<(Moment, Event)>,
    /// Delay before the mover's first action.
    pub(super) after: Duration,
}

/// See the module.
pub(super) struct Moves {
    common: Common,
    settings: Settings,
    running: BTreeMap<Key, Running>,
    /// The VM of each migration, and what was seen of it.
    migrations: BTreeMap<Key, (Key, Moment, Event)>,
    listed: BTreeSet<Key>,
    tasks: JoinSet<()>,
}

impl Moves {
    pub(super) fn new(common: Common, settings: Settings) -> Self {
        Self {
            common,
            settings,
            running: BTreeMap::new(),
            migrations: BTreeMap::new(),
            listed: BTreeSet::new(),
            tasks: JoinSet::new(),
        }
    }

    /// The watch of migrations saw something. The VMs whose movers are to be started: after a list
    /// all at once, for what one migration may do rests on what the others of its VM do.
    pub(super) fn event(&mut self, event: watcher::Event<DynamicObject>) -> BTreeSet<Key> {
        match event {
            watcher::Event::Init => self.listed.clear(),
            watcher::Event::InitApply(object) => {
                self.listed.insert(key_of(&object));
                self.saw(object);
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                let gone: Vec<Key> = self
                    .migrations
                    .keys()
                    .filter(|key| !listed.contains(*key))
                    .cloned()
                    .collect();
                for key in gone {
                    self.lost(&key, None);
                }
                self.common.state.listed_moves();
                let all = self.migrations.values().map(|(vm, ..)| vm);
                return all
                    .filter(|vm| !self.running.contains_key(*vm))
                    .cloned()
                    .collect();
            }
            watcher::Event::Apply(object) => return self.saw(object).into_iter().collect(),
            watcher::Event::Delete(object) => self.lost(&key_of(&object), object.uid()),
        }
        BTreeSet::new()
    }

    fn saw(&mut self, object: DynamicObject) -> Option<Key> {
        let received = moment(&self.common.clock);
        let key = key_of(&object);
        let decoded = serde_json::to_value(object)
            .map_err(|source| decode::DecodeError {
                kind: "VirtualMachineMigration",
                source,
            })
            .and_then(decode::migration);
        let migration = match decoded {
            Ok(migration) => Box::new(migration),
            Err(error) => {
                // One that cannot be read hurts itself only.
                tracing::warn!(
                    migration = text_of(&key),
                    error = chain(&error),
                    "this migration cannot be read and is left alone"
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

    fn lost(&mut self, key: &Key, uid: Option<String>) {
        let Some((vm, ..)) = self.migrations.remove(key) else {
            return;
        };
        let gone = Event::MigrationGone {
            name: key.1.clone(),
            uid,
        };
        self.tell(&vm, moment(&self.common.clock), gone);
        let (of, migration) = (text_of(&vm), text_of(key));
        self.common.state.forget_move(&of, &migration);
        if !self.migrations.values().any(|(of, ..)| *of == vm) {
            if let Some(running) = self.running.remove(&vm) {
                running.cancel.cancel();
            }
            self.common.state.forget_moves(&of);
        }
    }

    pub(super) fn saw_vm(&self, key: &Key, vm: &VirtualMachine, received: Moment) {
        if self.running.contains_key(key) {
            self.tell(key, received, Event::Vm(Box::new(vm.clone())));
        }
    }

    pub(super) fn lost_vm(&self, key: &Key) {
        self.tell(key, moment(&self.common.clock), Event::VmGone);
    }

    pub(super) fn saw_pod(&self, vm: &Key, pod: &Pod, received: Moment) {
        if self.running.contains_key(vm) {
            self.tell(vm, received, Event::Pod(Box::new(pod.clone())));
        }
    }

    pub(super) fn missed_pod(&self, vm: &Key, name: &str, uid: &str) {
        let unseen = Event::PodUnseen {
            name: name.to_owned(),
            uid: Some(uid.to_owned()),
        };
        self.tell(vm, moment(&self.common.clock), unseen);
    }

    fn tell(&self, vm: &Key, at: Moment, event: Event) {
        if let Some(running) = self.running.get(vm) {
            running.mailbox.put(at, event);
        }
    }

    /// Starts the mover of a VM, with everything known of it in its mailbox. A VM that was not seen
    /// is read.
    pub(super) fn start(&mut self, key: Key, inputs: MoverInputs) {
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
        let mover = Mover {
            namespace: key.0.clone(),
            name: key.1.clone(),
            core: MoveCore::new(self.settings.clone(), rand::rng().random()),
            mailbox: mailbox.clone(),
            common: self.common.clone(),
            slot: self.common.state.migration_slot(&text_of(&key)),
            announcer: Announcer::default(),
            key: Arc::new(RunnerKey::new(Arc::clone(&self.common.api), &key.0, &key.1)),
        };
        let stop = cancel.clone();
        let task = self.tasks.spawn(async move {
            if !after.is_zero() {
                pause(after).await;
            }
            mover.run(stop).await;
        });
        let running = Running {
            mailbox,
            cancel,
            task: task.id(),
        };
        self.running.insert(key, running);
    }

    /// Waits for a mover that a defect ends: the VM it was of is to get another one after
    /// [`MOVER_PAUSE`].
    pub(super) async fn died(&mut self) -> Key {
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

    fn find(&mut self, error: &JoinError) -> Option<Key> {
        let mut all = self.running.iter();
        let found = all.find(|(_, running)| running.task == error.id());
        let key = found.map(|(key, _)| key.clone())?;
        tracing::error!(
            vm = text_of(&key),
            error = chain(error),
            "the mover died, it starts again"
        );
        self.common.state.panicked();
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
