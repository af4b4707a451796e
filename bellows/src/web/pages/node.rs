//! Nodes, and one node with its VMs.

use askama::Template;

use super::vms::{VmList, VmsQuery, percent};
use crate::output::age;
use crate::view::node::NodeView;
use crate::view::units::{cores, memory};
use crate::web::frame::Frame;
use crate::web::paths::path_of;
use crate::web::snapshot::Snapshot;

/// A node, for people.
#[derive(Debug)]
pub(super) struct NodeRow {
    pub(super) name: String,
    pub(super) href: String,
    pub(super) ready: bool,
    /// Such as `2 of 4 CPU granted`.
    pub(super) cpu: String,
    pub(super) cpu_percent: u64,
    pub(super) memory: String,
    pub(super) memory_percent: u64,
    pub(super) vms: usize,
    pub(super) age: String,
}

impl NodeRow {
    pub(super) fn new(node: &NodeView) -> Self {
        Self {
            name: node.name.clone(),
            href: path_of(&["nodes", &node.name]),
            ready: node.ready,
            cpu: format!(
                "{} of {}",
                cores(node.granted_cpu_milli),
                cores(node.allocatable_cpu_milli)
            ),
            cpu_percent: percent(
                node.granted_cpu_milli.into(),
                node.allocatable_cpu_milli.into(),
            ),
            memory: format!(
                "{} of {}",
                memory(node.granted_memory_bytes),
                memory(node.allocatable_memory_bytes)
            ),
            memory_percent: percent(node.granted_memory_bytes, node.allocatable_memory_bytes),
            vms: node.vms,
            age: node.age_s.map_or_else(|| "unknown".into(), age),
        }
    }
}

#[derive(Debug, Template)]
#[template(path = "nodes.html", whitespace = "minimize")]
pub(crate) struct NodesPage {
    pub(super) frame: Frame,
    nodes: Vec<NodeRow>,
}

impl NodesPage {
    pub(crate) fn new(frame: Frame, state: &Snapshot) -> Self {
        Self {
            nodes: state.nodes.iter().map(NodeRow::new).collect(),
            frame,
        }
    }
}

#[derive(Debug, Template)]
#[template(path = "node.html", whitespace = "minimize")]
pub(crate) struct NodePage {
    pub(super) frame: Frame,
    node: NodeRow,
    is_drained: bool,
    /// What needs attention about it.
    attention: Option<String>,
    list: VmList,
}

impl NodePage {
    /// `None` if no such node is there.
    pub(crate) fn new(
        frame: Frame,
        state: &Snapshot,
        name: &str,
        query: &VmsQuery,
    ) -> Option<Self> {
        let node = state.nodes.iter().find(|node| node.name == name)?;
        let node = NodeRow::new(node);
        let mut attention = state.attention.iter();
        let attention = attention.find(|item| item.href == node.href);
        let vms = state.vms.iter();
        let vms = vms.filter(|vm| vm.node.as_deref() == Some(name));
        let link = format!("{}?", node.href);
        Some(Self {
            is_drained: state.drained.contains(name),
            list: VmList::new(vms, state, (link, &query.page)),
            attention: attention.map(|item| item.text.clone()),
            node,
            frame,
        })
    }
}
