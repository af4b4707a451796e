//! Reads what the engines decide from: VMs, namespaces and nodes in one list of each, and the
//! guests that an environment selects.

use std::collections::BTreeMap;
use std::time::Duration;

use daemon_kit::clock::Clock;
use fleet_core::permit::Gate;
use fleet_core::{Guest, World, claim, is_open, owner_windows};
use fleet_store::{LoadedEnvironment, Owner, OwnerKind};
use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use protocol::annotations::LABEL_VM_NAME;
use protocol::fleet::{KEY_ENROLLED, KEY_WINDOWS, TurnSpec, instance_name, node_instance_name};
use protocol::parts::PartName;
use protocol::quantity::Quantity;
use protocol::time::{Span, Timestamp};
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::Value;
use tokio::time::timeout;

use crate::guest::{self, Purpose};
use crate::images::ImageGate;
use crate::lease::Seen;
use crate::node::{Node, Unconnected};
use crate::pulse::Pulse;
use crate::runners::{Pod, Runner, Runners, pod_of};
use crate::watch::Felt;

/// Guests that are read concurrently.
const AT_ONCE: usize = 16;
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

/// What the fleet's objects do not have.
#[derive(Debug, Default)]
pub(crate) struct Surroundings {
    pub(crate) vms: Vec<VirtualMachine>,
    /// Labels and annotations that hold for all VMs of a namespace.
    namespaces: BTreeMap<String, Namespace>,
    pub(crate) nodes: Vec<Node>,
    /// Memory of each node that no VM has, bytes.
    free: BTreeMap<String, u64>,
    /// Pods of VMs, in a cluster.
    pods: Vec<Pod>,
}

