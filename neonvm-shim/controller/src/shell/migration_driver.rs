//! One task per VM that has migrations: it owns the migration core and carries out its actions, one
//! request per peer at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use daemon_kit::chain;
use daemon_kit::clock::Clock;
use daemon_kit::driver::{Settled, Shell, drive};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kube::api::{GetParams, Patch};
use kube::core::Request;
use protocol::core::Core as _;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::api::{Found, KubeApi, object, patch_params};
use super::clock::moment;
use super::context::Context;
use super::decode;
use super::link::{LinkError, RunnerLink};
use super::mailbox::Mailbox;
use super::runner_key::RunnerKey;
use super::runner_link::RunnerConnections;
use super::state::MigrationSlot;
use crate::core::announce::{About, Announcer};
use crate::core::migration::{Action, ActionResponse, Event, MigrationCore};
use crate::core::{Moment, Refusal};

/// Driver of the migrations of the VM `namespace/name`.
pub(super) struct MigrationDriver {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) core: MigrationCore,
    pub(super) mailbox: Mailbox<Event>,
    pub(super) context: Context,
    pub(super) slot: MigrationSlot,
    pub(super) announcer: Announcer,
    pub(super) key: Arc<RunnerKey>,
    pub(super) under_way: FuturesUnordered<BoxFuture<'static, Event>>,
    /// Links by pod.
    pub(super) links: BTreeMap<String, RunnerConnections>,
}

impl Shell for MigrationDriver {
    type Core = MigrationCore;
    /// The end of an action. `None`: the mailbox has changed.
    type Input = Option<Event>;

    fn core(&mut self) -> &mut MigrationCore {
        &mut self.core
    }

    fn clock(&self) -> Clock {
        self.context.clock
    }

    async fn input(&mut self) -> Option<Option<Event>> {
        tokio::select! {
            () = self.mailbox.changed() => Some(None),
            Some(event) = self.under_way.next() => Some(Some(event)),
        }
    }

    fn take(&mut self, input: Option<Event>) {
        if let Some(event) = input {
            let key = format!("{}/{}", self.namespace, self.name);
            self.ended(&key, moment(&self.context.clock), event);
        }
    }

    fn act(&mut self, action: Action) {
        let action = self.begin(action);
        self.under_way.push(action);
    }

    fn prepare(&mut self) {
        for (received, event) in self.mailbox.take() {
            self.core.handle(received, event);
        }
        self.update_links();
    }

    fn settle(&mut self) -> Settled {
        self.publish_events();
        self.slot.publish(self.core.snapshot());
        Settled::Sleep
    }
}

impl MigrationDriver {
    /// Works until `cancel`.
    pub(super) async fn run(mut self, cancel: CancellationToken) {
        drive(&mut self, &cancel).await;
    }

    fn ended(&mut self, key: &str, now: Moment, event: Event) {
        if let Event::Done { kind, result } = &event {
            let outcome = Refusal::outcome(result);
            if let Some(migration) = self.core.migration_of(*kind) {
                let object = format!("{}/{migration}", self.namespace);
                self.slot.record(&object, *kind, outcome, now.now);
            }
            if let Err(Refusal::Failed { message, permanent }) = result {
                tracing::warn!(vm = key, action = ?kind, permanent, error = message, "migration action failed");
            } else {
                tracing::debug!(vm = key, action = ?kind, ?outcome, "migration action ended");
            }
        }
        self.core.handle(now, event);
    }

    /// Holds links to the runners that the core names, and to no others.
    fn update_links(&mut self) {
        let wanted = self.core.link_targets();
        self.links.retain(|pod, _| wanted.contains(pod));
        for pod in wanted {
            self.links.entry(pod).or_insert_with_key(|pod| {
                let at = self.core.link_address(pod);
                let address = self.context.address(&self.namespace, pod, at);
                RunnerConnections::open(pod, address, &self.key, &self.mailbox, self.context.clock)
            });
        }
    }

