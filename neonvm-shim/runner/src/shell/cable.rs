//! A bridge with two ends: the guest's, made by QEMU, and what it is to reach.

use std::io;
use std::path::Path;
use std::time::Duration;

use neonvm_links::{Links, LinksError};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use tracing::{info, warn};

use super::process::ProcessId;

/// What QEMU's end is made by; a container has none of its own.
const TUN: &str = "/dev/net/tun";
/// The kernel's number for it.
const TUN_DEVICE: (u64, u64) = (10, 200);
/// Between two looks for QEMU's end, which is there some milliseconds after QEMU has started.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The same after a failure.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The device file that QEMU's end is made by cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make {TUN}: give the pod's container that device, or the capability MKNOD")]
pub struct TunError(#[source] io::Error);

/// Makes the device file, where it is missing.
///
/// # Errors
/// [`TunError`].
pub(super) fn make_tun() -> Result<(), TunError> {
    let path = Path::new(TUN);
    if path.exists() {
        return Ok(());
    }
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(TunError)?;
    }
    let (major, minor) = TUN_DEVICE;
    let mode = Mode::from_bits_truncate(0o600);
    mknod(path, SFlag::S_IFCHR, mode, makedev(major, minor)).map_err(|errno| TunError(errno.into()))
}

/// The bridge of this name, made with this hardware address or one by chance where it is missing; `None` if somebody took it away again.
///
/// # Errors
/// [`LinksError`].
pub(super) async fn bridge(
    links: &Links,
    name: &str,
    hardware: Option<[u8; 6]>,
) -> Result<Option<u32>, LinksError> {
    if links.find(name).await?.is_none() {
        links.add_bridge(name, hardware).await?;
    }
    Ok(links.find(name).await?.map(|link| link.index))
}

/// Plugs a link into a bridge. With two ends it is a cable, which has nothing to remember: a guest that moves is elsewhere at once.
///
/// # Errors
/// [`LinksError`].
pub(super) async fn plug(links: &Links, index: u32, bridge: u32) -> Result<(), LinksError> {
    links.join(index, bridge).await?;
    links.learn_nothing(index).await?;
    links.raise(index).await
}

/// Plugs in the end that a QEMU makes, as soon as it has; gives up with QEMU.
pub(super) async fn keep(qemu: ProcessId, bridge: &str, tap: &str, what: &str) {
    let mut is_told = false;
    while qemu.is_alive() {
        match try_plug(bridge, tap).await {
            Ok(true) => {
                info!("the guest is connected to {what}");
                return;
            }
            Ok(false) => tokio::time::sleep(LOOK_AGAIN).await,
            Err(problem) => {
                if !std::mem::replace(&mut is_told, true) {
                    let error = telemetry::chain(&problem);
                    warn!(error, "the guest is not connected to {what} yet");
                }
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }
}

/// Whether both ends are there, and the cable whole.
async fn try_plug(bridge: &str, tap: &str) -> Result<bool, LinksError> {
    let links = Links::open()?;
    let (tap, bridge) = (links.find(tap).await?, links.find(bridge).await?);
    let Some((tap, bridge)) = tap.zip(bridge) else {
        return Ok(false);
    };
    plug(&links, tap.index, bridge.index).await?;
    Ok(true)
}
