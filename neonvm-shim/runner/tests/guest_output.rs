//! The output of a guest appears on the standard output of every runner of its QEMU.

mod support;

use support::{Bounds, Vm, kit, until};

const SMALL: Bounds = Bounds {
    cpus: [250, 250, 1000],
    slots: [2, 2, 2],
};

/// Number of lines with `text` on the runners' standard output.
fn lines(vm: &Vm, words: &str) -> usize {
    let said = std::fs::read(vm.said()).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    said.lines().filter(|line| line.contains(words)).count()
}

#[tokio::test]
async fn console_of_a_guest_is_forwarded_once_by_all_its_runners() {
    let test = "console_of_a_guest_is_forwarded_once_by_all_its_runners";
    let Some(kit) = kit(test).await else {
        return;
    };
    let mut vm = Vm::new(&kit, &SMALL, |config| config.tells_guest = true);
    vm.start().await;
    vm.running().await;
    until("the boot is told", &vm, || lines(&vm, "] INIT") > 0).await;
    assert!(vm.paths().guest_log().exists(), "the port's file is there");
    vm.kill_runner().await;
    vm.start().await;
    vm.running().await;
    vm.stop(120_000).await;
    vm.ended().await;
    let shutdown = ["] INIT", "] SHUTDOWN"].map(|words| lines(&vm, words));
    assert_eq!(shutdown, [1, 1], "{}", vm.logs());
}

#[tokio::test]
async fn output_of_a_guest_on_one_machine_is_not_forwarded() {
    let Some(kit) = kit("output_of_a_guest_on_one_machine_is_not_forwarded").await else {
        return;
    };
    let mut vm = Vm::new(&kit, &SMALL, |_| ());
    vm.start().await;
    vm.running().await;
    vm.stop(0).await;
    vm.ended().await;
    let said = std::fs::read_to_string(vm.said()).expect("a file");
    assert_eq!(said, "");
}
