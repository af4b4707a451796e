//! The overlay network between nodes: the real program on two nodes, which are networks of this
//! test's own, with an API server that knows them and guests that are networks as well.
//!
//! ```text
//!  guest 10.100.128.1 ── node 10.198.0.11 ── switch 10.198.0.1, the API server ── node 10.198.0.12 ── guest 10.100.128.2
//! ```

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use bellows_tests::cluster::{NodeKit, Programs, nodes_or_skip};
use bellows_tests::patience::wait_for;
use bellows_tests::process::Process;
use bellows_tests::program;
use serde_json::{Value, json};
use tempfile::TempDir;
use test_network::Network;

/// Longest time for work of milliseconds on a busy machine, including checks every 30 s.
const PATIENCE: Duration = Duration::from_secs(180);
const TUNNEL: &str = "neon-vxlan0";

/// The switch with the API server.
struct Site {
    switch: Network,
    dir: TempDir,
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    iptables: PathBuf,
    _api: Process,
}

impl Site {
    async fn start(programs: &Programs, kit: &NodeKit) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let switch = Network::new().unwrap().unwrap();
        switch.ip("link add nodes type bridge");
        switch.ip("address add 10.198.0.1/24 dev nodes");
        switch.ip("link set nodes up");
        let log = dir.path().join("api.log");
        let mut api = switch.command(program("neonvm-apiserver"));
        api.args(["--listen", "10.198.0.1:6443", "--state-dir"])
            .arg(dir.path().join("api"));
        let mut api = Process::start(&mut api, File::create(&log).unwrap()).unwrap();
        let line = api.first_line().unwrap();
        let (_, kubeconfig) = line.trim().split_once(" kubeconfig ").unwrap();
        let site = Self {
            kubectl: programs.path("kubectl"),
            kubeconfig: kubeconfig.into(),
            iptables: dir.path().join("iptables"),
            switch,
            dir,
            _api: api,
        };
        // That of the nodes of clusters, which need not be this machine's.
        let script = "#!/bin/sh\nexec chroot ROOT /usr/sbin/iptables \"$@\"\n";
        let script = script.replace("ROOT", kit.rootfs.to_str().unwrap());
        std::fs::write(&site.iptables, script).unwrap();
        std::fs::set_permissions(&site.iptables, std::fs::Permissions::from_mode(0o700)).unwrap();
        site
    }

    fn kubectl(&self, words: &[&str]) {
        let mut kubectl = self.switch.command(&self.kubectl);
        kubectl.arg("--kubeconfig").arg(&self.kubeconfig);
        kubectl
            .arg("--cache-dir")
            .arg(self.dir.path().join("kubectl-cache"));
        let output = kubectl.args(words).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {words:?}: {complaint}");
    }

    /// Tells the API of a node with this address.
    fn tell(&self, name: &str, last: u8) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        let file = self.dir.path().join("node.json");
        std::fs::write(&file, node.to_string()).unwrap();
        self.kubectl(&["apply", "-f", file.to_str().unwrap()]);
        let addresses = json!({"status": {"addresses": [
            {"type": "Hostname", "address": name},
            {"type": "InternalIP", "address": format!("10.198.0.{last}")},
            {"type": "InternalIP", "address": format!("fd00::{last}")},
        ]}});
        let patch = addresses.to_string();
        self.kubectl(&[
            "patch",
            "node",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ]);
    }
}

/// A node, and a guest in its bridge once there is one.
struct Node<'a> {
    site: &'a Site,
    network: Network,
    guest: Network,
    last: u8,
    program: Option<Process>,
}

impl<'a> Node<'a> {
    fn new(site: &'a Site, last: u8) -> Self {
        let network = Network::new().unwrap().unwrap();
        site.switch
            .cable(&format!("node-{last}"), &network, "uplink");
        site.switch
            .ip(&format!("link set node-{last} master nodes"));
        network.ip(&format!("address add 10.198.0.{last}/24 dev uplink"));
        Self {
            site,
            network,
            guest: Network::new().unwrap().unwrap(),
            last,
            program: None,
        }
    }

    fn log(&self) -> PathBuf {
        self.site.dir.path().join(format!("node-{}.log", self.last))
    }

