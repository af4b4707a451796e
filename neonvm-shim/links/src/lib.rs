//! Network links by netlink: the operations of runner and vxlan controller on bridges, tunnels and
//! their ports.
//!
//! All requests apply to the network namespace in which the handle was opened. Nothing is cached.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use futures::{StreamExt as _, TryStreamExt as _};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{Error, Handle, LinkBridge, LinkBridgePort, LinkUnspec, LinkVxlan};
use tokio::task::JoinHandle;

/// `ENODEV` as a netlink error.
const NO_DEVICE: i32 = -19;
/// Hardware address of an entry for broadcast frames and for unknown destinations.
const EVERYBODY: [u8; 6] = [0; 6];

/// Errors of a netlink request.
#[derive(Debug, thiserror::Error)]
pub enum LinksError {
    /// The netlink socket could not be opened.
    #[error("cannot open a netlink socket")]
    Socket(#[source] std::io::Error),
    /// The kernel refused this request; changes need CAP_NET_ADMIN.
    #[error("could not {0}")]
    Request(&'static str, #[source] Error),
}

/// A network interface of this host, as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Index of the interface in the kernel.
    pub index: u32,
    /// Whether the link is up.
    pub up: bool,
    /// Index of the bridge that it is a port of.
    pub master: Option<u32>,
    /// Kind of the link, with a tunnel's properties.
    pub kind: Kind,
}

/// Kinds of links that the callers distinguish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A bridge that other links are ports of.
    Bridge,
    /// A VXLAN tunnel with these properties.
    Tunnel(Tunnel),
    /// Any kind that the overlay does not use.
    Other,
}

/// Properties of a VXLAN tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tunnel {
    /// VXLAN network identifier; `None` if the kernel reports none.
    pub vni: Option<u32>,
    /// Source address of its packets.
    pub local: Option<Ipv4Addr>,
    /// UDP port that its packets are sent to.
    pub port: Option<u16>,
    /// Whether it learns the sources of frames.
    pub learning: bool,
}

/// A netlink connection to one network namespace.
#[derive(Debug)]
pub struct Links {
    handle: Handle,
    connection: JoinHandle<()>,
}

impl Drop for Links {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Adds the name of the request to an error.
fn tried(what: &'static str) -> impl Fn(Error) -> LinksError {
    move |error| LinksError::Request(what, error)
}

impl Links {
    /// Opens a connection, served by a task of the present runtime.
    ///
    /// # Errors
    /// [`LinksError::Socket`].
    pub fn open() -> Result<Self, LinksError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(LinksError::Socket)?;
        Ok(Self {
            handle,
            connection: tokio::spawn(connection),
        })
    }

    /// Returns the link with this name; `None` if it does not exist.
    ///
    /// # Errors
    /// [`LinksError::Request`], as in all other methods.
    pub async fn find(&self, name: &str) -> Result<Option<Link>, LinksError> {
        let request = self.handle.link().get().match_name(name.to_owned());
        match request.execute().try_next().await {
            Ok(message) => Ok(message.as_ref().map(read)),
            Err(Error::NetlinkError(error)) if error.raw_code() == NO_DEVICE => Ok(None),
            Err(error) => Err(LinksError::Request("look for a link", error)),
        }
    }

