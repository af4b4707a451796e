//! How VMs end, and how the end is reported.

mod support;

use protocol::runner::{BeforeSilence, ExitReason, QuotaState, RunnerPhase};
use support::{Bounds, Vm, kit};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UnixStream};

const SMALL: Bounds = Bounds {
    cpus: [250, 250, 1000],
    slots: [2, 2, 2],
};

/// Runs a command on the second monitor.
async fn qmp_manual(vm: &Vm, command: &str) {
    let stream = UnixStream::connect(vm.paths().qmp_manual())
        .await
        .expect("the monitor is there");
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await.expect("a greeting");
    for command in ["qmp_capabilities", command] {
        let text = format!("{{\"execute\":\"{command}\"}}\n");
        stream
            .write_all(text.as_bytes())
            .await
            .expect("it is taken");
        // An event may precede the reply.
        line.clear();
        while !line.contains("return") {
            line.clear();
            let read = stream.read_line(&mut line).await.expect("a reply");
            assert!(read > 0 && !line.contains("error"), "{line}");
        }
    }
}

#[tokio::test]
async fn silent_guest_is_reported_until_it_answers_again() {
    let Some(kit) = kit("silent_guest_is_reported_until_it_answers_again").await else {
        return;
    };
    let mut vm = Vm::new(&kit, &SMALL, |_| {});
    vm.start().await;
    let state = vm.running().await;
    assert_eq!(state.guest_silent, None);
    qmp_manual(&vm, "stop").await;
    let told = vm.wait("its silence is told of", |state| {
        state.guest_silent.is_some()
    });
    let state = told.await;
    let silence = state.guest_silent.map(|silence| silence.after);
    assert_eq!(silence, Some(BeforeSilence::Answer));
    assert_eq!(state.phase, RunnerPhase::Running, "it is left alone");
    qmp_manual(&vm, "cont").await;
    vm.wait("it answers", |state| state.guest_silent.is_none())
        .await;
}

#[tokio::test]
async fn power_button_ends_a_guest_with_success() {
    let Some(kit) = kit("power_button_ends_a_guest_with_success").await else {
        return;
    };
    let mut vm = Vm::new(&kit, &SMALL, |config| {
        config.ssh_public_key = Some("ssh-ed25519 AAAA test".into());
    });
    vm.start().await;
    let state = vm.running().await;
    let held = vm.wait("the boot's CPU allowance ends", |state| {
        state.quota == QuotaState::Enforced { milli: 250 }
            || matches!(state.quota, QuotaState::Unavailable { .. })
    });
    assert_eq!(held.await.boot_id, state.boot_id);
    vm.stop(120_000).await;
    let (report, code) = vm.ended().await;
    assert_eq!(
        (report.reason, report.success, code),
        (ExitReason::Requested, true, 0),
        "{}",
        vm.logs()
    );
    // A directory whose VM has ended returns that report, and starts nothing.
    vm.start().await;
    let (again, code) = vm.ended().await;
    assert_eq!((again, code), (report, 0));
}

#[tokio::test]
async fn panic_is_reported_as_a_failure_with_its_message() {
    let Some(kit) = kit("panic_is_reported_as_a_failure_with_its_message").await else {
        return;
    };
    let mut vm = Vm::new(&kit, &SMALL, |config| {
        config.spec.guest.append_kernel_cmdline = Some("unknown_nmi_panic=1".into());
    });
    vm.start().await;
    vm.running().await;
    qmp_manual(&vm, "inject-nmi").await;
    let (report, code) = vm.ended().await;
    assert_eq!(
        (report.reason, report.success),
        (ExitReason::GuestPanic, false),
        "{}",
        vm.logs()
    );
    assert!(report.message.contains("Kernel panic"), "{report:?}");
    assert_eq!(code, 1);
}

#[tokio::test]
async fn failed_start_is_reported_with_its_reason() {
    let Some(kit) = kit("failed_start_is_reported_with_its_reason").await else {
        return;
    };
    let mut no_kernel = Vm::new(&kit, &SMALL, |config| {
        config.image.kernel = "/nonexistent/kernel".into()
    });
    no_kernel.start().await;
    let (report, _) = no_kernel.ended().await;
    assert_eq!(report.reason, ExitReason::StartFailed);
    assert!(report.message.contains("/nonexistent/kernel"), "{report:?}");

    let mut taken = Vm::new(&kit, &SMALL, |_| ());
    let _holder = TcpListener::bind((taken.config.pod_ip, 22))
        .await
        .expect("the port is free");
    taken.start().await;
    let (report, _) = taken.ended().await;
    assert_eq!(report.reason, ExitReason::StartFailed);
    assert!(
        report.message.contains(":22-"),
        "the port is named: {report:?}"
    );

    let mut no_disk = Vm::new(&kit, &SMALL, |config| {
        config.image.root_disk = "/nonexistent/disk".into()
    });
    no_disk.start().await;
    let (report, code) = no_disk.ended().await;
    assert_eq!((report.reason, code), (ExitReason::StartFailed, 69));
    assert!(report.message.contains("/nonexistent/disk"), "{report:?}");
}

#[tokio::test]
async fn killed_qemu_is_a_failure() {
    let Some(kit) = kit("killed_qemu_is_a_failure").await else {
        return;
    };
    let mut vm = Vm::new(&kit, &SMALL, |_| ());
    vm.start().await;
    let state = vm
        .wait("QEMU runs", |state| state.qemu_version.is_some())
        .await;
    let process = state
        .qemu_pid
        .and_then(neonvm_runner::shell::process::ProcessId::of);
    process.expect("it runs").kill();
    let (report, code) = vm.ended().await;
    assert_eq!((report.reason, code), (ExitReason::QemuDied, 1));
}

#[tokio::test]
async fn qemu_has_at_most_the_privilege_for_low_ports() {
    const LOW_PORTS: u64 = 1 << 10;
    let test = "qemu_has_at_most_the_privilege_for_low_ports";
    let Some(kit) = kit(test).await else {
        return;
    };
    let mut vm = Vm::new(&kit, &SMALL, |_| ());
    vm.start().await;
    let state = vm.running().await;
    let [effective, permitted, inheritable, bounding, ambient, no_new] =
        support::privileges(state.qemu_pid.expect("it runs"));
    // Only root has privileges to limit.
    if rustix::process::geteuid().is_root() {
        assert_eq!(bounding & !LOW_PORTS, 0, "{bounding:x}");
    }
    assert_eq!(
        (effective | permitted) & !LOW_PORTS,
        0,
        "{effective:x} {permitted:x}"
    );
    assert_eq!((inheritable, ambient, no_new), (0, 0, 1));
    vm.stop(0).await;
    vm.ended().await;
}