#[derive(Debug, Clone, Default)]
struct Namespace {
    is_out: bool,
    windows: Option<String>,
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
        let vm = GroupVersionKind::gvk("vm.neon.tech", "v1", "VirtualMachine");
        let vm = ApiResource::from_gvk_with_plural(&vm, "virtualmachines");
        let core = |kind| ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind));
        let (namespace, node) = (core("Namespace"), core("Node"));
        let (vms, namespaces, nodes, pods) = tokio::try_join!(
            self.list(&vm),
            self.list_if_served(&namespace),
            self.list_if_served(&node),
            self.pods(),
        )?;
        let vms = vms.into_iter();
        let vms: Vec<VirtualMachine> = vms
            .filter_map(|one| serde_json::from_value(one).ok())
            .collect();
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
    async fn pods(&self) -> Result<Vec<Pod>, String> {
        if self.runners.pods().is_none() {
            return Ok(Vec::new());
        }
        self.all_pods().await
    }

    /// Pods of VMs, by their label.
    pub(crate) async fn all_pods(&self) -> Result<Vec<Pod>, String> {
        let pod = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
        let params = ListParams::default().labels(LABEL_VM_NAME);
        let pods = self.listed_by(&pod, &params).await?;
        let pods = pods.map_err(|error| format!("pods: {}", daemon_kit::chain(&error)))?;
        Ok(pods.iter().filter_map(Pod::read).collect())
    }

    pub(crate) async fn list(&self, resource: &ApiResource) -> Result<Vec<Value>, String> {
        let listed = self.listed(resource).await?;
        listed.map_err(|error| format!("{}: {}", resource.plural, daemon_kit::chain(&error)))
    }

    /// None if the server does not have the kind.
    async fn list_if_served(&self, resource: &ApiResource) -> Result<Vec<Value>, String> {
        match self.listed(resource).await? {
            Err(kube::Error::Api(refusal)) if refusal.code == NOT_FOUND => Ok(Vec::new()),
            Err(error) => Err(format!(
                "{}: {}",
                resource.plural,
                daemon_kit::chain(&error)
            )),
            Ok(items) => Ok(items),
        }
    }

    async fn listed(&self, resource: &ApiResource) -> Result<kube::Result<Vec<Value>>, String> {
        self.listed_by(resource, &ListParams::default()).await
    }

    async fn listed_by(
        &self,
        resource: &ApiResource,
        params: &ListParams,
    ) -> Result<kube::Result<Vec<Value>>, String> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), resource);
        let listed = timeout(LIST_LIMIT, api.list(params)).await;
        let listed = listed.map_err(|_| format!("no list of {} in time", resource.plural))?;
        Ok(listed.map(|list| {
            let items = list.items.into_iter().map(serde_json::to_value);
            items.filter_map(Result::ok).collect()
        }))
    }

    /// The world of one of `all` environments.
    pub(crate) async fn world(
        &self,
        loaded: &LoadedEnvironment,
        all: &[LoadedEnvironment],
        surroundings: &Surroundings,
        pulse: &Pulse,
    ) -> Looked {
        // Collected first: a stream of a closure's futures is not `Send` for every lifetime.
        let guests: Vec<_> = surroundings
            .vms
            .iter()
            .filter(|vm| selects(loaded, vm) || has_left(loaded, vm))
            .map(|vm| self.guest(loaded, all, vm, surroundings))
            .collect();
        let guests: Vec<_> = futures::stream::iter(guests)
            .buffer_unordered(AT_ONCE)
            .inspect(|_| pulse.beat())
            .collect()
            .await;
        let mut looked = Looked::of(loaded);
        for one in guests {
            looked.world.guests.insert(one.name.clone(), one.guest);
            looked.felt.insert(one.name.clone(), one.felt);
            looked.addresses.insert(one.name, one.address);
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

struct LookedGuest {
    name: String,
    guest: Guest,
    felt: Felt,
    address: Address,
}

/// What a VM's owner says about changes of its guest.
pub(crate) struct OwnersWord {
    pub(crate) is_enrolled: bool,
    pub(crate) windows: Vec<protocol::fleet::Window>,
    pub(crate) gate: Option<Gate>,
}

impl Surroundings {
    /// The runner of a VM. Without a pod of that VM it has no address.
    pub(crate) fn runner(&self, vm: &VirtualMachine) -> Runner {
        let pod = pod_of(vm, &self.pods);
        let (at, started) = pod.map_or((None, None), |pod| pod.runner_at(vm));
        Runner {
            namespace: vm.metadata.namespace.clone(),
            vm: vm.metadata.name.clone(),
            uid: vm.metadata.uid.clone(),
            pod: vm.status.clone().unwrap_or_default().pod_name,
            at,
            started,
        }
    }

    /// The VM's annotation replaces that of its namespace. Either label keeps it out.
    pub(crate) fn owner(&self, vm: &VirtualMachine, trial_seconds: u64) -> OwnersWord {
        let of_namespace = self.namespaces.get(&vm.metadata.namespace);
        let is_out = of_namespace.is_some_and(|one| one.is_out);
        let label = vm.metadata.labels.get(KEY_ENROLLED);
        let annotation = vm.metadata.annotations.get(KEY_WINDOWS);
        let annotation = annotation.or(of_namespace.and_then(|one| one.windows.as_ref()));
        let (windows, gate) = owner_windows(annotation.map(String::as_str), trial_seconds);
        OwnersWord {
            is_enrolled: !is_out && label.is_none_or(|value| value != "false"),
            windows,
            gate,
        }
    }

    /// VMs of a node that run and whose monitors have an agent.
    pub(crate) fn monitors_of(&self, node: &str) -> u32 {
        let counts = |vm: &&VirtualMachine| {
            let status = vm.status.as_ref();
            let runs = status.is_some_and(|it| it.node == node && it.phase == VmPhase::Running);
            runs && guest::has_agent(vm) && vm.metadata.deletion_timestamp.is_none()
        };
        u32::try_from(self.vms.iter().filter(counts).count()).unwrap_or(u32::MAX)
    }

    /// Whether a VM could have one more slot of memory.
    fn has_room(&self, vm: &VirtualMachine) -> bool {
        let guest = &vm.spec.guest;
        let node = vm.status.as_ref().map(|status| status.node.as_str());
        let free = node.and_then(|node| self.free.get(node)).copied();
        guest.memory_slots.r#use < guest.memory_slots.max
            && free.is_some_and(|free| free >= guest.slot_bytes())
    }
}

fn namespace_of(object: &Value) -> Option<(String, Namespace)> {
    let metadata = &object["metadata"];
    let windows = metadata["annotations"][KEY_WINDOWS].as_str();
    let namespace = Namespace {
        is_out: metadata["labels"][KEY_ENROLLED] == "false",
        windows: windows.map(str::to_owned),
    };
    Some((metadata["name"].as_str()?.to_owned(), namespace))
}

fn free_memory(nodes: &[Value], vms: &[VirtualMachine]) -> BTreeMap<String, u64> {
    let total = |object: &Value| {
        let name = object["metadata"]["name"].as_str()?.to_owned();
        let memory = Quantity::from_json(&object["status"]["allocatable"]["memory"]).ok()?;
        Some((name, memory.as_u64().unwrap_or(0)))
    };
    let mut free: BTreeMap<String, u64> = nodes.iter().filter_map(total).collect();
    for vm in vms {
        let node = vm.status.as_ref().map(|status| status.node.as_str());
        if let Some(free) = node.and_then(|node| free.get_mut(node)) {
            *free = free.saturating_sub(vm.spec.guest.in_use().mem.0);
        }
    }
    free
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

pub(crate) fn selects(loaded: &LoadedEnvironment, vm: &VirtualMachine) -> bool {
    loaded.namespace == vm.metadata.namespace
        && vm.metadata.deletion_timestamp.is_none()
        && loaded.selects(&vm.metadata.labels)
}

fn turn_of<'a>(loaded: &'a LoadedEnvironment, instance: &str) -> Option<&'a TurnSpec> {
    loaded.turns.get(instance)?.0.as_ref()
}

/// Whether the environment of a turn is gone.
pub(crate) fn is_orphan(
    turn: Option<&TurnSpec>,
    namespace: &str,
    all: &[LoadedEnvironment],
) -> bool {
    let is_there = |name: &str| {
        all.iter()
            .any(|one| one.namespace == namespace && one.environment.name == name)
    };
    turn.is_some_and(|turn| !is_there(&turn.environment))
}

/// Whether the environment has the part of a guest that it no longer selects.
fn has_left(loaded: &LoadedEnvironment, vm: &VirtualMachine) -> bool {
    let turns = loaded.turns.get(&instance_name(&vm.metadata.name));
    let claim = turns.and_then(|(turn, last)| claim(turn.as_ref(), last.as_ref()));
    loaded.namespace == vm.metadata.namespace
        && vm.metadata.deletion_timestamp.is_none()
        && !selects(loaded, vm)
        && claim == Some(&loaded.environment.name)
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
        // One that verifies changes nothing.
        let claims = !other.environment.spec.is_cron();
        // A guest that left its environment goes back first, also where another one selects it.
        let is_of_other = claims && *name < own.name && selects(other, vm) && selects(loaded, vm);
        if has_turn || is_of_other {
            return Some(Gate::Claim);
        }
    }
    gate
}

/// Gate of a guest on a node whose agent is in a turn: both ends of a link never change at once.
fn agent_gate(all: &[LoadedEnvironment], node: &str) -> Option<Gate> {
    let instance = node_instance_name(node);
    let agents = all
        .iter()
        .filter(|one| one.environment.spec.part == PartName::Agent);
    let mut turns = agents.filter_map(|one| one.turns.get(&instance));
    let is_changing = turns.any(|(turn, last)| is_open(turn.as_ref(), last.as_ref()));
    is_changing.then_some(Gate::PeerInFlight)
}

#[cfg(test)]
mod tests;
