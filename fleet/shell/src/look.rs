//! Reads what the engines decide from: objects, VMs, and the guests that environments select.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use daemon_kit::clock::Clock;
use fleet_core::permit::Gate;
use fleet_core::{Guest, World, is_open, owner_windows};
use fleet_store::{LoadedEnvironment, Owner};
use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use protocol::fleet::{KEY_ENROLLED, KEY_WINDOWS, instance_name};
use protocol::parts::PartName;
use protocol::vm::VirtualMachine;
use tokio::time::timeout;

use crate::guest;

/// Guests that are read concurrently.
const AT_ONCE: usize = 16;
/// Longest time for the list of the VMs.
const LIST_LIMIT: Duration = Duration::from_secs(10);

/// A guest's address for calls, and the owner of its instance.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    pub(crate) pod: String,
    pub(crate) owner: Owner,
}

/// A world with the addresses of its guests.
pub(crate) struct Looked {
    pub(crate) world: World,
    pub(crate) addresses: BTreeMap<String, Address>,
}

/// Access to VMs and runners.
#[derive(Clone)]
pub(crate) struct Looker {
    pub(crate) client: kube::Client,
    pub(crate) clock: Clock,
    pub(crate) state_dir: PathBuf,
}

impl Looker {
    /// The VMs of all namespaces. One that cannot be read is left out.
    pub(crate) async fn vms(&self) -> Result<Vec<VirtualMachine>, String> {
        let kind = GroupVersionKind::gvk("vm.neon.tech", "v1", "VirtualMachine");
        let resource = ApiResource::from_gvk_with_plural(&kind, "virtualmachines");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let params = ListParams::default();
        let listed = timeout(LIST_LIMIT, api.list(&params)).await;
        let listed = listed.map_err(|_| "no list of VMs in time".to_owned())?;
        let listed = listed.map_err(|error| daemon_kit::chain(&error))?;
        let values = listed
            .items
            .into_iter()
            .map(|one| serde_json::to_value(one).and_then(serde_json::from_value));
        Ok(values.filter_map(Result::ok).collect())
    }

    /// The world of one of `all` environments.
    pub(crate) async fn world(
        &self,
        loaded: &LoadedEnvironment,
        all: &[LoadedEnvironment],
        vms: &[VirtualMachine],
    ) -> Looked {
        let part = loaded.environment.spec.part;
        // Collected first: a stream of a closure's futures is not `Send` for every lifetime.
        let guests: Vec<_> = vms
            .iter()
            .filter(|vm| selects(loaded, vm))
            .map(|vm| self.guest(loaded, all, vm, part))
            .collect();
        let guests: Vec<_> = futures::stream::iter(guests)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut looked = Looked {
            world: World {
                environment: loaded.environment.clone(),
                revisions: loaded.revisions.clone(),
                deployments: loaded.deployments.clone(),
                guests: BTreeMap::new(),
                is_critical: false,
            },
            addresses: BTreeMap::new(),
        };
        for (name, guest, address) in guests {
            looked.world.guests.insert(name.clone(), guest);
            looked.addresses.insert(name, address);
        }
        looked
    }

    async fn guest(
        &self,
        loaded: &LoadedEnvironment,
        all: &[LoadedEnvironment],
        vm: &VirtualMachine,
        part: PartName,
    ) -> (String, Guest, Address) {
        let name = instance_name(&vm.metadata.name);
        let (turn, last) = loaded.turns.get(&name).cloned().unwrap_or_default();
        let is_in_flight = is_open(turn.as_ref(), last.as_ref());
        let now = self.clock.wall();
        let seen = guest::look(&self.state_dir, vm, part, is_in_flight, now).await;
        let status = vm.status.clone().unwrap_or_default();
        let label = vm.metadata.labels.get(KEY_ENROLLED);
        let annotation = vm.metadata.annotations.get(KEY_WINDOWS);
        let (windows, unreadable) = owner_windows(
            annotation.map(String::as_str),
            loaded.environment.spec.rollout.trial_seconds,
        );
        let guest = Guest {
            node: status.node,
            is_enrolled: label.is_none_or(|value| value != "false"),
            boot: seen.boot,
            observed: seen.observed,
            facts: seen.facts,
            gate: seen
                .gate
                .or(unreadable)
                .or_else(|| gate_of_others(loaded, all, vm, &name)),
            turn,
            last,
            labels: vm.metadata.labels.clone(),
            windows,
            ..Guest::default()
        };
        let address = Address {
            pod: status.pod_name,
            owner: Owner {
                name: vm.metadata.name.clone(),
                uid: vm.metadata.uid.clone(),
            },
        };
        (name, guest, address)
    }
}

fn selects(loaded: &LoadedEnvironment, vm: &VirtualMachine) -> bool {
    let selector = &loaded.environment.spec.selector;
    loaded.namespace == vm.metadata.namespace
        && vm.metadata.deletion_timestamp.is_none()
        && selector.matches(&vm.metadata.labels)
}

/// Gate by the other environments. Of two that select the part of a guest, the first by name has
/// it.
fn gate_of_others(
    loaded: &LoadedEnvironment,
    all: &[LoadedEnvironment],
    vm: &VirtualMachine,
    instance: &str,
) -> Option<Gate> {
    let own = &loaded.environment;
    let mut gate = None;
    for other in all {
        let name = &other.environment.name;
        if other.namespace != loaded.namespace || *name == own.name {
            continue;
        }
        let turns = other.turns.get(instance);
        let open = turns.and_then(|(turn, last)| {
            turn.as_ref()
                .filter(|turn| is_open(Some(turn), last.as_ref()))
        });
        if other.environment.spec.part != own.spec.part {
            if open.is_some() {
                gate = gate.or(Some(Gate::PeerInFlight));
            }
            continue;
        }
        let has_turn = open.is_some_and(|turn| turn.environment != own.name);
        if has_turn || (*name < own.name && selects(other, vm)) {
            return Some(Gate::Claim);
        }
    }
    gate
}
