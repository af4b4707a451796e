//! A bridge with two ports: the guest's tap device, and the interface that the guest is to reach.

use std::io;
use std::path::Path;
use std::time::Duration;

use neonvm_links::{Links, LinksError};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use tracing::{info, warn};

use super::process::ProcessId;

/// Device file of tap interfaces. A container has none of its own.
const TUN: &str = "/dev/net/tun";
/// Major and minor number of the device file.
const TUN_DEVICE: (u64, u64) = (10, 200);
/// Pause between two looks for the tap device.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Errors of making the tap device.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The device file is missing and cannot be made.
    #[error("cannot make {TUN}: give the pod's container that device, or the capability MKNOD")]
    Device(#[source] io::Error),
    #[error(
        "cannot make the interface {0}: the pod's container needs the capability NET_ADMIN for it"
    )]
    Interface(String, #[source] io::Error),
    /// An earlier tap device cannot be removed.
    #[error(transparent)]
    Links(#[from] LinksError),
}

/// Makes the device file if it is missing.
///
/// # Errors
/// [`TunError::Device`].
fn make_tun() -> Result<(), TunError> {
    let path = Path::new(TUN);
    if path.exists() {
        return Ok(());
    }
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(TunError::Device)?;
    }
    let (major, minor) = TUN_DEVICE;
    let mode = Mode::from_bits_truncate(0o600);
    mknod(path, SFlag::S_IFCHR, mode, makedev(major, minor))
        .map_err(|errno| TunError::Device(errno.into()))
}

/// Makes the tap device with this number of queues, for a QEMU that may make none itself. One of an
/// earlier QEMU is removed.
///
/// # Errors
/// [`TunError`].
pub(super) async fn make_tap(links: &Links, name: &str, queues: u32) -> Result<(), TunError> {
    make_tun()?;
    remove(links, name).await?;
    super::sys::make_tap(Path::new(TUN), name, queues > 1)
        .map_err(|error| TunError::Interface(name.to_owned(), error))
}

/// Removes the link with this name.
///
/// # Errors
/// [`LinksError`].
async fn remove(links: &Links, name: &str) -> Result<(), LinksError> {
    match links.find(name).await? {
        Some(link) => links.delete(link.index).await,
        None => Ok(()),
    }
}

/// Removes the tap device. A leftover does no harm: it goes with the pod, and no process has it
/// open.
pub(super) async fn clear(tap: &str) {
    let removed = async { remove(&Links::open()?, tap).await };
    if let Err(problem) = removed.await {
        let error = daemon_kit::chain(&problem);
        warn!(error, "failed to remove {tap}");
    }
}

/// Index of the bridge with this name. A missing one is made, with this hardware address or a
/// random one. `None` if another process removed it meanwhile.
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

/// Joins a link to a bridge without address learning. A bridge with two ports needs none, and so a
/// migrated guest is reached at once.
///
/// # Errors
/// [`LinksError`].
pub(super) async fn plug(links: &Links, index: u32, bridge: u32) -> Result<(), LinksError> {
    links.join(index, bridge).await?;
    links.learn_nothing(index).await?;
    links.raise(index).await
}

/// Joins QEMU's tap device to the bridge, and retries while QEMU lives.
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
                    let error = daemon_kit::chain(&problem);
                    warn!(error, "failed to connect the guest to {what}, retrying");
                }
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }
}

/// Whether both links exist and are joined.
async fn try_plug(bridge: &str, tap: &str) -> Result<bool, LinksError> {
    let links = Links::open()?;
    let (tap, bridge) = (links.find(tap).await?, links.find(bridge).await?);
    let Some((tap, bridge)) = tap.zip(bridge) else {
        return Ok(false);
    };
    plug(&links, tap.index, bridge.index).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::{confined, sys};
    use nix::sched::{CloneFlags, setns};
    use rustix::thread::CapabilitySet;
    use std::fs::File;
    use test_network::Network;
    use test_records::{Missing, skip};

    /// Makes a tap twice, as two runners do, and opens it and another one without any privilege.
    fn make_and_take(network: &File) -> [Result<(), Option<i32>>; 2] {
        setns(network, CloneFlags::CLONE_NEWNET).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let links = Links::open().unwrap();
            make_tap(&links, "tap-test", 1).await.unwrap();
            make_tap(&links, "tap-test", 4).await.unwrap();
        });
        confined::give_up(CapabilitySet::empty()).unwrap();
        let take = |name| sys::make_tap(Path::new(TUN), name, true);
        ["tap-test", "tap-new"].map(|name| take(name).map_err(|error| error.raw_os_error()))
    }

    #[test]
    fn tap_is_made_once_and_opened_without_privileges() {
        let Some(network) = Network::new().expect("a network") else {
            let test = "tap_is_made_once_and_opened_without_privileges";
            return skip(test, Missing::Root, "networks of its own");
        };
        let file = File::open(network.path()).unwrap();
        // The thread ends, and with it the loss of its privileges.
        let taken = std::thread::spawn(move || make_and_take(&file));
        let not_permitted = Err(Some(nix::libc::EPERM));
        assert_eq!(taken.join().unwrap(), [Ok(()), not_permitted]);
        assert!(network.ip("-o link show").contains("tap-test"), "it stays");
    }
}
