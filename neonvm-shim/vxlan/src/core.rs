//! One node's part of the overlay network (docs/compatibility/neonvm.md §2.11). From the node's
//! links, entries and rules, and from the cluster's nodes, it computes the next steps.
//!
//! ```text
//!  guests' pods ──veth── neon-br0 ── neon-vxlan0 ═══ UDP 4789, VNI 100 ═══ neon-vxlan0 ── neon-br0 ── …
//!                                        │ entries: 00:00:00:00:00:00 → each other node
//! ```
//!
//! * Happy path: bridge, tunnel, tunnel into bridge, one entry per other node; then nothing until a
//!   node comes or goes.
//! * Every look starts from the observed state. So the next process completes the steps of one that
//!   died, and restores what another program removed.
//! * A tunnel with other properties, for example after a change of this node's address, is
//!   replaced.
//! * A link of our name with another kind is foreign: it is reported and not touched.
//! * While the nodes are unknown (no list yet, the API not available) no entry is made or removed.
//!
//! Invariants:
//! 1. Steps lead to the wanted state from any other, wherever they break off
//!    (`tests::steps_lead_to_the_wanted_state_from_any_state`).
//! 2. In the wanted state there are no steps (the same test).
//! 3. An entry goes with its node, and only then (`tests::entries_follow_the_nodes`).
//! 4. Removal leaves nothing of ours and removes nothing else
//!    (`tests::steps_lead_to_the_wanted_state_from_any_state`).

pub mod cidr;
pub mod nat;
pub mod nodes;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use serde::Serialize;

pub use cidr::Cidr;
use nat::{NatSeen, NatStep};

/// Name of the bridge that joins the pods' interfaces and the tunnel.
pub const BRIDGE: &str = "neon-br0";
/// Name of the tunnel to the other nodes.
pub const TUNNEL: &str = "neon-vxlan0";
/// VXLAN network identifier of the overlay.
pub const VNI: u32 = 100;
/// UDP port of the tunnel's packets.
pub const PORT: u16 = 4789;

/// The wanted state of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wanted {
    /// IPv4 address of this node, the tunnel's source.
    pub local: Ipv4Addr,
    /// Addresses of the other nodes; `None` until they are known.
    pub peers: Option<BTreeSet<Ipv4Addr>>,
    /// Addresses of the overlay, which are not masqueraded; `None` leaves iptables alone.
    pub exempt: Option<Cidr>,
}

/// State of a link with one of our names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LinkSeen<T> {
    /// Properties of the link; `None` if its kind is not that of its name.
    pub is: Option<T>,
    /// Whether the link is up.
    pub up: bool,
}

/// Properties of the tunnel's link, as the kernel reports them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TunnelSeen {
    /// VXLAN network identifier; `None` if the kernel reports none.
    pub vni: Option<u32>,
    /// Source address of its packets.
    pub local: Option<Ipv4Addr>,
    /// UDP port that its packets are sent to.
    pub port: Option<u16>,
    /// Whether it learns behind which node a guest is.
    pub learning: bool,
    /// Whether it is a port of our bridge.
    pub in_bridge: bool,
    /// Nodes to which broadcast frames are sent.
    pub targets: BTreeSet<Ipv4Addr>,
}

impl TunnelSeen {
    fn fits(&self, local: Ipv4Addr) -> bool {
        let Self {
            vni,
            port,
            learning,
            ..
        } = self;
        (*vni, *port, *learning) == (Some(VNI), Some(PORT), true) && self.local == Some(local)
    }
}

/// The observed state of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Link with the name [`BRIDGE`].
    pub bridge: Option<LinkSeen<()>>,
    /// Link with the name [`TUNNEL`].
    pub tunnel: Option<LinkSeen<TunnelSeen>>,
    /// Rules of iptables, if they are managed.
    pub nat: NatSeen,
}

/// One change to the node's links, entries or rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Make the bridge; it is down at first.
    AddBridge,
    /// Set the bridge's link up.
    RaiseBridge,
    /// Make the tunnel, down, with this source address.
    AddTunnel(Ipv4Addr),
    /// Make the tunnel a port of the bridge.
    JoinBridge,
    /// Set the tunnel's link up.
    RaiseTunnel,
    /// Add a destination of broadcast frames.
    AddTarget(Ipv4Addr),
    /// Remove a destination of broadcast frames.
    RemoveTarget(Ipv4Addr),
    /// Change a rule of iptables.
    Nat(NatStep),
    /// Remove the tunnel with its entries.
    DeleteTunnel,
    /// Remove the bridge, without its ports.
    DeleteBridge,
}

