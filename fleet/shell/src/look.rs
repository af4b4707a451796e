//! Reads what the engines decide from: VMs, namespaces and nodes in one list of each, and the
//! guests that an environment selects.

use std::collections::BTreeMap;
use std::time::Duration;

use api_client::pages;
use daemon_kit::clock::Clock;
use fleet_core::{Guest, World, is_open};
use fleet_store::{LoadedEnvironment, Owner, OwnerKind};
use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use protocol::annotations::LABEL_VM_NAME;
use protocol::fleet::instance_name;
use protocol::time::{Span, Timestamp};
use protocol::vm::VirtualMachine;
use serde_json::Value;
use tokio::time::timeout;

use crate::guest::{self, Purpose};
use crate::images::ImageGate;
use crate::lease::Seen;
use crate::node::{Node, Unconnected};
use crate::pulse::Pulse;
use crate::runners::{Pod, PodsByOwner, Runner, Runners};
use crate::watch::Felt;

mod gates;
mod surroundings;

use gates::{agent_gate, gate_of_others, has_left, turn_of};
pub(crate) use gates::{is_orphan, selects};
pub(crate) use surroundings::Surroundings;
use surroundings::{free_memory, namespace_of};

/// Guests that are read concurrently.
const AT_ONCE: usize = 16;
/// Reads of guests that are prepared at a time: each takes some kilobytes.
const COLLECTED: usize = 256;
/// Longest time for a list.
const LIST_LIMIT: Duration = Duration::from_secs(10);
/// Time after its start in which an agent has to connect to its guests' monitors. The agent gives
/// them as long.
const NEW_AGENT: Span = Span::from_secs(20);
const NOT_FOUND: u16 = 404;

/// A guest's address for calls, and the owner of its instance.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    pub(crate) way: Way,
    pub(crate) owner: Owner,
}

/// Who carries out orders to an instance.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    /// The runner of its VM.
    Runner(Runner),
    /// The API, by the `DaemonSet` of this namespace.
    Node { namespace: String, node: String },
    /// The API, by a `Deployment` of the environment's namespace.
    Service,
}

/// A world with what the driver needs beside it.
pub(crate) struct Looked {
    pub(crate) world: World,
    pub(crate) addresses: BTreeMap<String, Address>,
    /// By instance, for the readings of the judge.
    pub(crate) felt: BTreeMap<String, Felt>,
}

impl Looked {
    /// The world of an environment without its guests.
    pub(crate) fn of(loaded: &LoadedEnvironment) -> Self {
        let world = World {
            environment: loaded.environment.clone(),
            revisions: loaded.revisions.clone(),
            deployments: loaded.deployments.clone(),
            guests: BTreeMap::new(),
            is_critical: loaded.is_critical,
        };
        Self {
            world,
            addresses: BTreeMap::new(),
            felt: BTreeMap::new(),
        }
    }
}

/// Access to VMs and runners.
#[derive(Clone)]
pub(crate) struct Looker {
    pub(crate) client: kube::Client,
    pub(crate) clock: Clock,
    pub(crate) runners: Runners,
    pub(crate) unconnected: Unconnected,
    pub(crate) images: ImageGate,
    pub(crate) seen: Seen,
    /// Whether metrics pages of agents are read.
    pub(crate) asks_pages: bool,
    /// Start of the driver. On one machine its process starts the agent with it.
    pub(crate) begun: Timestamp,
}

