//! A fraction of a CPU in a pod: the runner's cgroup, below the one that the kubelet made for its
//! container.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{PATIENCE, World};

/// Time over which CPU time is counted.
const COUNTED: Duration = Duration::from_secs(5);
/// Keeps a guest busy for longer than the test.
const SPIN: &str = "timeout 600 sh -c 'while :; do :; done' > /dev/null 2>&1 & echo $!";

/// N20: of a quarter of a CPU no more than that is used, and of a larger size more.
pub(super) async fn holds(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    world.guests_are(1).await?;
    let qemu = world.cluster.qemus().into_iter().next();
    let qemu = qemu.context("it has a QEMU")?;
    let pod = vm["status"]["podName"].as_str().context("it has a pod")?;
    let groups = std::fs::read_to_string(format!("/proc/{qemu}/cgroup"))?;
    let group = format!("/neonvm-qemu-{pod}");
    ensure!(
        groups.lines().any(|line| line.ends_with(&group)),
        "{groups}"
    );
    let page = world.runner_says(&vm, "GET /metrics")?;
    ensure!(page.contains("\nrunner_vm_cpu_quota_missing 0\n"), "{page}");
    let busy = world.guest_says(&vm, SPIN).await?;
    for (cpus, milli) in [("250m", 250), ("750m", 750), ("250m", 250)] {
        resized(world, cpus).await?;
        // The count is repeated if other processes left less than half of the quota.
        let began = Instant::now();
        loop {
            let (used, passed) = count(qemu).await?;
            let allowed = passed * milli / 1000;
            let said = format!("{used} ms of CPU in {passed} ms with {cpus}");
            // A quarter more, because CPU time is counted in ticks.
            ensure!(used * 4 <= allowed * 5, "{said}");
            if used * 2 >= allowed {
                break;
            }
            ensure!(began.elapsed() < PATIENCE, "{said}: it was busy");
        }
    }
    world.guest(&vm, &format!("kill {busy}")).map(drop)
}

/// Sets the VM's CPUs, and waits until its status shows them.
async fn resized(world: &World, cpus: &str) -> Result<Value> {
    world.patch(&json!({"spec": {"guest": {"cpus": {"use": cpus}}}}))?;
    let has = |vm: &Value| vm["status"]["cpus"] == cpus && vm["status"]["phase"] == "Running";
    world.vm_that(&format!("has {cpus}"), has).await
}

/// CPU time that a process used, all its threads, and the time that passed; milliseconds.
async fn count(pid: i32) -> Result<(u64, u64)> {
    // Saved or owed time of the quota's period is used up by then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (before, began) = (used_ms(pid)?, Instant::now());
    tokio::time::sleep(COUNTED).await;
    let passed = u64::try_from(began.elapsed().as_millis())?;
    Ok((used_ms(pid)? - before, passed))
}

fn used_ms(pid: i32) -> Result<u64> {
    let stat = procfs::process::Process::new(pid)?.stat()?;
    Ok((stat.utime + stat.stime) * 1000 / procfs::ticks_per_second())
}
