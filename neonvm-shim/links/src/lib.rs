//! Links of this machine by netlink: the few things that runner and vxlan controller do with
//! bridges, tunnels and what is plugged into them.
//!
//! Everything goes to the network namespace in which the handle was opened. Nothing is remembered:
//! each question is asked anew.

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

/// `ENODEV` as netlink says it.
const NO_DEVICE: i32 = -19;
/// The hardware address of an entry for frames whose place is not known, or that are for everybody.
const EVERYBODY: [u8; 6] = [0; 6];

/// Why the kernel did not answer, or refused.
#[derive(Debug, thiserror::Error)]
pub enum LinksError {
    /// The netlink socket could not be opened.
    #[error("no netlink socket")]
    Socket(#[source] std::io::Error),
    /// A request; CAP_NET_ADMIN is needed for changes.
    #[error("could not {0}")]
    Request(&'static str, #[source] Error),
}

/// A network interface of this host, as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number for it.
    pub index: u32,
    /// Whether it is switched on.
    pub up: bool,
    /// The bridge it is in.
    pub master: Option<u32>,
    /// What it is.
    pub kind: Kind,
}

/// What a link is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A bridge that other links are ports of.
    Bridge,
    /// A VXLAN tunnel.
    Tunnel(Tunnel),
    /// Any kind that the overlay does not use.
    Other,
}

/// A VXLAN tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tunnel {
    /// VXLAN network identifier; `None` if the kernel reports none.
    pub vni: Option<u32>,
    /// The address its packets come from.
    pub local: Option<Ipv4Addr>,
    /// UDP port they go to.
    pub port: Option<u16>,
    /// Whether it remembers where frames came from.
    pub learning: bool,
}

/// A connection to the kernel.
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

/// Names what was tried.
fn tried(what: &'static str) -> impl Fn(Error) -> LinksError {
    move |error| LinksError::Request(what, error)
}

impl Links {
    /// Opens a connection, carried by a task of the present runtime.
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

    /// The link of that name, if there is one.
    ///
    /// # Errors
    /// [`LinksError::Request`], as of all that follow.
    pub async fn find(&self, name: &str) -> Result<Option<Link>, LinksError> {
        let request = self.handle.link().get().match_name(name.to_owned());
        match request.execute().try_next().await {
            Ok(message) => Ok(message.as_ref().map(read)),
            Err(Error::NetlinkError(error)) if error.raw_code() == NO_DEVICE => Ok(None),
            Err(error) => Err(LinksError::Request("look for a link", error)),
        }
    }

    /// Makes a bridge, switched off, with this hardware address or one by chance.
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

    /// Makes a tunnel, switched off.
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

    /// Deletes a link with all that hangs on it.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn delete(&self, index: u32) -> Result<(), LinksError> {
        let request = self.handle.link().del(index);
        request.execute().await.map_err(tried("delete a link"))
    }

    /// Switches a link on.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn raise(&self, index: u32) -> Result<(), LinksError> {
        let message = LinkUnspec::new_with_index(index).up().build();
        let request = self.handle.link().set(message);
        request.execute().await.map_err(tried("switch a link on"))
    }

    /// Puts a link into a bridge, out of any other.
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

    /// Has the bridge remember nothing of where frames from this link of its came from: it sends
    /// all others there.
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

    /// Gives a link an IPv4 address in a network of so many bits, if it has not got it yet.
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

    /// Takes all IPv4 addresses from a link.
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

    /// Where a tunnel sends frames that are for everybody.
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

    /// Adds an entry: frames for everybody go there, too.
    ///
    /// # Errors
    /// [`LinksError::Request`].
    pub async fn add_target(&self, tunnel: u32, to: Ipv4Addr) -> Result<(), LinksError> {
        let message = RouteNetlinkMessage::NewNeighbour(entry(tunnel, to));
        // Beside those that are there for the same hardware address.
        self.say(message, NLM_F_CREATE | NLM_F_APPEND, "add an entry")
            .await
    }

    /// Removes that entry.
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

/// An entry of a tunnel for frames that are for everybody.
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

/// Where such an entry leads, if it is one.
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
