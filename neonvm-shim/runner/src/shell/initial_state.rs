//! State of a runner before any report from QEMU or guest.

use protocol::migration::{IncomingReport, IncomingStage};
use protocol::runner::{CpuState, MemoryState, QuotaState, RunnerPhase, RunnerState};

use super::record::Record;

/// State of a runner without a QEMU.
pub(crate) fn waiting_state() -> RunnerState {
    RunnerState {
        generation: 1,
        phase: RunnerPhase::Receiving,
        qemu_pid: None,
        qemu_version: None,
        accel: String::new(),
        boot_id: None,
        guest_kernel: None,
        boot_ms: None,
        cpus: CpuState::default(),
        memory: MemoryState::default(),
        resize: None,
        orders: Some(0),
        exit: None,
        quota: QuotaState::Unset,
        outgoing: None,
        incoming: Some(IncomingReport {
            id: String::new(),
            stage: IncomingStage::Waiting,
            destination: None,
            problem: None,
            began_unix_us: None,
        }),
        guest_silent: None,
        programs: Vec::new(),
        guest_parts: protocol::parts::PartStates::new(),
        disk_full: None,
    }
}

/// State of a QEMU that was just started or found.
pub(super) fn first_state(record: &Record) -> RunnerState {
    let arrival = record.arrival.as_ref();
    RunnerState {
        phase: if arrival.is_some() {
            RunnerPhase::Receiving
        } else {
            RunnerPhase::Booting
        },
        qemu_pid: record.qemu.map(|process| process.pid),
        accel: record.accel.as_str().to_owned(),
        boot_ms: record.boot_ms,
        orders: Some(record.orders),
        incoming: arrival.map(|arrival| IncomingReport {
            id: arrival.order.id.clone(),
            stage: IncomingStage::Starting,
            destination: None,
            problem: None,
            began_unix_us: None,
        }),
        ..waiting_state()
    }
}
