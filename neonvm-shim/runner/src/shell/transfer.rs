//! Both ends of a migration, as far as files and sockets go: the manifest of a source, and the
//! disk, drives and addresses of a target.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use protocol::migration::{
    DISK_PORT, Destination, DiskDestination, DiskTravel, IncomingOrder, STREAM_PORT, StreamOptions,
};
use tokio::net::UnixStream;

use super::disk::{self, DiskError};
use super::drives;
use super::process;
use super::qmp::Qmp;
use super::qmp_transfer::Via;
use super::record::Record;
use crate::config::{Accel, RunnerConfig};
use crate::core::args::{cmdline, device_mac, overlay_mac};
use crate::core::connection::{Connection, connection, is_bridged};
use crate::core::disks::{self, Drive, DriveKind};
use crate::core::guestd_key::GuestdKey;
use crate::core::nic;
use crate::core::paths::Paths;
use crate::core::sizer::QmpFailure;
use crate::core::transfer::{
    Arrival, Disk, DriveThere, Manifest, OutgoingAction, PluggedCpu, Unfit,
};

/// Where a target listens: at ports of its pod, or at sockets of its directory if other users can
/// reach the ports.
#[must_use]
pub fn destination(config: &RunnerConfig, paths: &Paths, arrival: &Arrival) -> Destination {
    let at = |port| SocketAddrV4::new(config.pod_ip, port);
    Destination {
        sockets: uses_sockets(config, &arrival.order).then(|| paths.dir.clone()),
        stream: at(STREAM_PORT),
        disk: (!arrival.shares_disk).then(|| DiskDestination {
            nbd: at(DISK_PORT),
            whole: arrival.order.disk == DiskTravel::Whole,
        }),
        encrypted: is_encrypted(config, &arrival.order),
    }
}

fn is_encrypted(config: &RunnerConfig, order: &IncomingOrder) -> bool {
    config.migration_keys.is_some() && sender_encrypts(order)
}

/// Whether the ports would be open to every user of the machine. A key that both runners have
/// excludes other users.
fn uses_sockets(config: &RunnerConfig, order: &IncomingOrder) -> bool {
    config.pod_ip.is_loopback() && !is_encrypted(config, order)
}

/// Whether the source has the key that the VM's runners share.
fn sender_encrypts(order: &IncomingOrder) -> bool {
    order.shape["encrypts"] == true
}