    fn command(&self) -> Command {
        let mut command = self.network.command(program("neonvm-vxlan-controller"));
        command.arg("--iptables").arg(&self.site.iptables);
        command.args(["--listen", "127.0.0.1:0"]);
        command
            .env("MY_NODE_IP", format!("10.198.0.{}", self.last))
            .env("KUBECONFIG", &self.site.kubeconfig);
        command
    }

    fn start(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .unwrap();
        self.program = Some(Process::start(&mut self.command(), log).unwrap());
    }

    /// Kills the program.
    fn kill(&mut self) {
        self.program = None;
    }

    fn delete(&self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .unwrap();
        let status = self.command().arg("--delete").stderr(log).status().unwrap();
        assert!(status.success(), "{status}: {}", self.said());
    }

    fn said(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Destinations of the tunnel's broadcast frames, by their last numbers. An error if they
    /// cannot be read.
    fn targets(&self) -> Result<Vec<u8>, String> {
        let mut list = self.network.command("bridge");
        list.args(["-j", "fdb", "show", "dev", TUNNEL]);
        let output = list.stderr(Stdio::null()).output().unwrap();
        let entries: Value = serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())?;
        let all = entries.as_array().into_iter().flatten();
        let mut targets = Vec::new();
        for entry in all.filter(|entry| entry["mac"] == "00:00:00:00:00:00") {
            let to = entry["dst"].as_str().ok_or_else(|| entry.to_string())?;
            let last = to
                .strip_prefix("10.198.0.")
                .and_then(|last| last.parse().ok());
            targets.push(last.ok_or_else(|| entry.to_string())?);
        }
        targets.sort_unstable();
        Ok(targets)
    }

    /// The link of that name, with everything that is known of it.
    fn link(&self, name: &str) -> Option<Value> {
        let mut list = self.network.command("ip");
        let output = list
            .args(["-j", "-d", "link", "show", name])
            .output()
            .unwrap();
        let links: Value = serde_json::from_slice(&output.stdout).ok()?;
        Some(links[0].clone())
    }

    fn rules(&self) -> String {
        self.network
            .says(self.site.iptables.to_str().unwrap(), "-t nat -S")
    }

    /// Whether all is as it should be with these other nodes.
    fn is_whole(&self, others: &[u8]) -> Result<(), String> {
        let (bridge, tunnel) = (self.link("neon-br0"), self.link(TUNNEL));
        let (Some(bridge), Some(tunnel)) = (bridge, tunnel) else {
            return Err("no links".to_owned());
        };
        let is_up = |link: &Value| link["flags"].to_string().contains("\"UP\"");
        let data = &tunnel["linkinfo"]["info_data"];
        let local = format!("10.198.0.{}", self.last);
        let fits = data["id"] == 100 && data["port"] == 4789 && data["local"] == local.as_str();
        let is_in = tunnel["master"] == "neon-br0" && data["learning"] == true;
        let targets = self.targets()?;
        let rules = self.rules();
        let is_exempt = [
            "-A POSTROUTING -d 10.100.0.0/16 -j NEON-EXTRANET",
            "-A NEON-EXTRANET -s 10.100.0.0/16 -j ACCEPT",
            "-A NEON-EXTRANET -d 10.100.0.0/16 -j ACCEPT",
        ];
        let is_exempt = is_exempt
            .iter()
            .all(|rule| rules.matches(rule).count() == 1);
        let is_done = is_up(&bridge) && is_up(&tunnel) && fits && is_in && is_exempt;
        if is_done && targets == others {
            Ok(())
        } else {
            Err(format!("{bridge} {tunnel} {targets:?} {rules}"))
        }
    }

    async fn until_whole(&self, others: &[u8]) {
        let what = format!("node {} with {others:?}", self.last);
        let whole = wait_for(&what, PATIENCE, || async { self.is_whole(others) }).await;
        whole.unwrap_or_else(|error| panic!("{error:#}\n{}", self.said()));
    }

    /// Plugs its guest in, as a network plugin would.
    fn plug(&self) {
        self.network.cable("guest", &self.guest, "net1");
        self.network.ip("link set guest master neon-br0");
        let last = self.last - 10;
        self.guest
            .ip(&format!("address add 10.100.128.{last}/16 dev net1"));
    }

