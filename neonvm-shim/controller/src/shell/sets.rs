//! The driver of all sets: watches of sets and of their members, and requests to the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api_client::watch::{
    self as api_watch, Error as WatchError, Event as WatchEvent, Events, Retry,
};
use daemon_kit::chain;
use daemon_kit::clock::Clock;
use daemon_kit::driver::{Shell, drive};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use protocol::core::Core;
use protocol::policy::LABEL_SET;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::api::KubeApi;
use super::clock::{moment, pause};
use super::decode;
use super::object_key::{ObjectKey, key_of, text_of, unlisted};
use super::set_actions::carry_out;
use super::set_metrics::SetMetrics;
use super::set_records::{MemberChange, SetRecords};
use super::state::StateHandle;
use super::watch::{resource, set_resource};
use crate::core::set::{Action, Event, Outline, SetKey, Sets};

/// A driver that a defect has ended starts again after this long.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Dependencies of the driver of sets.
#[derive(Clone)]
pub(super) struct SetContext {
    pub(super) client: Client,
    pub(super) api: Arc<KubeApi>,
    pub(super) state: StateHandle,
    pub(super) clock: Clock,
    pub(super) metrics: SetMetrics,
    pub(super) records: SetRecords,
}

/// Drives the sets for ever. A driver that a defect has ended is replaced.
pub(super) async fn keep(context: SetContext) {
    loop {
        let driver = SetDriver::new(context.clone());
        let ended = AbortOnDropHandle::new(tokio::spawn(driver.run())).await;
        if let Err(error) = ended {
            tracing::error!(error = chain(&error), "driver of sets failed, restarting");
            context.state.panicked();
        }
        pause(RESTART_PAUSE).await;
    }
}

/// What a wait of the driver ends with.
enum Input {
    Set(Result<WatchEvent<DynamicObject>, WatchError>),
    Vm(Result<WatchEvent<DynamicObject>, WatchError>),
    Done(SetKey, Event),
}

/// A VM of a set that the watch has shown.
struct KnownVm {
    set: SetKey,
    uid: String,
}

struct SetDriver {
    context: SetContext,
    core: Sets,
    sets: Events<DynamicObject>,
    vms: Events<DynamicObject>,
    requests: FuturesUnordered<BoxFuture<'static, (SetKey, Event)>>,
    known_sets: BTreeMap<ObjectKey, Outline>,
    known_vms: BTreeMap<ObjectKey, KnownVm>,
    /// Change of a member of each set that has one under way.
    changes: BTreeMap<SetKey, MemberChange>,
    listed_sets: BTreeSet<ObjectKey>,
    listed_vms: BTreeSet<ObjectKey>,
}

impl SetDriver {
    fn new(context: SetContext) -> Self {
        let client = || context.client.clone();
        let sets: Api<DynamicObject> = Api::all_with(client(), &set_resource());
        let vms = resource("vm.neon.tech", "VirtualMachine", "virtualmachines");
        let vms: Api<DynamicObject> = Api::all_with(client(), &vms);
        let all = api_watch::Config::default();
        let members = all.clone().labels(LABEL_SET);
        Self {
            sets: api_watch::objects(sets, all, Retry::Patient),
            vms: api_watch::objects(vms, members, Retry::Quick),
            context,
            core: Sets::default(),
            requests: FuturesUnordered::new(),
            known_sets: BTreeMap::new(),
            known_vms: BTreeMap::new(),
            changes: BTreeMap::new(),
            listed_sets: BTreeSet::new(),
            listed_vms: BTreeSet::new(),
        }
    }

    async fn run(mut self) {
        drive(&mut self, &CancellationToken::new()).await;
    }

    fn handle(&mut self, set: SetKey, event: Event) {
        self.core.handle(moment(&self.context.clock), (set, event));
    }

    fn set_event(&mut self, event: WatchEvent<DynamicObject>) {
        match event {
            WatchEvent::Init => self.listed_sets.clear(),
            WatchEvent::InitApply(object) => {
                self.listed_sets.insert(key_of(&object));
                self.observe_set(object);
            }
            WatchEvent::InitDone => {
                for key in unlisted(self.known_sets.keys(), &mut self.listed_sets) {
                    self.lost_set(key);
                }
            }
            WatchEvent::Apply(object) => self.observe_set(object),
            WatchEvent::Delete(object) => self.lost_set(key_of(&object)),
        }
    }

    fn observe_set(&mut self, object: DynamicObject) {
        let key = key_of(&object);
        let decoded = decode::set(object);
        match decoded {
            Ok(set) => {
                self.outline(&key, Outline::of(&set));
                self.handle(key, Event::Set(Box::new(set)));
            }
            Err(error) => {
                let (set, error) = (text_of(&key), chain(&error));
                tracing::warn!(set, error, "malformed set left alone");
            }
        }
    }

