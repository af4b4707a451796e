//! A guest behind a bridge: a runner in a network namespace with an interface eth0, as a pod has,
//! and its neighbours.

mod support;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use neonvm_runner::config::{GuestNetwork, Resolver};
use neonvm_runner::core::args::mac;
use neonvm_runner::core::bridge::{GUEST, POD};
use protocol::runner::{ExitReason, GUESTD_FORWARD};
use support::{Bounds, Kit, Vm, kit};
use test_network::Network;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Child;

/// Address of the pod, and of its neighbour.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 2);
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
/// Port of the runner unless the spec says otherwise.
const RUNNER: u16 = 25183;
const BOUNDS: Bounds = Bounds {
    cpus: [1000, 1000, 2000],
    slots: [1, 1, 1],
};
/// Script that udhcpc runs with its lease.
const TELL: &str = "#!/bin/sh\necho \"$1 $ip $subnet $router $dns $search $lease\"\n";

fn vm(kit: &Kit, pod: &Network, key: &str) -> Vm {
    let mut vm = Vm::new(kit, &BOUNDS, |config| {
        config.pod_ip = ADDRESS;
        config.spec.enable_network_monitoring = true;
        config.ssh_public_key = Some(key.to_owned());
        config.network = GuestNetwork {
            bridged: true,
            resolver: Resolver::of("nameserver 10.96.0.10\nsearch svc.cluster.local\n"),
            ..GuestNetwork::default()
        };
    });
    vm.within(pod);
    vm
}

/// Waits for the greeting of the guest's ssh server, in connections from this network.
async fn until_greeted(from: &Network, at: Ipv4Addr, vm: &Vm) {
    let what = format!("{at} does not greet");
    let ssh = (IpAddr::from(at), 22).into();
    support::until(&what, vm, || from.greeting(ssh).starts_with("SSH-2.0-")).await;
}

/// Lease of a guest that asks for its address; empty without an answer.
fn lease(pod: &Network, script: &str) -> String {
    let asker = Network::new().expect("a network").expect("root");
    pod.cable("asking", &asker, "eth0");
    pod.ip("link set asking master br-def");
    asker.ip(&format!("link set eth0 address {}", mac(ADDRESS)));
    let asked = asker
        .command("busybox")
        .args(["udhcpc", "-f", "-n", "-q", "-i", "eth0", "-s", script])
        .output()
        .expect("udhcpc runs");
    pod.ip("link delete asking");
    String::from_utf8_lossy(&asked.stdout).into_owned()
}

/// A key pair for the guest: the private key's file, and the public key.
fn ssh_key(dir: &Path) -> (PathBuf, String) {
    let file = dir.join("key");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&file)
        .status();
    assert!(made.expect("ssh-keygen runs").success());
    let public = std::fs::read_to_string(file.with_extension("pub"));
    (file, public.expect("a public key"))
}