    fn begin(&self, action: Action) -> BoxFuture<'static, Event> {
        let kind = action.kind();
        tracing::debug!(vm = self.name, action = ?kind, "migration action begins");
        let link = match &action {
            Action::Send { pod, .. }
            | Action::Recall { pod, .. }
            | Action::Quit { pod, .. }
            | Action::Receive { pod, .. }
            | Action::Begin { pod, .. } => {
                Some(self.links.get(pod).map(|held| Arc::clone(&held.orders)))
            }
            _ => None,
        };
        let (api, namespace, vm) = (
            Arc::clone(&self.context.api),
            self.namespace.clone(),
            self.name.clone(),
        );
        Box::pin(async move {
            let result = match link {
                Some(link) => to_runner(link, action).await,
                None => to_api(&api, &namespace, &vm, action).await,
            };
            Event::Done { kind, result }
        })
    }

    /// Publishes the core's events.
    fn publish_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            let uid = self.core.vm().map(|vm| vm.metadata.uid.clone());
            let about = About {
                namespace: &self.namespace,
                name: &self.name,
                uid: &uid.unwrap_or_default(),
            };
            self.context
                .publish_event(&mut self.announcer, about, &event);
        }
    }
}

async fn to_runner(
    link: Option<Arc<Mutex<RunnerLink>>>,
    action: Action,
) -> Result<ActionResponse, Refusal> {
    let Some(link) = link else {
        return Err(Refusal::Failed {
            message: "the link to the runner is closed".into(),
            permanent: false,
        });
    };
    let mut link = link.lock().await;
    let response = match action {
        Action::Send { order, .. } => link.send_guest(&order).await,
        Action::Recall { id, .. } => link.recall_guest(&id).await,
        Action::Quit { id, .. } => link.quit(&id).await,
        Action::Receive { order, .. } => link.receive_guest(&order).await,
        Action::Begin { id, .. } => link.begin_guest(&id).await,
        _ => Err(LinkError::Timeout(std::time::Duration::ZERO)),
    };
    match response {
        Ok(state) => Ok(ActionResponse::Runner(Box::new(state))),
        Err(error) => Err(Refusal::Failed {
            message: chain(&error),
            permanent: false,
        }),
    }
}

async fn to_api(
    api: &KubeApi,
    namespace: &str,
    vm: &str,
    action: Action,
) -> Result<ActionResponse, Refusal> {
    let group = format!("/apis/vm.neon.tech/v1/namespaces/{namespace}");
    let vms = Request::new(format!("{group}/virtualmachines"));
    let migrations = Request::new(format!("{group}/virtualmachinemigrations"));
    let (params, get) = (patch_params(), GetParams::default());
    let as_vm = |value| decode::vm(value).map(|vm| ActionResponse::Vm(Box::new(vm)));
    let as_migration =
        |value| decode::migration(value).map(|found| ActionResponse::Migration(Box::new(found)));
    match action {
        Action::PatchMigration { name, patch } => {
            let request = migrations.patch(&name, &params, &Patch::Merge(patch));
            object(api.send(request).await, as_migration)
        }
        Action::WriteMigration { name, patch, .. } => {
            let patch = Patch::Merge(patch);
            let request = migrations.patch_subresource("status", &name, &params, &patch);
            object(api.send(request).await, as_migration)
        }
        Action::WriteVm { patch } => {
            let patch = Patch::Merge(patch);
            let request = vms.patch_subresource("status", vm, &params, &patch);
            object(api.send(request).await, as_vm)
        }
        Action::ReadVm => object(api.send(vms.get(vm, &get)).await, as_vm),
        Action::ReadMigration { name } => {
            object(api.send(migrations.get(&name, &get)).await, as_migration)
        }
        Action::ReadPod { name } => pod_response(api.read_pod(namespace, &name).await, name),
        Action::CreatePod { name, pod, secret } => {
            let secret = secret.as_ref();
            pod_response(
                create_target(api, namespace, &name, &pod, secret).await,
                name,
            )
        }
        Action::PatchPod { name, ops } => {
            pod_response(api.sync_pod(namespace, &name, &ops).await, name)
        }
        Action::DeletePod { name, uid, grace_s } => {
            pod_response(api.delete_pod(namespace, &name, uid, grace_s).await, name)
        }
        _ => Err(Refusal::Failed {
            message: "this action goes to a runner, not to the API server".into(),
            permanent: true,
        }),
    }
}

/// Makes the secret first. The VM's own driver makes it too, but not during a migration.
async fn create_target(
    api: &KubeApi,
    namespace: &str,
    name: &str,
    pod: &Value,
    secret: Option<&(String, Value)>,
) -> Found {
    if let Some((secret, owner)) = secret {
        api.ensure_runner_secret(namespace, secret, owner).await?;
    }
    api.create_pod(namespace, name, pod).await
}

fn pod_response(found: Found, name: String) -> Result<ActionResponse, Refusal> {
    Ok(found?.map_or_else(|| ActionResponse::PodGone(name), ActionResponse::Pod))
}

#[cfg(test)]
mod tests;
