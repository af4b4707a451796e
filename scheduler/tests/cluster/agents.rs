//! Agents that want more and less all the time, and a record of what they were permitted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::api::ListParams;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Cluster, PATIENCE};

/// Name of the annotation that counts.
const APPROVED: &str = "internal.autoscaling.neon.tech/resources-approved";
/// Between two rounds of the same agent.
const PACE: Duration = Duration::from_millis(5);

/// An increase that was permitted.
#[derive(Debug, Clone)]
pub(crate) struct Growth {
    pub(crate) at: Instant,
    /// The replica that answered.
    pub(crate) by: String,
}

#[derive(Default)]
struct Ledger {
    /// Units each VM may use.
    held: BTreeMap<String, u32>,
    total: u32,
    /// Where to ask: name and address.
    replicas: Vec<(String, String)>,
    growths: Vec<Growth>,
    wrong: Vec<String>,
    answers: u64,
}

/// All agents of the node.
pub(crate) struct Agents {
    ledger: Arc<Mutex<Ledger>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Agents {
    /// One agent for each VM; the node has `total` units.
    pub(crate) fn start(vms: &[&str], total: u32) -> Self {
        let held = vms.iter().map(|vm| ((*vm).to_owned(), 1)).collect();
        let ledger = Ledger {
            held,
            total,
            ..Ledger::default()
        };
        let ledger = Arc::new(Mutex::new(ledger));
        let http = reqwest::Client::new();
        let agents = vms.iter().zip(1_u64..).map(|(vm, seed)| {
            let agent = Agent {
                vm: (*vm).to_owned(),
                seed,
                permit: None,
                ledger: Arc::clone(&ledger),
                http: http.clone(),
            };
            tokio::spawn(agent.run())
        });
        let tasks = agents.collect();
        Self { ledger, tasks }
    }

    /// Where they ask from now on.
    pub(crate) fn ask(&self, replicas: &[&super::Replica]) {
        let names = replicas.iter();
        lock(&self.ledger).replicas = names
            .map(|replica| (replica.name.clone(), replica.permits.clone()))
            .collect();
    }

    /// The first increase permitted after `since`.
    pub(crate) async fn growth_after(&self, cluster: &Cluster, since: Instant) -> Growth {
        self.growth_not_by(cluster, since, None).await
    }

    /// The first increase after `since` that a replica other than `gone` permitted.
    ///
    /// What one that is stopped or killed had answered just before may still be on its way.
    pub(crate) async fn growth_without(
        &self,
        gone: &str,
        cluster: &Cluster,
        since: Instant,
    ) -> Growth {
        self.growth_not_by(cluster, since, Some(gone)).await
    }

    async fn growth_not_by(&self, cluster: &Cluster, since: Instant, gone: Option<&str>) -> Growth {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(growth) = self.first_after(since, gone) {
                return growth;
            }
            assert!(
                Instant::now() < end,
                "no growth any more:\n{}",
                cluster.logs()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn first_after(&self, since: Instant, gone: Option<&str>) -> Option<Growth> {
        let ledger = lock(&self.ledger);
        let mut growths = ledger.growths.iter();
        growths
            .find(|growth| growth.at > since && gone != Some(growth.by.as_str()))
            .cloned()
    }

    /// Recomputes what is given from the API's objects, and looks at what the agents saw.
    pub(crate) async fn check(&self, cluster: &Cluster) {
        let approved = approved_units(cluster).await;
        let ledger = lock(&self.ledger);
        let wrong = ledger.wrong.clone();
        assert!(
            approved <= ledger.total && wrong.is_empty(),
            "{approved} of {} units are approved; {wrong:?}\n{}",
            ledger.total,
            cluster.logs()
        );
    }

    /// Waits for that many answers more.
    pub(crate) async fn until_answered(&self, cluster: &Cluster, more: u64) {
        let (end, goal) = (Instant::now() + PATIENCE, lock(&self.ledger).answers + more);
        while lock(&self.ledger).answers < goal {
            assert!(
                Instant::now() < end,
                "no answers any more:\n{}",
                cluster.logs()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn stop(self) {
        for task in self.tasks {
            task.abort();
            // It was aborted, or it failed, which it has written down.
            let _ended = task.await;
        }
    }
}

/// Units approved by all VM objects together, the larger of CPU and memory each.
async fn approved_units(cluster: &Cluster) -> u32 {
    let vms = cluster.api("VirtualMachine");
    let vms = vms.list(&ListParams::default()).await.expect("are listed");
    let units = vms.items.iter().map(|vm| {
        let text = vm
            .metadata
            .annotations
            .as_ref()
            .and_then(|notes| notes.get(APPROVED));
        text.map_or(1, |text| {
            units(&serde_json::from_str(text).expect("is JSON"))
        })
    });
    units.sum()
}

/// `{"vCPUs":"750m","mem":"3Gi"}` is three units.
fn units(resources: &Value) -> u32 {
    let resources: protocol::units::Resources =
        serde_json::from_value(resources.clone()).expect("are resources");
    let mem = u32::try_from(resources.mem.0.div_ceil(1 << 30)).expect("is small");
    resources.cpu.0.div_ceil(250).max(mem)
}

fn size(units: u32) -> Value {
    json!({"vCPUs": format!("{}m", 250 * units), "mem": format!("{units}Gi")})
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Agent {
    vm: String,
    seed: u64,
    permit: Option<u32>,
    ledger: Arc<Mutex<Ledger>>,
    http: reqwest::Client,
}

impl Agent {
    async fn run(mut self) {
        loop {
            let wish = self.wish();
            self.lower(wish);
            for (name, address) in self.replicas() {
                if let Some(permit) = self.ask(&address, wish).await {
                    self.permitted(&name, permit, wish);
                    break;
                }
                // It may have arrived and only its answer be lost: what was given back may be
                // another's by now.
                self.permit = self.permit.map(|permit| permit.min(wish));
            }
            tokio::time::sleep(PACE).await;
        }
    }

    fn replicas(&self) -> Vec<(String, String)> {
        lock(&self.ledger).replicas.clone()
    }

    /// One to five units, some way or other.
    fn wish(&mut self) -> u32 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        1 + u32::try_from((self.seed >> 33) % 5).unwrap_or(0)
    }

    /// An agent lowers its use before it tells.
    fn lower(&self, wish: u32) {
        let mut ledger = lock(&self.ledger);
        if let Some(held) = ledger.held.get_mut(&self.vm) {
            *held = wish.min(*held);
        }
    }

    async fn ask(&self, address: &str, wish: u32) -> Option<u32> {
        let body = json!({"protoVersion": 7, "pod": {"namespace": "default", "name": format!("{}-pod", self.vm)},
            "computeUnit": size(1), "resources": size(wish), "lastPermit": self.permit.map(size), "metrics": null});
        let sent = self.http.post(address).body(body.to_string());
        let answer = sent.timeout(Duration::from_secs(3)).send().await.ok()?;
        if answer.status() != 200 {
            return None;
        }
        let answer: Value = serde_json::from_str(&answer.text().await.ok()?).ok()?;
        Some(units(&answer["permit"]))
    }

    fn permitted(&mut self, name: &str, permit: u32, wish: u32) {
        let before = self.permit.replace(permit);
        let mut ledger = lock(&self.ledger);
        ledger.answers += 1;
        let used = permit.min(wish);
        ledger.held.insert(self.vm.clone(), used);
        if before.is_some_and(|before| permit > before) {
            let by = name.to_owned();
            ledger.growths.push(Growth {
                at: Instant::now(),
                by,
            });
        }
        let sum: u32 = ledger.held.values().sum();
        if sum > ledger.total {
            let text = format!("{} by {name}: {:?}", self.vm, ledger.held);
            ledger.wrong.push(text);
        }
    }
}
