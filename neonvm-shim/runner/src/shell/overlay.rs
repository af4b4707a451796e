//! The bridge between the pod's interface in the overlay network and the guest's: see
//! [`crate::core::overlay`].
//!
//! The runner makes bridge and tap device before QEMU starts, as QEMU has no privilege for it. So a
//! pod without the interface fails at once with the reason. Every runner that starts or adopts a
//! QEMU joins the tap to the bridge, so that no state of an earlier runner is needed.

use neonvm_links::{Links, LinksError};

use super::process::ProcessId;
use super::tap::{self, TunError};
use crate::config::{OverlayNic, RunnerConfig};
use crate::core::args::overlay_mac;
use crate::core::overlay::{BRIDGE, TAP};
use crate::core::transfer::Manifest;

/// Errors of connecting a guest to the overlay.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// The pod does not have this interface.
    #[error(
        "spec.extraNetwork: this pod has no interface {0}: a network plugin (multus) gives it one by the annotation \
         k8s.v1.cni.cncf.io/networks, which the controller sets when it is told of a network with --nad-runner-name"
    )]
    NoInterface(String),
    /// A change to a network link failed.
    #[error(
        "cannot connect the guest to the overlay network: the pod's container needs the capability NET_ADMIN for it"
    )]
    Links(#[from] LinksError),
    /// The tap device for QEMU cannot be made.
    #[error(transparent)]
    Tun(#[from] TunError),
}

/// Makes a bridge with the pod's interface, without its addresses, and a tap device with this
/// number of queues. Does nothing for a guest without an overlay interface. Repeating it before
/// QEMU starts does no harm.
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
    tap::make_tap(&links, TAP, queues).await?;
    let gone = || OverlayError::NoInterface(BRIDGE.to_owned());
    let bridge = tap::bridge(&links, BRIDGE, None).await?.ok_or_else(gone)?;
    links.strip(interface.index).await?;
    tap::plug(&links, interface.index, bridge).await?;
    Ok(links.raise(bridge).await?)
}

/// Removes the tap device after QEMU's end.
pub async fn clear(nic: Option<&OverlayNic>) {
    if nic.is_some() {
        tap::clear(TAP).await;
    }
}

/// Joins the tap of a guest with an overlay device to the bridge, whichever runner started its
/// QEMU.
pub fn keep_connected(config: &RunnerConfig, qemu: ProcessId, from: Option<&Manifest>) {
    if overlay_mac(config, from).is_some() {
        tokio::spawn(tap::keep(qemu, BRIDGE, TAP, "the overlay network"));
    }
}
