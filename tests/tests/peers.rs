//! Machines without Kubernetes that know each other: real `bellows up`, each in its own network.
//!
//! ```text
//! a ── bridge in the network `hub` ── b
//!                  └───────────────── c
//! ```

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use bellows_tests::bellows_bin;
use bellows_tests::patience::wait_for;
use serde_json::Value;
use test_network::Network;

/// Longest time until a machine is ready, or something that needs gossip holds.
const PATIENCE: Duration = Duration::from_secs(120);
const PORT: u16 = 7946;

/// A network namespace with its `bellows up`.
struct Host {
    network: Network,
    folder: tempfile::TempDir,
    up: Option<Child>,
    /// Name and number in its address.
    name: &'static str,
    number: usize,
}

/// Machines at one bridge.
struct Hosts {
    hub: Network,
    hosts: Vec<Host>,
    key: String,
}

impl Host {
    fn address(&self) -> String {
        format!("10.77.0.{}:{PORT}", self.number)
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Starts `bellows up`, and waits until it is ready.
    fn start(&mut self, join: Option<&str>) {
        let ready = self.folder.path().join("ready");
        let mut command = self.spawnable(join);
        command.stdout(std::fs::File::create(&ready).unwrap());
        self.up = Some(command.spawn().unwrap());
        until("the machine is ready", || {
            match self.up.as_mut().unwrap().try_wait().unwrap() {
                Some(ended) => panic!("{}: {ended}: {}", self.name, self.log()),
                None if std::fs::read_to_string(&ready).unwrap().lines().count() > 0 => Ok(()),
                None => Err(self.log()),
            }
        });
    }

    fn spawnable(&self, join: Option<&str>) -> std::process::Command {
        let mut command = self.network.command(bellows_bin());
        let key = self.folder.path().join("peers.key");
        command
            .args([
                "up",
                "--accel",
                "tcg",
                "--guest-network",
                "user",
                "--node-name",
                self.name,
            ])
            .args(["--peers-listen", &self.address(), "--peers-key"])
            .arg(key)
            .arg("--state-dir")
            .arg(self.state());
        if let Some(join) = join {
            command.args(["--join", join]);
        }
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        command.stderr(log);
        command
    }

    /// A machine that joins there ends with 64, and says why.
    #[track_caller]
    fn assert_refused(&self, join: &str, why: &str) {
        let mut command = self.spawnable(Some(join));
        let ended = command.stdout(Stdio::null()).status().unwrap();
        assert_eq!(ended.code(), Some(64), "{}", self.log());
        assert!(self.log().contains(why), "{}", self.log());
    }

    fn log(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    fn bellows(&self, words: &[&str]) -> Result<String, String> {
        let mut command = self.network.command(bellows_bin());
        command.args(words).arg("--state-dir").arg(self.state());
        let output = command.output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn peers(&self) -> Value {
        let text = self.bellows(&["peers", "list", "-o", "json"]);
        text.ok()
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or(Value::Null)
    }

    /// Names of the machines that are alive, and of the leader.
    fn sees(&self) -> (Vec<String>, Vec<String>) {
        let status = self.peers();
        let with = |flag: &str| {
            let peers = status["peers"].as_array().into_iter().flatten();
            let chosen = peers.filter(|peer| peer[flag] == true);
            chosen
                .map(|peer| peer["id"].as_str().unwrap_or_default().to_owned())
                .collect()
        };
        (with("alive"), with("leads"))
    }

    fn kill(&mut self) {
        if let Some(mut up) = self.up.take() {
            up.kill().unwrap();
            up.wait().unwrap();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Hosts {
    /// No machine, and a bridge for them. `None` without root, and the skip is recorded.
    fn new_or_skip(test: &str) -> Option<Self> {
        let Some(hub) = Network::new().unwrap() else {
            let reason = "network namespaces need root";
            test_records::skip(test, test_records::Missing::Root, reason);
            return None;
        };
        hub.ip("link add bridge type bridge");
        hub.ip("link set bridge up");
        Some(Self {
            hub,
            hosts: Vec::new(),
            key: "5a".repeat(32),
        })
    }

    fn add(&mut self, name: &'static str) -> &mut Host {
        let network = Network::new().unwrap().unwrap();
        let number = self.hosts.len() + 1;
        self.hub.cable(&format!("to{number}"), &network, "eth0");
        self.hub.ip(&format!("link set to{number} master bridge"));
        network.ip(&format!("addr add 10.77.0.{number}/24 dev eth0"));
        let folder = tempfile::Builder::new()
            .prefix("bellows-peers-")
            .tempdir()
            .unwrap();
        write_key(&folder.path().join("peers.key"), &self.key);
        self.hosts.push(Host {
            network,
            folder,
            up: None,
            name,
            number,
        });
        self.hosts.last_mut().unwrap()
    }
}

fn write_key(path: &std::path::Path, key: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, key).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> Result<(), String>) -> Duration {
    let began = Instant::now();
    let waits = wait_for(what, PATIENCE, || std::future::ready(holds()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(waits).unwrap();
    began.elapsed()
}

/// All of `hosts` see these machines alive, and the same one lead.
fn agree(hosts: &[&Host], alive: &[&str]) -> Result<(), String> {
    let seen: Vec<_> = hosts.iter().map(|host| host.sees()).collect();
    let (living, leaders) = &seen[0];
    let good = living == alive && leaders.len() == 1 && seen.iter().all(|other| *other == seen[0]);
    if good {
        Ok(())
    } else {
        Err(format!("{seen:?}"))
    }
}

fn rtt(host: &Host, other: &str) -> Option<f64> {
    let status = host.peers();
    let mut peers = status["peers"].as_array()?.iter();
    peers.find(|peer| peer["id"] == other)?["rtt_ms"].as_f64()
}

/// Requirement: V18, V19, V21, V22, V23, V24
#[test]
fn v18_v19_v21_v23_v24_three_machines_join_lead_fail_over_and_are_cut_off() {
    let test = "v18_v19_v21_v23_v24_three_machines_join_lead_fail_over_and_are_cut_off";
    let Some(mut hosts) = Hosts::new_or_skip(test) else {
        return;
    };
    hosts.add("a").start(None);
    let first = hosts.hosts[0].address();
    hosts.add("b").start(Some(&first));
    hosts.add("c").start(Some(&first));
    let Hosts { hub, hosts, .. } = &mut hosts;
    let all: Vec<&Host> = hosts.iter().collect();
    until("each machine is known everywhere", || {
        agree(&all, &["a", "b", "c"])
    });
    measure_delay(&hosts[0]);

    // The cut machine holds, and the others go on with one leader.
    hub.ip("link set to3 down");
    let two: Vec<&Host> = hosts[..2].iter().collect();
    until("two go on", || agree(&two, &["a", "b"]));
    until("the third holds", || {
        let status = hosts[2].peers();
        let holds = status["role"] == "holds" && status["reason"] == "alone";
        if holds && hosts[2].sees().1.is_empty() {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
    hub.ip("link set to3 up");
    until("one order after healing", || agree(&all, &["a", "b", "c"]));

    let (_, leaders) = hosts[0].sees();
    let leader = hosts
        .iter()
        .position(|host| host.name == leaders[0])
        .unwrap();
    hosts[leader].kill();
    let living: Vec<&Host> = hosts.iter().filter(|host| host.up.is_some()).collect();
    let names: Vec<&str> = living.iter().map(|host| host.name).collect();
    until("another machine leads", || agree(&living, &names));
}

/// Adds a delay to what a machine sends, and compares it with the round-trip times.
fn measure_delay(host: &Host) {
    let before = {
        until("the round-trip time is known", || {
            rtt(host, "b")
                .map(drop)
                .ok_or_else(|| host.peers().to_string())
        });
        rtt(host, "b").unwrap()
    };
    let delay = 200.0;
    let mut netem = host.network.command("tc");
    netem
        .args(["qdisc", "add", "dev", "eth0", "root", "netem"])
        .args(["delay", "200ms"]);
    if !netem.status().is_ok_and(|status| status.success()) {
        let test = "v18_v19_v21_v23_v24_three_machines_join_lead_fail_over_and_are_cut_off";
        let reason = "tc has no netem: round-trip times are not compared with a delay";
        test_records::skip(test, test_records::Missing::Netem, reason);
        return;
    }
    until("the delay is measured within 20 %", || {
        let after = rtt(host, "b").unwrap_or_default();
        let added = after - before;
        if (added - delay).abs() <= 0.2 * delay {
            Ok(())
        } else {
            Err(format!("{before} ms, then {after} ms"))
        }
    });
    host.network.says("tc", "qdisc del dev eth0 root");
}

/// Requirement: V23
#[test]
fn v23_machine_with_another_key_or_a_name_that_is_taken_does_not_start() {
    let test = "v23_machine_with_another_key_or_a_name_that_is_taken_does_not_start";
    let Some(mut hosts) = Hosts::new_or_skip(test) else {
        return;
    };
    hosts.add("a").start(None);
    let first = hosts.hosts[0].address();
    hosts.key = "a5".repeat(32);
    let other = hosts.add("b");
    other.assert_refused(&first, "another key");
    hosts.key = "5a".repeat(32);
    let same = hosts.add("a");
    same.assert_refused(&first, "--node-name");
    assert_eq!(hosts.hosts[0].sees().0, ["a"]);
}
