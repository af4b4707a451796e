//! The cable between the pod's interface in the overlay network and the guest's: see [`crate::core::overlay`].
//!
//! The bridge is made before QEMU starts, so that a pod without the interface fails at once and says why. QEMU makes its own end, which
//! goes with it, and every runner that starts or adopts a QEMU plugs that in, so that nothing depends on who lived through what.

use std::io;
use std::path::Path;
use std::time::Duration;

use neonvm_links::{Links, LinksError};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use tracing::{info, warn};

use super::process::ProcessId;
use super::record::Record;
use super::transfer;
use crate::config::{OverlayNic, RunnerConfig};
use crate::core::args::overlay_mac;
use crate::core::overlay::{BRIDGE, TAP};

/// What QEMU's end is made by; a container has none of its own.
const TUN: &str = "/dev/net/tun";
/// The kernel's number for it.
const TUN_DEVICE: (u64, u64) = (10, 200);
/// Between two looks for QEMU's end, which is there some milliseconds after QEMU has started.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The same after a failure.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Why a guest has no place in the overlay.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// The pod has no such interface.
    #[error(
        "spec.extraNetwork: this pod has no interface {0}: a network plugin (multus) gives it one by the annotation \
         k8s.v1.cni.cncf.io/networks, which the controller sets when it is told of a network with --nad-runner-name"
    )]
    NoInterface(String),
    /// Changes to links.
    #[error(
        "cannot connect the guest to the overlay network: the pod's container needs the capability NET_ADMIN for it"
    )]
    Links(#[from] LinksError),
    /// The device file.
    #[error("cannot make {TUN}: give the pod's container that device, or the capability MKNOD")]
    Tun(#[source] io::Error),
}

/// Makes a bridge and puts the pod's interface into it, without addresses of its own; nothing for a guest that has no place in the
/// overlay. Doing it again does no harm.
///
/// # Errors
/// [`OverlayError`].
pub async fn prepare(nic: Option<&OverlayNic>) -> Result<(), OverlayError> {
    let Some(nic) = nic else {
        return Ok(());
    };
    let links = Links::open()?;
    let interface = links.find(&nic.interface).await?;
    let interface = interface.ok_or_else(|| OverlayError::NoInterface(nic.interface.clone()))?;
    make_tun(Path::new(TUN)).map_err(OverlayError::Tun)?;
    if links.find(BRIDGE).await?.is_none() {
        links.add_bridge(BRIDGE).await?;
    }
    let gone = || OverlayError::NoInterface(BRIDGE.to_owned());
    let bridge = links.find(BRIDGE).await?.ok_or_else(gone)?.index;
    links.strip(interface.index).await?;
    plug(&links, interface.index, bridge).await?;
    Ok(links.raise(bridge).await?)
}

/// Plugs a link into the bridge. With two ends it is a cable, which has nothing to remember: a guest that moves is elsewhere at once.
async fn plug(links: &Links, index: u32, bridge: u32) -> Result<(), LinksError> {
    links.join(index, bridge).await?;
    links.learn_nothing(index).await?;
    links.raise(index).await
}

fn make_tun(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let (major, minor) = TUN_DEVICE;
    mknod(
        path,
        SFlag::S_IFCHR,
        Mode::from_bits_truncate(0o600),
        makedev(major, minor),
    )?;
    Ok(())
}

/// Sees to it that a guest with a device in the overlay network is connected, whoever started its QEMU.
pub fn keep_connected(config: &RunnerConfig, record: &Record) {
    let from = record.arrival.as_ref();
    let from = from.and_then(|from| transfer::manifest(config, &from.order).ok());
    if let (Some(_), Some(qemu)) = (overlay_mac(config, from.as_ref()), record.qemu) {
        tokio::spawn(connect(qemu));
    }
}

/// Plugs in the end that a QEMU makes, as soon as it has; gives up with QEMU.
async fn connect(qemu: ProcessId) {
    let mut is_told = false;
    while qemu.is_alive() {
        match try_connect().await {
            Ok(true) => {
                info!("the guest is connected to the overlay network");
                return;
            }
            Ok(false) => tokio::time::sleep(LOOK_AGAIN).await,
            Err(problem) => {
                if !std::mem::replace(&mut is_told, true) {
                    warn!(
                        error = telemetry::chain(&problem),
                        "the guest is not in the overlay network yet"
                    );
                }
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }
}

/// Whether both ends are there, and the cable whole.
async fn try_connect() -> Result<bool, LinksError> {
    let links = Links::open()?;
    let (tap, bridge) = (links.find(TAP).await?, links.find(BRIDGE).await?);
    let Some((tap, bridge)) = tap.zip(bridge) else {
        return Ok(false);
    };
    plug(&links, tap.index, bridge.index).await?;
    Ok(true)
}
