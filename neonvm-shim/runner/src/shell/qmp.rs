//! QEMU's monitor connection: typed commands with a time limit, and the relevant events.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use protocol::units::Bytes;
use qapi::futures::{QapiService, QmpStreamTokio};
use qapi::qmp;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tracing::debug;

use super::descriptors::{Attached, DescriptorWriter};
use crate::core::args::MEMORY_DEVICE;
use crate::core::exit::ShutdownReason;
use crate::core::sizer::{CpuSlot, DeviceView, QmpFailure};

/// Longest wait for a reply. QEMU answers in milliseconds; a busy TCG host in tenths of a second.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the greeting: QEMU serves one client at a time, and a second one gets no
/// greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Capacity of the channel of events. The driver never waits for QEMU, so it takes them at once.
const EVENT_BACKLOG: usize = 64;

/// Status codes of the guest for a device that was added or removed as requested, or is about to be
/// (ACPI 6.5, `_OST`). Only QEMU's own events are conclusive.
const OST_FINE: [i64; 2] = [0, 0x84];

/// Events of QEMU that the driver acts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QmpEvent {
    /// The guest failed a request to add or remove a CPU.
    Cpu,
    /// QEMU has deleted the device of this id.
    Deleted(String),
    /// The size of the memory device has changed.
    Memory,
    /// The guest refused to give a device back.
    UnplugRefused,
    /// The virtual machine shuts down for this reason.
    Shutdown(ShutdownReason),
    /// QEMU's panic device reports a panic of the guest's kernel.
    Panicked,
    /// The guest was stopped at this time, in microseconds since 1970.
    Stopped(i64),
    /// The guest was resumed at this time, in microseconds since 1970.
    Resumed(i64),
    /// QEMU stops the guest because a disk's file cannot be written or read: id of the drive, and
    /// reason.
    DiskStopped(String, String),
    /// A migration or a copy of a disk has progressed.
    Transfer,
    /// An event was lost or not parsed: all state must be queried.
    Unclear,
}

/// Errors of connecting to the monitor.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Connecting to the socket failed, or the owner of its other end is unknown.
    #[error("cannot connect to QEMU's monitor")]
    Connect(#[source] std::io::Error),
    /// A process of this user listens on the socket, not QEMU.
    #[error("the socket of QEMU's monitor belongs to user {0}, not to QEMU")]
    WrongUser(u32),
    /// The exchange of QMP's greeting and capabilities failed.
    #[error("the QMP handshake with QEMU failed")]
    Greeting(#[source] std::io::Error),
    /// No greeting arrived in time.
    #[error("QEMU's monitor is silent; is another client connected?")]
    Silent,
}

/// A connected monitor, which executes one command at a time.
pub struct Qmp {
    service: QapiService<QmpStreamTokio<DescriptorWriter>>,
    attached: Attached,
    /// QEMU's version, such as `10.0.2`.
    pub version: String,
}

impl std::fmt::Debug for Qmp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qmp")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Connects. The receiver ends when the connection does. If `user` is given, the socket must be of
/// that user: QEMU's user may have put a link to another socket in its place.
///
/// # Errors
/// [`ConnectError`]; the caller may retry.
pub async fn connect(
    socket: &Path,
    user: Option<u32>,
) -> Result<(Qmp, mpsc::Receiver<QmpEvent>), ConnectError> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(ConnectError::Connect)?;
    let peer = stream.peer_cred().map_err(ConnectError::Connect)?.uid();
    if user.is_some_and(|user| user != peer) {
        return Err(ConnectError::WrongUser(peer));
    }
    let (read, write) = stream.into_split();
    let (write, attached) = DescriptorWriter::new(write);
    let handshake = async {
        let negotiation = QmpStreamTokio::open_split(read, write).await?;
        let qemu = &negotiation.capabilities.QMP.version.qemu;
        let version = format!("{}.{}.{}", qemu.major, qemu.minor, qemu.micro);
        Ok((negotiation.negotiate().await?, version))
    };
    let (stream, version) = tokio::time::timeout(GREETING_TIMEOUT, handshake)
        .await
        .map_err(|_| ConnectError::Silent)?
        .map_err(ConnectError::Greeting)?;
    let (service, mut events) = stream.into_parts();
    let (tx, rx) = mpsc::channel(EVENT_BACKLOG);
    // Polling the event stream also reads replies, so commands need this task.
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => translate(&event),
                Err(error) => {
                    // A late reply to a timed out command, or an event newer than the schema.
                    debug!(%error, "malformed line from QEMU's monitor");
                    Some(QmpEvent::Unclear)
                }
            };
            if let Some(event) = event
                && tx.send(event).await.is_err()
            {
                return;
            }
        }
    });
    let qmp = Qmp {
        service,
        attached,
        version,
    };
    Ok((qmp, rx))
}

