//! Guests outlive their runners.

mod support;

use daemon_kit::http_client::HttpError;
use hyper::StatusCode;
use protocol::runner::{ExitReason, ResizeProblem, RunnerPhase, RunnerState};
use support::{Bounds, SLOT, Vm, kit};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::UnixStream;

#[tokio::test]
async fn killed_runner_leaves_its_guest_to_the_next_one() {
    let Some(kit) = kit("killed_runner_leaves_its_guest_to_the_next_one").await else {
        return;
    };
    let bounds = Bounds {
        cpus: [1000, 1000, 3000],
        slots: [2, 2, 6],
    };
    let mut vm = Vm::new(&kit, &bounds, |_| ());
    vm.start().await;
    let before = vm.running().await;

    // In the middle of a resize, with the order on disk.
    vm.order(3000, 6, 1).await;
    vm.kill_runner().await;
    vm.start().await;
    let done = |state: &RunnerState| {
        state
            .resize
            .as_ref()
            .is_some_and(|resize| resize.done && resize.order.trace.revision == 1)
    };
    let after = vm.wait("the order of before is carried out", done).await;
    assert_eq!(
        (&after.boot_id, after.qemu_pid),
        (&before.boot_id, before.qemu_pid)
    );
    assert_eq!((after.cpus.plugged, after.memory.plugged.0), (3, 4 * SLOT));
    assert_eq!(
        after.boot_ms, before.boot_ms,
        "what was measured once is kept"
    );
    late_orders_are_refused(&vm, after).await;

    // QEMU ends while no runner is there.
    vm.stop(60_000).await;
    vm.kill_runner().await;
    let process = before
        .qemu_pid
        .and_then(neonvm_runner::shell::process::ProcessId::of);
    if let Some(process) = process {
        process.kill();
    }
    vm.start().await;
    let (report, _) = vm.ended().await;
    let reasons = [ExitReason::QemuDied, ExitReason::Requested];
    assert!(reasons.contains(&report.reason), "{report:?}");
}

/// An order from a sender that has seen fewer orders than there are changes nothing.
async fn late_orders_are_refused(vm: &Vm, has: RunnerState) {
    assert_eq!(has.orders, Some(1), "those of the runner before count");
    match vm.order_over(0, (1000, 2, 0)).await {
        Err(HttpError::Status(StatusCode::PRECONDITION_FAILED, why)) => {
            assert!(why.contains("overtaken"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    let now = vm.state().await.expect("it answers");
    assert_eq!((now.orders, now.resize), (has.orders, has.resize));
    let again = vm.order_over(0, (3000, 6, 1)).await.expect("it is held");
    assert_eq!(again.orders, Some(1), "the same again is no other");
    let next = vm.order_over(1, (2000, 6, 2)).await.expect("the newest");
    assert_eq!(next.orders, Some(2));
}

/// A process that is connected to the monitor keeps the runner out, as QEMU serves one client at a
/// time.
#[tokio::test]
async fn monitor_in_use_is_reported_and_the_order_waits() {
    let test = "monitor_in_use_is_reported_and_the_order_waits";
    let Some(kit) = kit(test).await else { return };
    let bounds = Bounds {
        cpus: [1000, 1000, 2000],
        slots: [2, 2, 2],
    };
    let mut vm = Vm::new(&kit, &bounds, |_| ());
    vm.start().await;
    let before = vm.running().await;
    vm.kill_runner().await;
    let mut holder = BufReader::new(UnixStream::connect(vm.paths().qmp()).await.unwrap());
    let mut greeting = String::new();
    holder.read_line(&mut greeting).await.unwrap();
    assert!(greeting.contains("QMP"), "{greeting}");
    vm.start().await;
    vm.wait("the next one serves", |_| true).await;
    vm.order(2000, 2, 1).await;
    let told = |state: &RunnerState| {
        let problem = state.resize.as_ref().and_then(|at| at.problem.as_ref());
        matches!(problem, Some(ResizeProblem::Qmp { message, .. }) if message.contains("another client"))
    };
    let held = vm.wait("somebody else's connection is told", told).await;
    assert_eq!(held.boot_id, before.boot_id, "the guest runs on");
    drop(holder);
    let done = |state: &RunnerState| {
        let resize = state.resize.as_ref();
        resize.is_some_and(|at| at.done && at.problem.is_none() && at.order.trace.revision == 1)
    };
    let after = vm.wait("the order is carried out", done).await;
    assert_eq!((after.qemu_pid, after.cpus.plugged), (before.qemu_pid, 2));
    vm.stop(0).await;
    vm.ended().await;
}

#[tokio::test]
async fn runner_killed_during_boot_is_replaced() {
    let Some(kit) = kit("runner_killed_during_boot_is_replaced").await else {
        return;
    };
    let bounds = Bounds {
        cpus: [1000, 2000, 2000],
        slots: [2, 2, 2],
    };
    let mut vm = Vm::new(&kit, &bounds, |_| ());
    vm.start().await;
    let booting = vm
        .wait("QEMU runs", |state| state.qemu_version.is_some())
        .await;
    assert_eq!(booting.phase, RunnerPhase::Booting);
    vm.kill_runner().await;
    vm.start().await;
    vm.running().await;
    let state = vm
        .wait("the CPUs of the start", |state| {
            state.cpus.guest_online == Some(2)
        })
        .await;
    assert_eq!(state.qemu_pid, booting.qemu_pid);

    // A directory has only one runner.
    let mut second = Vm {
        dir: tempfile::tempdir().unwrap(),
        config: vm.config.clone(),
        under: Vec::new(),
        runner: None,
    };
    std::mem::swap(&mut second.dir, &mut vm.dir);
    let first_runner = vm.runner.take();
    second.start().await;
    let mut intruder = second.runner.take().unwrap();
    assert_eq!(intruder.wait().await.unwrap().code(), Some(75));
    assert!(
        !second.paths().exit().exists(),
        "a held directory is left alone"
    );
    second.runner = first_runner;
    assert_eq!(second.running().await.boot_id, state.boot_id);
    second.stop(0).await;
    let (report, _) = second.ended().await;
    assert_eq!(report.reason, ExitReason::Killed);
}
