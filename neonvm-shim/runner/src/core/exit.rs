//! Why a QEMU ended, from the traces it left.

use protocol::runner::{ExitReason, ExitReport};

/// Longest message of a report in bytes.
pub const MAX_MESSAGE_BYTES: usize = 2048;
/// What the guest's kernel writes to the console when it panics.
const PANIC_MARK: &str = "Kernel panic - not syncing";
/// The guest kernel's last line when it powers off.
const POWER_DOWN_MARK: &str = "reboot: Power down";

/// Reason in QEMU's `SHUTDOWN` event, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownReason {
    /// The guest powered the machine off.
    GuestShutdown,
    /// The guest reset the machine.
    GuestReset,
    /// The guest reported a panic.
    GuestPanic,
    /// QEMU received a quit command or a signal.
    Host,
    /// QEMU reported a failure of its own or of the host.
    Error,
}

/// Observations about an end of QEMU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// QEMU's monitor answered at least once.
    pub was_up: bool,
    /// An order to stop was carried out.
    pub stop_ordered: bool,
    /// The guest had migrated to another QEMU.
    pub moved: bool,
    /// The runner killed QEMU after the grace period.
    pub forced: bool,
    /// QEMU's event `GUEST_PANICKED` was received.
    pub panicked: bool,
    /// Reason of the `SHUTDOWN` event, if one was received.
    pub shutdown: Option<ShutdownReason>,
    /// Exit status of QEMU, if it was a child of this runner.
    pub code: Option<i32>,
    /// Last bytes of the guest's console log.
    pub console_tail: String,
    /// Last bytes of QEMU's log.
    pub qemu_tail: String,
}

/// Decides why QEMU ended. The message is the end of the console after a panic of the guest, and
/// the end of QEMU's log otherwise.
#[must_use]
pub fn classify(evidence: &Evidence) -> ExitReport {
    let reason = reason(evidence);
    let success = matches!(
        reason,
        ExitReason::GuestShutdown | ExitReason::Requested | ExitReason::Moved
    );
    let console_speaks = reason == ExitReason::GuestPanic;
    let text = if console_speaks {
        panic_text(&evidence.console_tail)
    } else {
        &evidence.qemu_tail
    };
    ExitReport {
        success,
        reason,
        code: evidence.code,
        message: tail(text, MAX_MESSAGE_BYTES).to_owned(),
    }
}

fn reason(evidence: &Evidence) -> ExitReason {
    let by_order = |otherwise| {
        if evidence.stop_ordered {
            ExitReason::Requested
        } else {
            otherwise
        }
    };
    if evidence.moved {
        // The console belongs to a guest that runs elsewhere.
        return ExitReason::Moved;
    }
    let console_panic = evidence.console_tail.contains(PANIC_MARK);
    if evidence.panicked || evidence.shutdown == Some(ShutdownReason::GuestPanic) {
        return ExitReason::GuestPanic;
    }
    match evidence.shutdown {
        Some(ShutdownReason::GuestShutdown) => by_order(ExitReason::GuestShutdown),
        // Under `panic=-1` a panic is a reset: only the console tells them apart.
        Some(ShutdownReason::GuestReset) if console_panic => ExitReason::GuestPanic,
        Some(ShutdownReason::GuestReset) => by_order(ExitReason::GuestReset),
        _ if evidence.forced => ExitReason::Killed,
        Some(_) => ExitReason::QemuDied,
        None if console_panic => ExitReason::GuestPanic,
        // No runner was there to receive events: the guest's last line decides.
        None if evidence.console_tail.trim_end().ends_with(POWER_DOWN_MARK) => {
            by_order(ExitReason::GuestShutdown)
        }
        None if !evidence.was_up => ExitReason::StartFailed,
        None => ExitReason::QemuDied,
    }
}

/// The console from the panic's line on.
fn panic_text(console: &str) -> &str {
    let Some(at) = console.find(PANIC_MARK) else {
        return console;
    };
    let line = console[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let text = &console[line..];
    // The first lines name the cause; the rest is a stack.
    &text[..floor_boundary(text, MAX_MESSAGE_BYTES)]
}

/// Returns the last `max` bytes of a text, cut at a character boundary.
#[must_use]
pub fn tail(text: &str, max: usize) -> &str {
    let mut start = text.len().saturating_sub(max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

fn floor_boundary(text: &str, max: usize) -> usize {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence() -> Evidence {
        Evidence {
            was_up: true,
            ..Evidence::default()
        }
    }

    #[test]
    fn every_end_has_its_reason() {
        use ShutdownReason as S;
        let base = evidence();
        let shut = |s| Evidence {
            shutdown: Some(s),
            ..evidence()
        };
        let console = |text: &str| Evidence {
            console_tail: text.into(),
            ..evidence()
        };
        let stop = |e: Evidence| Evidence {
            stop_ordered: true,
            ..e
        };
        let force = |e: Evidence| Evidence {
            stop_ordered: true,
            forced: true,
            ..e
        };
        let panic = "x\n[ 1.2] Kernel panic - not syncing: sysrq\n[ 1.3] CPU: 0\n";
        for (evidence, reason, success) in [
            (shut(S::GuestShutdown), ExitReason::GuestShutdown, true),
            (stop(shut(S::GuestShutdown)), ExitReason::Requested, true),
            (shut(S::GuestReset), ExitReason::GuestReset, false),
            (stop(shut(S::GuestReset)), ExitReason::Requested, true),
            (shut(S::GuestPanic), ExitReason::GuestPanic, false),
            (force(shut(S::Host)), ExitReason::Killed, false),
            (shut(S::Host), ExitReason::QemuDied, false),
            (shut(S::Error), ExitReason::QemuDied, false),
            (
                Evidence {
                    panicked: true,
                    ..base.clone()
                },
                ExitReason::GuestPanic,
                false,
            ),
            (
                Evidence {
                    shutdown: Some(S::GuestReset),
                    ..console(panic)
                },
                ExitReason::GuestPanic,
                false,
            ),
            (console(panic), ExitReason::GuestPanic, false),
            (
                console("[ 9.1] reboot: Power down\r\n"),
                ExitReason::GuestShutdown,
                true,
            ),
            (
                console("reboot: Power down\nlogin:"),
                ExitReason::QemuDied,
                false,
            ),
            (Evidence::default(), ExitReason::StartFailed, false),
            (base, ExitReason::QemuDied, false),
        ] {
            let report = classify(&evidence);
            assert_eq!(
                (report.reason, report.success),
                (reason, success),
                "{evidence:?}"
            );
        }
    }

    #[test]
    fn message_names_the_cause_and_is_bounded() {
        let long = "y".repeat(5000);
        let died = classify(&Evidence {
            qemu_tail: format!("{long}é"),
            ..evidence()
        });
        assert!(died.message.len() <= MAX_MESSAGE_BYTES && died.message.ends_with('é'));
        let panic = classify(&Evidence {
            panicked: true,
            console_tail: format!("boring\n[1] Kernel panic - not syncing: dead\n{long}"),
            ..evidence()
        });
        assert_eq!(panic.message.len(), MAX_MESSAGE_BYTES);
        assert!(
            panic.message.starts_with("[1] Kernel panic"),
            "{}",
            panic.message
        );
    }
}
