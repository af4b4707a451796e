//! The state of the instance at one time, as pages show it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use protocol::annotations::ANNOTATION_BOUNDS;
use protocol::mode::KEY_MODE;
use protocol::policy::{KEY_POLICY, LABEL_SET, member_ordinal};
use protocol::time::WallTime;
use serde_json::Value;

use super::attention::{self, Item};
use crate::commands::policy::state::{Agents, PolicyRow, rows};
use crate::commands::vmset::view::{MemberView, SetView, is_member};
use crate::fail::{Fail, Outcome};
use crate::node_orders::{OpenNode, Plan};
use crate::resize::Resize;
use crate::up::status::Status;
use crate::view::node::NodeView;
use crate::view::vm::VmView;

/// State of all VMs, nodes and policies at one time.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    pub(super) at: WallTime,
    /// When it was read, or last found unreadable.
    pub(super) taken: Option<Instant>,
    /// `None` in a cluster.
    pub(super) status: Option<Status>,
    /// Sorted by key.
    pub(super) vms: Vec<VmView>,
    /// Settings of each VM, by `namespace/name`.
    pub(super) settings: BTreeMap<String, VmSettings>,
    pub(super) nodes: Vec<NodeView>,
    /// Names of nodes that no new VM comes to.
    pub(super) drained: BTreeSet<String>,
    pub(super) agents: Agents,
    /// Objects of policies.
    pub(super) policies: Vec<Value>,
    pub(super) policy_rows: Vec<PolicyRow>,
    /// Sorted by key.
    pub(super) sets: Vec<SetState>,
    /// The scheduler's refused requests, by `namespace/name`.
    pub(super) refused: Value,
    /// Machines that know each other, as `bellows peers list -o json` has them, or null.
    pub(super) peers: Value,
    /// The newest stands first.
    pub(super) resizes: Vec<Resize>,
    /// Parts of a cluster that do not answer, and why.
    pub(super) silent: Vec<(&'static str, Fail)>,
    /// Why the state is not of now.
    pub(super) problem: Option<Fail>,
    /// What needs attention, first things first.
    pub(super) attention: Vec<Item>,
}

/// A set of VMs.
#[derive(Debug, Clone)]
pub(super) struct SetState {
    pub(super) view: SetView,
    /// Sorted by ordinal.
    pub(super) members: Vec<MemberView>,
    pub(super) object: Value,
}

impl SetState {
    /// States of sets, with their members among `vms`.
    pub(super) fn all(sets: Vec<Value>, vms: &[Value]) -> Vec<Self> {
        let mut labelled: BTreeMap<(&str, &str), Vec<&Value>> = BTreeMap::new();
        for vm in vms {
            let meta = &vm["metadata"];
            if let Some(set) = meta["labels"][LABEL_SET].as_str() {
                let namespace = meta["namespace"].as_str().unwrap_or_default();
                labelled.entry((namespace, set)).or_default().push(vm);
            }
        }
        let state = |object: Value| {
            let view = SetView::of(&object);
            let key = (&*view.namespace, &*view.name);
            let labelled = labelled.get(&key).into_iter().flatten();
            let own = labelled.filter(|vm| is_member(vm, &object));
            let mut members: Vec<MemberView> = own.map(|vm| MemberView::of(vm)).collect();
            members.sort_by_key(|member| member_ordinal(&view.name, &member.name));
            Self {
                view,
                members,
                object,
            }
        };
        let mut states: Vec<Self> = sets.into_iter().map(state).collect();
        states.sort_by_cached_key(|state| state.view.key());
        states
    }
}

/// What a person may set for one VM.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct VmSettings {
    /// Mode of the VM itself. `None`: that of its namespace or node.
    pub(super) mode: Option<String>,
    /// Policy of the VM itself.
    pub(super) policy: Option<String>,
    /// Whether the bounds are the annotation's, not the spec's.
    pub(super) has_own_bounds: bool,
}

impl VmSettings {
    pub(super) fn of(object: &Value) -> Self {
        let annotations = &object["metadata"]["annotations"];
        let text = |key: &str| annotations[key].as_str().map(str::to_owned);
        Self {
            mode: text(KEY_MODE),
            policy: text(KEY_POLICY),
            has_own_bounds: annotations[ANNOTATION_BOUNDS].is_string(),
        }
    }
}

impl Snapshot {
    pub(super) fn vm(&self, key: &str) -> Option<&VmView> {
        self.vms.iter().find(|vm| vm.key() == key)
    }

    pub(super) fn policy(&self, name: &str) -> Option<&Value> {
        let mut all = self.policies.iter();
        all.find(|object| object["metadata"]["name"] == name)
    }

    pub(super) fn set(&self, key: &str) -> Option<&SetState> {
        self.sets.iter().find(|set| set.view.key() == key)
    }

    /// What a drain of a node would do.
    pub(super) fn drain_plan(&self, node: &str) -> Outcome<Plan> {
        let nodes = self.nodes.iter().map(|one| OpenNode {
            name: &one.name,
            is_open: one.ready && !self.drained.contains(&one.name),
        });
        let vms = self.vms.iter();
        let vms = vms.filter(|vm| vm.node.as_deref() == Some(node));
        Plan::new(node, nodes, vms.map(|vm| (&*vm.namespace, &*vm.name)))
    }

    pub(super) fn settings(&self, key: &str) -> VmSettings {
        self.settings.get(key).cloned().unwrap_or_default()
    }

    /// Fills in what follows from the other members.
    pub(super) fn complete(mut self) -> Self {
        self.vms.sort_by_cached_key(VmView::key);
        self.policy_rows = rows(&self.policies, Some(&self.agents));
        self.attention = attention::items(&self);
        self
    }
}
