//! This machine among others, where `--peers-listen` is given ([`peers_mesh`]).
//!
//! The mesh divides the members of sets among machines. It writes the number of this machine into
//! the set of that name in the namespace `default`. The API, the ledger and the VMs stay this
//! machine's own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use clap::Args;
use futures::future::BoxFuture;
use peers_core::{Alone, Counts, Inventory, Settings};
use peers_mesh::{Config, Keys, MAX_MEMBERS, MAX_SETS, Machine, Mesh, MeshMetrics, StartError};
use prometheus_client::registry::Registry;
use protocol::policy::{GROUP, KIND, VERSION};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::base::Base;
use super::supervisor::{Stage, Supervisor};
use crate::api::{Api, ApiOwner, Kind};
use crate::commands::policy::object;
use crate::fail::{Fail, Outcome};
use crate::view::node::{nodes, pods};

/// Name in the status.
const NAME: &str = "peers";
/// Namespace of the sets that machines share.
const NAMESPACE: &str = "default";
/// A compute unit of the agent's built-in configuration.
const UNIT_CPU_MILLI: u32 = 250;
const UNIT_MEMORY_BYTES: u64 = 1 << 30;

/// Options of a machine among others.
#[derive(Debug, Clone, Args)]
pub(crate) struct PeersArgs {
    /// Address by which other machines reach this one, over UDP and TCP
    #[arg(long, value_name = "ADDR", requires = "peers_key", value_parser = reachable)]
    pub(super) peers_listen: Option<SocketAddr>,
    /// File with the key of all machines; two keys while it changes
    #[arg(long, value_name = "FILE", requires = "peers_listen")]
    peers_key: Option<PathBuf>,
    /// Address of any machine that is there
    #[arg(long, value_name = "ADDR", requires = "peers_listen", value_parser = reachable)]
    join: Option<SocketAddr>,
    /// Number of machines [default: the largest seen in seven days]
    #[arg(long, value_name = "N", requires = "peers_listen")]
    peers_expected: Option<usize>,
    /// Fewer machines than these plan nothing
    #[arg(long, value_name = "N", default_value_t = 1, requires = "peers_listen")]
    peers_min_cluster: usize,
    /// What machines do that are half of all or fewer
    #[arg(long, value_enum, value_name = "RULE", default_value_t = AloneArg::Hold, requires = "peers_listen")]
    peers_on_minority: AloneArg,
    /// What one machine of three or more does alone
    #[arg(long, value_enum, value_name = "RULE", default_value_t = AloneArg::Hold, requires = "peers_listen")]
    peers_on_alone: AloneArg,
    /// What one machine of two does alone
    #[arg(long, value_enum, value_name = "RULE", default_value_t = AloneArg::Local, requires = "peers_listen")]
    peers_on_pair_alone: AloneArg,
    /// The machine with the smallest number leads first
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        requires = "peers_listen"
    )]
    peers_priority: u32,
}

/// What machines without a majority do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum AloneArg {
    /// Counts of sets stay as they are.
    Hold,
    /// They plan for themselves.
    Local,
}

impl From<AloneArg> for Alone {
    fn from(arg: AloneArg) -> Self {
        match arg {
            AloneArg::Hold => Self::Hold,
            AloneArg::Local => Self::Local,
        }
    }
}

fn reachable(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| "must be IP:PORT".to_owned())?;
    if address.ip().is_unspecified() || address.port() == 0 {
        return Err(
            "must be an address of this machine that others reach, not 0.0.0.0 or port 0"
                .to_owned(),
        );
    }
    Ok(address)
}

/// A mesh that is to be started.
pub(super) struct Plan {
    listen: SocketAddr,
    join: Option<SocketAddr>,
    keys: Keys,
    settings: Settings,
    priority: u32,
}

impl Plan {
    /// Reads the key file. `None` without `--peers-listen`.
    pub(super) fn read(args: &PeersArgs) -> Outcome<Option<Self>> {
        let (Some(listen), Some(file)) = (args.peers_listen, &args.peers_key) else {
            return Ok(None);
        };
        let keys = Keys::load(file).map_err(|error| {
            Fail::usage(format!(
                "the key of the peers cannot be used: {}",
                daemon_kit::chain(&error)
            ))
            .rule("all machines have the same file, and its owner alone may read it")
            .fix(format!(
                "make one: openssl rand -hex 32 > {0}; chmod 600 {0}",
                file.display()
            ))
        })?;
        Ok(Some(Self {
            listen,
            join: args.join,
            keys,
            priority: args.peers_priority,
            settings: Settings {
                expected: args.peers_expected,
                on_minority: args.peers_on_minority.into(),
                on_alone: args.peers_on_alone.into(),
                on_pair_alone: args.peers_on_pair_alone.into(),
                min_cluster: args.peers_min_cluster,
            },
        }))
    }
}