impl Looker {
    /// VMs, namespaces and nodes. An object that cannot be read is left out.
    pub(crate) async fn surroundings(&self) -> Result<Surroundings, String> {
        let core = |kind| ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind));
        let (vm, namespace, node) = (vm_resource(), core("Namespace"), core("Node"));
        let every = ListParams::default();
        let (vms, namespaces, nodes, pods) = tokio::try_join!(
            self.read(&vm, &every, |one| serde_json::from_value(one).ok()),
            self.list_if_served(&namespace),
            self.list_if_served(&node),
            self.pods(),
        )?;
        if let Some(pods) = self.runners.pods() {
            pods.keep_only(&vms);
        }
        Ok(Surroundings {
            pods,
            free: free_memory(&nodes, &vms),
            nodes: nodes.iter().filter_map(Node::read).collect(),
            namespaces: namespaces.iter().filter_map(namespace_of).collect(),
            vms,
        })
    }

    /// Pods of VMs, by their label. On one machine none is asked for.
    async fn pods(&self) -> Result<PodsByOwner, String> {
        if self.runners.pods().is_none() {
            return Ok(PodsByOwner::default());
        }
        self.all_pods().await
    }

    /// Pods of VMs, by their label.
    pub(crate) async fn all_pods(&self) -> Result<PodsByOwner, String> {
        let pod = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
        let params = ListParams::default().labels(LABEL_VM_NAME);
        let pods = self.read(&pod, &params, |pod| Pod::read(&pod)).await?;
        Ok(pods.into_iter().collect())
    }

    pub(crate) async fn list(&self, resource: &ApiResource) -> Result<Vec<Value>, String> {
        self.read(resource, &ListParams::default(), Some).await
    }

    /// None if the server does not have the kind.
    async fn list_if_served(&self, resource: &ApiResource) -> Result<Vec<Value>, String> {
        match self.listed(resource, &ListParams::default(), Some).await? {
            Err(kube::Error::Api(refusal)) if refusal.code == NOT_FOUND => Ok(Vec::new()),
            listed => named(resource, listed),
        }
    }

    async fn read<T>(
        &self,
        resource: &ApiResource,
        params: &ListParams,
        read: impl Fn(Value) -> Option<T> + Send,
    ) -> Result<Vec<T>, String> {
        named(resource, self.listed(resource, params, read).await?)
    }

    /// What `read` takes of each object. Objects of which it takes nothing are left out.
    async fn listed<T>(
        &self,
        resource: &ApiResource,
        params: &ListParams,
        read: impl Fn(Value) -> Option<T> + Send,
    ) -> Result<kube::Result<Vec<T>>, String> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), resource);
        let mut listed = Vec::new();
        let each = |object| listed.extend(read(object));
        let all = timeout(LIST_LIMIT, pages::each(&api, params, each)).await;
        let all = all.map_err(|_| format!("no list of {} in time", resource.plural))?;
        Ok(all.map(|()| listed))
    }

    /// The world of one of `all` environments.
    pub(crate) async fn world(
        &self,
        loaded: &LoadedEnvironment,
        all: &[LoadedEnvironment],
        surroundings: &Surroundings,
        pulse: &Pulse,
    ) -> Looked {
        let vms = surroundings.vms.iter();
        let vms = vms.filter(|vm| selects(loaded, vm) || has_left(loaded, vm));
        let vms: Vec<_> = vms.collect();
        let mut looked = Looked::of(loaded);
        for some in vms.chunks(COLLECTED) {
            // Collected first: a stream of a closure's futures is not `Send` for every lifetime.
            let guests = some.iter();
            let guests = guests.map(|vm| self.guest(loaded, all, vm, surroundings));
            let guests: Vec<_> = guests.collect();
            let mut guests = futures::stream::iter(guests).buffer_unordered(AT_ONCE);
            while let Some(one) = guests.next().await {
                pulse.beat();
                looked.world.guests.insert(one.name.clone(), one.guest);
                looked.felt.insert(one.name.clone(), one.felt);
                looked.addresses.insert(one.name, one.address);
            }
        }
        looked
    }

    async fn guest(
        &self,
        loaded: &LoadedEnvironment,
        all: &[LoadedEnvironment],
        vm: &VirtualMachine,
        surroundings: &Surroundings,
    ) -> LookedGuest {
        let name = instance_name(&vm.metadata.name);
        let (turn, last) = loaded.turns.get(&name).cloned().unwrap_or_default();
        let purpose = Purpose {
            part: loaded.environment.spec.part,
            is_in_flight: is_open(turn.as_ref(), last.as_ref()),
            is_judged: is_judged(loaded),
            is_agent_new: self.clock.now().since(self.begun) < NEW_AGENT,
        };
        let runner = surroundings.runner(vm);
        let way = (&self.runners, &runner);
        let seen = guest::look(way, vm, purpose, self.clock.wall()).await;
        let trial_seconds = loaded.environment.spec.rollout.trial_seconds;
        let owner = surroundings.owner(vm, trial_seconds);
        let gate = seen.gate.or(owner.gate);
        let gate = gate.or_else(|| agent_gate(all, &vm.status.as_ref()?.node));
        let guest = Guest {
            node: vm.status.clone().unwrap_or_default().node,
            is_enrolled: owner.is_enrolled,
            boot: seen.boot,
            observed: seen.observed,
            facts: seen.facts,
            gate: gate.or_else(|| gate_of_others(loaded, all, vm, &name)),
            turn,
            last,
            has_left: !selects(loaded, vm),
            is_orphan: is_orphan(turn_of(loaded, &name), &loaded.namespace, all),
            labels: vm.metadata.labels.clone(),
            image: vm.spec.guest.root_disk.image.clone(),
            size: size_of(vm),
            windows: owner.windows,
            uptime_seconds: seen.uptime_seconds,
            ..Guest::default()
        };
        let felt = Felt {
            vm: format!("{}/{}", vm.metadata.namespace, vm.metadata.name),
            figures: seen.figures,
            node_has_room: surroundings.has_room(vm),
            has_agent: guest::has_agent(vm),
        };
        let address = Address {
            way: Way::Runner(runner),
            owner: Owner {
                kind: OwnerKind::Vm,
                name: vm.metadata.name.clone(),
                uid: vm.metadata.uid.clone(),
            },
        };
        LookedGuest {
            name,
            guest,
            felt,
            address,
        }
    }
}

fn named<T>(resource: &ApiResource, listed: kube::Result<T>) -> Result<T, String> {
    listed.map_err(|error| format!("{}: {}", resource.plural, daemon_kit::chain(&error)))
}

/// The kind of VMs.
pub(crate) fn vm_resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("vm.neon.tech", "v1", "VirtualMachine");
    ApiResource::from_gvk_with_plural(&kind, "virtualmachines")
}

struct LookedGuest {
    name: String,
    guest: Guest,
    felt: Felt,
    address: Address,
}

fn size_of(vm: &VirtualMachine) -> String {
    let size = vm.spec.guest.in_use();
    format!("{}m {}", size.cpu.0, size.mem.0)
}

/// Whether a deployment of the environment has groups, whose guests a judge compares.
fn is_judged(loaded: &LoadedEnvironment) -> bool {
    let mut running = loaded
        .deployments
        .iter()
        .filter(|one| !one.status.state.is_terminal());
    running.any(|one| !one.status.groups.is_empty())
}

#[cfg(test)]
mod tests;
