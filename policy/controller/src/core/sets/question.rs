//! The question about the sets of one namespace, from the objects.

use std::collections::BTreeMap;

use policy_contract::{
    CONTRACT, ClusterSeen, FeedSource, FeedSum, MAX_NODES_SHOWN, NodeSeen, Scope, SetInput, SetOld,
    SetSeen, Spec, Time, Unit,
};
use protocol::policy::VmSet;
use protocol::time::WallTime;
use protocol::units::Resources;
use protocol::vm::VmSpec;
use serde::Deserialize as _;

use super::events::{Pages, Values};
use super::world::{PodSeen, World};

/// Objects and figures, and the size of a compute unit.
pub(super) struct Source<'a> {
    pub(super) world: &'a World,
    pub(super) fed: &'a Values,
    pub(super) unit: Resources,
    /// Ports that feeds may be read from.
    pub(super) feed_ports: &'a [u16],
}

impl Source<'_> {
    /// The question to a version about the sets of a namespace.
    pub(super) fn question(
        &self,
        spec: &Spec,
        namespace: &str,
        sets: &[&VmSet],
        old: Option<SetOld>,
    ) -> SetInput {
        let seen: BTreeMap<String, SetSeen> = sets
            .iter()
            .map(|set| (set.metadata.name.clone(), self.set(spec, set)))
            .collect();
        let mut feeds: BTreeMap<String, FeedSum> = BTreeMap::new();
        for (name, sum) in seen.values().flat_map(|set| &set.feeds) {
            let all = feeds.entry(name.clone()).or_default();
            all.sum += sum.sum;
            all.max = all.max.max(sum.max);
            all.members += sum.members;
        }
        let nodes = self.nodes();
        let sets_cu: u64 = sets
            .iter()
            .map(|set| {
                let placed = self.pods_of(set).count() as u64;
                placed * u64::from(seen[&set.metadata.name].member_cu)
            })
            .sum();
        let sum =
            |amount: fn(&NodeSeen) -> u32| nodes.values().map(move |node| u64::from(amount(node)));
        let free_cu = sum(|node| node.free_cu).sum();
        let cluster = ClusterSeen {
            nodes: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
            cu: sum(|node| node.cu).sum(),
            free_cu,
            sets_cu: free_cu + sets_cu,
        };
        SetInput {
            v: CONTRACT,
            scope: Scope::Set,
            params: spec.params.clone(),
            time: time_of(self.world.wall),
            unit: Unit {
                cpu_m: f64::from(self.unit.cpu.0),
                mem_bytes: bytes(self.unit.mem.0),
            },
            namespace: namespace.to_owned(),
            sets: seen,
            nodes: nodes.into_iter().take(MAX_NODES_SHOWN).collect(),
            cluster,
            feeds,
            old,
        }
    }

    /// Pages of the members of sets that a version's feeds are on.
    pub(super) fn pages(&self, spec: &Spec, sets: &[&VmSet], pages: &mut Pages) {
        for feed in self.feeds(spec) {
            for pod in sets.iter().flat_map(|set| self.pods_of(set)) {
                if !pod.address.is_empty() {
                    let page = pages.entry((pod.address.clone(), feed.port)).or_default();
                    page.insert(feed.metric.clone());
                }
            }
        }
    }

    /// Feeds of a version whose ports the administrator allows.
    fn feeds<'a>(&'a self, spec: &'a Spec) -> impl Iterator<Item = &'a FeedSource> + 'a {
        let feeds = spec.feeds.iter();
        feeds.filter(|feed| self.feed_ports.contains(&feed.port))
    }

    fn pods_of<'a>(&'a self, set: &'a VmSet) -> impl Iterator<Item = &'a PodSeen> + 'a {
        self.world.pods.iter().filter(|pod| {
            pod.namespace == set.metadata.namespace
                && pod.set.as_deref() == Some(&set.metadata.name)
        })
    }

    fn set(&self, spec: &Spec, set: &VmSet) -> SetSeen {
        let status = set.status.clone().unwrap_or_default();
        let mut feeds: BTreeMap<String, FeedSum> = BTreeMap::new();
        for feed in self.feeds(spec) {
            for pod in self.pods_of(set) {
                let page = self.fed.get(&(pod.address.clone(), feed.port));
                if let Some(value) = page.and_then(|page| page.get(&feed.metric)) {
                    feeds.entry(feed.name.clone()).or_default().add(*value);
                }
            }
        }
        SetSeen {
            count: set.spec.replicas,
            members: status.replicas,
            up: status.ready_replicas,
            member_cu: self.units_above(member_size(set)).max(1),
            priority: set.spec.priority,
            version: status.version,
            versions: set.spec.versions.clone(),
            command: set.spec.command().map(str::to_owned),
            commands: set.spec.commands.clone(),
            upgrading: status.upgrade.is_some(),
            feeds,
        }
    }

    fn nodes(&self) -> BTreeMap<String, NodeSeen> {
        let nodes = self.world.nodes.iter().map(|(name, whole)| {
            let mut used = Resources::default();
            let mut vms = 0;
            for pod in self.world.pods.iter().filter(|pod| pod.node == *name) {
                used.cpu.0 = used.cpu.0.saturating_add(pod.size.cpu.0);
                used.mem.0 = used.mem.0.saturating_add(pod.size.mem.0);
                vms += u32::from(pod.is_vm);
            }
            let node = NodeSeen {
                cu: self.units_within(*whole),
                free_cu: self.units_within(whole.saturating_sub(used)),
                vms,
            };
            (name.clone(), node)
        });
        nodes.collect()
    }

    /// Whole units that fit into a size.
    fn units_within(&self, size: Resources) -> u32 {
        let cpu = size.cpu.0 / self.unit.cpu.0.max(1);
        let memory = size.mem.0 / self.unit.mem.0.max(1);
        cpu.min(u32::try_from(memory).unwrap_or(u32::MAX))
    }

    /// Whole units that a size fits into.
    fn units_above(&self, size: Resources) -> u32 {
        let cpu = size.cpu.0.div_ceil(self.unit.cpu.0.max(1));
        let memory = size.mem.0.div_ceil(self.unit.mem.0.max(1));
        cpu.max(u32::try_from(memory).unwrap_or(u32::MAX))
    }
}

/// The question about all sets of a namespace as they are, without feeds and a past. `None` where
/// the namespace has none.
#[must_use]
pub fn question_now(
    world: &World,
    unit: Resources,
    spec: &Spec,
    namespace: &str,
) -> Option<SetInput> {
    let sets = world.sets.iter();
    let sets: Vec<&VmSet> = sets
        .filter(|set| set.metadata.namespace == namespace)
        .collect();
    let source = Source {
        world,
        fed: &Values::new(),
        unit,
        feed_ports: &[],
    };
    (!sets.is_empty()).then(|| source.question(spec, namespace, &sets, None))
}

/// Size with which a member starts.
fn member_size(set: &VmSet) -> Resources {
    let spec = VmSpec::deserialize(&set.spec.template.spec);
    spec.map_or_else(
        |_| Resources::default(),
        |spec| spec.guest.in_use().field_max(spec.guest.smallest()),
    )
}

fn time_of(wall: WallTime) -> Time {
    Time::of_unix_micros(u64::try_from(wall.0).unwrap_or_default())
}

#[expect(clippy::cast_precision_loss, reason = "a size of memory")]
fn bytes(count: u64) -> f64 {
    count as f64
}
