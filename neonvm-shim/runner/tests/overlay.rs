//! A guest in the overlay network: a runner in a network namespace with an interface net1, as
//! multus makes it.

mod support;

use std::net::{IpAddr, Ipv4Addr};

use neonvm_runner::config::OverlayNic;
use protocol::runner::{ExitReason, GUESTD_FORWARD, GUESTD_PORT};
use support::{Bounds, Kit, Vm, kit, networks};
use test_network::Network;

/// Address of the guest in the overlay.
const GUEST: &str = "10.100.128.1";
const BOUNDS: Bounds = Bounds {
    cpus: [1000, 1000, 1000],
    slots: [1, 1, 1],
};

fn vm(kit: &Kit, pod: &Network) -> Vm {
    let mut vm = Vm::new(kit, &BOUNDS, |config| {
        config.overlay = Some(OverlayNic {
            interface: "net1".into(),
            address: GUEST.parse().expect("an address"),
            mask: Ipv4Addr::new(255, 255, 0, 0),
        });
    });
    vm.within(pod);
    vm
}

async fn until_reached(from: &Network, vm: &Vm) {
    let what = format!("{GUEST} does not answer");
    support::until(&what, vm, || from.reaches(GUEST)).await;
}

/// Requirement: N18
#[tokio::test]
async fn guest_answers_at_its_overlay_address() {
    let test = "guest_answers_at_its_overlay_address";
    let Some([pod, wire]) = networks(test) else {
        return;
    };
    let Some(kit) = kit(test).await else { return };
    pod.cable("net1", &wire, "others");
    // A network plugin may have given the pod this address, which the guest is to have instead.
    pod.ip(&format!("address add {GUEST}/16 dev net1"));
    wire.ip("address add 10.100.0.1/16 dev others");
    let mut vm = vm(&kit, &pod);
    vm.start().await;
    let before = vm.running().await;
    until_reached(&wire, &vm).await;
    assert_eq!(pod.ip("-o -4 address show dev net1"), "");
    let ports = pod.says("bridge", "-d link show");
    assert_eq!(ports.matches("learning off").count(), 2, "{ports}");
    let neighbour = wire.ip(&format!("neighbour show {GUEST}"));
    assert!(neighbour.contains("52:54:0a:64:80:01"), "{neighbour}");

    // Neighbours cannot give orders: the port is open to the guest's own host only.
    let guest: IpAddr = GUEST.parse().expect("an address");
    assert_eq!(wire.fetches((guest, GUESTD_PORT).into(), "/v1/state"), "");
    let own = (vm.config.pod_ip, GUESTD_FORWARD).into();
    let own = pod.fetches_with(own, "/v1/state", Some(&vm.guestd_key()));
    assert!(own.contains("boot_id"), "{own}");

    // The tap left the bridge while there was no runner: the next one joins it again.
    vm.kill_runner().await;
    pod.ip("link set tap-overlay nomaster");
    pod.ip("link set tap-overlay down");
    assert!(!wire.reaches(GUEST));
    vm.start().await;
    let after = vm.running().await;
    assert_eq!(after.qemu_pid, before.qemu_pid);
    until_reached(&wire, &vm).await;
    vm.stop(60_000).await;
    vm.ended().await;
    assert!(
        !pod.ip("-o link show").contains("tap-overlay"),
        "it goes with QEMU"
    );
}

/// Requirement: N18
#[tokio::test]
async fn pod_without_the_overlay_interface_fails_with_the_fix() {
    let test = "pod_without_the_overlay_interface_fails_with_the_fix";
    let Some([pod, _]) = networks(test) else {
        return;
    };
    let Some(kit) = kit(test).await else { return };
    let mut vm = vm(&kit, &pod);
    vm.start().await;
    let (report, status) = vm.ended().await;
    assert_eq!((report.reason, status), (ExitReason::StartFailed, 69));
    let why = report.message;
    assert!(
        why.contains("this pod has no interface net1: a network plugin (multus)"),
        "{why}"
    );
}
