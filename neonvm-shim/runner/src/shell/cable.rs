//! A bridge with two ends: the guest's, which QEMU has, and what it is to reach.

use std::io;
use std::path::Path;
use std::time::Duration;

use neonvm_links::{Links, LinksError};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use tracing::{info, warn};

use super::process::ProcessId;

/// What QEMU's end is made and taken by; a container has none of its own.
const TUN: &str = "/dev/net/tun";
/// The kernel's number for it.
const TUN_DEVICE: (u64, u64) = (10, 200);
/// Between two looks for QEMU's end.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The same after a failure.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Why QEMU's end cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The device file.
    #[error("cannot make {TUN}: give the pod's container that device, or the capability MKNOD")]
    Device(#[source] io::Error),
    #[error(
        "cannot make the interface {0}: the pod's container needs the capability NET_ADMIN for it"
    )]
    Interface(String, #[source] io::Error),
    /// One that is left.
    #[error(transparent)]
    Links(#[from] LinksError),
}

/// Makes the device file, where it is missing.
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

/// Makes QEMU's end, with so many queues, for a QEMU that may make none itself. One that is left of
/// an earlier QEMU goes.
///
/// # Errors
/// [`TunError`].
pub(super) async fn make_tap(links: &Links, name: &str, queues: u32) -> Result<(), TunError> {
    make_tun()?;
    remove(links, name).await?;
    super::sys::make_tap(Path::new(TUN), name, queues > 1)
        .map_err(|error| TunError::Interface(name.to_owned(), error))
}

/// Removes a link of this name.
///
/// # Errors
/// [`LinksError`].
async fn remove(links: &Links, name: &str) -> Result<(), LinksError> {
    match links.find(name).await? {
        Some(link) => links.delete(link.index).await,
        None => Ok(()),
    }
}

/// Removes QEMU's end. What is left of it does no harm: it goes with the pod, and nobody is at it.
pub(super) async fn clear(tap: &str) {
    let removed = async { remove(&Links::open()?, tap).await };
    if let Err(problem) = removed.await {
        let error = daemon_kit::chain(&problem);
        warn!(error, "{tap} is not removed");
    }
}

/// The bridge of this name, made with this hardware address or one by chance where it is missing;
/// `None` if somebody took it away again.
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

/// Plugs a link into a bridge. With two ends it is a cable, which has nothing to remember: a guest
/// that moves is elsewhere at once.
///
/// # Errors
/// [`LinksError`].
pub(super) async fn plug(links: &Links, index: u32, bridge: u32) -> Result<(), LinksError> {
    links.join(index, bridge).await?;
    links.learn_nothing(index).await?;
    links.raise(index).await
}

/// Plugs in the end that a QEMU has; gives up with QEMU.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::{confined, sys};
    use nix::sched::{CloneFlags, setns};
    use rustix::thread::CapabilitySet;
    use std::fs::File;
    use test_network::Network;
    use test_records::{Missing, skip};

    /// Makes an end twice, as two runners do, and takes it and another one without any privilege.
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
    fn qemus_end_is_made_for_it_and_may_be_taken_without_privileges() {
        let Some(network) = Network::new().expect("a network") else {
            let test = "qemus_end_is_made_for_it_and_may_be_taken_without_privileges";
            return skip(test, Missing::Root, "networks of its own");
        };
        let file = File::open(network.path()).unwrap();
        // Of a thread that ends, with what it gave up.
        let taken = std::thread::spawn(move || make_and_take(&file));
        let not_permitted = Err(Some(nix::libc::EPERM));
        assert_eq!(taken.join().unwrap(), [Ok(()), not_permitted]);
        assert!(network.ip("-o link show").contains("tap-test"), "it stays");
    }
}
