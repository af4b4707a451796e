//! What goes into the sizer and what comes out of it.

use std::collections::BTreeMap;

use protocol::runner::{CpusAhead, GuestState, SizeOrder};
use protocol::units::{Bytes, MilliCpu};
use serde::Serialize;

use crate::core::budget::PlugBudget;

/// Where QEMU keeps devices that have an id.
const PERIPHERAL: &str = "/machine/peripheral/";

/// One possible CPU of QEMU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CpuSlot {
    /// Properties that name it (`socket-id`, `core-id`, …).
    pub props: BTreeMap<String, i64>,
    /// Device type to plug there.
    pub driver: String,
    /// Where it is, if it is plugged.
    pub qom_path: Option<String>,
}

impl CpuSlot {
    /// Its order among the slots.
    pub(super) fn index(&self) -> [i64; 3] {
        ["socket-id", "core-id", "thread-id"].map(|key| self.props.get(key).copied().unwrap_or(0))
    }

    /// The device id of a CPU that can be unplugged. A boot CPU has none.
    pub(crate) fn removable(&self) -> Option<&str> {
        self.qom_path.as_deref()?.strip_prefix(PERIPHERAL)
    }

    /// Where it is once it is plugged by us.
    pub(super) fn new_path(&self) -> String {
        format!("{PERIPHERAL}{}", self.new_id())
    }

    /// The device id to plug it under.
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

/// The virtio-mem device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DeviceView {
    /// What is asked of it.
    pub requested: Bytes,
    /// What it has plugged.
    pub size: Bytes,
}

/// What the guest's daemon says of its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sight {
    /// Number of CPUs that the guest's kernel has online.
    pub cpus_online: u32,
    /// CPUs its kernel could ever bring up, if it says so.
    pub cpus_possible: Option<u32>,
    /// MemTotal, if it says so.
    pub mem_total: Option<Bytes>,
}

impl Sight {
    /// Of a daemon that tells of nothing but its CPUs.
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

/// A command QEMU refused or did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QmpFailure {
    /// Name of the command in QMP, such as `device_add`.
    pub command: String,
    /// QEMU's own error, or why no reply came.
    pub message: String,
}

/// Input of the sizer: an order, a reply to an action, or news from QEMU or the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new order.
    Order(SizeOrder),
    /// CPUs are to be plugged ahead of one.
    Ahead(CpusAhead),
    /// The monitor is connected.
    QmpUp,
    /// It is lost; replies under way will not come.
    QmpDown,
    /// It could not be connected for a while, for this reason.
    QmpUnreached(String),
    /// Reply to [`Action::QueryCpus`].
    Cpus(Result<Vec<CpuSlot>, QmpFailure>),
    /// Reply to [`Action::QueryMemory`].
    Memory(Result<DeviceView, QmpFailure>),
    /// Reply to [`Action::Plug`] and [`Action::Unplug`].
    CpuCommand(Result<(), QmpFailure>),
    /// Reply to [`Action::Request`].
    Requested(Result<(), QmpFailure>),
    /// Reply to [`Action::SetGuestCpus`]; the guest's refusal is its own news.
    GuestTold,
    /// The guest's daemon reported.
    Guest(GuestState),
    /// A daemon that tells of nothing else said how many CPUs are online: NeonVM's.
    GuestCpus(u32),
    /// QEMU told of something about CPUs.
    CpuHint,
    /// QEMU told that the device of this id is gone.
    CpuGone(String),
    /// QEMU told of memory.
    MemoryHint,
    /// The guest moves by the migration of this name: its size stays as it is. `None`: it does so
    /// no more.
    Hold(Option<String>),
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Send `query-hotpluggable-cpus` to QEMU. The reply is [`Event::Cpus`].
    QueryCpus,
    /// Send `query-memory-devices` to QEMU. The reply is [`Event::Memory`].
    QueryMemory,
    /// `device_add` for each; `budget` must be on disk before the first.
    Plug {
        /// Slots that get one CPU each.
        slots: Vec<CpuSlot>,
        /// The budget afterwards.
        budget: Option<PlugBudget>,
    },
    /// `device_del` for each.
    Unplug {
        /// Ids of the CPUs' devices in QEMU.
        ids: Vec<String>,
    },
    /// Set the virtio-mem device's `requested-size` to this by `qom-set`.
    Request(Bytes),
    /// `PUT /cpu` of neonvmd.
    SetGuestCpus(u32),
    /// Write the cgroup's quota.
    SetQuota(MilliCpu),
}
