//! The driver's part of QEMU's end: the report.

use protocol::runner::{ExitReason, ExitReport};
use tracing::{error, info};

use super::{LAST_EVENTS, VmDriver};
use crate::core::exit::{Evidence, classify};
use crate::core::stop::Stopping;
use crate::shell::process::file_tail;
use crate::shell::record::write_json;

/// Bytes of the console's end that explain QEMU's end.
const CONSOLE_TAIL_BYTES: u64 = 16 << 10;

impl VmDriver {
    /// The report, once QEMU has ended and its last events have arrived.
    pub(super) fn finished(&mut self) -> Option<ExitReport> {
        let (code, at) = self.seen.ended?;
        if self.seen.qmp.is_some() && self.clock.now() < at + LAST_EVENTS {
            return None;
        }
        let report = classify(&Evidence {
            was_up: self.seen.was_up,
            stop_ordered: self.record.stop_ordered,
            moved: self.record.moved,
            forced: self.seen.stopping.as_ref().is_some_and(Stopping::forced),
            panicked: self.seen.panicked,
            shutdown: self.seen.shutdown,
            code,
            console_tail: file_tail(&self.paths.console_log(), CONSOLE_TAIL_BYTES),
            qemu_tail: file_tail(&self.paths.qemu_log(), CONSOLE_TAIL_BYTES),
        });
        let report = self.arrival_failed().unwrap_or(report);
        info!(reason = ?report.reason, success = report.success, code, "the VM has ended");
        if let Err(error) = write_json(&self.paths.exit(), &report) {
            error!(
                error = daemon_kit::chain(&error),
                "failed to write the report of the VM's end"
            );
        }
        self.seen.exit = Some(report.clone());
        if let Some(group) = self.group.take() {
            group.remove();
        }
        self.bounds.remove();
        self.publish(self.clock.now());
        Some(report)
    }

    /// Report of a QEMU whose guest never arrived.
    fn arrival_failed(&self) -> Option<ExitReport> {
        let incoming = self.incoming.as_ref().filter(|at| !at.is_begun())?;
        let (code, _) = self.seen.ended?;
        let tail = file_tail(&self.paths.qemu_log(), CONSOLE_TAIL_BYTES);
        let last = tail.lines().next_back().unwrap_or_default().to_owned();
        Some(ExitReport {
            success: false,
            reason: ExitReason::StartFailed,
            code,
            message: incoming.report().problem.unwrap_or(last),
        })
    }
}
