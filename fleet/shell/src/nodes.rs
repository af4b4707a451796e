//! Agents of nodes. In an environment of the part `agent` each node is an instance.
//!
//! * One template of a `DaemonSet` has the image of all agents. A turn sets it, and deletes the pod
//!   of its node. The agents of other nodes run on until their turns.
//! * Objects of the API are the state of a trial: no node keeps one.
//! * A node's agent says by its schedule whether it may restart. A pod that is not ready is not
//!   asked.

mod agents;
mod daemon_set;
mod objects;
mod orders;
mod page;
mod scene;
mod seen;

use fleet_core::permit::Gate;
use fleet_core::{Guest, Observed};
use fleet_store::{LoadedEnvironment, Owner, OwnerKind};
use futures::StreamExt as _;
use protocol::fleet::{node_instance_name, schedule_map_name};

use crate::guest;
use crate::look::{Address, Looked, Looker, Surroundings, Way};
use crate::node::Node;
use crate::pulse::Pulse;
use crate::workload::Unread;
use agents::{Read, newest_of};
use objects::AGENT;
use page::AgentPage;
use scene::Scene;

pub(crate) use agents::Agents;
pub(crate) use orders::carry_out;

/// Pages that are read concurrently.
const AT_ONCE: usize = 16;

/// The world of an environment of agents, one of `all` environments.
pub(crate) async fn world(
    looker: &Looker,
    loaded: &LoadedEnvironment,
    all: &[LoadedEnvironment],
    surroundings: &Surroundings,
    pulse: &Pulse,
) -> Looked {
    let read = match looker.runners.pods() {
        Some(_) => Agents::new(&looker.client, &loaded.namespace).read().await,
        None => Err(Unread::Absent("agents of nodes are in clusters".to_owned())),
    };
    if let Err(Unread::Failed(error)) = &read {
        let namespace = &loaded.namespace;
        tracing::warn!(namespace, error, "failed to look at agents");
    }
    let scene = Scene {
        loaded,
        all,
        surroundings,
    };
    let nodes = surroundings.nodes.iter();
    let nodes = nodes.filter(|node| loaded.selects(&node.labels) || scene.has_left(node));
    let read = read.as_ref();
    // Collected first: a stream of a closure's futures is not `Send` for every lifetime.
    let looks: Vec<_> = nodes.map(|node| look(looker, &scene, node, read)).collect();
    let guests: Vec<(String, Guest, Address)> = futures::stream::iter(looks)
        .buffer_unordered(AT_ONCE)
        .inspect(|_| pulse.beat())
        .collect()
        .await;
    let mut looked = Looked::of(loaded);
    looker.images.mark(&mut looked.world.revisions);
    for (name, guest, address) in guests {
        looked.world.guests.insert(name.clone(), guest);
        looked.addresses.insert(name, address);
    }
    looked
}

async fn look(
    looker: &Looker,
    scene: &Scene<'_>,
    node: &Node,
    read: Result<&Read, &Unread>,
) -> (String, Guest, Address) {
    let name = node_instance_name(&node.name);
    let mut guest = scene.guest(node, &name, looker.clock.wall());
    match read {
        Err(Unread::Absent(problem)) => guest.observed = Observed::Unmanaged(problem.clone()),
        Err(Unread::Failed(_)) => {}
        Ok(read) => look_at(looker, scene, node, read, &mut guest).await,
    }
    let address = Address {
        way: Way::Node {
            namespace: scene.loaded.namespace.clone(),
            node: node.name.clone(),
        },
        owner: Owner {
            kind: OwnerKind::Node,
            name: node.name.clone(),
            uid: node.uid.clone(),
        },
    };
    (name, guest, address)
}

async fn look_at(looker: &Looker, scene: &Scene<'_>, node: &Node, read: &Read, guest: &mut Guest) {
    if !read.set.selects(&node.labels) {
        let text = format!("the nodeSelector of DaemonSet {AGENT} leaves the node out");
        guest.observed = Observed::Unmanaged(text);
        return;
    }
    let pod = newest_of(&node.name, &read.pods);
    let pod = pod.filter(|pod| pod.ends_at.is_none() && node.is_ready);
    let Some(pod) = pod else {
        // In a turn the next pod is on its way.
        let is_missing = (!guest.is_in_flight()).then_some(Gate::Unreachable);
        guest.gate = guest.gate.or(is_missing);
        return;
    };
    let address = pod.address.filter(|_| looker.asks_pages);
    let page = match address.filter(|_| pod.ready_since.is_some()) {
        Some(address) => guest::read_page(&address.to_string()).await.ok(),
        None => None,
    };
    let page = page.as_deref().map(AgentPage::read);
    let connected = page.as_ref().and_then(|page| page.monitors_connected);
    let lost = connected.map_or(0, |connected| {
        let expected = scene.surroundings.monitors_of(&node.name);
        let unconnected = expected.saturating_sub(connected);
        let is_in_flight = guest.is_in_flight();
        looker
            .unconnected
            .since_turn(&node.name, is_in_flight, unconnected)
    });
    let signs = seen::signs(pod, page.as_ref(), lost, looker.clock.wall());
    let trial_seconds = scene.trial_seconds(guest);
    let answers = looker.asks_pages.then_some(page.is_some());
    seen::observe(guest, pod, &signs, answers, trial_seconds);
    guest.gate = guest
        .gate
        .or_else(|| gate(scene, node, read, answers != Some(false)));
}

/// Gate by the agent's own word, and by what others did to the template.
fn gate(scene: &Scene<'_>, node: &Node, read: &Read, page_answers: bool) -> Option<Gate> {
    let said = read.schedules.get(&schedule_map_name(&node.name));
    let asks_to_go_on = said.is_some_and(|said| match said {
        Ok(schedule) => !schedule.restart_ok,
        // It is not restarted by guess.
        Err(_) => true,
    });
    if asks_to_go_on && page_answers {
        return Some(Gate::Restart);
    }
    let lock = scene.loaded.environment.status.lock.as_ref();
    read.set.has_drifted(lock).then_some(Gate::Drift)
}
