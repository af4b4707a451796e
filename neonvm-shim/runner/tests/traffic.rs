//! The kernel's rules count a guest's traffic. Here the guest is a network namespace behind the
//! pod's bridge.

mod support;

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Stdio};

use neonvm_runner::core::bridge::{self, GUEST, POD};
use neonvm_runner::core::traffic::{READ, Traffic, parse};
use support::config_of_nothing;
use test_network::Network;
use test_records::{Missing, skip};

/// Address of the pod, and of two neighbours: a private one, and a documentation address as a
/// public one.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 2);
const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
/// Port of the guest and of its neighbours.
const PORT: u16 = 22;

/// A program that is ended on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Greets every client in a network, at any of its addresses.
fn greeter(network: &Network) -> Server {
    let mut nc = network.command("busybox");
    nc.args(["nc", "-ll", "-p", &PORT.to_string(), "-e", "echo", "hello"]);
    Server(nc.spawn().expect("busybox runs"))
}

/// A pod with a guest behind its bridge, and the wire to its neighbours.
fn pod() -> Option<[Network; 3]> {
    let [pod, wire, guest] = [(); 3].map(|()| Network::new().expect("a network"));
    let (pod, wire, guest) = (pod?, wire?, guest?);
    pod.cable("eth0", &wire, "others");
    pod.ip(&format!("address add {ADDRESS}/24 dev eth0"));
    pod.ip(&format!("route add default via {PRIVATE}"));
    wire.ip(&format!("address add {PRIVATE}/24 dev others"));
    wire.ip(&format!("address add {PUBLIC}/32 dev lo"));
    pod.ip("link add br-def type bridge");
    pod.ip(&format!("address add {POD}/30 dev br-def"));
    pod.ip("link set br-def up");
    pod.cable("tap-def", &guest, "eth0");
    pod.ip("link set tap-def master br-def");
    guest.ip(&format!("address add {GUEST}/30 dev eth0"));
    guest.ip(&format!("route add default via {POD}"));
    pod.says("sysctl", "-w net.ipv4.ip_forward=1");
    Some([pod, wire, guest])
}

fn give(pod: &Network, rules: &str) {
    let mut nft = pod.command("nft");
    nft.args(["-f", "-"]).stdin(Stdio::piped());
    let mut nft = nft.spawn().expect("nft runs");
    let mut input = nft.stdin.take().expect("its input");
    input.write_all(rules.as_bytes()).expect("it reads");
    drop(input);
    assert!(nft.wait().expect("it ends").success(), "{rules}");
}

fn counted(pod: &Network) -> Traffic {
    parse(pod.says("nft", &READ.join(" ")).as_bytes()).expect("counters")
}

/// A client in a network receives the greeting from an address.
async fn greeted(from: &Network, at: Ipv4Addr) {
    let address = (IpAddr::from(at), PORT).into();
    let patience = std::time::Instant::now();
    while from.greeting(address) != "hello\n" {
        assert!(
            patience.elapsed() < support::PATIENCE,
            "{at} does not greet"
        );
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn only_traffic_with_public_addresses_is_counted() {
    let test = "only_traffic_with_public_addresses_is_counted";
    let Some([pod, wire, guest]) = pod() else {
        return skip(test, Missing::Root, "networks of its own");
    };
    let mut config = config_of_nothing();
    config.pod_ip = ADDRESS;
    config.network.bridged = true;
    assert!(!bridge::rules(&config).contains("counter"), "not asked for");
    config.spec.enable_network_monitoring = true;
    give(&pod, &bridge::rules(&config));
    let _servers = [greeter(&guest), greeter(&wire)];

    // A neighbour in the cluster, in both directions.
    greeted(&wire, ADDRESS).await;
    greeted(&guest, PRIVATE).await;
    assert_eq!(counted(&pod), Traffic::default());
    // Pings to public addresses are not TCP.
    assert!(guest.reaches(&PUBLIC.to_string()));
    assert_eq!(counted(&pod), Traffic::default());
    greeted(&guest, PUBLIC).await;
    let Traffic { ingress, egress } = counted(&pod);
    assert!(ingress > 100 && egress > 100, "{ingress} {egress}");
    // Counting does not admit packets that the rules drop.
    wire.ip(&format!("route add {GUEST} via {ADDRESS} src {PUBLIC}"));
    assert!(!wire.reaches(&GUEST.to_string()));
}
