//! This machine among the others: the tasks, and what commands read of them.

mod start;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use daemon_kit::clock::Clock;
use futures::future::BoxFuture;
use hyper::{Method, StatusCode};
use peers_core::{Action, Counts, Event, Inventory, MAX_MACHINES, MachineId, Peer, Role, Settings};
use tokio::sync::{mpsc, watch};

use crate::client::{CallError, call};
use crate::driver::Shown;
use crate::gossip::{Gossip, Heard};
use crate::keys::Keys;
use crate::published::{
    self, MAX_MEMBERS, MAX_SETS, WantedCount, Wishes, is_inventory, is_name, merge,
};
use crate::server::{JoinRequest, JoinResponse, MeshStatus, PeerStatus};
use crate::state_file::{Kept, StateFile};

/// Pace at which membership and what runs here are read.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Actions that wait to be carried out. A turn of the core has at most one for each machine, and
/// two.
const ACTIONS: usize = 1_024;

/// What the mesh needs of the machine that it runs on.
pub trait Machine: Send + Sync + 'static {
    /// What runs here.
    fn inventory(&self) -> BoxFuture<'_, Result<Inventory, String>>;
    /// Sets the number of members of sets here.
    fn scale(&self, counts: Counts) -> BoxFuture<'_, Result<(), String>>;
    /// Applies a policy here, as another machine's `bellows policy apply --peers` sent it.
    fn apply_policy(&self, body: Bytes) -> BoxFuture<'_, Result<(), String>>;
}

/// Settings of a mesh.
pub struct Config {
    /// Name of this machine.
    pub id: MachineId,
    /// Machines with a smaller priority lead first.
    pub priority: u32,
    /// Address of gossip (UDP) and HTTPS (TCP). Other machines reach it.
    pub listen: SocketAddr,
    /// Keys of the key file.
    pub keys: Keys,
    /// A machine to join by.
    pub join: Option<SocketAddr>,
    /// Rules for machines that hear too few others.
    pub settings: Settings,
    /// File for what is kept over a restart.
    pub state_file: PathBuf,
    /// The process's clock.
    pub clock: Clock,
    /// Version of this program.
    pub release: String,
    /// What the mesh asks of the machine that it runs on.
    pub machine: Arc<dyn Machine>,
}

/// Why a machine is not among the others.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("{0} cannot be listened on: {1}")]
    Listen(SocketAddr, String),
    /// The machine to join by has another key.
    #[error("{0} has another key than this machine")]
    Key(SocketAddr),
    /// The machine to join by refuses.
    #[error("{0} refuses: {1}")]
    Refused(SocketAddr, String),
}

struct Shared {
    config: Config,
    gossip: Gossip,
    shown: watch::Receiver<Shown>,
    refused: AtomicU64,
    /// Why this machine is not counted: its name, or its number.
    conflict: Mutex<Option<String>>,
    wishes: Mutex<Wishes>,
    /// What runs here, as it was read last.
    here: Mutex<Inventory>,
    peers: Mutex<BTreeMap<MachineId, Known>>,
}

/// A machine that was heard within the last day.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) heard: Heard,
    alive: bool,
    pub(crate) rtt: Option<Duration>,
    pub(crate) last_response: Option<Instant>,
}

