//! The bridge between the pod and its guest's first device: see [`crate::core::bridge`].
//!
//! Bridge, rules and QEMU's end are made before QEMU starts, which may make nothing, so that a pod
//! that cannot have them fails at once and says why. That the end is plugged in, and that a guest
//! that asks for its address is answered, is seen to by every runner that starts or adopts a QEMU.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use neonvm_links::{Links, LinksError};
use tokio::net::UdpSocket;
use tracing::{info, warn};

use super::cable::{self, TunError};
use super::nft::{self, NFT, NftError};
use super::process::ProcessId;
use crate::config::RunnerConfig;
use crate::core::args::device_mac;
use crate::core::bridge::{self, BITS, BRIDGE, BRIDGE_MAC, POD, TAP};
use crate::core::dhcp::{CLIENT_PORT, Lease, SERVER_PORT};
use crate::core::transfer::Manifest;

/// Whether the pod passes packets on.
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
/// Whether what comes from loopback may leave by the bridge.
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/br-def/route_localnet";
/// Whether what passes a bridge is also looked at as if it passed the pod.
const ON_BRIDGES: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";
/// More than any question for an address has.
const PACKET_BYTES: usize = 2048;
/// Between two attempts to answer such questions.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How the failure is avoided by whoever cannot mend it.
const OR_USER: &str =
    "or connect guests by QEMU's user network, with --guest-network=user of the controller";

/// Why a guest is not connected.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// Changes to links.
    #[error("the pod's container needs the capability NET_ADMIN for it, {OR_USER}")]
    Links(#[from] LinksError),
    /// The bridge is gone again.
    #[error("somebody has removed the bridge {BRIDGE}")]
    Gone,
    /// The tap device for QEMU cannot be made.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// Packets end here.
    #[error(
        "the pod does not pass packets on, and cannot be told to: let its init container run `sysctl -w net.ipv4.ip_forward=1`, {OR_USER}"
    )]
    Forward(#[source] io::Error),
    /// The program `nft`, which sets the guest's rules, cannot be executed.
    #[error("cannot execute {NFT}: use the runner's own image, {OR_USER}")]
    NoNft(#[source] io::Error),
    /// The kernel's refusal.
    #[error(
        "the kernel does not take the guest's rules, which need nf_tables with NAT ({0}): load them, {OR_USER}"
    )]
    Rules(String),
    /// The pod's own names.
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

/// Makes bridge, rules and QEMU's end, with so many queues; nothing for a guest that is connected
/// otherwise. Doing it again before there is a QEMU does no harm.
///
/// # Errors
/// [`BridgeError`].
pub async fn prepare(
    config: &RunnerConfig,
    arrival: Option<&Manifest>,
    queues: u32,
) -> Result<(), BridgeError> {
    if !bridge::connects(config, arrival) {
        return Ok(());
    }
    let links = Links::open()?;
    let made = cable::bridge(&links, BRIDGE, Some(BRIDGE_MAC)).await?;
    let made = made.ok_or(BridgeError::Gone)?;
    links.add_address(made, POD, BITS).await?;
    links.raise(made).await?;
    cable::make_tap(&links, TAP, queues).await?;
    set(FORWARD, "1").map_err(BridgeError::Forward)?;
    if let Err(error) = set(ROUTE_LOCALNET, "1") {
        // The one thing that needs it: connections to the pod's own loopback address, as kubectl
        // port-forward makes them.
        info!(%error, "the guest is not reached by the pod's loopback address");
    }
    if Path::new(ON_BRIDGES).exists()
        && let Err(error) = set(ON_BRIDGES, "0")
    {
        // What the guest sends to the pod's address is translated on the bridge then, which sends
        // nothing back where it came from.
        info!(%error, "the guest does not reach itself by the pod's address");
    }
    nft::give(&bridge::rules(config)).await?;
    match &config.network.hosts {
        Some(hosts) => name_guest(hosts).map_err(|error| BridgeError::Hosts(hosts.clone(), error)),
        None => Ok(()),
    }
}

/// Removes QEMU's end, when QEMU has ended.
pub async fn clear(config: &RunnerConfig, from: Option<&Manifest>) {
    if bridge::connects(config, from) {
        cable::clear(TAP).await;
    }
}

/// Gives a setting of the kernel's its value, if it has another one. A container may often only
/// read them; its pod's init container has set them then.
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
    // Added to, not replaced: the kubelet has mounted that very file.
    let mut file = OpenOptions::new().append(true).create(true).open(hosts)?;
    file.write_all(line.as_bytes())
}

/// Sees to it that a guest behind the bridge, from elsewhere or booted here, is connected, and gets
/// an answer when it asks for its address.
pub fn keep_connected(config: &RunnerConfig, qemu: ProcessId, from: Option<&Manifest>) {
    if !bridge::connects(config, from) {
        return;
    }
    let lease = Lease {
        mac: device_mac(config, from),
        resolver: config.network.resolver.clone(),
    };
    tokio::spawn(cable::keep(qemu, BRIDGE, TAP, "its pod"));
    tokio::spawn(keep_answering(qemu, lease));
}

async fn keep_answering(qemu: ProcessId, lease: Lease) {
    let mut is_told = false;
    while qemu.is_alive() {
        if let Err(error) = answer(&lease).await
            && !std::mem::replace(&mut is_told, true)
        {
            warn!(%error, "no answer for a guest that asks for its address");
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

/// Answers as long as that can be done.
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
