//! One node's part of the overlay network (docs/compatibility/neonvm.md §2.11). The question this
//! answers: given what links, entries and rules there are and which nodes there are, what is to be
//! done next?
//!
//! ```text
//!  guests' pods ──veth── neon-br0 ── neon-vxlan0 ═══ UDP 4789, VNI 100 ═══ neon-vxlan0 ── neon-br0 ── …
//!                                        │ entries: 00:00:00:00:00:00 → each other node
//! ```
//!
//! * Happy path: bridge, tunnel, tunnel into bridge, one entry per other node; then nothing until a
//!   node comes or goes.
//! * Every look starts from what is there, so a process that died between two steps is mended by
//!   the next one, and whatever somebody else took away is made again.
//! * A tunnel that is another one than wanted (this node has got another address) is made anew.
//! * A link of our name that is no bridge or no tunnel is somebody else's: it is told and not
//!   touched.
//! * As long as the nodes are not known (no list yet, the API away) no entry is made or removed.
//!
//! Invariants:
//! 1. Steps lead to the wanted state from any other, wherever they break off
//!    (`tests::steps_lead_to_what_is_wanted_from_anywhere`).
//! 2. Where all is as wanted there are no steps (the same).
//! 3. An entry goes with its node, and only then (`tests::entries_follow_the_nodes`).
//! 4. Removal leaves nothing of ours and takes nothing else
//!    (`tests::steps_lead_to_what_is_wanted_from_anywhere`).

pub mod cidr;
pub mod nat;
pub mod nodes;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use serde::Serialize;

pub use cidr::Cidr;
use nat::{NatSeen, NatStep};

/// The bridge that pods' interfaces are plugged into.
pub const BRIDGE: &str = "neon-br0";
/// The tunnel to the other nodes.
pub const TUNNEL: &str = "neon-vxlan0";
/// Number of the overlay in the tunnel's packets.
pub const VNI: u32 = 100;
/// UDP port they are sent to.
pub const PORT: u16 = 4789;

/// What should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wanted {
    /// This node's address.
    pub local: Ipv4Addr,
    /// Where frames for everybody go; `None` while that is not known.
    pub peers: Option<BTreeSet<Ipv4Addr>>,
    /// The overlay's addresses, which are not to be masqueraded; `None` leaves iptables alone.
    pub exempt: Option<Cidr>,
}

/// A link of one of our names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LinkSeen<T> {
    /// What it is; `None` for another kind than its name is for.
    pub is: Option<T>,
    /// Whether it is switched on.
    pub up: bool,
}

/// Properties of the tunnel's link, as the kernel reports them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TunnelSeen {
    /// VXLAN network identifier; `None` if the kernel reports none.
    pub vni: Option<u32>,
    /// Address its packets come from.
    pub local: Option<Ipv4Addr>,
    /// Port they go to.
    pub port: Option<u16>,
    /// Whether it remembers behind which node a guest is.
    pub learning: bool,
    /// Whether it is in our bridge.
    pub in_bridge: bool,
    /// Where frames for everybody go.
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

/// What is there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// The link of the bridge's name.
    pub bridge: Option<LinkSeen<()>>,
    /// The link of the tunnel's name.
    pub tunnel: Option<LinkSeen<TunnelSeen>>,
    /// The rules, where they are looked at.
    pub nat: NatSeen,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Make the bridge.
    AddBridge,
    /// Switch it on.
    RaiseBridge,
    /// Make the tunnel, from this address.
    AddTunnel(Ipv4Addr),
    /// Put it into the bridge.
    JoinBridge,
    /// Switch it on.
    RaiseTunnel,
    /// Send frames for everybody there, too.
    AddTarget(Ipv4Addr),
    /// And there no more.
    RemoveTarget(Ipv4Addr),
    /// Change the rules.
    Nat(NatStep),
    /// Remove the tunnel with its entries.
    DeleteTunnel,
    /// Remove the bridge.
    DeleteBridge,
}

impl Step {
    /// A word for metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
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

/// A link of our name is somebody else's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is a link {name} that is no {kind}: rename or remove it, the overlay network needs that name"
)]
pub struct Foreign {
    /// Name of the link, which the overlay network needs for its own.
    pub name: &'static str,
    /// What it should be.
    pub kind: &'static str,
}

fn strangers(seen: &Seen) -> Result<(), Foreign> {
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

/// What makes it as wanted, in order; nothing when it is.
///
/// # Errors
/// [`Foreign`]: nothing is to be done until that is mended.
pub fn steps(seen: &Seen, wanted: &Wanted) -> Result<Vec<Step>, Foreign> {
    strangers(seen)?;
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
    // A bridge that is new has nothing in it.
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

/// What leaves nothing of ours. A link of our name that is somebody else's stays.
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
