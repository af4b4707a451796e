//! The VM driver's part of a migration: executes the actions of the two cores of
//! [`crate::core::transfer`] concurrently with everything else, and answers the routes.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use protocol::migration::{
    DISK_PORT, Destination, DiskDestination, DiskTravel, IncomingOrder, OutgoingOrder, STREAM_PORT,
    StreamOptions,
};
use protocol::runner::{BeforeSilence, RunnerState};
use protocol::time::Timestamp;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::disk::{self, DiskError};
use super::drives;
use super::process;
use super::qmp::Qmp;
use super::qmp_transfer::Via;
use super::record::Record;
use super::supervisor::{Input, Supervisor};
use crate::config::RunnerConfig;
use crate::core::args::{cmdline, device_mac, overlay_mac};
use crate::core::bridge;
use crate::core::disks::{self, Drive, DriveKind};
use crate::core::guestd_key::GuestdKey;
use crate::core::nic;
use crate::core::passt::{Connection, connection};
use crate::core::paths::Paths;
use crate::core::silence::Silence;
use crate::core::sizer::{Event, QmpFailure};
use crate::core::transfer::{
    Arrival, Disk, DriveThere, Incoming, IncomingAction, Manifest, Outgoing, OutgoingAction,
    PluggedCpu, Unfit, View,
};

/// Reply to a route: the state, or the reason of a refusal.
pub type Answer = oneshot::Sender<Result<RunnerState, String>>;

/// Orders of a migration.
#[derive(Debug)]
pub enum Ask {
    /// Hold the size, or send the guest.
    Send(OutgoingOrder),
    /// Undo the departure with this id.
    Recall(String),
    /// End QEMU, as the guest of this migration runs elsewhere.
    Quit(String),
    /// Receive a guest.
    Receive(Box<IncomingOrder>),
    /// Run the guest of this migration.
    Begin(String),
}

/// Result of an action.
#[derive(Debug)]
pub enum Transfer {
    /// Result of [`OutgoingAction::Describe`].
    Described(Result<Box<Manifest>, String>),
    /// Result of [`OutgoingAction::Look`].
    Outgoing(Result<View, String>),
    /// Result of any other outgoing action.
    Left(OutgoingAction, Result<(), String>),
    /// Result of [`IncomingAction::Look`].
    Incoming(Result<View, String>),
    /// Result of any other incoming action.
    Came(IncomingAction, Result<(), String>),
}

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
    let planned = plan.drives.iter().find(|one| one.drive == there.drive);
    let planned = planned.ok_or_else(changed)?;
    let made = drives::make(config, paths, planned).await;
    made.map_err(|error| Unfit::Drives(daemon_kit::chain(&error)))?;
    let sum = drives::sha256(&paths.drive(&there.drive));
    let sum = sum.map_err(|error| Unfit::Drives(error.to_string()))?;
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
        let told = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = std::fs::metadata(&path).map_err(told)?;
        let sha256 = match drive.kind {
            DriveKind::Files => Some(drives::sha256(&path).map_err(told)?),
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

async fn describe(
    qmp: Arc<Qmp>,
    config: Arc<RunnerConfig>,
    paths: Paths,
    record: Record,
    guestd_key: Option<GuestdKey>,
) -> Result<Box<Manifest>, String> {
    if config.claims.is_some() {
        return Err(Unfit::Claims.to_string());
    }
    let told = |failure: QmpFailure| format!("{}: {}", failure.command, failure.message);
    let slots = qmp.cpus().await.map_err(told)?;
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
        machine: qmp.machine_type().await.map_err(told)?,
        accel: record.accel,
        shape: record.shape,
        cpus: slots.iter().filter_map(PluggedCpu::of).collect(),
        overlay_mac: overlay_mac(&config, origin.as_ref()),
        mac: device_mac(&config, origin.as_ref()),
        bridged: bridge::connects(&config, origin.as_ref()),
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
            bytes: qmp.disk_bytes().await.map_err(told)?,
            image: image_of(&config.image.root_disk),
        },
        drives: drives_here(&paths, &record.drives)?,
        encrypts: config.migration_keys.is_some(),
        guestd_key,
        dials_sockets: true,
    }))
}