    /// Shows a set's numbers, and records what changed since the last state that was seen.
    fn outline(&mut self, key: &ObjectKey, outline: Outline) {
        self.context.metrics.show(key, &outline);
        let old = self.known_sets.insert(key.clone(), outline.clone());
        for change in old.map_or_else(Vec::new, |old| outline.changes_since(&old)) {
            self.context.records.changed(key, &change);
        }
    }

    /// Records the end of an action, and passes it to the core.
    fn done(&mut self, set: SetKey, event: Event) {
        if let Event::Done { kind, result } = &event {
            self.context.metrics.ended(*kind, result.is_ok());
            if let Some(change) = self.changes.remove(&set) {
                let failure = result.as_ref().err();
                self.context.records.ended(&set, change, failure);
            }
        }
        self.handle(set, event);
    }

    fn lost_set(&mut self, key: ObjectKey) {
        if self.known_sets.remove(&key).is_some() {
            self.context.metrics.remove(&key);
            self.handle(key, Event::SetGone);
        }
    }

    fn vm_event(&mut self, event: WatchEvent<DynamicObject>) {
        match event {
            WatchEvent::Init => self.listed_vms.clear(),
            WatchEvent::InitApply(object) => {
                self.listed_vms.insert(key_of(&object));
                self.observe_vm(object);
            }
            WatchEvent::InitDone => {
                for key in unlisted(self.known_vms.keys(), &mut self.listed_vms) {
                    self.lost_vm(&key);
                }
                self.core.listed_vms();
            }
            WatchEvent::Apply(object) => self.observe_vm(object),
            WatchEvent::Delete(object) => self.lost_vm(&key_of(&object)),
        }
    }

    fn observe_vm(&mut self, object: DynamicObject) {
        let key = key_of(&object);
        let Some(set) = object.labels().get(LABEL_SET) else {
            return;
        };
        let known = KnownVm {
            set: (key.0.clone(), set.clone()),
            uid: object.uid().unwrap_or_default(),
        };
        // A name that passes to another VM, or a VM that passes to another set.
        let passes = |old: &KnownVm| old.uid != known.uid || old.set != known.set;
        if self.known_vms.get(&key).is_some_and(passes) {
            self.lost_vm(&key);
        }
        match decode::vm(object) {
            Ok(vm) => {
                let set = known.set.clone();
                self.known_vms.insert(key, known);
                self.handle(set, Event::Vm(Box::new(vm)));
            }
            Err(error) => {
                let (vm, error) = (text_of(&key), chain(&error));
                tracing::warn!(vm, error, "malformed member of a set left alone");
            }
        }
    }

    fn lost_vm(&mut self, key: &ObjectKey) {
        if let Some(known) = self.known_vms.remove(key) {
            let name = key.1.clone();
            let uid = known.uid;
            self.handle(known.set, Event::VmGone { name, uid });
        }
    }
}

impl Shell for SetDriver {
    type Core = Sets;
    type Input = Input;

    fn core(&mut self) -> &mut Sets {
        &mut self.core
    }

    fn clock(&self) -> Clock {
        self.context.clock
    }

    async fn input(&mut self) -> Option<Input> {
        tokio::select! {
            seen = self.sets.next() => seen.map(Input::Set),
            seen = self.vms.next() => seen.map(Input::Vm),
            Some((set, event)) = self.requests.next() => Some(Input::Done(set, event)),
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Set(Ok(event)) => self.set_event(event),
            Input::Vm(Ok(event)) => self.vm_event(event),
            Input::Done(set, event) => self.done(set, event),
            Input::Set(Err(error)) => {
                tracing::warn!(error = chain(&error), "watch of sets failed");
            }
            Input::Vm(Err(error)) => {
                tracing::warn!(error = chain(&error), "watch of members of sets failed");
            }
        }
    }

    fn act(&mut self, (set, action): (SetKey, Action)) {
        let (api, kind) = (Arc::clone(&self.context.api), action.kind());
        match &action {
            Action::Create { name, why, .. } => {
                let (namespace, set) = (&set.0, &set.1);
                tracing::info!(namespace, set, vm = name, why = %why, "creating a member");
            }
            Action::Delete { name, why, .. } => {
                let (namespace, set) = (&set.0, &set.1);
                tracing::info!(namespace, set, vm = name, why = %why, "deleting a member");
            }
            Action::WriteStatus { .. } | Action::WriteMembers { .. } => {}
        }
        if let Some(change) = MemberChange::of(&action) {
            self.changes.insert(set.clone(), change);
        }
        self.requests.push(Box::pin(async move {
            let result = carry_out(&api, &set, action).await;
            (set, Event::Done { kind, result })
        }));
    }
}
