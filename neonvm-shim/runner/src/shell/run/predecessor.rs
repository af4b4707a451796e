//! Finds the QEMU or the report of an earlier runner of the directory.

use protocol::runner::ExitReport;
use tracing::{info, warn};

use super::Runner;
use crate::core::exit::{Evidence, classify};
use crate::shell::process::{self, ProcessId};
use crate::shell::record::{Record, read_json, write_json};
use crate::shell::run_error::RunError;

/// State that an earlier runner left.
pub(super) enum Found {
    Running(Box<Record>),
    Ended(ExitReport),
    Nothing,
}

impl Runner {
    /// Looks for a QEMU of this directory.
    pub(super) fn find(&self) -> Result<Found, RunError> {
        let Some(mut record) = read_json::<Record>(&self.paths.record())? else {
            return Ok(Found::Nothing);
        };
        let this_boot = record.host_boot_id == process::host_boot_id();
        let process = record
            .qemu
            .or_else(|| self.by_command_line())
            .filter(|_| this_boot);
        if let Some(process) = process.filter(|process| process.is_alive()) {
            info!(pid = process.pid, "adopting the running QEMU");
            if record.qemu.replace(process).is_none()
                && let Err(error) = write_json(&self.paths.record(), &record)
            {
                // The disk may be full. The next runner finds it in the same way.
                warn!(
                    error = daemon_kit::chain(&error),
                    "failed to record QEMU's process id"
                );
            }
            return Ok(Found::Running(Box::new(record)));
        }
        // Without QEMU it is useless, and holds the guest's ports.
        let passt = record.passt.filter(|_| this_boot);
        passt.iter().for_each(|process| process.kill());
        if record.qemu.is_none() {
            // The earlier runner died before QEMU's start, so nothing has happened.
            return Ok(Found::Nothing);
        }
        let report = classify(&Evidence {
            was_up: record.boot_ms.is_some(),
            stop_ordered: record.stop_ordered,
            moved: record.moved,
            console_tail: process::file_tail(&self.paths.console_log(), 16 << 10),
            qemu_tail: process::file_tail(&self.paths.qemu_log(), 16 << 10),
            ..Evidence::default()
        });
        info!(reason = ?report.reason, "QEMU ended without a runner");
        write_json(&self.paths.exit(), &report)?;
        Ok(Found::Ended(report))
    }

    /// Finds the QEMU of this directory by its command line. A runner that died right after QEMU's
    /// start has not recorded the process id.
    fn by_command_line(&self) -> Option<ProcessId> {
        let log = self.paths.console_log();
        let own = rustix::process::geteuid().as_raw();
        let users: Vec<u32> = self
            .config
            .walls
            .as_ref()
            .and_then(|walls| walls.user)
            .into_iter()
            .chain([own])
            .collect();
        process::with_argument(&format!("logfile={}", log.display()), &users)
    }
}