/// Digest of a disk's base image: the name of its directory.
fn image_of(root_disk: &Path) -> String {
    let dir = root_disk.parent().and_then(Path::file_name);
    dir.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Checks a guest's manifest against this runner's configuration.
///
/// # Errors
/// [`Unfit`]. QEMU's version is checked later.
pub fn manifest(config: &RunnerConfig, order: &IncomingOrder) -> Result<Manifest, Unfit> {
    if config.claims.is_some() {
        return Err(Unfit::Claims);
    }
    let manifest: Manifest = serde_json::from_value(order.shape.clone())
        .map_err(|error| Unfit::Manifest(error.to_string()))?;
    manifest.check()?;
    let here = image_of(&config.image.root_disk);
    if here != manifest.disk.image {
        return Err(Unfit::Image {
            here,
            there: manifest.disk.image,
        });
    }
    if manifest.overlay_mac.is_some() && config.overlay.is_none() {
        return Err(Unfit::NoOverlay);
    }
    if manifest.passt && config.walls.is_none() {
        return Err(Unfit::NoPasst);
    }
    Ok(manifest)
}

/// Checks that the source can reach this target in a way that no other user can. Only before the
/// arrival: a guest that is here may have arrived at an older runner.
///
/// # Errors
/// [`Unfit::NoSockets`].
pub fn is_reached(
    config: &RunnerConfig,
    order: &IncomingOrder,
    from: &Manifest,
) -> Result<(), Unfit> {
    if uses_sockets(config, order) && !from.dials_sockets {
        return Err(Unfit::NoSockets);
    }
    Ok(())
}

/// Manifest of a guest that arrived, whose shape it keeps; `None` for one that booted here.
#[must_use]
pub fn origin(config: &RunnerConfig, record: &Record) -> Option<Manifest> {
    let arrival = record.arrival.as_ref()?;
    manifest(config, &arrival.order).ok()
}

/// Makes the target's disk: a link to the source's own file if that is on this machine, else an
/// empty layer. Returns whether it is the source's file.
///
/// # Errors
/// [`DiskError`].
pub async fn make_disk(
    config: &RunnerConfig,
    paths: &Paths,
    order: &IncomingOrder,
    manifest: &Manifest,
) -> Result<bool, DiskError> {
    let there = &manifest.disk;
    let overlay = paths.root_disk(config);
    let same = |path: &Path| {
        std::fs::metadata(path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (there.device, there.inode))
    };
    if config.root_overlay.is_some() {
        // The source's own file, by the same path; a copy would overwrite it.
        return match there.host_boot_id == process::host_boot_id() && same(&overlay) {
            true => Ok(true),
            false => Err(DiskError::Elsewhere(overlay)),
        };
    }
    if order.disk == DiskTravel::Auto && there.host_boot_id == process::host_boot_id() {
        // Leftover of a runner that died in between.
        let _ = std::fs::remove_file(&overlay);
        // A hard link: whichever directory goes, the file stays for the other.
        if same(&there.path) && std::fs::hard_link(&there.path, &overlay).is_ok() {
            return Ok(true);
        }
    }
    disk::make_overlay_of(config, &overlay, there.bytes).await?;
    Ok(false)
}

/// Makes the target's drives: links to the source's own files if the root disk is the source's,
/// else copies of the drives of files, which must be equal.
///
/// # Errors
/// [`Unfit`].
pub async fn make_drives(
    config: &RunnerConfig,
    paths: &Paths,
    manifest: &Manifest,
    shares_disk: bool,
) -> Result<Vec<Drive>, Unfit> {
    if !shares_disk {
        manifest.drives_come()?;
    }
    for there in &manifest.drives {
        let (drive, path) = (&there.drive, paths.drive(&there.drive));
        if shares_disk {
            share(there, &path).map_err(|error| Unfit::Drives(format!("{}: {error}", drive.id)))?;
        } else {
            make_same(config, paths, there, manifest.guestd_key.as_ref()).await?;
        }
    }
    Ok(manifest
        .drives
        .iter()
        .map(|there| there.drive.clone())
        .collect())
}

/// Makes a hard link to a file of the source.
fn share(there: &DriveThere, path: &Path) -> std::io::Result<()> {
    // Leftover of a runner that died in between.
    let _ = std::fs::remove_file(path);
    std::fs::hard_link(&there.path, path)?;
    let found = std::fs::metadata(path)?;
    if (found.dev(), found.ino()) == (there.device, there.inode) {
        return Ok(());
    }
    Err(std::io::Error::other(
        "it is another file than the source's",
    ))
}

/// Builds a drive of files and compares it with the source's.
async fn make_same(
    config: &RunnerConfig,
    paths: &Paths,
    there: &DriveThere,
    key: Option<&GuestdKey>,
) -> Result<(), Unfit> {
    let changed = || Unfit::Files(there.drive.id.clone());
    let ssh = config.ssh_public_key.as_deref();
    let plan = disks::plan(&config.spec, ssh, key)
        .map_err(|problem| Unfit::Drives(problem.to_string()))?;
    let token =
        drives::monitor_token(paths).map_err(|error| Unfit::Drives(daemon_kit::chain(&error)))?;
    let plan = plan.with_monitor_token(token.as_deref());
    let planned = plan
        .drives
        .iter()
        .find(|one| one.drive == there.drive)
        .ok_or_else(changed)?;
    let made = drives::make(config, paths, planned).await;
    made.map_err(|error| Unfit::Drives(daemon_kit::chain(&error)))?;
    let sum = drives::sha256(&paths.drive(&there.drive))
        .map_err(|error| Unfit::Drives(error.to_string()))?;
    if there.sha256.as_ref() == Some(&sum) {
        Ok(())
    } else {
        Err(changed())
    }
}

/// Drives other than the root disk, as the manifest describes them.
fn drives_here(paths: &Paths, drives: &[Drive]) -> Result<Vec<DriveThere>, String> {
    let here = |drive: &Drive| {
        let path = paths.drive(drive);
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = std::fs::metadata(&path).map_err(failed)?;
        let sha256 = match drive.kind {
            DriveKind::Files => Some(drives::sha256(&path).map_err(failed)?),
            DriveKind::Blocks | DriveKind::FreedBlocks | DriveKind::Claimed => None,
        };
        Ok(DriveThere {
            drive: drive.clone(),
            device: file.dev(),
            inode: file.ino(),
            path,
            sha256,
        })
    };
    drives.iter().map(here).collect()
}

pub(super) async fn describe(
    qmp: Arc<Qmp>,
    config: Arc<RunnerConfig>,
    paths: Paths,
    record: Record,
    guestd_key: Option<GuestdKey>,
) -> Result<Box<Manifest>, String> {
    if config.claims.is_some() {
        return Err(Unfit::Claims.to_string());
    }
    let failed = |failure: QmpFailure| format!("{}: {}", failure.command, failure.message);
    let slots = qmp.cpus().await.map_err(failed)?;
    let origin = origin(&config, &record);
    let path = paths.root_disk(&config);
    let file = std::fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let queues = nic::queues(&record.shape, origin.as_ref());
    // The command line of its start: the runner that built it may have been an older one, with
    // fewer words.
    let booted_with = record
        .qemu
        .and_then(|qemu| process::argument_of(qemu, "-append"));
    let own_cmdline = booted_with.unwrap_or_else(|| cmdline(&config, &record.shape, record.accel));
    Ok(Box::new(Manifest {
        qemu: qmp.version.clone(),
        machine: qmp.machine_type().await.map_err(failed)?,
        accel: record.accel,
        shape: record.shape,
        cpus: slots.iter().filter_map(PluggedCpu::of).collect(),
        overlay_mac: overlay_mac(&config, origin.as_ref()),
        mac: device_mac(&config, origin.as_ref()),
        bridged: is_bridged(&config, origin.as_ref()),
        passt: matches!(connection(&config, origin.as_ref()), Connection::Passt(_)),
        queues,
        cmdline: origin.map_or(own_cmdline, |from| from.cmdline),
        order: record.order,
        boot_ms: record.boot_ms,
        disk: Disk {
            host_boot_id: process::host_boot_id(),
            device: file.dev(),
            inode: file.ino(),
            path,
            bytes: qmp.disk_bytes().await.map_err(failed)?,
            image: image_of(&config.image.root_disk),
        },
        drives: drives_here(&paths, &record.drives)?,
        encrypts: config.migration_keys.is_some(),
        guestd_key,
        dials_sockets: true,
    }))
}

/// Copies the disk, or sends the rest.
pub(super) async fn depart(
    qmp: &Qmp,
    config: &RunnerConfig,
    action: &OutgoingAction,
    to: Option<(Destination, StreamOptions)>,
    accel: Accel,
) -> Result<(), QmpFailure> {
    let refused = |message: &str| {
        Err(QmpFailure {
            command: "migrate".to_owned(),
            message: message.to_owned(),
        })
    };
    let Some((to, how)) = to else {
        return refused("there is no destination");
    };
    let keys = config.migration_keys.as_deref().filter(|_| to.encrypted);
    if to.encrypted && keys.is_none() {
        return refused("the target wants it encrypted, and here is no key");
    }
    let there = to.sockets.as_deref().map(Paths::new);
    match to.disk {
        Some(disk) if *action == OutgoingAction::Copy => {
            let via = match there {
                Some(there) => Via::Descriptor(dialled(&there.disk()).await?),
                None => Via::Address(disk.nbd),
            };
            qmp.copy_disk(via, disk.whole, keys).await
        }
        disk => {
            let via = match there {
                Some(there) => Via::Descriptor(dialled(&there.stream()).await?),
                None => Via::Address(to.stream),
            };
            qmp.send(via, disk.is_some(), (how, accel), keys).await
        }
    }
}

/// A connection to a target on this machine, for QEMU, which sees no directory but its own.
async fn dialled(socket: &Path) -> Result<OwnedFd, QmpFailure> {
    let connect = async {
        let stream = UnixStream::connect(socket).await?.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(OwnedFd::from(stream))
    };
    connect.await.map_err(|error: std::io::Error| QmpFailure {
        command: "getfd".to_owned(),
        message: format!("cannot connect to {}: {error}", socket.display()),
    })
}
