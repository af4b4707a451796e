//! A guest in its pod's network, by the bridge that the runner makes as it is shipped
//! (docs/compatibility/neonvm.md §3.4).

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bellows_tests::cluster::{Wire, holds};
use bellows_tests::process::Process;
use serde_json::{Value, json};

use super::World;

/// First line of an SSH server.
const GREETING: &str = "SSH-2.0-";
/// Port of a runner in its pod.
const RUNNER_PORT: u16 = 25183;
/// First bytes of a TLS record with application data.
const RECORD: [u8; 3] = [0x17, 3, 3];
/// Longest time for a greeting.
const PATIENCE: Duration = Duration::from_secs(30);

/// Requirement: N18. The guest has NeonVM's address, sees the clients of its ports, reaches the
/// outside, and reaches nothing of its runner.
pub(super) async fn check(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    let address = vm["status"]["podIP"].as_str().context("an address")?;
    let has = "ip -o -4 address show dev eth0; ip route; echo from $SSH_CONNECTION";
    let has = world.guest_says(&vm, has).await?;
    for part in ["169.254.254.254/30", "default via 169.254.254.253 dev eth0"] {
        ensure!(has.contains(part), "{has}");
    }
    // The client's own address, which its network assigned.
    let us = route_from(world, address)?;
    ensure!(
        has.contains(&format!("from {us} ")) && us != address,
        "{us}: {has}"
    );
    let host = vm["status"]["node"].as_str().context("a node")?;
    let host = &world.get("node", host)?["status"]["addresses"][0]["address"];
    let host = host.as_str().context("the node has an address")?;
    world.guest(&vm, &format!("ping -c 1 -W 5 {host}"))?;
    // The kubelet's name servers. The nodes of tests name themselves.
    let names = world.guest(&vm, "cat /etc/resolv.conf")?;
    for part in [&format!("nameserver {host}\n"), "svc.cluster.local"] {
        ensure!(names.contains(part), "{names}");
    }
    // Itself, as others reach it; its runner's orders and metrics it does not.
    let itself = format!("(sleep 2) | timeout 10 nc {address} 22; true");
    let greets = world.guest(&vm, &itself)?;
    ensure!(greets.starts_with(GREETING), "it says to itself {greets:?}");
    let asked = format!("timeout 3 nc -z {address} 25183 && echo open; true");
    let open = world.guest(&vm, &asked)?;
    ensure!(open.is_empty(), "a guest reaches its runner");
    let hosts = in_runner(world, &vm, &["cat", "/etc/hosts"])?;
    ensure!(hosts.contains("169.254.254.254\tguest-vm"), "{hosts}");
    is_forwarded(world, &vm)
}

/// Requirement: W3. Requests to the runner use TLS with the token of the VM. A listener on the
/// pod's wire sees neither. A plain-text word on the same port proves that the listener works.
pub(super) async fn orders_are_encrypted(world: &World) -> Result<()> {
    const CLEAR: &str = "said-in-the-clear";
    let vm = world.vm().await?;
    let secret = world.get("secret", "runner-neonvm-pg")?;
    let token = secret["data"]["token"].as_str().context("a token")?;
    let token = STANDARD.decode(token)?;
    let [qemu] = Vec::from_iter(world.cluster.qemus())[..] else {
        bail!("there are QEMUs {:?}", world.cluster.qemus());
    };
    let network = PathBuf::from(format!("/proc/{qemu}/ns/net"));
    // Requests to the guest's daemon are plain text, at another address on the same wire.
    let address = vm["status"]["podIP"].as_str().context("an address")?;
    let wire = Wire::tap(&network, SocketAddrV4::new(address.parse()?, RUNNER_PORT))?;
    let line = format!("Authorization: Bearer {CLEAR}\\r\\n");
    let refused = world.runner_response_with(&vm, "PUT /v1/size", &line)?;
    ensure!(refused.starts_with("HTTP/1.0 401 "), "{refused}");
    for cpus in ["500m", "250m"] {
        world.patch(&json!({"spec": {"guest": {"cpus": {"use": cpus}}}}))?;
        let holds = |vm: &Value| vm["status"]["cpus"] == cpus && vm["status"]["phase"] == "Running";
        world.vm_that(&format!("has {cpus}"), holds).await?;
    }
    let heard = wire.heard()?;
    let with = |part: &[u8]| heard.iter().filter(|packet| holds(packet, part)).count();
    ensure!(with(CLEAR.as_bytes()) > 0, "{} packets", heard.len());
    ensure!(
        with(b"Bearer ") == with(CLEAR.as_bytes()),
        "a token is sent"
    );
    ensure!(with(&token) == 0, "the VM's token is sent");
    for word in ["/v1/state", "\"cpu\""] {
        ensure!(with(word.as_bytes()) == 0, "{word} can be read");
    }
    // Two orders and their answers at the least, as records of TLS.
    let records = with(&RECORD);
    ensure!(records >= 4, "{records} records in {} packets", heard.len());
    Ok(())
}

/// The address by which the test's side of the nodes' network reaches another one.
fn route_from(world: &World, to: &str) -> Result<String> {
    let mut ip = world.cluster.on_network("ip");
    let output = ip.args(["-o", "route", "get", to]).output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut words = text.split_whitespace().skip_while(|word| *word != "src");
    words
        .nth(1)
        .map(str::to_owned)
        .with_context(|| format!("no address in {text:?}"))
}

/// Output of a program in the runner's container.
fn in_runner(world: &World, vm: &Value, command: &[&str]) -> Result<String> {
    let pod = vm["status"]["podName"].as_str().context("it has a pod")?;
    let args = [&["exec", pod, "-c", "neonvm-runner", "--"], command].concat();
    world.cluster.plane().ask(&args)
}

/// Response of a pod's port to `GET path`, through `kubectl port-forward`.
pub(super) async fn page(
    world: &World,
    namespace: &str,
    pod: &str,
    port: u16,
    path: &str,
) -> Result<String> {
    let mut kubectl = world.cluster.plane().kubectl();
    let port = format!(":{port}");
    kubectl.args([
        "port-forward",
        "--address=127.0.0.1",
        "-n",
        namespace,
        pod,
        &port,
    ]);
    let mut forwarding = Process::start(&mut kubectl, Stdio::inherit())?;
    let at = forwarded_at(&forwarding.first_line()?)?;
    let answer = reqwest::get(format!("http://127.0.0.1:{at}{path}")).await?;
    Ok(answer.error_for_status()?.text().await?)
}

/// The port in `Forwarding from 127.0.0.1:34567 -> 22`.
fn forwarded_at(line: &str) -> Result<u16> {
    let mut words = line.split_whitespace();
    let port = words.find_map(|word| word.strip_prefix("127.0.0.1:")?.parse().ok());
    port.with_context(|| format!("no port in {line:?}"))
}

/// `kubectl port-forward`, which connects to the pod's own loopback address, ends in the guest.
fn is_forwarded(world: &World, vm: &Value) -> Result<()> {
    let pod = vm["status"]["podName"].as_str().context("it has a pod")?;
    let mut kubectl = world.cluster.plane().kubectl();
    kubectl.args(["port-forward", "--address=127.0.0.1", pod, ":22"]);
    let mut forwarding = Process::start(&mut kubectl, Stdio::inherit())?;
    let port = forwarded_at(&forwarding.first_line()?)?;
    let stream = TcpStream::connect(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut greets = String::new();
    BufReader::new(stream).read_line(&mut greets)?;
    ensure!(greets.starts_with(GREETING), "{greets:?}");
    Ok(())
}