/// Handle of this machine among the others.
#[derive(Clone)]
pub struct Mesh(Arc<Shared>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is complete when its lock is released.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mesh {
    /// Carries out the core's actions in their order.
    async fn carry_out(&self, mut actions: mpsc::Receiver<Action>, events: mpsc::Sender<Event>) {
        while let Some(action) = actions.recv().await {
            match action {
                Action::Publish(claim) => {
                    let text = claim.map(|claim| json(&claim));
                    self.0.gossip.publish(published::CLAIM, text).await;
                }
                Action::Plan(plan) => {
                    self.0
                        .gossip
                        .publish(published::PLAN, Some(json(&plan)))
                        .await;
                    if let Some(counts) = plan.counts.get(&self.0.config.id) {
                        self.scale(counts.clone()).await;
                    }
                }
                Action::Gather(id) => {
                    let (mesh, events) = (self.clone(), events.clone());
                    tokio::spawn(async move { mesh.gather(id, &events).await });
                }
            }
        }
    }

    async fn gather(&self, from: MachineId, events: &mpsc::Sender<Event>) {
        let Some(address) = self.address_of(&from) else {
            return;
        };
        let keys = &self.0.config.keys;
        let response = call(keys, address, Method::GET, "/v1/inventory", Bytes::new()).await;
        let inventory = match response {
            Ok(body) => serde_json::from_slice(&body).ok().filter(is_inventory),
            Err(error) => {
                tracing::warn!(id = %from, %error, "a machine does not say what runs there");
                None
            }
        };
        if let Some(inventory) = inventory {
            // The receiver ends with the mesh.
            let _ended = events.send(Event::Gathered { from, inventory }).await;
        }
    }

    /// Feeds the core with what is heard, and carries out the leader's plan.
    async fn look(&self, generation: u64, events: mpsc::Sender<Event>, mut state: StateFile) {
        let mut planned = None;
        loop {
            let heard = self.0.gossip.heard().await;
            let members = self.members(heard, generation);
            for known in members.values() {
                merge(&mut locked(&self.0.wishes), &known.published.wishes);
            }
            let wishes = locked(&self.0.wishes).clone();
            self.0
                .gossip
                .publish(published::WISHES, Some(json(&wishes)))
                .await;
            let wanted = wishes
                .iter()
                .map(|(set, wish)| (set.clone(), wish.count))
                .collect();
            let peers: BTreeMap<MachineId, Peer> = members
                .iter()
                .map(|(id, heard)| (id.clone(), heard.published.peer.clone()))
                .collect();
            let mut news = vec![Event::Wanted(wanted), Event::Members(peers)];
            match self.0.config.machine.inventory().await {
                Ok(here) => {
                    self.0
                        .gossip
                        .publish(published::INVENTORY, Some(json(&here)))
                        .await;
                    locked(&self.0.here).clone_from(&here);
                    news.insert(0, Event::Here(here));
                }
                Err(error) => tracing::debug!(error, "what runs here is not known"),
            }
            for event in news {
                if events.send(event).await.is_err() {
                    return;
                }
            }
            self.follow(&members, &mut planned).await;
            let mut kept = Kept {
                expected: self.0.shown.borrow().expected,
                peers: members.values().map(|heard| heard.address).collect(),
                wishes,
            };
            // A machine that hears no other keeps the addresses for its next start.
            if kept.peers.is_empty() {
                kept.peers.clone_from(&state.kept().peers);
            }
            kept.peers.sort();
            state.keep(kept);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The machines that count. Of two with one name the older one does.
    fn members(&self, heard: Vec<Heard>, generation: u64) -> BTreeMap<MachineId, Heard> {
        let own = &self.0.config;
        let (members, conflict) = select_members(heard, &own.id, own.listen, generation);
        let mut known = locked(&self.0.peers);
        for machine in known.values_mut() {
            machine.alive = false;
        }
        for (id, heard) in &members {
            let entry = known.entry(id.clone()).or_insert_with(|| Known {
                heard: heard.clone(),
                alive: true,
                rtt: None,
                last_response: None,
            });
            entry.heard = heard.clone();
            entry.alive = true;
        }
        // Names come and go: the table has the living and the last of the dead.
        while known.len() > 2 * MAX_MACHINES {
            let Some(dead) = known.iter().find(|(_, machine)| !machine.alive) else {
                break;
            };
            let dead = dead.0.clone();
            known.remove(&dead);
        }
        let mut shown = locked(&self.0.conflict);
        if *shown != conflict {
            if let Some(why) = &conflict {
                tracing::error!(why, "this machine is not counted");
            }
            *shown = conflict.clone();
        }
        if conflict.is_some() {
            BTreeMap::new()
        } else {
            members
        }
    }

    /// Carries out the newest plan of the claim in force.
    async fn follow(&self, members: &BTreeMap<MachineId, Heard>, done: &mut Option<Counts>) {
        let Some(claim) = self.0.shown.borrow().in_force.clone() else {
            *done = None;
            return;
        };
        let leader = members.get(&claim.holder);
        let plan = leader.and_then(|leader| leader.published.plan.as_ref());
        let Some(plan) = plan
            .filter(|plan| plan.claim.holder == claim.holder && plan.claim.epoch == claim.epoch)
        else {
            return;
        };
        if let Some(counts) = plan.counts.get(&self.0.config.id)
            && done.as_ref() != Some(counts)
            && self.scale(counts.clone()).await
        {
            *done = Some(counts.clone());
        }
    }

    async fn scale(&self, counts: Counts) -> bool {
        match self.0.config.machine.scale(counts).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(error, "the plan of the peers' leader was not carried out");
                false
            }
        }
    }

    fn address_of(&self, id: &MachineId) -> Option<SocketAddr> {
        locked(&self.0.peers)
            .get(id)
            .map(|known| known.heard.address)
    }

    /// Living machines, and their addresses.
    pub(crate) fn living(&self) -> Vec<(MachineId, SocketAddr)> {
        let known = locked(&self.0.peers);
        let living = known.iter().filter(|(_, known)| known.alive);
        living
            .map(|(id, known)| (id.clone(), known.heard.address))
            .collect()
    }

    /// Records a response.
    pub(crate) fn responded(&self, id: &MachineId, rtt: Duration) {
        if let Some(known) = locked(&self.0.peers).get_mut(id) {
            known.rtt = Some(rtt);
            known.last_response = Some(Instant::now());
        }
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.0.config.keys
    }

    pub(crate) fn machine(&self) -> &dyn Machine {
        self.0.config.machine.as_ref()
    }

    pub(crate) fn refuse(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn greet(&self, address: SocketAddr) {
        self.0.gossip.greet(address);
    }

    /// Sets the number of members of a set over all machines.
    ///
    /// # Errors
    /// The name or the number is out of bounds.
    pub fn want(&self, set: &str, count: u32) -> Result<(), String> {
        if !is_name(set) {
            return Err(format!("{set:?} is not a name of a set"));
        }
        if count > MAX_MEMBERS {
            return Err(format!("a set has at most {MAX_MEMBERS} members"));
        }
        let mut wishes = locked(&self.0.wishes);
        if !wishes.contains_key(set) && wishes.len() >= MAX_SETS {
            return Err(format!("machines share at most {MAX_SETS} sets"));
        }
        let last = wishes.values().map(|wish| wish.revision).max();
        let revision = last.unwrap_or(0).saturating_add(1);
        wishes.insert(set.to_owned(), WantedCount { revision, count });
        Ok(())
    }

    /// Applies a policy on each living machine but this one. Returns the errors by machine.
    pub async fn apply_policy(&self, body: Bytes) -> BTreeMap<MachineId, Result<(), String>> {
        let keys = &self.0.config.keys;
        let calls = self.living().into_iter().map(|(id, address)| {
            let body = body.clone();
            async move {
                let sent = call(keys, address, Method::POST, "/v1/policies", body).await;
                (id, sent.map(drop).map_err(|error| error.to_string()))
            }
        });
        futures::future::join_all(calls).await.into_iter().collect()
    }

    /// Everything that commands show.
    #[must_use]
    pub fn status(&self) -> MeshStatus {
        let shown = self.0.shown.borrow().clone();
        let (role, reason) = match &shown.role {
            Role::Leads => ("leads", ""),
            Role::Gathers => ("gathers", ""),
            Role::Follows(_) => ("follows", ""),
            Role::Waits => ("waits", ""),
            Role::Holds(reason) => ("holds", reason.label()),
        };
        let conflict = locked(&self.0.conflict).clone();
        let wishes = locked(&self.0.wishes);
        MeshStatus {
            role: conflict.as_ref().map_or(role, |_| "holds").to_owned(),
            reason: conflict.unwrap_or_else(|| reason.to_owned()),
            expected: shown.expected,
            dropped: self.0.gossip.dropped() + self.0.refused.load(Ordering::Relaxed),
            wanted: wishes
                .iter()
                .map(|(set, wish)| (set.clone(), wish.count))
                .collect(),
            peers: self.peers(&shown),
        }
    }

    fn peers(&self, shown: &Shown) -> Vec<PeerStatus> {
        let leader = shown.in_force.as_ref().map(|claim| &claim.holder);
        let config = &self.0.config;
        let here = locked(&self.0.here).clone();
        let own = PeerStatus {
            id: config.id.clone(),
            address: config.listen,
            release: config.release.clone(),
            this: true,
            alive: true,
            leads: leader == Some(&config.id),
            rtt_ms: None,
            last_response_s: None,
            units_free: here.units_free,
            counts: here.counts,
        };
        let known = locked(&self.0.peers);
        let others = known.iter().map(|(id, known)| PeerStatus {
            id: id.clone(),
            address: known.heard.address,
            release: known.heard.published.release.clone(),
            this: false,
            alive: known.alive,
            leads: known.alive && leader == Some(id),
            rtt_ms: known.rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
            last_response_s: known.last_response.map(|at| at.elapsed().as_secs_f64()),
            units_free: known.heard.published.peer.inventory.units_free,
            counts: known.heard.published.peer.inventory.counts.clone(),
        });
        let mut all: Vec<PeerStatus> = others.chain([own]).collect();
        all.sort_by(|one, other| one.id.cmp(&other.id));
        all
    }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Joins by one request. Returns the addresses of all machines, or none if no one responds.
async fn join(config: &Config, address: SocketAddr) -> Result<Vec<SocketAddr>, StartError> {
    let request = JoinRequest {
        id: config.id.clone(),
        address: config.listen,
    };
    match call(
        &config.keys,
        address,
        Method::POST,
        "/v1/peers",
        json(&request),
    )
    .await
    {
        Ok(body) => {
            let response: Option<JoinResponse> = serde_json::from_slice(&body).ok();
            Ok(response.map(|response| response.peers).unwrap_or_default())
        }
        Err(CallError::Key(_)) => Err(StartError::Key(address)),
        Err(CallError::Http(daemon_kit::http_client::HttpError::Status(code, text))) => {
            match code {
                StatusCode::UNAUTHORIZED => Err(StartError::Key(address)),
                _ => Err(StartError::Refused(address, text)),
            }
        }
        Err(error) => {
            tracing::warn!(%address, %error, "the machine to join by does not respond");
            Ok(Vec::new())
        }
    }
}

/// The other machines that count, and why this one does not. Of two with one name the one that
/// started first counts; of more than sixteen, the first sixteen.
fn select_members(
    mut heard: Vec<Heard>,
    id: &MachineId,
    listen: SocketAddr,
    generation: u64,
) -> (BTreeMap<MachineId, Heard>, Option<String>) {
    // An earlier run of a machine at the same address is still heard for a while.
    heard.retain(|machine| !(machine.id == *id && machine.address == listen));
    heard.sort_by_key(|machine| std::cmp::Reverse(machine.generation));
    let mut newest: BTreeMap<(MachineId, SocketAddr), Heard> = BTreeMap::new();
    for machine in heard {
        newest
            .entry((machine.id.clone(), machine.address))
            .or_insert(machine);
    }
    let mut oldest: Vec<Heard> = newest.into_values().collect();
    oldest.sort_by_key(|machine| machine.generation);
    let mut members = BTreeMap::new();
    let mut before = 0;
    let mut conflict = None;
    for machine in oldest {
        if machine.id == *id {
            if machine.generation < generation {
                conflict = Some(format!(
                    "{} has the same name: use another --node-name",
                    machine.address
                ));
            }
        } else if members.len() < MAX_MACHINES - 1 && !members.contains_key(&machine.id) {
            before += usize::from(machine.generation < generation);
            members.insert(machine.id.clone(), machine);
        } else if !members.contains_key(&machine.id) {
            before += usize::from(machine.generation < generation);
        }
    }
    if before >= MAX_MACHINES {
        conflict = Some(format!(
            "there are {MAX_MACHINES} older machines: use Kubernetes for more"
        ));
    }
    (members, conflict)
}

#[cfg(test)]
mod tests;
