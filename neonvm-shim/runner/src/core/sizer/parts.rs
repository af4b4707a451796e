//! Types of the sizer's input and output.

use std::collections::BTreeMap;

use protocol::runner::{CpusAhead, GuestState, SizeOrder};
use protocol::units::{Bytes, MilliCpu};
use serde::Serialize;

use crate::core::budget::PlugBudget;

/// QOM path of devices with an id.
const PERIPHERAL: &str = "/machine/peripheral/";

/// One possible CPU of QEMU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CpuSlot {
    /// Properties that identify the slot (`socket-id`, `core-id`, …).
    pub props: BTreeMap<String, i64>,
    /// Device type to plug into the slot.
    pub driver: String,
    /// QOM path of the CPU in the slot. `None` if the slot is free.
    pub qom_path: Option<String>,
}

impl CpuSlot {
    pub(super) fn index(&self) -> [i64; 3] {
        ["socket-id", "core-id", "thread-id"].map(|key| self.props.get(key).copied().unwrap_or(0))
    }

    /// Device id of a CPU that can be unplugged. A boot CPU has none.
    pub(crate) fn removable(&self) -> Option<&str> {
        self.qom_path.as_deref()?.strip_prefix(PERIPHERAL)
    }

    /// QOM path of a CPU that the runner plugs here.
    pub(super) fn new_path(&self) -> String {
        format!("{PERIPHERAL}{}", self.new_id())
    }

    /// Device id of a CPU that the runner plugs here.
    #[must_use]
    pub fn new_id(&self) -> String {
        format!(
            "cpu{}",
            self.index()
                .map(|n| n.to_string())
                .join("-")
                .trim_end_matches("-0")
        )
    }
}

/// State of the virtio-mem device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DeviceView {
    /// Size that was requested of the device, in bytes.
    pub requested: Bytes,
    /// Size that the device has plugged, in bytes.
    pub size: Bytes,
}

/// Report of the guest's daemon about its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sight {
    /// Number of CPUs that the guest's kernel has online.
    pub cpus_online: u32,
    /// CPUs that the guest's kernel can ever online, if reported.
    pub cpus_possible: Option<u32>,
    /// MemTotal of the guest, if reported.
    pub mem_total: Option<Bytes>,
}

impl Sight {
    /// Report of a daemon that reports only CPUs.
    #[must_use]
    pub fn of_cpus(cpus_online: u32) -> Self {
        Self {
            cpus_online,
            cpus_possible: None,
            mem_total: None,
        }
    }
}

impl From<&GuestState> for Sight {
    fn from(state: &GuestState) -> Self {
        Self {
            cpus_online: state.cpus_online,
            cpus_possible: Some(state.cpus_possible),
            mem_total: Some(state.mem_total),
        }
    }
}

/// A command that QEMU refused or did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QmpFailure {
    /// Name of the command in QMP, such as `device_add`.
    pub command: String,
    /// QEMU's error message, or why no reply arrived.
    pub message: String,
}

/// Input of the sizer: an order, a reply to an action, or an event of QEMU or the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An order for another size.
    Order(SizeOrder),
    /// A request to plug CPUs ahead of an order.
    Ahead(CpusAhead),
    /// The monitor is connected. All state must be queried again.
    QmpUp,
    /// The monitor is disconnected; replies in progress will not arrive.
    QmpDown,
    /// The monitor has not been connected for a while, for this reason.
    QmpUnreached(String),
    /// Slots of all possible CPUs, in reply to [`Action::QueryCpus`].
    Cpus(Result<Vec<CpuSlot>, QmpFailure>),
    /// State of the device, in reply to [`Action::QueryMemory`].
    Memory(Result<DeviceView, QmpFailure>),
    /// Reply to [`Action::Plug`] and [`Action::Unplug`].
    CpuCommand(Result<(), QmpFailure>),
    /// Acceptance by QEMU, in reply to [`Action::Request`].
    Requested(Result<(), QmpFailure>),
    /// Reply to [`Action::SetGuestCpus`]. A refusal shows in the guest's next report.
    GuestCpusSet,
    /// Report of the guest's daemon.
    Guest(GuestState),
    /// Number of online CPUs, from a daemon that reports nothing else: NeonVM's.
    GuestCpus(u32),
    /// QEMU sent an event about CPUs.
    CpuHint,
    /// QEMU sent `DEVICE_DELETED` for the device of this id.
    CpuGone(String),
    /// QEMU sent an event about memory.
    MemoryHint,
    /// The guest migrates by the migration of this id, so its size is fixed. `None` ends that.
    Hold(Option<String>),
}

/// Command of the sizer to QEMU, the guest or the cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Send `query-hotpluggable-cpus` to QEMU. The reply is [`Event::Cpus`].
    QueryCpus,
    /// Send `query-memory-devices` to QEMU. The reply is [`Event::Memory`].
    QueryMemory,
    /// Send `device_add` for each slot. `budget` must be on disk before the first.
    Plug {
        /// Slots that get one CPU each.
        slots: Vec<CpuSlot>,
        /// Budget that is left after these plugs.
        budget: Option<PlugBudget>,
    },
    /// Send `device_del` for each id.
    Unplug {
        /// Ids of the CPUs' devices in QEMU.
        ids: Vec<String>,
    },
    /// Set the virtio-mem device's `requested-size` to this by `qom-set`.
    Request(Bytes),
    /// Send `PUT /cpu` with this number of CPUs to neonvmd.
    SetGuestCpus(u32),
    /// Write this limit to the cgroup.
    SetQuota(MilliCpu),
}
