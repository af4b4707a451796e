//! Reads what the core of moves decides from.

use std::collections::BTreeMap;
use std::time::Duration;

use fleet_core::permit::Gate;
use fleet_core::runners::{Fixed, Guest, Key, Migration, Wanted, World};
use fleet_store::{Instances, LoadedInstance, Owner, OwnerKind};
use futures::StreamExt as _;
use kube::api::{ApiResource, GroupVersionKind};
use protocol::claims::claimed_disks;
use protocol::fleet::{KEY_MOVES, instance_name};
use protocol::runner::{RunnerPhase, RunnerState, control_socket};
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::Value;
use tokio::time::timeout;

use super::{Access, program};
use crate::guest::{gate, runner_state};
use crate::look::Surroundings;
use crate::pulse::Pulse;
use crate::runners::{Pod, PodsByOwner, Runner};

/// Longest time for the lists.
const LISTS_LIMIT: Duration = Duration::from_secs(10);
/// Guests that are read concurrently.
const AT_ONCE: usize = 16;
/// Time for which a window of the owner must stay open, seconds.
const TRIAL_SECONDS: u64 = 240;

/// Objects of a look, by VM.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) guests: BTreeMap<Key, KnownGuest>,
}

/// A guest with the objects that its orders need.
#[derive(Debug)]
pub(crate) struct KnownGuest {
    pub(crate) guest: Guest,
    pub(crate) owner: Owner,
    pub(crate) instance: Option<LoadedInstance>,
    /// Uid of the object with the name of the newest move's migration.
    pub(crate) migration: Option<String>,
    /// Runner of the VM's pod.
    pub(crate) runner: Runner,
}

/// What is listed once for a look.
struct Lists {
    surroundings: Surroundings,
    pods: PodsByOwner,
    migrations: Vec<Value>,
    instances: Instances,
}

pub(super) fn migration_resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("vm.neon.tech", "v1", "VirtualMachineMigration");
    ApiResource::from_gvk_with_plural(&kind, "virtualmachinemigrations")
}

impl Access {
    pub(super) async fn look(
        &self,
        wanted: Option<&Wanted>,
        pulse: &Pulse,
    ) -> Result<(World, Known), String> {
        let lists = timeout(LISTS_LIMIT, self.lists()).await;
        let lists = lists.map_err(|_| "no lists of the objects in time".to_owned())??;
        pulse.beat();
        let is_ours = |vm: &&VirtualMachine| {
            let namespace = self.namespace.as_ref();
            vm.metadata.deletion_timestamp.is_none()
                && namespace.is_none_or(|namespace| *namespace == vm.metadata.namespace)
        };
        // Collected first: a stream of a closure's futures is not `Send` for every lifetime.
        let vms = lists.surroundings.vms.iter().filter(is_ours);
        let reads: Vec<_> = vms.map(|vm| self.guest(vm, &lists, wanted)).collect();
        let guests: Vec<_> = futures::stream::iter(reads)
            .buffered(AT_ONCE)
            .inspect(|_| pulse.beat())
            .collect()
            .await;
        let guests = guests.into_iter().flatten();
        let guests: BTreeMap<Key, KnownGuest> =
            guests.map(|one| (one.guest.key.clone(), one)).collect();
        let world = World {
            wanted: wanted.cloned(),
            guests: guests.values().map(|one| one.guest.clone()).collect(),
        };
        Ok((world, Known { guests }))
    }

    async fn lists(&self) -> Result<Lists, String> {
        let instances = async {
            let listed = self.store.instances().await;
            listed.map_err(|error| format!("instances: {}", daemon_kit::chain(&error)))
        };
        let resource = migration_resource();
        let (surroundings, pods, migrations, (instances, problems)) = tokio::try_join!(
            self.looker.surroundings(),
            self.looker.all_pods(),
            self.looker.list(&resource),
            instances,
        )?;
        for problem in problems {
            let (object, reason) = (problem.object, problem.reason);
            tracing::warn!(object, reason, "left out an object of the fleet");
        }
        Ok(Lists {
            surroundings,
            pods,
            migrations,
            instances,
        })
    }

    /// `None` without a pod of this very VM.
    async fn guest(
        &self,
        vm: &VirtualMachine,
        lists: &Lists,
        wanted: Option<&Wanted>,
    ) -> Option<KnownGuest> {
        let pod = lists.pods.of(vm)?;
        let metadata = &vm.metadata;
        let key = (metadata.namespace.clone(), metadata.name.clone());
        let instance_key = (key.0.clone(), instance_name(&key.1));
        let instance = lists.instances.get(&instance_key).cloned();
        let turn = instance.as_ref().and_then(|one| one.turn.clone());
        let name = turn.as_ref().map(|turn| turn.migration.clone());
        let name = name.as_deref();
        let (migration, uid) = migration_of(vm, name, &lists.migrations);
        let mut guest = Guest {
            key,
            uid: metadata.uid.clone(),
            node: vm.status.clone().unwrap_or_default().node,
            named: vm.spec.runner_image.clone(),
            runs: self.runs(vm, pod).await,
            has_other_pod: lists.pods.has_other(vm),
            end: instance.as_ref().and_then(|one| one.end.clone()),
            turn,
            migration,
            ..Guest::default()
        };
        // Most guests have the wanted runner and no move. Their runners are not asked.
        let to = wanted.map(|wanted| wanted.to.as_str());
        if guest.open().is_some() || guest.runs.as_deref() != to {
            let has_open_turn = instance.as_ref().is_some_and(|one| one.has_open_turn);
            let other = has_other_migration(vm, name, &lists.migrations);
            self.ask(vm, &lists.surroundings, &mut guest).await;
            guest.gate = guest
                .gate
                .or(has_open_turn.then_some(Gate::PeerInFlight))
                .or(other.then_some(Gate::Migrating));
        }
        Some(KnownGuest {
            guest,
            owner: Owner {
                kind: OwnerKind::Vm,
                name: metadata.name.clone(),
                uid: metadata.uid.clone(),
            },
            instance,
            migration: uid,
            runner: lists.surroundings.runner(vm),
        })
    }