/// Output of a command in the guest, over ssh from this network.
fn in_guest(from: &Network, key: &Path, command: &str) -> String {
    let mut ssh = from.command("ssh");
    for option in [
        "BatchMode=yes",
        "LogLevel=ERROR",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
    ] {
        ssh.args(["-o", option]);
    }
    ssh.arg("-i").arg(key).arg(format!("root@{ADDRESS}"));
    let output = ssh.arg(command).output().expect("ssh runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Requirement: N18
#[tokio::test]
async fn guest_behind_a_bridge_is_reached_at_its_pods_address() {
    let test = "guest_behind_a_bridge_is_reached_at_its_pods_address";
    let Some([pod, wire]) = support::networks(test) else {
        return;
    };
    let Some(kit) = kit(test).await else { return };
    pod.cable("eth0", &wire, "others");
    pod.ip(&format!("address add {ADDRESS}/24 dev eth0"));
    pod.ip(&format!("route add default via {NEIGHBOUR}"));
    wire.ip(&format!("address add {NEIGHBOUR}/24 dev others"));
    let keys = tempfile::tempdir().expect("a directory");
    let (key, public) = ssh_key(keys.path());
    let mut vm = vm(&kit, &pod, &public);
    vm.start().await;
    let before = vm.running().await;

    // From neighbours, from the pod itself, and by its loopback address.
    until_greeted(&wire, ADDRESS, &vm).await;
    until_greeted(&pod, ADDRESS, &vm).await;
    until_greeted(&pod, Ipv4Addr::LOCALHOST, &vm).await;
    // The guest has the pod's name servers, sees the client's address, and reaches the outside.
    let look = "cat /etc/resolv.conf; echo from $SSH_CONNECTION; ip -o -4 address show dev eth0";
    let seen = in_guest(&wire, &key, look);
    for part in [
        "nameserver 10.96.0.10\nsearch svc.cluster.local\n",
        &format!("from {NEIGHBOUR} "),
        &format!(" {GUEST}/30 "),
    ] {
        assert!(seen.contains(part), "{seen}");
    }
    // Its host name is that of its pod.
    let name = format!("vm-{}\n", vm.config.pod);
    assert_eq!(in_guest(&wire, &key, "hostname"), name);
    // No public address has connected so far.
    let metrics = wire.fetches((IpAddr::from(ADDRESS), RUNNER).into(), "/metrics");
    for metric in ["ingress_bytes", "egress_bytes", "network_fetch_errors"] {
        let line = format!("\nrunner_vm_{metric}_total 0\n");
        assert!(metrics.contains(&line), "{line} {metrics}");
    }
    in_guest(&wire, &key, &format!("ping -c 1 -W 5 {NEIGHBOUR}"));
    // The device has a queue per CPU that the guest may have.
    let queues = "grep -c -- '-input\\.' /proc/interrupts";
    assert_eq!(in_guest(&wire, &key, queues), "2\n");
    // It reaches itself as others do, but not its runner.
    let itself = format!("(sleep 2) | timeout 10 nc {ADDRESS} 22");
    let itself = in_guest(&wire, &key, &itself);
    assert!(itself.starts_with("SSH-2.0-"), "{itself}");
    let runner = format!("timeout 3 nc -z {ADDRESS} {RUNNER} && echo open; true");
    assert_eq!(in_guest(&wire, &key, &runner), "");
    // The guest's daemon takes orders from its own pod only.
    let daemon = (IpAddr::from(ADDRESS), GUESTD_FORWARD).into();
    assert_eq!(wire.fetches(daemon, "/v1/state"), "");
    let own = pod.fetches_with(daemon, "/v1/state", Some(&vm.guestd_key()));
    assert!(own.contains("boot_id"), "{own}");
    let keyless = pod.fetches(daemon, "/v1/state");
    assert!(keyless.starts_with("HTTP/1.1 401"), "{keyless}");
    // A neighbour that knows the guest's own address does not reach it.
    wire.ip(&format!("route add {GUEST} via {ADDRESS}"));
    support::until("its pod reaches it", &vm, || {
        pod.reaches(&GUEST.to_string())
    })
    .await;
    assert!(!wire.reaches(&GUEST.to_string()));

    // QEMU has the pod's interface and cannot change any other.
    let pid = before.qemu_pid.expect("it runs");
    assert_eq!(support::privileges(pid), [0, 0, 0, 0, 0, 1]);

    // A DHCP lease has the address that our guest reads from its kernel's command line.
    let script = vm.dir.path().join("tell");
    std::fs::write(&script, TELL).expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("it may be run");
    let told = lease(&pod, &script.display().to_string());
    let wanted =
        format!("bound {GUEST} 255.255.255.252 {POD} 10.96.0.10 svc.cluster.local 4294967295");
    assert!(told.lines().any(|line| line.trim() == wanted), "{told}");

    // The tap left the bridge while there was no runner: the next one joins it again, and answers
    // DHCP.
    vm.kill_runner().await;
    pod.ip("link set tap-def nomaster");
    assert!(!pod.reaches(&GUEST.to_string()));
    vm.start().await;
    let after = vm.running().await;
    assert_eq!(after.qemu_pid, before.qemu_pid);
    until_greeted(&wire, ADDRESS, &vm).await;
    let told = lease(&pod, &script.display().to_string());
    assert!(told.lines().any(|line| line.trim() == wanted), "{told}");
    vm.stop(60_000).await;
    vm.ended().await;
    assert!(
        !pod.ip("-o link show").contains("tap-def"),
        "it goes with QEMU"
    );
}

/// Message of a pod whose runner is started by `nsenter` with these words and fails.
async fn failure(kit: &Kit, pod: &Network, words: &[&str]) -> String {
    let mut vm = vm(kit, pod, "");
    vm.under.extend(words.iter().map(|word| (*word).to_owned()));
    vm.start().await;
    let (report, status) = vm.ended().await;
    assert_eq!((report.reason, status), (ExitReason::StartFailed, 69));
    report.message
}

/// A process that owns the table of the guest's rules, as the kernel allows; ended on drop.
async fn owner(pod: &Network) -> Child {
    let mut nft = tokio::process::Command::from(pod.command("nft"));
    nft.arg("-i").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut nft = nft.kill_on_drop(true).spawn().expect("nft runs");
    let table = b"add table ip bellows { flags owner; }\nlist tables\n";
    let input = nft.stdin.as_mut().expect("its input");
    input.write_all(table).await.expect("it reads");
    let mut said = BufReader::new(nft.stdout.as_mut().expect("its output")).lines();
    while let Some(line) = said.next_line().await.expect("text") {
        if line.contains("ip bellows") {
            return nft;
        }
    }
    panic!("the table is not made");
}

/// Requirement: N18
#[tokio::test]
async fn pod_that_cannot_have_the_bridge_fails_with_the_fix() {
    let test = "pod_that_cannot_have_the_bridge_fails_with_the_fix";
    let Some([pod, _]) = support::networks(test) else {
        return;
    };
    let Some(kit) = kit(test).await else { return };
    pod.ip(&format!("address add {ADDRESS}/24 dev lo"));
    let without = [
        "setpriv",
        "--bounding-set=-net_admin",
        "--inh-caps=-net_admin",
    ];
    let why = failure(&kit, &pod, &without).await;
    assert!(why.contains("needs the capability NET_ADMIN"), "{why}");
    let why = failure(&kit, &pod, &["env", "PATH=/nowhere"]).await;
    assert!(
        why.contains("cannot execute nft: use the runner's own image"),
        "{why}"
    );
    let owner = owner(&pod).await;
    let why = failure(&kit, &pod, &[]).await;
    assert!(
        why.contains("the kernel rejects the guest's rules"),
        "{why}"
    );
    drop(owner);
    assert!(
        why.contains("--guest-network=user of the controller"),
        "{why}"
    );
}