impl Step {
    /// Label of the step in metrics and messages.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::AddBridge => "add_bridge",
            Self::RaiseBridge => "raise_bridge",
            Self::AddTunnel(_) => "add_tunnel",
            Self::JoinBridge => "join_bridge",
            Self::RaiseTunnel => "raise_tunnel",
            Self::AddTarget(_) => "add_target",
            Self::RemoveTarget(_) => "remove_target",
            Self::Nat(_) => "nat",
            Self::DeleteTunnel => "delete_tunnel",
            Self::DeleteBridge => "delete_bridge",
        }
    }
}

/// A link of our name belongs to another program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is a link {name} that is no {kind}: rename or remove it, the overlay network needs that name"
)]
pub struct Foreign {
    /// Name of the link, which the overlay network needs for its own.
    pub name: &'static str,
    /// Kind that the link must have.
    pub kind: &'static str,
}

fn refuse_foreign(seen: &Seen) -> Result<(), Foreign> {
    if seen.bridge.as_ref().is_some_and(|link| link.is.is_none()) {
        return Err(Foreign {
            name: BRIDGE,
            kind: "bridge",
        });
    }
    if seen.tunnel.as_ref().is_some_and(|link| link.is.is_none()) {
        return Err(Foreign {
            name: TUNNEL,
            kind: "vxlan",
        });
    }
    Ok(())
}

/// Steps from the observed to the wanted state, in order; empty if they are equal.
///
/// # Errors
/// [`Foreign`]: no step is possible until an administrator removes the link.
pub fn steps(seen: &Seen, wanted: &Wanted) -> Result<Vec<Step>, Foreign> {
    refuse_foreign(seen)?;
    let mut steps = Vec::new();
    let mut needs = |is_missing: bool, step: Step| steps.extend(is_missing.then_some(step));
    needs(seen.bridge.is_none(), Step::AddBridge);
    needs(
        !seen.bridge.as_ref().is_some_and(|link| link.up),
        Step::RaiseBridge,
    );
    let tunnel = seen.tunnel.as_ref();
    let fits =
        |link: &&LinkSeen<TunnelSeen>| link.is.as_ref().is_some_and(|is| is.fits(wanted.local));
    let kept = tunnel.filter(fits);
    needs(tunnel.is_some() && kept.is_none(), Step::DeleteTunnel);
    needs(kept.is_none(), Step::AddTunnel(wanted.local));
    let is = kept.and_then(|link| link.is.as_ref());
    // A new bridge has no ports.
    needs(
        seen.bridge.is_none() || !is.is_some_and(|is| is.in_bridge),
        Step::JoinBridge,
    );
    let none = BTreeSet::new();
    let targets = is.map_or(&none, |is| &is.targets);
    if let Some(peers) = &wanted.peers {
        steps.extend(targets.difference(peers).copied().map(Step::RemoveTarget));
        steps.extend(peers.difference(targets).copied().map(Step::AddTarget));
    }
    if !kept.is_some_and(|link| link.up) {
        steps.push(Step::RaiseTunnel);
    }
    if let Some(range) = wanted.exempt {
        steps.extend(nat::steps(&seen.nat, range).into_iter().map(Step::Nat));
    }
    Ok(steps)
}

/// Steps that remove everything of ours. A foreign link of our name stays.
#[must_use]
pub fn removal(seen: &Seen) -> Vec<Step> {
    let is_ours = |found: Option<bool>| found.unwrap_or(false);
    let mut steps: Vec<Step> = nat::removal(&seen.nat).into_iter().map(Step::Nat).collect();
    if is_ours(seen.tunnel.as_ref().map(|link| link.is.is_some())) {
        steps.push(Step::DeleteTunnel);
    }
    if is_ours(seen.bridge.as_ref().map(|link| link.is.is_some())) {
        steps.push(Step::DeleteBridge);
    }
    steps
}

#[cfg(test)]
mod tests;
