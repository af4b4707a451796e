//! The host enforces fractional CPU, whatever the guest does.

mod support;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use neonvm_quota::QuotaGroup;
use protocol::units::MilliCpu;
use support::kit;
use test_records::{Missing, skip};

/// Length of a firmware image in bytes.
const ROM_BYTES: usize = 64 << 10;
/// Time over which CPU time is counted.
const COUNTED: Duration = Duration::from_secs(3);
/// Comparisons of a share and its double before the test fails.
const ROUNDS: usize = 5;

/// Firmware with one instruction in an endless loop: `jmp $` at the reset vector.
fn endless_loop() -> Vec<u8> {
    let mut image = vec![0xf4; ROM_BYTES];
    image[0xfff0..0xfff2].copy_from_slice(&[0xeb, 0xfe]);
    image
}

struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// CPU time of a process in milliseconds, over all threads.
fn used_ms(pid: u32) -> u64 {
    let process = procfs::process::Process::new(pid.cast_signed()).expect("it runs");
    let stat = process.stat().expect("it runs");
    (stat.utime + stat.stime) * 1000 / procfs::ticks_per_second()
}

/// CPU time used and time passed, in milliseconds.
async fn count(pid: u32) -> (u64, u64) {
    let (before, start) = (used_ms(pid), Instant::now());
    tokio::time::sleep(COUNTED).await;
    (
        used_ms(pid) - before,
        u64::try_from(start.elapsed().as_millis()).expect("short"),
    )
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

/// Share of a busy process at a quota.
async fn share(group: &QuotaGroup, pid: u32, milli: u32, percent: u32) -> Share {
    group
        .set(MilliCpu(milli), percent)
        .expect("the quota is written");
    let (used, passed) = count(pid).await;
    let allowed = passed * u64::from(milli * percent) / 100_000;
    // Half as much again allows for the periods at both ends and the clock's ticks.
    assert!(
        used <= allowed * 3 / 2,
        "{used} ms of CPU in {passed} ms at {milli}m x {percent} %"
    );
    assert!(used * 20 >= allowed, "it was busy: {used} of {allowed} ms");
    (used, allowed)
}

/// Requirement: N20
#[tokio::test]
async fn busy_qemu_cannot_burn_more_than_its_quota_times_the_factor() {
    let test = "busy_qemu_cannot_burn_more_than_its_quota_times_the_factor";
    let Some(kit) = kit(test).await else { return };
    let group = match QuotaGroup::make(&format!("bellows-test/quota-{}", std::process::id())) {
        Ok(group) => group,
        Err(error) => {
            return skip(test, Missing::Cgroup, &daemon_kit::chain(&error));
        }
    };
    let rom = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(rom.path(), endless_loop()).expect("written");
    let qemu = Command::new(&kit.programs.qemu_system)
        .args([
            "-machine",
            "q35",
            "-accel",
            "tcg",
            "-m",
            "16M",
            "-nodefaults",
            "-display",
            "none",
        ])
        .arg("-bios")
        .arg(rom.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("QEMU starts");
    let busy = Busy(qemu);
    let pid = busy.0.id();
    group.join(pid).expect("it joins");
    for milli in [250, 500] {
        share(&group, pid, milli, 100).await;
    }
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let single = share(&group, pid, 100, 100).await;
        let double = share(&group, pid, 100, 200).await;
        seen.push((single, double));
        if is_had(single) && is_doubled(single, double) {
            break;
        }
        assert!(
            seen.len() < ROUNDS,
            "the factor is ignored: (used, allowed) at 100m x 1 and x 2, in ms: {seen:?}"
        );
    }
    drop(busy);
    group.remove();
}