/// Copies the disk, or sends the rest.
async fn depart(
    qmp: &Qmp,
    config: &RunnerConfig,
    action: &OutgoingAction,
    to: Option<(Destination, StreamOptions)>,
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
            qmp.send(via, disk.is_some(), how, keys).await
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

fn words(result: Result<(), QmpFailure>) -> Result<(), String> {
    result.map_err(|failure| format!("{}: {}", failure.command, failure.message))
}

impl Supervisor {
    /// Takes an order of a route and replies.
    pub(super) fn take_ask(&mut self, now: Timestamp, ask: Ask, answer: Answer) {
        let refusal = self.asked(now, ask).err();
        self.turn();
        let state = self.state.current();
        // The client may have disconnected.
        let _ = answer.send(refusal.map_or(Ok(state), Err));
    }

    fn asked(&mut self, now: Timestamp, ask: Ask) -> Result<(), String> {
        match ask {
            Ask::Send(order) => {
                if self.incoming.as_ref().is_some_and(|at| !at.is_begun()) {
                    return Err("the guest is not here yet".to_owned());
                }
                if self.seen_stopping() {
                    return Err("the guest is being stopped".to_owned());
                }
                match &mut self.outgoing {
                    Some(outgoing) if outgoing.id() == order.id => outgoing.order(now, order),
                    Some(outgoing) => {
                        return Err(format!("migration {} is not over", outgoing.id()));
                    }
                    None => {
                        info!(
                            migration = order.id,
                            "sizes stand still, the guest may move"
                        );
                        let id = Some(order.id.clone());
                        self.outgoing = Some(Outgoing::new(order));
                        self.sizer.handle(now, Event::Hold(id));
                    }
                }
            }
            Ask::Recall(id) => {
                if let Some(outgoing) = self.outgoing.as_mut().filter(|at| at.id() == id) {
                    info!(migration = id, "the guest stays");
                    outgoing.recall(now);
                }
            }
            Ask::Quit(id) => {
                let outgoing = self.outgoing.as_ref().filter(|at| at.id() == id);
                if !outgoing.is_some_and(Outgoing::is_handed_over) {
                    return Err("the guest has not left".to_owned());
                }
                info!(migration = id, "the guest runs elsewhere, QEMU ends");
                self.record.moved = true;
                self.save();
                self.quit();
            }
            Ask::Receive(order) => {
                let known = self.incoming.as_ref().map(Incoming::id);
                if known != Some(order.id.as_str()) {
                    return Err("there is a guest here".to_owned());
                }
            }
            Ask::Begin(id) => {
                let incoming = self.incoming.as_mut().filter(|at| at.id() == id);
                if !incoming.is_some_and(|incoming| incoming.begin(now)) {
                    return Err("the guest is not here yet".to_owned());
                }
            }
        }
        Ok(())
    }

    /// Executes the actions of the two cores.
    pub(super) fn turn_transfer(&mut self, now: Timestamp) {
        let still = self.sizer.is_still();
        while let Some(action) = self
            .outgoing
            .as_mut()
            .and_then(|at| at.poll_action(now, still))
        {
            self.act_outgoing(action);
        }
        if self.outgoing.as_ref().is_some_and(Outgoing::is_over) {
            info!("the guest stays, and may be resized again");
            self.outgoing = None;
            self.record.leaving = None;
            self.save();
            self.sizer.handle(now, Event::Hold(None));
        }
        while let Some(action) = self.incoming.as_mut().and_then(|at| at.poll_action(now)) {
            self.act_incoming(action);
        }
    }

    fn act_outgoing(&mut self, action: OutgoingAction) {
        let qmp = match action {
            OutgoingAction::Save(leaving) => {
                self.record.leaving = Some(leaving);
                return self.save();
            }
            OutgoingAction::Abandon => {
                warn!("memory is on both sides and cannot be joined again: the guest ends");
                return self.quit();
            }
            _ => self.qmp(),
        };
        let (config, paths, record) =
            (self.config.clone(), self.paths.clone(), self.record.clone());
        let (inputs, key) = (self.inputs.clone(), self.guestd_key.clone());
        tokio::spawn(async move {
            let Some(qmp) = qmp else {
                let lost = || "QEMU's monitor is not connected".to_owned();
                let input = match action {
                    OutgoingAction::Look => Transfer::Outgoing(Err(lost())),
                    OutgoingAction::Describe => Transfer::Described(Err(lost())),
                    other => Transfer::Left(other, Err(lost())),
                };
                return drop(inputs.send(Input::Transfer(input)).await);
            };
            let order = record.leaving.as_ref().map(|leaving| &leaving.order);
            let to = order.and_then(|order| order.to.clone().map(|to| (to, order.how)));
            let result = match &action {
                OutgoingAction::Look => {
                    let mut view = qmp.view().await.map_err(|failure| failure.message);
                    if let Ok(view) = &mut view {
                        view.progress.encrypted = to.is_some_and(|(to, _)| to.encrypted);
                    }
                    return drop(inputs.send(Input::Transfer(Transfer::Outgoing(view))).await);
                }
                OutgoingAction::Describe => {
                    let found = describe(qmp, config, paths, record, key).await;
                    return drop(
                        inputs
                            .send(Input::Transfer(Transfer::Described(found)))
                            .await,
                    );
                }
                OutgoingAction::Copy | OutgoingAction::Send => {
                    depart(&qmp, &config, &action, to).await
                }
                OutgoingAction::Switch => qmp.switch().await,
                OutgoingAction::Cancel => qmp.call_off().await,
                OutgoingAction::Continue => qmp.go_on().await,
                OutgoingAction::Save(_) | OutgoingAction::Abandon => Ok(()),
            };
            log_step(&format!("{action:?}"), &result);
            let input = Input::Transfer(Transfer::Left(action, words(result)));
            // The driver is gone only when the runner ends.
            let _ = inputs.send(input).await;
        });
    }

    fn act_incoming(&mut self, action: IncomingAction) {
        let qmp = match action {
            IncomingAction::Save(arrival) => {
                self.record.arrival = Some(arrival);
                return self.save();
            }
            IncomingAction::GiveUp => {
                warn!("the guest cannot come here");
                return self.quit();
            }
            _ => self.qmp(),
        };
        let Some(arrival) = self.record.arrival.clone() else {
            return;
        };
        let at = destination(&self.config, &self.paths, &arrival);
        let fits = manifest(&self.config, &arrival.order);
        let keys = self.config.migration_keys.clone().filter(|_| at.encrypted);
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            let result = match (&action, qmp) {
                (IncomingAction::Look, Some(qmp)) => {
                    let view = qmp.view().await.map_err(|failure| failure.message);
                    return drop(inputs.send(Input::Transfer(Transfer::Incoming(view))).await);
                }
                (IncomingAction::Look, None) => {
                    let lost = Transfer::Incoming(Err("no monitor".to_owned()));
                    return drop(inputs.send(Input::Transfer(lost)).await);
                }
                (_, None) => Err("QEMU's monitor is not connected".to_owned()),
                (IncomingAction::Listen, Some(qmp)) => {
                    match fits.and_then(|manifest| manifest.fits(&qmp.version)) {
                        Ok(()) => words(qmp.listen(&at, arrival.order.how, keys.as_deref()).await),
                        Err(unfit) => Err(unfit.to_string()),
                    }
                }
                (_, Some(qmp)) => words(qmp.begin(at.disk.is_some()).await),
            };
            if let Err(problem) = &result {
                warn!(?action, problem, "a step of the guest's arrival failed");
            }
            let input = Input::Transfer(Transfer::Came(action, result));
            let _ = inputs.send(input).await;
        });
    }

    pub(super) fn take_transfer(&mut self, now: Timestamp, what: Transfer) {
        match what {
            Transfer::Described(found) => {
                if let Some(at) = &mut self.outgoing {
                    at.described(now, found.map(|manifest| *manifest));
                }
            }
            Transfer::Outgoing(view) => {
                if let Some(at) = &mut self.outgoing {
                    at.viewed(now, view);
                }
            }
            Transfer::Left(action, result) => {
                if let Some(at) = &mut self.outgoing {
                    at.acted(now, &action, result);
                }
            }
            Transfer::Incoming(view) => {
                if let Some(at) = &mut self.incoming {
                    at.viewed(now, view);
                }
            }
            Transfer::Came(action, result) => {
                let begun = action == IncomingAction::Begin && result.is_ok();
                if let Some(at) = &mut self.incoming {
                    at.acted(now, &action, result);
                }
                if begun {
                    info!("the guest runs here");
                    self.sizer.handle(now, Event::Hold(None));
                    let wall = self.clock.wall();
                    self.silence = Silence::new(now, wall, BeforeSilence::Move);
                    self.follow_guest();
                }
            }
        }
    }
}

fn log_step(action: &str, result: &Result<(), QmpFailure>) {
    match result {
        Ok(()) => info!(action, "a step of the guest's departure is done"),
        Err(failure) => warn!(
            action,
            command = failure.command,
            problem = failure.message,
            "a step of the guest's departure failed"
        ),
    }
}