    /// Makes a bridge, down, with this hardware address or a random one.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn add_bridge(
        &self,
        name: &str,
        hardware: Option<[u8; 6]>,
    ) -> Result<(), LinksError> {
        let mut link = LinkBridge::new(name);
        if let Some(hardware) = hardware {
            link = link.address(hardware.to_vec());
        }
        let request = self.handle.link().add(link.build());
        request.execute().await.map_err(tried("add a bridge"))
    }

    /// Makes a VXLAN tunnel, down.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn add_tunnel(&self, name: &str, tunnel: &Tunnel) -> Result<(), LinksError> {
        let mut link =
            LinkVxlan::new(name, tunnel.vni.unwrap_or_default()).learning(tunnel.learning);
        if let Some(local) = tunnel.local {
            link = link.local(local);
        }
        if let Some(port) = tunnel.port {
            link = link.port(port);
        }
        let request = self.handle.link().add(link.build());
        request.execute().await.map_err(tried("add a tunnel"))
    }

    /// Deletes a link with its entries and addresses.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn delete(&self, index: u32) -> Result<(), LinksError> {
        let request = self.handle.link().del(index);
        request.execute().await.map_err(tried("delete a link"))
    }

    /// Sets a link up.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn raise(&self, index: u32) -> Result<(), LinksError> {
        let message = LinkUnspec::new_with_index(index).up().build();
        let request = self.handle.link().set(message);
        request.execute().await.map_err(tried("switch a link on"))
    }

    /// Makes a link a port of a bridge, and removes it from any other.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn join(&self, index: u32, bridge: u32) -> Result<(), LinksError> {
        let message = LinkUnspec::new_with_index(index).controller(bridge).build();
        let request = self.handle.link().set(message);
        request
            .execute()
            .await
            .map_err(tried("put a link into a bridge"))
    }

    /// Disables address learning of a bridge's port: the bridge floods frames to it.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn learn_nothing(&self, index: u32) -> Result<(), LinksError> {
        let message = LinkBridgePort::new(index).learning(false).build();
        let request = self.handle.link().set_port(message);
        request
            .execute()
            .await
            .map_err(tried("keep a bridge from learning"))
    }

    /// Adds an IPv4 address with this prefix length to a link, unless the link has it.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn add_address(
        &self,
        index: u32,
        address: Ipv4Addr,
        bits: u8,
    ) -> Result<(), LinksError> {
        let request = self.handle.address().add(index, address.into(), bits);
        let done = request.replace().execute().await;
        done.map_err(tried("give a link an address"))
    }

    /// Removes all IPv4 addresses from a link.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn strip(&self, index: u32) -> Result<(), LinksError> {
        let request = self.handle.address().get().set_link_index_filter(index);
        let mut addresses = request.execute();
        let looked = tried("look for addresses");
        let mut found = Vec::new();
        while let Some(address) = addresses.try_next().await.map_err(&looked)? {
            if address.header.family == AddressFamily::Inet && address.header.index == index {
                found.push(address);
            }
        }
        for address in found {
            let request = self.handle.address().del(address);
            request
                .execute()
                .await
                .map_err(tried("take an address away"))?;
        }
        Ok(())
    }

    /// Destinations of a tunnel's broadcast frames.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn targets(&self, tunnel: u32) -> Result<BTreeSet<Ipv4Addr>, LinksError> {
        let mut request = self.handle.neighbours().get();
        request.message_mut().header.family = AddressFamily::Bridge;
        request.message_mut().header.ifindex = tunnel;
        let mut entries = request.execute();
        let looked = tried("look for a tunnel's entries");
        let mut targets = BTreeSet::new();
        while let Some(entry) = entries.try_next().await.map_err(&looked)? {
            if entry.header.ifindex == tunnel {
                targets.extend(target(&entry));
            }
        }
        Ok(targets)
    }

    /// Adds a destination of broadcast frames.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn add_target(&self, tunnel: u32, to: Ipv4Addr) -> Result<(), LinksError> {
        let message = RouteNetlinkMessage::NewNeighbour(entry(tunnel, to));
        // In addition to the entries for the same hardware address.
        self.say(message, NLM_F_CREATE | NLM_F_APPEND, "add an entry")
            .await
    }

    /// Removes a destination of broadcast frames.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn remove_target(&self, tunnel: u32, to: Ipv4Addr) -> Result<(), LinksError> {
        let message = RouteNetlinkMessage::DelNeighbour(entry(tunnel, to));
        self.say(message, 0, "remove an entry").await
    }

    async fn say(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        what: &'static str,
    ) -> Result<(), LinksError> {
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut answers = self.handle.clone().request(message).map_err(tried(what))?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(error) = answer.payload
                && error.code.is_some()
            {
                return Err(LinksError::Request(what, Error::NetlinkError(error)));
            }
        }
        Ok(())
    }
}

/// A tunnel's entry for broadcast frames.
fn entry(tunnel: u32, to: Ipv4Addr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = tunnel;
    message.header.state = NeighbourState::Permanent;
    message.header.flags = NeighbourFlags::Own;
    message.attributes = vec![
        NeighbourAttribute::LinkLayerAddress(EVERYBODY.to_vec()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet(to)),
    ];
    message
}

/// Destination of an entry for broadcast frames; `None` for any other entry.
fn target(entry: &NeighbourMessage) -> Option<Ipv4Addr> {
    let mut to = None;
    let mut is_for_everybody = false;
    for attribute in &entry.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(address) => {
                is_for_everybody = *address == EVERYBODY
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => to = Some(*address),
            NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => {
                to = <[u8; 4]>::try_from(bytes.as_slice())
                    .ok()
                    .map(Ipv4Addr::from);
            }
            _ => {}
        }
    }
    to.filter(|_| is_for_everybody)
}

fn read(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        up: message.header.flags.contains(LinkFlags::Up),
        master: None,
        kind: Kind::Other,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Controller(index) => link.master = Some(*index),
            LinkAttribute::LinkInfo(infos) => link.kind = kind(infos),
            _ => {}
        }
    }
    link
}

fn kind(infos: &[LinkInfo]) -> Kind {
    let mut found = Kind::Other;
    for info in infos {
        match info {
            LinkInfo::Kind(InfoKind::Bridge) => found = Kind::Bridge,
            LinkInfo::Data(InfoData::Vxlan(parts)) => found = Kind::Tunnel(tunnel(parts)),
            _ => {}
        }
    }
    found
}

fn tunnel(parts: &[InfoVxlan]) -> Tunnel {
    let mut tunnel = Tunnel::default();
    for part in parts {
        match part {
            InfoVxlan::Id(vni) => tunnel.vni = Some(*vni),
            InfoVxlan::Local(local) => tunnel.local = Some(*local),
            InfoVxlan::Port(port) => tunnel.port = Some(*port),
            InfoVxlan::Learning(learning) => tunnel.learning = *learning,
            _ => {}
        }
    }
    tunnel
}
