use std::fs;
use std::path::Path;

use super::*;
use crate::core::cpus::CpuPolicy;

/// A machine of files: `present` CPUs, CPU 0 alone online. A test calls [`settle`] where the kernel
/// would update `online`.
fn machine(root: &Path, present: u32) -> Roots {
    let roots = Roots {
        sysfs: root.join("sys"),
        procfs: root.join("proc"),
    };
    let cpu = roots.sysfs.join("devices/system/cpu");
    fs::create_dir_all(&cpu).unwrap();
    fs::create_dir_all(roots.procfs.join("sys/kernel/random")).unwrap();
    fs::write(cpu.join("online"), "0\n").unwrap();
    fs::write(cpu.join("possible"), "0-7\n").unwrap();
    for n in 0..8 {
        fs::create_dir_all(cpu.join(format!("cpu{n}"))).unwrap();
    }
    set_present(&roots, present);
    fs::write(
        roots.procfs.join("meminfo"),
        "MemTotal: 1000 kB\nMemAvailable: 500 kB\n",
    )
    .unwrap();
    fs::write(roots.procfs.join("uptime"), "5.0 5.0\n").unwrap();
    fs::write(roots.procfs.join("sys/kernel/random/boot_id"), "b-1\n").unwrap();
    fs::write(roots.procfs.join("sys/kernel/osrelease"), "6.1.0\n").unwrap();
    roots
}

fn set_present(roots: &Roots, present: u32) {
    let list = if present == 1 {
        "0\n".to_owned()
    } else {
        format!("0-{}\n", present - 1)
    };
    fs::write(roots.sysfs.join("devices/system/cpu/present"), list).unwrap();
}

/// Updates the `online` list from the `cpuN/online` files, as the kernel does.
fn settle(roots: &Roots) {
    let cpu = roots.sysfs.join("devices/system/cpu");
    let on = |n: &u32| {
        *n == 0 || fs::read_to_string(cpu.join(format!("cpu{n}/online"))).is_ok_and(|v| v == "1")
    };
    let list: Vec<String> = (0..8).filter(on).map(|n| n.to_string()).collect();
    // Renamed, so that a reader never sees half a list.
    fs::write(cpu.join("online.tmp"), list.join(",")).unwrap();
    fs::rename(cpu.join("online.tmp"), cpu.join("online")).unwrap();
}

struct Running {
    state: watch::Receiver<GuestState>,
    keeper: mpsc::Sender<Request>,
    _stop: tokio_util::sync::DropGuard,
}

fn start(roots: &Roots, policy: CpuPolicy) -> Running {
    let (identity, first) = first_look(roots).unwrap();
    let (tx, state) = watch::channel(first);
    let (keeper, requests) = mpsc::channel(MAX_WAITING);
    let cancel = CancellationToken::new();
    let order = CpuOrder::at_start(policy, "");
    tokio::spawn(run(
        roots.clone(),
        identity,
        order,
        tx,
        requests,
        Sources {
            uevents: None,
            programs: watch::channel(Vec::new()).1,
            parts: watch::channel(PartStates::new()).1,
        },
        cancel.clone(),
    ));
    Running {
        state,
        keeper,
        _stop: cancel.drop_guard(),
    }
}

impl Running {
    async fn put(&self, target: u32) -> Result<GuestState, SystemError> {
        let (reply, answer) = oneshot::channel();
        self.keeper
            .send(Request {
                target: Some(target),
                reply,
            })
            .await
            .unwrap();
        answer.await.unwrap()
    }

    /// Waits for a number of online CPUs, with the kernel's part played by [`settle`].
    async fn wait_online(&mut self, roots: &Roots, cpus: u32) -> GuestState {
        let wait = async {
            loop {
                settle(roots);
                if self.state.borrow().cpus_online == cpus {
                    return self.state.borrow().clone();
                }
                let _ = tokio::time::timeout(Duration::from_millis(20), self.state.changed()).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .expect("within 20 s")
    }
}

#[tokio::test]
async fn sweep_onlines_a_cpu_without_an_event() {
    let temp = tempfile::tempdir().unwrap();
    let roots = machine(temp.path(), 1);
    let mut running = start(&roots, CpuPolicy::OnlineAll);
    assert_eq!(running.state.borrow().cpus_online, 1);
    set_present(&roots, 3);
    let state = running.wait_online(&roots, 3).await;
    assert_eq!((state.cpus_present, state.boot_id.as_str()), (3, "b-1"));
    assert!(state.generation > 1);
}

#[tokio::test]
async fn target_holds_when_more_cpus_appear() {
    let temp = tempfile::tempdir().unwrap();
    let roots = machine(temp.path(), 4);
    let mut running = start(&roots, CpuPolicy::OnlineAll);
    running.wait_online(&roots, 4).await;
    running.put(2).await.expect("two of four");
    running.wait_online(&roots, 2).await;
    set_present(&roots, 5);
    tokio::time::timeout(
        Duration::from_secs(10),
        running.state.wait_for(|s| s.cpus_present == 5),
    )
    .await
    .expect("the sweep sees it")
    .unwrap();
    settle(&roots);
    assert_eq!(running.state.borrow().cpus_online, 2);
}

#[tokio::test]
async fn target_above_the_present_cpus_is_an_error_and_stays() {
    let temp = tempfile::tempdir().unwrap();
    let roots = machine(temp.path(), 2);
    let mut running = start(&roots, CpuPolicy::OnlineAll);
    running.wait_online(&roots, 2).await;
    let error = running.put(3).await.expect_err("there are two");
    assert!(
        matches!(error, SystemError::OutOfCpus { missing: 1 }),
        "{error}"
    );
    set_present(&roots, 4);
    running.wait_online(&roots, 3).await;
}

#[tokio::test]
async fn managed_policy_switches_nothing_by_itself() {
    let temp = tempfile::tempdir().unwrap();
    let roots = machine(temp.path(), 4);
    let mut running = start(&roots, CpuPolicy::Managed);
    fs::write(
        roots.procfs.join("meminfo"),
        "MemTotal: 2000 kB\nMemAvailable: 9 kB\n",
    )
    .unwrap();
    // A change that the sweep sees proves that a sweep took place.
    tokio::time::timeout(
        Duration::from_secs(10),
        running.state.wait_for(|s| s.mem_total.0 == 2000 << 10),
    )
    .await
    .expect("the sweep sees it")
    .unwrap();
    settle(&roots);
    assert_eq!(running.state.borrow().cpus_online, 1);
    running.put(3).await.expect("three of four");
    running.wait_online(&roots, 3).await;
}

#[tokio::test]
async fn cpu_that_cannot_be_switched_is_reported() {
    let temp = tempfile::tempdir().unwrap();
    let roots = machine(temp.path(), 2);
    fs::remove_dir_all(roots.sysfs.join("devices/system/cpu/cpu1")).unwrap();
    let running = start(&roots, CpuPolicy::Managed);
    let error = running.put(2).await.expect_err("cpu1 has no file");
    assert!(
        matches!(error, SystemError::Switch { value: "1", .. }),
        "{error}"
    );
}
