//! Guests that a QEMU without KVM has harmed while it sent them.
//!
//! QEMU 10.0 by TCG now and then misses a page that the guest writes while it is sent: the guest's kernel panics right after
//! the move, or what ran in it stands still. No order of ours is wrong then, and none could be seen to be right: the scenario
//! is run again, with a new guest, and what was lost is said. Anything else fails at once, and so does harm each time.

use std::future::Future;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often a scenario is begun.
pub const ATTEMPTS: u32 = 3;
/// What is in the report of a failure when a guest was harmed.
const SIGNS: [&str; 5] = [
    "GuestPanic",
    "Kernel panic",
    "general protection fault",
    "BUG: ",
    STANDS_STILL,
];
/// Begins the report of a guest that answers while what runs in it does not go on.
pub const STANDS_STILL: &str = "what runs in the guest stands still";

/// Whether the log of a scenario that failed showed it, whatever the failure's own report says.
static IN_A_LOG: AtomicBool = AtomicBool::new(false);

/// Looks at the log of a scenario that is failing: a guest that is gone may first be seen by its refusing a connection.
pub fn look_at(log: &str) {
    IN_A_LOG.fetch_or(is_shown(log), Ordering::Relaxed);
}

/// Shows what is left of a scenario that is failing, and [looks at it](look_at).
#[expect(clippy::print_stdout, reason = "it belongs to what a failed test says")]
pub(crate) fn show(log: &str) {
    look_at(log);
    println!("{log}");
}

/// Whether a failure's report shows that a guest was harmed.
#[must_use]
pub fn is_shown(report: &str) -> bool {
    SIGNS.iter().any(|sign| report.contains(sign))
}

/// Says on one line that a scenario begins again.
#[expect(clippy::print_stdout, reason = "it belongs to what a test says")]
pub fn tell(scenario: &str) {
    println!("HARMED {scenario}: QEMU without KVM has lost a part of the guest it sent; once more");
}

/// Runs a scenario to its end, again if it fails for a guest that was harmed.
///
/// # Panics
/// As the scenario does.
pub async fn unless_harmed<F, R>(scenario: &str, run: F)
where
    F: Fn() -> R,
    R: Future<Output = ()> + Send + 'static,
{
    for left in (0..ATTEMPTS).rev() {
        IN_A_LOG.store(false, Ordering::Relaxed);
        let Err(error) = tokio::spawn(run()).await else {
            return;
        };
        let panic = error.into_panic();
        let report = panic.downcast_ref::<String>().map_or("", String::as_str);
        let is_harmed = is_shown(report) || IN_A_LOG.load(Ordering::Relaxed);
        if left == 0 || !is_harmed {
            resume_unwind(panic);
        }
        tell(scenario);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// How often it was begun, and whether it ended well: it fails `times` times, with this report and this log.
    async fn begun((report, log): (&'static str, &'static str), times: u32) -> (u32, bool) {
        let count = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&count);
        let run = move || {
            let number = counter.fetch_add(1, Ordering::Relaxed);
            async move {
                if number < times {
                    look_at(log);
                    panic!("{report}");
                }
            }
        };
        let ended = tokio::spawn(async move { unless_harmed("it", run).await }).await;
        (count.load(Ordering::Relaxed), ended.is_ok())
    }

    #[tokio::test]
    async fn only_harm_is_a_reason_to_begin_again_and_not_for_ever() {
        assert_eq!(begun(("", ""), 0).await, (1, true));
        assert_eq!(begun(("a wrong size", "went on"), 1).await, (1, false));
        assert_eq!(begun(("reason: GuestPanic", ""), 1).await, (2, true));
        assert_eq!(begun(("refused", "Kernel panic"), 1).await, (2, true));
        // What an earlier one left does not excuse the next.
        assert_eq!(begun(("refused", ""), 1).await, (1, false));
        let each_time = begun(("reason: GuestPanic", ""), 9).await;
        assert_eq!(each_time, (ATTEMPTS, false));
    }
}
