//! One sample of the system, and the history of earlier samples.

use std::collections::{BTreeMap, VecDeque};

use daemon_kit::clock::Clock;
use protocol::time::WallTime;

use crate::api::{Api, Kind};
use crate::context::Context;
use crate::fail::Outcome;
use crate::get;
use crate::resize::Resize;
use crate::view::node::{self, NodeView};
use crate::view::vm::VmView;

/// Samples kept per VM. The sparkline fits beside the other columns.
pub(crate) const HISTORY: usize = 24;
/// Text in place of decisions if no instance runs on this machine.
const NOT_UP: &str =
    "bellows up is not on this machine or does not answer: no reasons and no resizes to show";
/// Most VMs with a history. Further VMs have empty sparklines.
const HISTORY_VMS: usize = 1_000;

/// Content of one view.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    /// Time of the sample.
    pub(crate) at: WallTime,
    pub(crate) nodes: Vec<NodeView>,
    /// The VMs with the sizes of their last samples, oldest first.
    pub(crate) vms: Vec<(VmView, Trail)>,
    /// The last resizes, newest first.
    pub(crate) resizes: Vec<Resize>,
    /// Why decisions or resizes are missing.
    pub(crate) unasked: Option<String>,
}

/// Sizes of a VM in the last samples.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Trail {
    pub(crate) cpu_milli: VecDeque<u64>,
    pub(crate) memory_bytes: VecDeque<u64>,
}

impl Trail {
    fn push(&mut self, vm: &VmView) {
        for (ring, value) in [
            (&mut self.cpu_milli, vm.cpu_milli.now.map_or(0, u64::from)),
            (&mut self.memory_bytes, vm.memory_bytes.now.unwrap_or(0)),
        ] {
            if ring.len() == HISTORY {
                ring.pop_front();
            }
            ring.push_back(value);
        }
    }
}

/// Trails of all VMs, by `namespace/name`.
#[derive(Debug, Clone, Default)]
pub(crate) struct History(BTreeMap<String, Trail>);

impl History {
    /// Adds a sample. Drops VMs that are gone.
    pub(crate) fn push(&mut self, vms: Vec<VmView>) -> Vec<(VmView, Trail)> {
        let mut kept = BTreeMap::new();
        let mut list = Vec::with_capacity(vms.len());
        for vm in vms {
            let key = vm.key();
            let mut trail = self.0.remove(&key).unwrap_or_default();
            trail.push(&vm);
            if kept.len() < HISTORY_VMS {
                kept.insert(key, trail.clone());
            }
            list.push((vm, trail));
        }
        self.0 = kept;
        list
    }
}

pub(crate) struct Source {
    context: Context,
    api: Api,
    namespace: Option<String>,
    clock: Clock,
}

impl Source {
    pub(crate) fn new(context: Context, api: Api, namespace: Option<String>) -> Self {
        Self {
            context,
            api,
            namespace,
            clock: Clock::new(),
        }
    }

    /// Fetches one frame and adds it to the history.
    pub(crate) async fn fetch(&self, history: &mut History) -> Outcome<Frame> {
        let at = self.clock.wall();
        let (vms, pods, nodes, resizes) = tokio::join!(
            self.api.list(Kind::Vm, self.namespace.as_deref()),
            self.api.list(Kind::Pod, None),
            self.api.list(Kind::Node, None),
            self.context.admin_if_there("/v1/resizes"),
        );
        let pods = pods?;
        let decisions = self.context.decisions();
        let (vms, undecided) = get::vms(&self.context, decisions, &vms?, &pods, at).await;
        let pods = node::pods(&pods, at);
        // A cluster keeps no list of resizes.
        let unasked = if self.context.asks_cluster() {
            undecided.as_ref().map(get::no_reasons)
        } else {
            (!resizes.is_object()).then(|| NOT_UP.to_owned())
        };
        let mut resizes: Vec<Resize> =
            serde_json::from_value(resizes["resizes"].clone()).unwrap_or_default();
        resizes.reverse();
        if let Some(namespace) = &self.namespace {
            resizes.retain(|resize| resize.vm.split('/').next() == Some(namespace));
        }
        Ok(Frame {
            at,
            nodes: node::nodes(&nodes?, &pods, at),
            vms: history.push(vms),
            resizes,
            unasked,
        })
    }
}
