//! Attacker: a pod of the cluster. It uses the pod network and tries every port of our pods and
//! their guests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::attacks::{Outcome, Report};
use bellows_tests::cluster::{Cluster, End};
use bellows_tests::patience::wait_for;
use serde_json::Value;
use test_network::http::Request;

use super::World;

/// Longest time for a response.
const PATIENCE: Duration = Duration::from_secs(10);
/// A permit for more than a VM of the test has.
const PERMIT: &str = r#"{"pod":{"name":"pg","namespace":"default"},"computeUnit":{"vCPUs":1,"mem":1073741824},"resources":{"vCPUs":100,"mem":107374182400},"lastPermit":null,"metrics":null}"#;
const UPGRADE: &str = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// What a port may do for a pod without a token.
enum Rule {
    /// Foreign protocols with their own authentication. Only the number of the port is checked.
    Known,
    /// Every one of these requests is refused: method and path, further lines of the head, body.
    Refuses(&'static [(&'static str, &'static str, &'static str)]),
}

const STATE: Rule = Rule::Refuses(&[
    ("GET /debug/state", "", ""),
    ("GET /debug/journal", "", ""),
    ("GET /", "", ""),
    ("PUT /debug/log", "", "debug"),
]);

/// Every port of our components, and of a guest of our image.
const PORTS: [(End, u16, &str, Rule); 15] = [
    (End::Controller, 7778, "W4", STATE),
    (End::Controller, 9443, "W4", Rule::Known),
    (End::Scheduler, 9100, "W4", STATE),
    (End::Scheduler, 10259, "W4", STATE),
    (
        End::Scheduler,
        10298,
        "W4",
        Rule::Refuses(&[("POST /filter", "", "{}"), ("POST /bind", "", "{}")]),
    ),
    (
        End::Scheduler,
        10299,
        "W4",
        Rule::Refuses(&[
            ("POST /", "", PERMIT),
            ("POST /", "Authorization: Bearer 0\r\n", PERMIT),
        ]),
    ),
    (End::Agent, 9100, "W4", STATE),
    (End::Agent, 9101, "W4", STATE),
    (End::Agent, 10300, "W4", STATE),
    (
        End::Vm,
        25183,
        "W3",
        Rule::Refuses(&[
            ("GET /v1/state", "", ""),
            ("PUT /v1/size", "", "{}"),
            ("POST /v1/stop", "Authorization: Bearer 0\r\n", "{}"),
        ]),
    ),
    (
        End::Vm,
        25184,
        "W3",
        Rule::Refuses(&[("PUT /files/tmp/attack", "", "x"), ("PUT /cpu", "", "1")]),
    ),
    (
        End::Vm,
        10301,
        "W3",
        Rule::Refuses(&[
            ("GET /monitor", UPGRADE, ""),
            (
                "GET /monitor",
                "Authorization: Bearer 0\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
                "",
            ),
        ]),
    ),
    (End::Vm, 9100, "W3", Rule::Known),
    (End::Vm, 22, "W3", Rule::Known),
    (End::Vm, 5432, "W5", Rule::Known),
];
/// Ports of QMP and of incoming migrations.
const CLOSED: [u16; 4] = [20183, 20184, 20187, 20188];

pub(super) async fn check(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    let in_guest = wait_for("the guest's monitor", super::PATIENCE, || async {
        let ports = in_guest(world, &vm).map_err(|error| format!("{error:#}"))?;
        let has = |port| ports.contains(&(End::Vm, port));
        if has(10301) && has(9100) {
            Ok(ports)
        } else {
            Err(format!("{ports:?}"))
        }
    });
    let in_guest = in_guest.await?;
    let mut listening = world.cluster.listening();
    listening.extend(in_guest);
    let pods = addresses(world, &vm)?;
    for end in [End::Controller, End::Scheduler, End::Agent, End::Vm] {
        ensure!(pods.contains_key(&end), "no pod of {end:?} in {pods:?}");
        ensure!(listening.iter().any(|(it, _)| *it == end), "{listening:?}");
    }
    let report = on_network(&world.cluster, move || attack(&listening, &pods))?;
    // The cases after this one are still to run.
    let holds = std::panic::catch_unwind(|| report.finish()).is_ok();
    ensure!(holds, "the attacker got through: see its table");
    Ok(())
}