    /// The runner of a pod: its image, or the digest of its program on one machine.
    async fn runs(&self, vm: &VirtualMachine, pod: &Pod) -> Option<String> {
        if self.settings.by_image {
            return Some(pod.image.clone()).filter(|image| !image.is_empty());
        }
        let status = vm.status.as_ref()?;
        let namespace = &vm.metadata.namespace;
        program::of_socket(control_socket(&self.state_dir, namespace, &status.pod_name)).await
    }

    /// Adds what the runner of a guest and the VM's owner say.
    async fn ask(&self, vm: &VirtualMachine, surroundings: &Surroundings, guest: &mut Guest) {
        let looker = &self.looker;
        let runner = surroundings.runner(vm);
        let state = runner_state((&looker.runners, &runner)).await;
        let status = vm.status.clone().unwrap_or_default();
        let owner = surroundings.owner(vm, TRIAL_SECONDS);
        let is_running = status.phase == VmPhase::Running;
        let mut conditions = status.conditions.iter();
        let degraded = conditions.find(|one| one.kind == "Degraded" && one.status == "True");
        guest.is_degraded = is_running && degraded.is_some();
        // What was wrong before its move is no harm of the move.
        let begun = guest.turn.as_ref().map(|turn| turn.since);
        let is_harmed = degraded.is_some_and(|one| {
            let since = one.last_transition_time;
            since.zip(begun).is_none_or(|(since, begun)| since >= begun)
        });
        guest.is_healthy = is_running && !is_harmed && state.as_ref().is_some_and(guest_responds);
        guest.fixed = self.fixed(vm, state.as_ref());
        guest.windows = owner.windows;
        let opted_out = (!owner.is_enrolled).then_some(Gate::OptedOut);
        guest.gate = opted_out
            .or_else(|| gate(&status, state.as_ref(), looker.clock.wall()))
            .or_else(|| state.is_none().then_some(Gate::Unreachable))
            .or(owner.gate);
    }

    fn fixed(&self, vm: &VirtualMachine, state: Option<&RunnerState>) -> Option<Fixed> {
        let without_kvm = state.is_some_and(|state| state.accel != "kvm");
        if !claimed_disks(&vm.spec).is_empty() {
            Some(Fixed::DisksOnClaims)
        } else if self.settings.by_image && has_disks_of_node(vm) {
            Some(Fixed::DisksOfNode)
        } else if without_kvm && !self.settings.without_kvm {
            Some(Fixed::WithoutKvm)
        } else {
            None
        }
    }
}

fn guest_responds(state: &RunnerState) -> bool {
    state.phase == RunnerPhase::Running && state.guest_silent.is_none()
}

/// Swap and empty disks are not copied to another node.
fn has_disks_of_node(vm: &VirtualMachine) -> bool {
    let settings = vm.spec.guest.settings.as_ref();
    let has_swap = settings.is_some_and(|settings| settings.swap.is_some());
    has_swap || vm.spec.disks.iter().any(|disk| disk.empty_disk.is_some())
}

/// The object of this name in the VM's namespace. It is ours if it names the VM and its uid.
fn migration_of(
    vm: &VirtualMachine,
    name: Option<&str>,
    all: &[Value],
) -> (Migration, Option<String>) {
    let metadata = &vm.metadata;
    let found = name.and_then(|name| {
        all.iter().find(|one| {
            one["metadata"]["name"] == name && one["metadata"]["namespace"] == *metadata.namespace
        })
    });
    let Some(object) = found else {
        return (Migration::Absent, None);
    };
    let is_ours = object["metadata"]["annotations"][KEY_MOVES] == *metadata.uid
        && object["spec"]["vmName"] == *metadata.name;
    if !is_ours {
        return (Migration::Foreign, None);
    }
    let uid = object["metadata"]["uid"].as_str().map(str::to_owned);
    let is_leaving = object["metadata"]["deletionTimestamp"].is_string();
    let migration = match object["status"]["phase"].as_str() {
        _ if is_leaving => Migration::Leaving,
        Some("Succeeded") => Migration::Succeeded,
        Some("Failed") => Migration::Failed(message(object)),
        _ => Migration::Live,
    };
    (migration, uid)
}

/// Message of the migration's condition.
fn message(migration: &Value) -> String {
    let conditions = migration["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let available = conditions.find(|one| one["type"] == "Available");
    let text = available.and_then(|one| one["message"].as_str());
    text.unwrap_or("the migration failed").to_owned()
}

/// Whether another migration of the VM waits or runs.
fn has_other_migration(vm: &VirtualMachine, own: Option<&str>, all: &[Value]) -> bool {
    all.iter().any(|one| {
        let metadata = &one["metadata"];
        let phase = one["status"]["phase"].as_str();
        metadata["namespace"] == *vm.metadata.namespace
            && one["spec"]["vmName"] == *vm.metadata.name
            && metadata["name"].as_str() != own
            && !matches!(phase, Some("Succeeded" | "Failed"))
    })
}
