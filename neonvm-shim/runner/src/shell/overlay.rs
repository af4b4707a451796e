//! The cable between the pod's interface in the overlay network and the guest's: see
//! [`crate::core::overlay`].
//!
//! Bridge and QEMU's end are made before QEMU starts, which may make nothing, so that a pod without
//! the interface fails at once and says why. Every runner that starts or adopts a QEMU plugs its
//! end in, so that nothing depends on who lived through what.

use neonvm_links::{Links, LinksError};

use super::cable::{self, TunError};
use super::process::ProcessId;
use crate::config::{OverlayNic, RunnerConfig};
use crate::core::args::overlay_mac;
use crate::core::overlay::{BRIDGE, TAP};
use crate::core::transfer::Manifest;

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
    /// The tap device for QEMU cannot be made.
    #[error(transparent)]
    Tun(#[from] TunError),
}

/// Makes a bridge and puts the pod's interface into it, without addresses of its own, and QEMU's
/// end with so many queues; nothing for a guest that has no place in the overlay. Doing it again
/// before there is a QEMU does no harm.
///
/// # Errors
/// [`OverlayError`].
pub async fn prepare(nic: Option<&OverlayNic>, queues: u32) -> Result<(), OverlayError> {
    let Some(nic) = nic else {
        return Ok(());
    };
    let links = Links::open()?;
    let interface = links.find(&nic.interface).await?;
    let interface = interface.ok_or_else(|| OverlayError::NoInterface(nic.interface.clone()))?;
    cable::make_tap(&links, TAP, queues).await?;
    let gone = || OverlayError::NoInterface(BRIDGE.to_owned());
    let bridge = cable::bridge(&links, BRIDGE, None).await?;
    let bridge = bridge.ok_or_else(gone)?;
    links.strip(interface.index).await?;
    cable::plug(&links, interface.index, bridge).await?;
    Ok(links.raise(bridge).await?)
}

/// Removes QEMU's end, when QEMU has ended.
pub async fn clear(nic: Option<&OverlayNic>) {
    if nic.is_some() {
        cable::clear(TAP).await;
    }
}

/// Sees to it that a guest with a device in the overlay network, from elsewhere or booted here, is
/// connected, whoever started its QEMU.
pub fn keep_connected(config: &RunnerConfig, qemu: ProcessId, from: Option<&Manifest>) {
    if overlay_mac(config, from).is_some() {
        tokio::spawn(cable::keep(qemu, BRIDGE, TAP, "the overlay network"));
    }
}
