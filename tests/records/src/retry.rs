//! Repeats scenarios after a known fault of QEMU without KVM.
//!
//! QEMU 10.0 with TCG sometimes misses a page that the guest writes during a migration. If the page
//! is the kernel's, the kernel panics after the move, or reports a broken page table. If it is a
//! program's, the program dies of a signal. None of our requests is wrong then. A scenario is
//! repeated only if its guest ran with TCG and the guest's console shows one of the three. A silent
//! guest is a failure, and so is every fault under KVM. Each attempt is recorded.

use std::fs;
use std::future::Future;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Attempt, Record};

/// Most attempts of a scenario. On a loaded machine a scenario with six moves meets the fault in a
/// third of its attempts, so three attempts in a row fail too often.
pub const ATTEMPTS: u32 = 5;

/// Prefix of a panic on Linux's console.
const PANIC: &str = "Kernel panic - not syncing";

/// Reports of Linux about pages that do not fit together.
const BAD_PAGES: [&str; 3] = [
    "BUG: Bad page map in process",
    "BUG: Bad page state in process",
    "BUG: Bad rss-counter state",
];

/// Precedes the exit status of a service in its last line on the console.
const STATUS: &str = " ended with status ";

/// Exit statuses of a service that a wrong page ends: SIGILL, SIGABRT, SIGBUS and SIGSEGV. A panic
/// of ours ends with 101.
const BROKEN: [&str; 4] = ["132", "134", "135", "139"];

tokio::task_local! {
    /// The known fault of a guest of the scenario that runs in this task.
    static SEEN: Arc<Mutex<Option<String>>>;
}

/// The line on the console of a guest that ran with `accel` that shows the known fault.
#[must_use]
pub fn known_tcg_bug(accel: &str, console: &str) -> Option<String> {
    let has_bad_page = |line: &str| BAD_PAGES.iter().any(|report| line.contains(report));
    let is_fault =
        |line: &&str| line.contains(PANIC) || has_bad_page(line) || is_broken_service(line);
    let line = console.lines().find(is_fault);
    line.filter(|_| accel == "tcg")
        .map(|line| line.trim().to_owned())
}

/// Whether the line tells that a service of the guest died of a wrong page.
fn is_broken_service(line: &str) -> bool {
    let after = line.split_once(STATUS).map(|(_, after)| after);
    let status = after.and_then(|after| after.split_whitespace().next());
    status.is_some_and(|status| BROKEN.contains(&status))
}

/// The known fault of the guest in a runner's directory. Unreadable files show none.
#[must_use]
pub fn known_tcg_bug_in(rundir: &Path) -> Option<String> {
    let accel = accel_in(rundir)?;
    let consoles = ["console.log.1", "console.log"].map(|name| fs::read(rundir.join(name)));
    let mut consoles = consoles.iter().flatten();
    consoles.find_map(|console| known_tcg_bug(&accel, &String::from_utf8_lossy(console)))
}

/// The accelerator of the guest of a runner's directory.
#[must_use]
pub fn accel_in(rundir: &Path) -> Option<String> {
    let record = fs::read(rundir.join("runner.json")).ok()?;
    let record: serde_json::Value = serde_json::from_slice(&record).ok()?;
    Some(record["accel"].as_str()?.to_owned())
}

/// The accelerator that a log of `bellows up` names last. A runner that has just started has none
/// in its directory yet.
#[must_use]
pub fn accel_in_log(log: &str) -> Option<String> {
    let of = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(line["accel"].as_str()?.to_owned())
    };
    log.lines().rev().find_map(of)
}

/// Tells the scenario of this task of its guest's panic. It is called while the scenario fails.
pub fn blame(panic: Option<String>) {
    // A guest outside of a scenario allows no repetition.
    let _ = SEEN.try_with(|seen| {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = seen.take().or(panic);
    });
}

/// The attempts of one scenario.
#[derive(Debug)]
pub struct Attempts {
    test: String,
    number: u32,
    record: fn(&Record),
}

impl Attempts {
    /// Of a test of that name.
    #[must_use]
    pub fn of(test: &str) -> Self {
        Self {
            test: test.to_owned(),
            number: 0,
            record: crate::record,
        }
    }

    /// Records the end of an attempt, and returns whether another follows. `panic` is the known
    /// fault.
    pub fn again(&mut self, panic: Option<String>) -> bool {
        self.number += 1;
        let retried_for = panic.filter(|_| self.number < ATTEMPTS);
        if let Some(panic) = &retried_for {
            let (test, number) = (&self.test, self.number);
            crate::say(&format!(
                "RETRY {test}, attempt {number}: guest by TCG: {panic}"
            ));
        }
        let is_again = retried_for.is_some();
        (self.record)(&Record::Attempt(Attempt {
            test: self.test.clone(),
            number: self.number,
            retried_for,
        }));
        is_again
    }
}

/// Runs a scenario, and repeats it if it fails after [`blame`] recorded the [known
/// fault](known_tcg_bug).
///
/// # Panics
///
/// If the scenario panics.
pub async fn retry_known_tcg_bug<F, R>(test: &str, run: F)
where
    F: Fn() -> R,
    R: Future<Output = ()> + Send + 'static,
{
    retry(&mut Attempts::of(test), run).await;
}