/// Joins, and runs the mesh until the deciders end.
pub(super) async fn start(
    base: &Base,
    supervisor: &mut Supervisor,
    registry: &mut Registry,
    plan: Plan,
) -> Outcome {
    let api = Api::connect(&base.state.kubeconfig(), ApiOwner::Up).await?;
    let machine = HostMachine {
        api,
        warned: AtomicBool::new(false),
    };
    let config = Config {
        id: base.instance.node().into(),
        priority: plan.priority,
        listen: plan.listen,
        keys: plan.keys,
        join: plan.join,
        settings: plan.settings,
        state_file: base.state.path().join("peers.json"),
        clock: base.clock,
        release: protocol::release::RELEASE.to_owned(),
        machine: Arc::new(machine),
    };
    let (mesh, run) = Mesh::start(config).await.map_err(|error| explain(&error))?;
    let address = Some(plan.listen.to_string());
    let dump = mesh.clone();
    let dump = move || json!(dump.status());
    base.parts
        .register(NAME, address, Box::new(|| Ok(())), Some(Box::new(dump)));
    supervisor.run(
        NAME,
        Stage::Deciders,
        run(supervisor.token(Stage::Deciders)),
    );
    registry.register_collector(Box::new(MeshMetrics::new(mesh.clone())));
    // The admin API has served without it until now.
    let _first = base.peers.set(mesh);
    Ok(())
}

fn explain(error: &StartError) -> Fail {
    let fail = match error {
        StartError::Listen(..) => Fail::missing(error.to_string())
            .rule("gossip and requests of other machines come to this address of this machine")
            .fix("name a free port of an address that it has: --peers-listen IP:PORT"),
        StartError::Key(_) => Fail::usage(error.to_string())
            .rule("all machines have the same key file")
            .fix("copy it from that machine: --peers-key FILE"),
        StartError::Refused(..) => Fail::usage(error.to_string()),
    };
    fail.rule("VMs of this machine are not touched")
}

/// The machine of this process.
struct HostMachine {
    api: Api,
    /// A set beyond the bounds was logged.
    warned: AtomicBool,
}

impl HostMachine {
    async fn read(&self) -> Outcome<Inventory> {
        let sets = self.api.list(Kind::VmSet, Some(NAMESPACE)).await?;
        let pods = pods(
            &self.api.list(Kind::Pod, None).await?,
            protocol::time::WallTime(0),
        );
        let nodes = nodes(
            &self.api.list(Kind::Node, None).await?,
            &pods,
            protocol::time::WallTime(0),
        );
        let units = nodes.iter().map(|node| {
            let cpu = node
                .allocatable_cpu_milli
                .saturating_sub(node.granted_cpu_milli)
                / UNIT_CPU_MILLI;
            let memory = node
                .allocatable_memory_bytes
                .saturating_sub(node.granted_memory_bytes);
            cpu.min(u32::try_from(memory / UNIT_MEMORY_BYTES).unwrap_or(u32::MAX))
        });
        let all = sets.len();
        let inventory = Inventory {
            units_free: units.sum(),
            counts: sets.iter().filter_map(count_of).take(MAX_SETS).collect(),
        };
        if inventory.counts.len() < all && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                sets = all,
                shared = inventory.counts.len(),
                "other machines see not all sets"
            );
        }
        Ok(inventory)
    }

    async fn write(&self, counts: Counts) -> Outcome {
        for (set, count) in counts {
            let object = self.api.get(Kind::VmSet, NAMESPACE, &set).await?;
            if count_of(&object).is_some_and(|(_, has)| has != count) {
                let patch = json!({"spec": {"replicas": count}});
                self.api.merge(Kind::VmSet, NAMESPACE, &set, &patch).await?;
                tracing::info!(set, count, "the peers' leader changed the count of a set");
            }
        }
        Ok(())
    }
}

fn count_of(set: &Value) -> Option<(String, u32)> {
    let name = set["metadata"]["name"].as_str()?.to_owned();
    let count = u32::try_from(set["spec"]["replicas"].as_u64().unwrap_or(1)).ok()?;
    (count <= MAX_MEMBERS).then_some((name, count))
}

/// A policy on its way to another machine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyOrder {
    pub(crate) name: String,
    /// Members of the spec.
    pub(crate) spec: Value,
}

impl Machine for HostMachine {
    fn inventory(&self) -> BoxFuture<'_, Result<Inventory, String>> {
        Box::pin(async { self.read().await.map_err(|fail| fail.to_string()) })
    }

    fn scale(&self, counts: Counts) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { self.write(counts).await.map_err(|fail| fail.to_string()) })
    }

    fn apply_policy(&self, body: Bytes) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let order: PolicyOrder =
                serde_json::from_slice(&body).map_err(|error| format!("malformed: {error}"))?;
            let known = self
                .api
                .list(Kind::Policy, None)
                .await
                .map_err(|fail| fail.to_string())?;
            let old = known
                .iter()
                .find(|one| one["metadata"]["name"] == order.name.as_str());
            let put = object::put(&self.api, &order.name, old, order.spec).await;
            put.map_err(|fail| fail.to_string())?;
            tracing::info!(
                policy = order.name,
                "{GROUP}/{VERSION} {KIND} applied for another machine"
            );
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_that_no_machine_reaches_is_refused() {
        for wrong in [
            "0.0.0.0:7946",
            "[::]:7946",
            "10.0.0.1:0",
            "10.0.0.1",
            "host:7946",
        ] {
            reachable(wrong).unwrap_err();
        }
        reachable("10.0.0.1:7946").unwrap();
    }

    /// Requirement: V18
    #[test]
    fn v18_count_of_a_set_is_that_of_its_spec() {
        let set =
            |replicas: Value| json!({"metadata": {"name": "web"}, "spec": {"replicas": replicas}});
        assert_eq!(count_of(&set(json!(3))), Some(("web".to_owned(), 3)));
        assert_eq!(count_of(&set(Value::Null)), Some(("web".to_owned(), 1)));
        assert_eq!(count_of(&set(json!(1_001))), None);
    }
}
