//! Executes the sizer's actions against QEMU and the guest's daemon.

use std::sync::Arc;

use tracing::{debug, warn};

use super::guest::{self, Daemon};
use super::qmp::Qmp;
use crate::core::sizer::{Action, CpuSlot, Event, QmpFailure};

/// Dependencies of executing an action of the sizer.
#[derive(Debug, Clone)]
pub struct Context {
    /// QEMU's monitor, if it is connected.
    pub qmp: Option<Arc<Qmp>>,
    /// Address and key of the guest's daemon, neonvmd.
    pub guest: Daemon,
}

/// Executes one action and returns the event with its result. The driver executes quotas itself:
/// `None`.
pub async fn execute(context: Context, action: Action) -> Option<Event> {
    let monitor = |command: &str| {
        context.qmp.clone().ok_or_else(|| QmpFailure {
            command: command.to_owned(),
            message: "the monitor is not connected".to_owned(),
        })
    };
    Some(match action {
        Action::QueryCpus => Event::Cpus(match monitor("query-hotpluggable-cpus") {
            Ok(qmp) => qmp.cpus().await,
            Err(failure) => Err(failure),
        }),
        Action::QueryMemory => Event::Memory(match monitor("query-memory-devices") {
            Ok(qmp) => qmp.memory().await,
            Err(failure) => Err(failure),
        }),
        Action::Plug { slots, .. } => Event::CpuCommand(match monitor("device_add") {
            Ok(qmp) => plug_all(&qmp, &slots).await,
            Err(failure) => Err(failure),
        }),
        Action::Unplug { ids } => Event::CpuCommand(match monitor("device_del") {
            Ok(qmp) => unplug_all(&qmp, &ids).await,
            Err(failure) => Err(failure),
        }),
        Action::Request(bytes) => Event::Requested(match monitor("qom-set") {
            Ok(qmp) => qmp.request_memory(bytes).await,
            Err(failure) => Err(failure),
        }),
        Action::SetGuestCpus(cpus) => {
            if let Err(error) = guest::set_cpus(&context.guest, cpus).await {
                warn!(
                    cpus,
                    error = daemon_kit::chain(&error),
                    "failed to switch the guest's CPUs"
                );
            }
            Event::GuestCpusSet
        }
        Action::SetQuota(_) => return None,
    })
}

async fn plug_all(qmp: &Qmp, slots: &[CpuSlot]) -> Result<(), QmpFailure> {
    for slot in slots {
        qmp.plug(slot).await?;
    }
    debug!(count = slots.len(), "CPUs plugged");
    Ok(())
}

async fn unplug_all(qmp: &Qmp, ids: &[String]) -> Result<(), QmpFailure> {
    for id in ids {
        qmp.unplug(id).await?;
    }
    debug!(?ids, "CPUs asked to leave");
    Ok(())
}
