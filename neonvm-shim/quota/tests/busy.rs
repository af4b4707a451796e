//! A busy process is limited to its quota, and the factor counts.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use neonvm_quota::QuotaGroup;
use protocol::units::MilliCpu;
use test_records::{Missing, skip};

/// User and system time of a process in milliseconds.
fn used_ms(pid: u32) -> u64 {
    let process = procfs::process::Process::new(pid.cast_signed()).expect("it runs");
    let stat = process.stat().expect("it runs");
    (stat.utime + stat.stime) * 1000 / procfs::ticks_per_second()
}

/// Comparisons of a share and its double before the test fails.
const ROUNDS: u32 = 5;

struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Burns CPU for a while; returns CPU time used and time passed, in milliseconds.
#[expect(clippy::disallowed_methods, reason = "CPU time is counted over a time")]
fn burn(busy: &Busy) -> (u64, u64) {
    let pid = busy.0.id();
    let (from, start) = (used_ms(pid), Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let passed = u64::try_from(start.elapsed().as_millis()).expect("short");
    (used_ms(pid) - from, passed)
}

/// CPU time that a process used, and that its quota allowed, in milliseconds.
type Share = (u64, u64);

/// Whether the process got about its quota. A busy machine may give less.
fn is_had((used, allowed): Share) -> bool {
    used * 20 >= allowed * 17
}

/// Whether twice the quota gave at least half as much again, in the same time.
fn is_doubled(single: Share, double: Share) -> bool {
    4 * double.0 * single.1 >= 3 * single.0 * double.1
}

/// Requirement: N20
#[test]
fn busy_process_cannot_burn_more_than_its_quota() {
    let test = "busy_process_cannot_burn_more_than_its_quota";
    let group = match QuotaGroup::make(&format!("bellows-test/n20-{}", std::process::id())) {
        Ok(group) => group,
        Err(error) => return skip(test, Missing::Cgroup, &error.to_string()),
    };
    let loop_for_ever = ["-c", "while :; do :; done"];
    let child = Command::new("sh")
        .args(loop_for_ever)
        .stdin(Stdio::null())
        .spawn()
        .expect("starts");
    let busy = Busy(child);
    group.join(busy.0.id()).expect("it joins");
    group.set(MilliCpu(250), 100).expect("is written");
    let (used, passed) = burn(&busy);
    // A quarter, with half of it as tolerance for the first period and the clock's ticks.
    assert!(
        used * 8 <= passed * 3,
        "{used} ms of CPU in {passed} ms at 250m"
    );
    // The factor counts. Other work leaves a tenth and a fifth of a core.
    let share = |percent| {
        group.set(MilliCpu(100), percent).expect("is written");
        let (used, passed) = burn(&busy);
        let allowed = passed * u64::from(percent) / 1000;
        // Half as much again, as above.
        assert!(
            used * 2 <= allowed * 3,
            "{used} ms of CPU, {allowed} allowed"
        );
        (used, allowed)
    };
    let mut seen = Vec::new();
    let differs = (0..ROUNDS).any(|_| {
        let (single, double) = (share(100), share(200));
        seen.push((single, double));
        // A busy machine may give less than the quota. That is no evidence about the factor.
        is_had(single) && is_doubled(single, double)
    });
    assert!(
        differs,
        "(used, allowed) at 100m x 1 and x 2, in ms: {seen:?}"
    );
    drop(busy);
    group.remove();
}