/// Tries all ports of all pods.
fn attack(listening: &BTreeSet<(End, u16)>, pods: &BTreeMap<End, BTreeSet<IpAddr>>) -> Report {
    let mut report = Report::new("pod");
    for (end, port) in listening {
        if !PORTS
            .iter()
            .any(|(it, known, ..)| (it, known) == (end, port))
        {
            let open = Outcome::Succeeded("no list names the port".into());
            report.record("W4", format!("{end:?} {port}"), "listens", open);
        }
    }
    for (end, port, wall, rule) in &PORTS {
        let Rule::Refuses(requests) = rule else {
            continue;
        };
        for ip in &pods[end] {
            for (ask, head, body) in *requests {
                let target = format!("{end:?} {ip}:{port}");
                let outcome = try_port(SocketAddr::new(*ip, *port), ask, head, body);
                let how = if head.contains("Bearer") {
                    " with a token of its own"
                } else {
                    ""
                };
                report.record(wall, target, format!("{ask}{how}"), outcome);
            }
        }
    }
    for (ip, port) in pods[&End::Vm]
        .iter()
        .flat_map(|ip| CLOSED.map(|port| (ip, port)))
    {
        let outcome = match TcpStream::connect_timeout(&SocketAddr::new(*ip, port), PATIENCE) {
            Ok(_) => Outcome::Succeeded("connected".into()),
            Err(error) => Outcome::Refused(error.to_string()),
        };
        report.record("W3", format!("Vm {ip}:{port}"), "connect", outcome);
    }
    report
}

/// Response of a port to a request.
fn try_port(at: SocketAddr, ask: &str, head: &str, body: &str) -> Outcome {
    let request = Request {
        line: ask,
        head,
        body,
    };
    let answer = match request.send(at, PATIENCE) {
        Ok(answer) => answer,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    let line = answer.lines().next().unwrap_or("no answer").to_owned();
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse::<u16>().ok());
    match status {
        Some(101 | 200..=299) => Outcome::Succeeded(line),
        _ => Outcome::Refused(line),
    }
}

/// The ports of the guest, by its own kernel, that are not on its loopback.
fn in_guest(world: &World, vm: &Value) -> Result<BTreeSet<(End, u16)>> {
    let text = world.guest(vm, "cat /proc/net/tcp /proc/net/tcp6")?;
    let rows = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|row| row.get(3) == Some(&"0A"));
    let mut ports = BTreeSet::new();
    for row in rows {
        let (ip, port) = row[1].split_once(':').context("an address")?;
        let is_loopback = ip == "0100007F" || ip == "00000000000000000000000001000000";
        let port = u16::from_str_radix(port, 16)?;
        // The guest's daemon is at another port of its pod.
        let port = if port == 25183 { 25184 } else { port };
        if !is_loopback {
            ports.insert((End::Vm, port));
        }
    }
    Ok(ports)
}

/// Addresses of our pods and of the VM's.
fn addresses(world: &World, vm: &Value) -> Result<BTreeMap<End, BTreeSet<IpAddr>>> {
    let mut found: BTreeMap<End, BTreeSet<IpAddr>> = BTreeMap::new();
    for (end, name) in [
        (End::Controller, "neonvm-controller"),
        (End::Scheduler, "autoscale-scheduler"),
        (End::Agent, "autoscaler-agent"),
    ] {
        let label = format!("name={name}");
        let args = [
            "get",
            "pods",
            "-A",
            "-l",
            &label,
            "-o",
            "jsonpath={.items[*].status.podIP}",
        ];
        for ip in world.cluster.plane().ask(&args)?.split_whitespace() {
            found.entry(end).or_default().insert(ip.parse()?);
        }
    }
    let ip = vm["status"]["podIP"].as_str().context("an address")?;
    found.entry(End::Vm).or_default().insert(ip.parse()?);
    Ok(found)
}

/// Runs `work` on a thread in the nodes' network. Pods can be reached there, and the caller is none
/// of our components.
fn on_network<T: Send>(cluster: &Cluster, work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| -> Result<T> {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let _client = runtime.block_on(cluster.enter())?;
            Ok(work())
        });
        thread.join().expect("the attacker does not panic")
    })
}