async fn retry<F, R>(attempts: &mut Attempts, run: F)
where
    F: Fn() -> R,
    R: Future<Output = ()> + Send + 'static,
{
    loop {
        let seen = Arc::default();
        let ended = tokio::spawn(SEEN.scope(Arc::clone(&seen), run())).await;
        let Err(error) = ended else {
            attempts.again(None);
            return;
        };
        let panic = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
        if !attempts.again(panic) {
            resume_unwind(error.into_panic());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const CONSOLE: &str = "[ 1.0] boots\r\n[ 2.0] Kernel panic - not syncing: Fatal exception\r\n";

    /// Reads its directory when it is dropped, as the VMs of tests do.
    struct Vm(tempfile::TempDir);

    impl Vm {
        fn new(accel: &str, console: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let record = format!("{{\"accel\": \"{accel}\", \"orders\": 1}}");
            fs::write(dir.path().join("runner.json"), record).unwrap();
            fs::write(dir.path().join("console.log"), console).unwrap();
            Self(dir)
        }
    }

    impl Drop for Vm {
        fn drop(&mut self) {
            if std::thread::panicking() {
                blame(known_tcg_bug_in(self.0.path()));
            }
        }
    }

    thread_local! {
        static RECORDS: RefCell<Vec<Option<String>>> = const { RefCell::new(Vec::new()) };
    }

    fn keep(record: &Record) {
        if let Record::Attempt(attempt) = record {
            RECORDS.with_borrow_mut(|all| all.push(attempt.retried_for.clone()));
        }
    }

    /// Runs a scenario that fails `times` times with such a guest. Returns the number of attempts
    /// and whether it passed. Every attempt is recorded.
    async fn run(accel: &'static str, console: &'static str, times: u32) -> (u32, bool) {
        RECORDS.take();
        let count = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&count);
        let scenario = move || {
            let number = counter.fetch_add(1, Ordering::Relaxed);
            async move {
                let _vm = Vm::new(accel, console);
                tokio::task::yield_now().await;
                assert!(number >= times, "what was awaited did not come");
            }
        };
        // The test's runtime has one thread, which keeps the records.
        let ended = tokio::spawn(async move {
            let mut attempts = Attempts {
                record: keep,
                ..Attempts::of("it")
            };
            retry(&mut attempts, scenario).await;
        });
        let is_well = ended.await.is_ok();
        let runs = count.load(Ordering::Relaxed);
        let records = RECORDS.take();
        assert_eq!(records.len(), runs as usize, "{records:?}");
        let retried = records.iter().flatten().count();
        assert_eq!(retried, runs as usize - 1, "{records:?}");
        (runs, is_well)
    }

    #[tokio::test]
    async fn panic_of_a_guest_by_tcg_is_retried_and_not_for_ever() {
        assert_eq!(run("tcg", CONSOLE, 0).await, (1, true));
        assert_eq!(run("tcg", CONSOLE, 1).await, (2, true));
        assert_eq!(run("tcg", CONSOLE, 9).await, (ATTEMPTS, false));
    }

    #[test]
    fn accelerator_is_known_from_the_log_before_a_new_runner_names_it() {
        let log = "ready on node vm\n{\"message\":\"accelerator\",\"accel\":\"tcg\"}\n\
            {\"message\":\"runner started\"}\n{\"accel\":";
        assert_eq!(accel_in_log(log).as_deref(), Some("tcg"));
        assert_eq!(accel_in_log("{\"message\":\"runner started\"}\n"), None);
    }

    #[tokio::test]
    async fn service_that_died_of_a_wrong_page_is_retried_and_one_that_failed_is_not() {
        let line = |status: u8| {
            format!("[guest 35.9] neonvmd ended with status {status} after 30 s; its last words: x")
        };
        for status in [132, 134, 135, 139] {
            let line = line(status);
            assert_eq!(known_tcg_bug("tcg", &line), Some(line.clone()), "{status}");
            assert_eq!(known_tcg_bug("kvm", &line), None, "{status}");
        }
        for status in [0, 1, 13, 101, 130, 137, 143] {
            assert_eq!(known_tcg_bug("tcg", &line(status)), None, "{status}");
        }
    }

    #[tokio::test]
    async fn broken_page_table_of_a_guest_is_retried() {
        let console = "[ 60.6] BUG: Bad page map in process sleep  pte:80000001004d6867\r\n";
        assert_eq!(run("tcg", console, 1).await, (2, true));
        assert_eq!(run("kvm", console, 1).await, (1, false));
        let other = "[ 60.6] BUG: soft lockup - CPU#1 stuck for 26s\r\n";
        assert_eq!(run("tcg", other, 1).await, (1, false));
    }

    #[tokio::test]
    async fn silence_of_a_guest_is_a_failure() {
        assert_eq!(run("tcg", "[ 1.0] boots\n", 1).await, (1, false));
        assert_eq!(run("tcg", "[ 1.0] BUG: soft lockup\n", 1).await, (1, false));
    }

    #[tokio::test]
    async fn every_failure_under_kvm_is_a_failure() {
        assert_eq!(run("kvm", CONSOLE, 1).await, (1, false));
    }

    #[test]
    fn panic_is_found_in_a_console_that_was_turned_over() {
        let vm = Vm::new("tcg", "[ 3.0] the last words\n");
        assert_eq!(known_tcg_bug_in(vm.0.path()), None);
        fs::write(vm.0.path().join("console.log.1"), CONSOLE).unwrap();
        let panic = "[ 2.0] Kernel panic - not syncing: Fatal exception";
        assert_eq!(known_tcg_bug_in(vm.0.path()).as_deref(), Some(panic));
        fs::remove_file(vm.0.path().join("runner.json")).unwrap();
        assert_eq!(known_tcg_bug_in(vm.0.path()), None, "by nobody knows what");
    }
}
