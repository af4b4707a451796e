//! The table: what each kind of fault may leave running when it ends.

use agent::core::Timers;
use neonvm_controller::core::backoff;
use protocol::time::Span;
use scheduler::core::standby::CATCH_UP;
use vm_monitor::core::memory::Rules;

use super::sum;
use crate::agent::times::{SCRAPE_PATIENCE, SCRAPE_PERIOD};
use crate::api::AGENT_PATIENCE;
use crate::election::{HAND_OVER, HANDED_OVER, LEASE_LASTS, SETTLE, SHOW_OWN};
use crate::faults::rates;
use crate::link::{CONNECT_PATIENCE, DIAL_PERIOD, RESPONSE_PATIENCE};
use crate::node::{BOOT_LASTS, STOP_LASTS};
use crate::options::Level;
use crate::orders::ORDER_PATIENCE;
use crate::permit::PERMIT_PATIENCE;
use crate::scheduler::{TAKEN_COLD, TAKEN_WARM};
use crate::watch::RELIST_PAUSE;

/// A guest that ends by itself. Its row holds for VMs whose guests are down when the faults end.
pub(super) const GUEST_CRASH: &str = "guest crash";
/// Counts of the tally that are no faults: consequences of one, and other people's writes.
pub(super) const NO_FAULTS: [&str; 9] = [
    "late sync refused",
    TAKEN_COLD,
    TAKEN_WARM,
    "object touched",
    "order overtaken",
    "overrun by a stalled call",
    "permit after hang-up",
    "plugged ahead",
    "stalled call carried out",
];

/// How long the scheduler counts a patch of an earlier agent (`scheduler/src/core/permits.rs`).
const LEGACY_LASTS: Span = Span::from_secs(12);
/// Longest pause before a pod is placed again (`scheduler/src/core/placement.rs`).
const PLACED_AGAIN: Span = Span::from_secs(10);
/// Longest pause between two restarts of a VM (`neonvm-shim/controller/src/core/backoff.rs`).
const RESTART_CAP: Span = Span::from_secs(60);
/// Longest pause after a refused command of QEMU (`neonvm-shim/runner/src/core/sizer/lane.rs`).
const QEMU_RETRY: Span = Span::from_secs(5);
/// Longest time until the runner sees a change without an event (in the same file).
const QEMU_LOOK: Span = Span::from_secs(5);

/// Faults with the same bound.
pub(super) struct Row {
    /// Names in the tally.
    pub(super) faults: &'static [&'static str],
    /// Timers that run one after the other when the fault ends, with their names.
    timers: Vec<(&'static str, Span)>,
}

impl Row {
    pub(super) fn adds(&self) -> Span {
        let timers: Vec<Span> = self.timers.iter().map(|(_, span)| *span).collect();
        sum(&timers)
    }

    /// The row as README.md has it.
    #[cfg(test)]
    pub(super) fn line(&self) -> String {
        let timers: Vec<String> = self
            .timers
            .iter()
            .map(|(name, span)| format!("{name} {}", span.as_secs_f64()))
            .collect();
        let bound = sum(&[super::undisturbed(), self.adds()]).as_secs_f64();
        let (faults, timers) = (self.faults.join(", "), timers.join(" + "));
        format!("| {faults} | {timers} | {bound} |")
    }
}

fn row(faults: &'static [&'static str], timers: &[(&'static str, Span)]) -> Row {
    let timers = timers.to_vec();
    Row { faults, timers }
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = components();
    rows.extend(links());
    rows.extend(guests());
    rows
}

/// Components that end and start again.
fn components() -> Vec<Row> {
    let permit_retry = Timers::default().permit_retry_wait;
    let lead = [
        ("LEASE_LASTS", LEASE_LASTS),
        ("SETTLE", SETTLE),
        ("CATCH_UP", CATCH_UP),
        ("permit_retry_wait", permit_retry),
    ];
    let ends = [("HAND_OVER", HAND_OVER), ("SHOW_OWN", SHOW_OWN)];
    vec![
        row(
            &["agent crash", "patch of a dead agent"],
            &[("LEGACY_LASTS", LEGACY_LASTS)],
        ),
        row(&["scheduler crash"], &lead),
        row(&[HANDED_OVER], &[&ends[..], &lead[..]].concat()),
        row(&["controller crash"], &[("ORDER_PATIENCE", ORDER_PATIENCE)]),
        row(
            &["runner crash"],
            &[
                ("ORDER_PATIENCE", ORDER_PATIENCE),
                ("RETRY_CAP", backoff::RETRY_CAP),
            ],
        ),
        row(
            &[
                "monitor crash",
                "guest oom",
                "connection broken",
                "monitor absent",
            ],
            &[
                ("DIAL_PERIOD", DIAL_PERIOD),
                ("CONNECT_PATIENCE", CONNECT_PATIENCE),
            ],
        ),
    ]
}

/// Messages and calls.
fn links() -> Vec<Row> {
    let timers = Timers::default();
    let patch_retry = ("vm_patch_retry_wait", timers.vm_patch_retry_wait);
    let latest = rates(Level::Heavy).latest;
    let redial = [
        ("RESPONSE_PATIENCE", RESPONSE_PATIENCE),
        ("DIAL_PERIOD", DIAL_PERIOD),
        ("CONNECT_PATIENCE", CONNECT_PATIENCE),
    ];
    vec![
        row(
            &[
                "api lost",
                "api late",
                "api twice",
                "api 500",
                "api stalled",
            ],
            &[("AGENT_PATIENCE", AGENT_PATIENCE), patch_retry],
        ),
        row(
            &["api away"],
            &[
                ("RELIST_PAUSE", RELIST_PAUSE.1),
                ("AGENT_PATIENCE", AGENT_PATIENCE),
                patch_retry,
            ],
        ),
        row(
            &["permit lost", "permit late", "permit twice"],
            &[
                ("PERMIT_PATIENCE", PERMIT_PATIENCE),
                ("permit_retry_wait", timers.permit_retry_wait),
            ],
        ),
        row(
            &["frame lost", "frame late", "frame twice", "monitor hangs"],
            &redial,
        ),
        row(
            &["scrape lost", "scrape late", "scrape twice", "metrics mute"],
            &[
                ("SCRAPE_PATIENCE", SCRAPE_PATIENCE),
                ("SCRAPE_PERIOD", SCRAPE_PERIOD),
            ],
        ),
        row(
            &["order lost", "order late", "order twice", "resize refused"],
            &[
                ("ORDER_PATIENCE", ORDER_PATIENCE),
                ("RETRY_CAP", backoff::RETRY_CAP),
            ],
        ),
        row(
            &["watch gap", "watch stale", "watch twice"],
            &[("RELIST_PAUSE", RELIST_PAUSE.1), ("latest", latest)],
        ),
    ]
}

/// Guests and their QEMU.
fn guests() -> Vec<Row> {
    let rules = Rules::default();
    vec![
        row(&["memory unreadable"], &[("max_age", rules.max_age)]),
        row(&["guest lies"], &[("peak_window", rules.peak_window)]),
        row(
            &["cpu clings", "memory blocked", "memory slow", "qmp error"],
            &[("QEMU_RETRY", QEMU_RETRY), ("QEMU_LOOK", QEMU_LOOK)],
        ),
        row(
            &[GUEST_CRASH],
            &[
                ("RESTART_CAP", RESTART_CAP),
                ("STOP_LASTS", STOP_LASTS.1),
                ("PLACED_AGAIN", PLACED_AGAIN),
                ("BOOT_LASTS", BOOT_LASTS.1),
            ],
        ),
    ]
}