    /// Waits until its guest reaches that of another node.
    async fn until_reached(&self, other: &Node<'_>) {
        let address = format!("10.100.128.{}", other.last - 10);
        let reached = wait_for(&address, PATIENCE, || async {
            let is_reached = self.guest.reaches(&address);
            is_reached.then_some(()).ok_or_else(String::new)
        });
        let reached = reached.await;
        reached.unwrap_or_else(|error| panic!("{error:#}\n{}\n{}", self.said(), other.said()));
    }
}

/// The names of the links of a network.
fn links(network: &Network) -> Vec<String> {
    let all: Value = serde_json::from_str(&network.ip("-j link show")).unwrap();
    let all = all.as_array().into_iter().flatten();
    all.filter_map(|link| Some(link["ifname"].as_str()?.to_owned()))
        .collect()
}

/// Everything that can be in the way of a program's start: half of it made, other halves wrong.
fn wreck(node: &Node<'_>) {
    node.network.ip(&format!("link delete {TUNNEL}"));
    node.network.ip(&format!(
        "link add {TUNNEL} type vxlan id 100 dstport 4789 local 10.198.0.99"
    ));
    node.network.ip("link set neon-br0 down");
    let iptables = node.site.iptables.to_str().unwrap();
    node.network.says(
        iptables,
        "-t nat -D POSTROUTING -d 10.100.0.0/16 -j NEON-EXTRANET",
    );
    node.network.says(iptables, "-t nat -F NEON-EXTRANET");
    node.network.says(
        iptables,
        "-t nat -A NEON-EXTRANET -d 10.100.0.0/16 -j ACCEPT",
    );
}

/// Requirement: N17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_of_two_nodes_reach_each_other_over_the_overlay() {
    let test = "guests_of_two_nodes_reach_each_other_over_the_overlay";
    let Some((programs, kit)) = nodes_or_skip(test) else {
        return;
    };
    let site = Site::start(&programs, &kit).await;
    let (mut one, mut two) = (Node::new(&site, 11), Node::new(&site, 12));
    site.tell("node-11", 11);
    site.tell("node-12", 12);
    one.start();
    two.start();
    one.until_whole(&[12]).await;
    two.until_whole(&[11]).await;
    one.plug();
    two.plug();
    one.until_reached(&two).await;

    // A new node is seen at once, and its entries disappear with it.
    site.tell("node-13", 13);
    one.until_whole(&[12, 13]).await;
    two.until_whole(&[11, 13]).await;
    site.kubectl(&["delete", "node", "node-13"]);
    one.until_whole(&[12]).await;
    two.until_whole(&[11]).await;

    // The next program repairs what another left incomplete, or what was broken meanwhile.
    one.kill();
    wreck(&one);
    assert!(!one.guest.reaches("10.100.128.2"));
    one.start();
    one.until_whole(&[12]).await;
    one.until_reached(&two).await;
    // A running program detects a missing link without an event.
    one.network.ip(&format!("link delete {TUNNEL}"));
    one.until_whole(&[12]).await;
    two.until_reached(&one).await;

    one.kill();
    one.delete();
    assert_eq!(links(&one.network), ["lo", "uplink", "guest"]);
    assert!(!one.rules().contains("NEON"), "{}", one.rules());
    one.delete();
    // The other node is as it was.
    two.until_whole(&[11]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_link_is_reported_and_left_alone() {
    let test = "foreign_link_is_reported_and_left_alone";
    let Some((programs, kit)) = nodes_or_skip(test) else {
        return;
    };
    let site = Site::start(&programs, &kit).await;
    let mut node = Node::new(&site, 11);
    node.network.cable("neon-br0", &node.guest, "net1");
    node.start();
    let wanted = "there is a link neon-br0 that is no bridge: rename or remove it";
    let told = wait_for(wanted, PATIENCE, || async {
        let said = node.said();
        said.contains(wanted).then_some(()).ok_or(said)
    });
    told.await.unwrap();
    node.kill();
    node.delete();
    assert_eq!(links(&node.network), ["lo", "uplink", "neon-br0"]);
}
