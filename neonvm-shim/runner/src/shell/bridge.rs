//! The bridge between the pod and its guest's first device: see [`crate::core::bridge`].
//!
//! The runner makes bridge, rules and tap device before QEMU starts, as QEMU has no privilege for
//! it. So a pod that cannot have them fails at once with the reason. Every runner that starts or
//! adopts a QEMU joins the tap to the bridge and answers the guest's DHCP requests.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use neonvm_links::{Links, LinksError};
use tokio::net::UdpSocket;
use tracing::{info, warn};

use super::nft::{self, NFT, NftError};
use super::process::ProcessId;
use super::tap::{self, TunError};
use crate::config::RunnerConfig;
use crate::core::args::device_mac;
use crate::core::bridge::{self, BITS, BRIDGE, BRIDGE_MAC, POD, TAP};
use crate::core::connection::is_bridged;
use crate::core::dhcp::{CLIENT_PORT, Lease, SERVER_PORT};
use crate::core::transfer::Manifest;

/// Whether the pod forwards packets.
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
/// Whether packets with a loopback address may leave by the bridge.
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/br-def/route_localnet";
/// Whether packets on a bridge also pass the rules of family `inet`.
const ON_BRIDGES: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";
/// Larger than any DHCP request.
const PACKET_BYTES: usize = 2048;
/// Pause between two attempts to open the DHCP socket.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Advice for users who cannot change the node.
const OR_USER: &str =
    "or connect guests by QEMU's user network, with --guest-network=user of the controller";

/// Errors of connecting a guest by a bridge.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// A change to a network link failed.
    #[error("the pod's container needs the capability NET_ADMIN for it, {OR_USER}")]
    Links(#[from] LinksError),
    /// Another process removed the bridge.
    #[error("another process has removed the bridge {BRIDGE}")]
    Gone,
    /// The tap device for QEMU cannot be made.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// The pod does not forward packets, and the setting cannot be changed.
    #[error(
        "the pod does not forward packets, and the setting cannot be changed: let its init container run `sysctl -w net.ipv4.ip_forward=1`, {OR_USER}"
    )]
    Forward(#[source] io::Error),
    /// The program `nft`, which sets the guest's rules, cannot be executed.
    #[error("cannot execute {NFT}: use the runner's own image, {OR_USER}")]
    NoNft(#[source] io::Error),
    /// The kernel rejects the guest's rules.
    #[error(
        "the kernel rejects the guest's rules, which need nf_tables with NAT ({0}): load them, {OR_USER}"
    )]
    Rules(String),
    /// The pod's hosts file cannot be read or written.
    #[error("cannot write the guest's name to {0}")]
    Hosts(PathBuf, #[source] io::Error),
}

impl From<NftError> for BridgeError {
    fn from(error: NftError) -> Self {
        match error {
            NftError::Execute(error) => Self::NoNft(error),
            NftError::Refused(said) => Self::Rules(said),
        }
    }
}

/// Makes bridge, rules and tap device, with this number of queues. Does nothing for a guest with
/// another connection. Repeating it before QEMU starts does no harm.
///
/// # Errors
/// [`BridgeError`].
pub async fn prepare(
    config: &RunnerConfig,
    arrival: Option<&Manifest>,
    queues: u32,
) -> Result<(), BridgeError> {
    if !is_bridged(config, arrival) {
        return Ok(());
    }
    let links = Links::open()?;
    let made = tap::bridge(&links, BRIDGE, Some(BRIDGE_MAC))
        .await?
        .ok_or(BridgeError::Gone)?;
    links.add_address(made, POD, BITS).await?;
    links.raise(made).await?;
    tap::make_tap(&links, TAP, queues).await?;
    set(FORWARD, "1").map_err(BridgeError::Forward)?;
    if let Err(error) = set(ROUTE_LOCALNET, "1") {
        // Only connections to the pod's own loopback address need it, as kubectl port-forward makes
        // them.
        info!(%error, "the guest is not reached by the pod's loopback address");
    }
    if Path::new(ON_BRIDGES).exists()
        && let Err(error) = set(ON_BRIDGES, "0")
    {
        // The kernel then translates the guest's packets to the pod's address on the bridge, which
        // returns none to its sender.
        info!(%error, "the guest does not reach itself by the pod's address");
    }
    nft::give(&bridge::rules(config)).await?;
    match &config.network.hosts {
        Some(hosts) => name_guest(hosts).map_err(|error| BridgeError::Hosts(hosts.clone(), error)),
        None => Ok(()),
    }
}

/// Removes the tap device after QEMU's end.
pub async fn clear(config: &RunnerConfig, from: Option<&Manifest>) {
    if is_bridged(config, from) {
        tap::clear(TAP).await;
    }
}

/// Writes a kernel setting unless it has the value. In a container it is often read-only, and the
/// pod's init container has written it.
fn set(setting: &str, value: &str) -> io::Result<()> {
    if std::fs::read_to_string(setting)?.trim() == value {
        return Ok(());
    }
    std::fs::write(setting, value)
}

fn name_guest(hosts: &Path) -> io::Result<()> {
    let text = match std::fs::read_to_string(hosts) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    let Some(line) = bridge::missing_host(&text) else {
        return Ok(());
    };
    // Append, not replace: the kubelet has bind-mounted this very file.
    let mut file = OpenOptions::new().append(true).create(true).open(hosts)?;
    file.write_all(line.as_bytes())
}

/// Connects the tap of a guest behind the bridge, migrated or booted here, and answers its DHCP
/// requests.
pub fn keep_connected(config: &RunnerConfig, qemu: ProcessId, from: Option<&Manifest>) {
    if !is_bridged(config, from) {
        return;
    }
    let lease = Lease {
        mac: device_mac(config, from),
        resolver: config.network.resolver.clone(),
    };
    tokio::spawn(tap::keep(qemu, BRIDGE, TAP, "its pod"));
    tokio::spawn(keep_answering(qemu, lease));
}

async fn keep_answering(qemu: ProcessId, lease: Lease) {
    let mut is_told = false;
    while qemu.is_alive() {
        if let Err(error) = answer(&lease).await
            && !std::mem::replace(&mut is_told, true)
        {
            warn!(%error, "failed to serve DHCP to the guest");
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

/// Answers requests until the socket fails.
async fn answer(lease: &Lease) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, SERVER_PORT)).await?;
    socket.bind_device(Some(BRIDGE.as_bytes()))?;
    socket.set_broadcast(true)?;
    let mut packet = vec![0; PACKET_BYTES];
    loop {
        let (bytes, _) = socket.recv_from(&mut packet).await?;
        let question = packet.get(..bytes).unwrap_or_default();
        if let Some(answer) = lease.answer(question) {
            let to = (Ipv4Addr::BROADCAST, CLIENT_PORT);
            socket.send_to(&answer, to).await?;
        }
    }
}