fn translate(event: &qmp::Event) -> Option<QmpEvent> {
    use qmp::Event as E;
    use qmp::ShutdownCause as C;
    Some(match event {
        E::ACPI_DEVICE_OST { data, .. } if OST_FINE.contains(&data.info.status) => return None,
        E::ACPI_DEVICE_OST { .. } => QmpEvent::Cpu,
        // Its child devices have no id and go with it.
        E::DEVICE_DELETED { data, .. } => QmpEvent::Deleted(data.device.clone()?),
        E::MEMORY_DEVICE_SIZE_CHANGE { .. } => QmpEvent::Memory,
        E::DEVICE_UNPLUG_GUEST_ERROR { .. } => QmpEvent::UnplugRefused,
        E::GUEST_PANICKED { .. } => QmpEvent::Panicked,
        E::STOP { timestamp, .. } => QmpEvent::Stopped(unix_us(timestamp)),
        E::RESUME { timestamp, .. } => QmpEvent::Resumed(unix_us(timestamp)),
        E::BLOCK_IO_ERROR { data, .. } if matches!(data.action, qmp::BlockErrorAction::stop) => {
            QmpEvent::DiskStopped(data.device.clone(), data.reason.clone())
        }
        E::MIGRATION { .. }
        | E::BLOCK_JOB_READY { .. }
        | E::BLOCK_JOB_COMPLETED { .. }
        | E::BLOCK_JOB_CANCELLED { .. }
        | E::BLOCK_JOB_ERROR { .. } => QmpEvent::Transfer,
        E::SHUTDOWN { data, .. } => QmpEvent::Shutdown(match data.reason {
            C::guest_shutdown => ShutdownReason::GuestShutdown,
            C::guest_reset => ShutdownReason::GuestReset,
            C::guest_panic => ShutdownReason::GuestPanic,
            C::host_error | C::none => ShutdownReason::Error,
            _ => ShutdownReason::Host,
        }),
        _ => return None,
    })
}

/// The crate keeps the parts of a timestamp private.
fn unix_us(timestamp: &qapi::Timestamp) -> i64 {
    let parts = serde_json::to_value(timestamp).unwrap_or_default();
    let part = |name: &str| parts[name].as_i64().unwrap_or(0);
    part("seconds")
        .saturating_mul(1_000_000)
        .saturating_add(part("microseconds"))
}

impl Qmp {
    pub(super) async fn execute<C>(&self, command: C) -> Result<C::Ok, QmpFailure>
    where
        C: qmp::QmpCommand,
    {
        let fail = |message: String| QmpFailure {
            command: C::NAME.to_owned(),
            message,
        };
        match tokio::time::timeout(COMMAND_TIMEOUT, self.service.execute(command)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(fail(error.to_string())),
            Err(_) => Err(fail(format!(
                "no reply within {} s",
                COMMAND_TIMEOUT.as_secs()
            ))),
        }
    }

    /// Sends a descriptor with the next command.
    pub(super) fn attach(&self, descriptor: OwnedFd) {
        self.attached.put(descriptor);
    }

    /// All possible CPUs.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn cpus(&self) -> Result<Vec<CpuSlot>, QmpFailure> {
        let cpus = self.execute(qmp::query_hotpluggable_cpus {}).await?;
        Ok(cpus.into_iter().map(slot).collect())
    }

    /// State of the memory device; zeros without one.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn memory(&self) -> Result<DeviceView, QmpFailure> {
        let devices = self.execute(qmp::query_memory_devices {}).await?;
        let ours = devices.into_iter().find_map(|device| match device {
            qmp::MemoryDeviceInfo::virtio_mem(device) => Some(device.data),
            _ => None,
        });
        Ok(ours.map_or_else(DeviceView::default, |device| DeviceView {
            requested: Bytes(device.requested_size),
            size: Bytes(device.size),
        }))
    }

    /// Plugs a CPU into a slot.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn plug(&self, slot: &CpuSlot) -> Result<(), QmpFailure> {
        let arguments = slot
            .props
            .iter()
            .map(|(key, value)| (key.clone(), (*value).into()));
        let command = qmp::device_add {
            driver: slot.driver.clone(),
            id: Some(slot.new_id()),
            bus: None,
            arguments: arguments.collect(),
        };
        self.execute(command).await.map(drop)
    }

    /// Asks the guest to release a CPU. The reply says nothing about the guest.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn unplug(&self, id: &str) -> Result<(), QmpFailure> {
        self.execute(qmp::device_del { id: id.to_owned() })
            .await
            .map(drop)
    }

    /// Sets the requested size of the memory device.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn request_memory(&self, bytes: Bytes) -> Result<(), QmpFailure> {
        let command = qmp::qom_set {
            path: format!("/machine/peripheral/{MEMORY_DEVICE}"),
            property: "requested-size".to_owned(),
            value: bytes.0.into(),
        };
        self.execute(command).await.map(drop)
    }

    /// Presses the guest's power button.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn power_button(&self) -> Result<(), QmpFailure> {
        self.execute(qmp::system_powerdown {}).await.map(drop)
    }

    /// Sends `quit` to QEMU.
    ///
    /// # Errors
    /// QEMU does not answer.
    pub async fn quit(&self) -> Result<(), QmpFailure> {
        self.execute(qmp::quit {}).await.map(drop)
    }
}

fn slot(cpu: qmp::HotpluggableCPU) -> CpuSlot {
    let props = &cpu.props;
    let named = [
        ("node-id", props.node_id),
        ("drawer-id", props.drawer_id),
        ("book-id", props.book_id),
        ("socket-id", props.socket_id),
        ("die-id", props.die_id),
        ("cluster-id", props.cluster_id),
        ("module-id", props.module_id),
        ("core-id", props.core_id),
        ("thread-id", props.thread_id),
    ];
    CpuSlot {
        props: named
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .collect(),
        driver: cpu.type_,
        qom_path: cpu.qom_path,
    }
}
