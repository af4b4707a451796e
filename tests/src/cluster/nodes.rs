//! A whole cluster on this machine: a control plane and nodes with a kubelet, containerd and pods
//! that reach each other.
//!
//! ```text
//!  this machine          switch: a network namespace             node-1, node-2: all namespaces
//!  127.0.0.1:port ─relay─► etcd, kube-apiserver, …   ◄──uplink── kubelet, containerd, pods 10.244.1.0/24
//!  (kubectl, tests)        10.199.0.1, 10.96.0.1:443 ◄──uplink── kubelet, containerd, pods 10.244.2.0/24
//! ```
//!
//! Every cluster has the same addresses, and none sees another or this machine. A node is ended by
//! ending one process; what else there is of it are control groups, which [`super::groups`]
//! removes, and files in the cluster's directory.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::process::all_processes;

use super::dials::{self, Dials, End};
use super::files::{private_dir, private_file};
use super::groups::{POLL_INTERVAL, group, is_in_group, sweep_groups};
use super::images::pack_all;
use super::plane::{ControlPlane, GATEWAY, SERVICE_PORT};
use super::programs::{NodeKit, Programs};
use super::record::Part;
use super::spawn::Lifetime;
use crate::patience::wait_for;

/// Longest time until a node is ready on a busy machine. An idle machine takes 5 s.
const PATIENCE: Duration = Duration::from_secs(180);
/// More nodes than a machine should have; their numbers are parts of addresses.
const MOST_NODES: u8 = 9;
/// File in which a runner's QEMU stores its PID.
const QEMU_PID_FILE: &str = "/vm/images/run/qemu.pid";

/// A control plane with nodes. With [`Lifetime::WithUs`] dropping it ends everything.
#[derive(Debug)]
pub struct Cluster {
    plane: ControlPlane,
    switch: i32,
    nodes: Vec<i32>,
}

impl Cluster {
    /// Starts a cluster as [`Cluster::start`] does, with all our images. It ends with this process.
    ///
    /// # Errors
    ///
    /// Those of [`Cluster::start`], or an image that cannot be packed.
    pub async fn with_our_images(
        programs: Programs,
        kit: &NodeKit,
        dir: &Path,
        nodes: u8,
    ) -> Result<Self> {
        let images = tempfile::tempdir()?;
        let archives = pack_all(&programs, images.path())?;
        Self::start(programs, kit, dir, nodes, &archives, Lifetime::WithUs).await
    }

    /// Starts a cluster with `count` nodes in `dir`. Each node gets these image archives. Returns
    /// when all nodes are ready. Needs root.
    ///
    /// # Errors
    ///
    /// If a component ends or is not ready in time. The message holds the end of its log.
    pub async fn start(
        programs: Programs,
        kit: &NodeKit,
        dir: &Path,
        nodes: u8,
        archives: &[PathBuf],
        life: Lifetime,
    ) -> Result<Self> {
        if nodes == 0 || nodes > MOST_NODES {
            bail!("a cluster has from 1 to {MOST_NODES} nodes");
        }
        for part in ["", "pki", "log", "nodes"] {
            private_dir(&dir.join(part))?;
        }
        let mut plane = ControlPlane::new(programs, dir, life)?;
        let dir = plane.dir().to_owned();
        private_file(&dir.join("node.sh"), include_str!("node.sh"))?;
        private_file(&dir.join("groups.sh"), include_str!("groups.sh"))?;
        private_file(&dir.join("part.sh"), include_str!("part.sh"))?;
        private_file(&dir.join("runc.sh"), include_str!("runc.sh"))?;
        private_file(&dir.join("switch.sh"), include_str!("switch.sh"))?;
        let kubelet = dir.join("nodes/kubelet");
        std::fs::hard_link(&kit.kubelet, &kubelet)
            .or_else(|_| std::fs::copy(&kit.kubelet, &kubelet).map(drop))
            .context("cannot put the kubelet into place")?;
        sweep_groups();
        let switch = start_switch(&mut plane, nodes)?;
        plane
            .bring_up_on(switch, |plane| start_relay(plane, switch))
            .await?;
        let mut cluster = Self {
            plane,
            switch,
            nodes: Vec::new(),
        };
        for number in 1..=nodes {
            let process = cluster.start_node(number, nodes, kit)?;
            cluster.nodes.push(process);
        }
        cluster.load_all(archives)?;
        for number in 1..=nodes {
            File::create(cluster.file_of(number, "images"))?;
        }
        for number in 1..=nodes {
            cluster.until_ready(&name(number)).await?;
        }
        Ok(cluster)
    }

    /// Control plane of the cluster.
    #[must_use]
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// The names of the nodes.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        (1..)
            .zip(&self.nodes)
            .map(|(number, _)| name(number))
            .collect()
    }

    /// A program that runs on the nodes' network, from where every pod is reached.
    #[must_use]
    pub fn on_network(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.switch))
            .arg(program)
            .stdin(Stdio::null());
        command
    }

    /// Listens on the nodes' network at an address that every pod reaches.
    ///
    /// # Errors
    ///
    /// If the network cannot be entered, or the port is in use there.
    pub fn listen(&self, port: u16) -> Result<std::net::TcpListener> {
        let network = PathBuf::from(format!("/proc/{}/ns/net", self.switch));
        super::relay::listen_in(&network, SocketAddr::new(GATEWAY, port))
    }

    /// A program in a node, among its own files and in its own network.
    ///
    /// # Errors
    /// When there is no node of that name.
    pub fn in_node(&self, name: &str, program: &str) -> Result<Command> {
        let mut command = inside(self.process_of(name)?);
        command.arg(program);
        Ok(command)
    }

    /// Puts this thread, and those it starts, onto the nodes' network, where pods are reached at
    /// their addresses; returns a client of the API there. There is no way back.
    ///
    /// # Errors
    /// When the network cannot be entered, or there is no client.
    pub async fn enter(&self) -> Result<kube::Client> {
        let network = File::open(format!("/proc/{}/ns/net", self.switch))?;
        setns(network, CloneFlags::CLONE_NEWNET).context("cannot enter the network")?;
        self.plane.client_of_parts().await
    }

    /// The QEMUs that run a guest of this cluster, as this machine numbers them.
    #[must_use]
    pub fn qemus(&self) -> BTreeSet<i32> {
        self.processes(QEMU_PID_FILE)
    }

    /// Processes of this cluster whose command line has this word, as this machine numbers them.
    #[must_use]
    pub fn processes(&self, word: &str) -> BTreeSet<i32> {
        let group = group(self.plane.dir());
        let all = all_processes().into_iter().flatten().flatten();
        let all = all.filter_map(|process| {
            let words = process.cmdline().ok()?;
            let has_word = words.iter().any(|one| one == word);
            (has_word && is_in_group(&process, &group)).then_some(process.pid)
        });
        all.collect()
    }

    /// Starts to record connections between components.
    #[must_use]
    pub fn dials(&self) -> Dials {
        Dials::watch(group(self.plane.dir()))
    }

    /// TCP ports at which our pods listen for others.
    #[must_use]
    pub fn listening(&self) -> BTreeSet<(End, u16)> {
        dials::listening(&group(self.plane.dir()))
    }

    /// Stops a component like a machine that has lost its network, or continues it.
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub fn hold(&self, part: Part, still: bool) -> Result<()> {
        let running = super::record::running(self.plane.dir())?;
        let found = running.iter().find(|(running, ..)| *running == part);
        let (_, pid, _) = found.with_context(|| format!("no {}", part.program()))?;
        let signal = if still {
            Signal::SIGSTOP
        } else {
            Signal::SIGCONT
        };
        Ok(kill(Pid::from_raw(*pid), signal)?)
    }

    /// Has a node lose its power.
    ///
    /// # Errors
    /// When it does not run, or there is none of that name.
    pub fn power_off(&self, name_of: &str) -> Result<()> {
        let process = self.process_of(name_of)?;
        // The first process of its namespace: the kernel ends all the others.
        Ok(kill(Pid::from_raw(process), Signal::SIGKILL)?)
    }

    /// The first process of a node.
    fn process_of(&self, name_of: &str) -> Result<i32> {
        let mut numbered = (1..).zip(&self.nodes);
        let found = numbered.find(|(number, _)| name(*number) == name_of);
        let (_, process) = found.with_context(|| format!("no node {name_of}"))?;
        Ok(*process)
    }

    /// Ends of all logs, to find the cause of a failure.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for name in self.names() {
            for part in ["kubelet", "containerd"] {
                let path = self.plane.dir().join(format!("log/{name}-{part}.log"));
                text += &format!("--- {name} {part}\n{}\n", crate::last_lines(&path, 15));
            }
        }
        text
    }

    fn file_of(&self, number: u8, file: &str) -> PathBuf {
        self.plane.dir().join("nodes").join(name(number)).join(file)
    }

    /// Starts a node up to its container runtime; returns its first process.
    fn start_node(&mut self, number: u8, nodes: u8, kit: &NodeKit) -> Result<i32> {
        let (name, address) = (name(number), address(number));
        private_dir(&self.file_of(number, ""))?;
        let url = self.plane.url_of_parts();
        let pki = self.plane.pki.as_mut().context("it was made")?;
        let user = format!("system:node:{name}");
        pki.certify(&name, &user, "system:nodes", &[&name], &[address])?;
        let kubeconfig = pki.kubeconfig(&name, &url)?;
        let dir = self.plane.dir().to_owned();
        private_file(&dir.join(format!("{name}.kubeconfig")), &kubeconfig)?;
        let others = (1..=nodes).filter(|other| *other != number);
        let words: Vec<OsString> = vec![
            "sh".into(),
            dir.join("node.sh").into(),
            "start".into(),
            group(&dir).into(),
            dir.clone().into(),
            kit.rootfs.clone().into(),
            name.clone().into(),
            address.to_string().into(),
            pods(number).into(),
            routes(others).into(),
        ];
        let part = Part::Node(number);
        self.plane.start_command(part, &words)?;
        let note = self.file_of(number, "process");
        let what = format!("the first process of {name}");
        let process = until(&self.plane, &what, || {
            std::fs::read_to_string(&note).ok()?.trim().parse().ok()
        })?;
        let mut lay = self.on_network("ip");
        lay.args([
            "link", "add", &name, "type", "veth", "peer", "name", "uplink",
        ])
        .args(["netns", &format!("{process}")]);
        run(&mut lay)?;
        for setting in [["master", "nodes"], ["up", ""]] {
            let mut command = self.on_network("ip");
            command.args(["link", "set", "dev", &name]);
            run(command.args(setting.iter().filter(|word| !word.is_empty())))?;
        }
        Ok(process)
    }

    /// Gives images to all nodes, to each in a thread of its own.
    ///
    /// # Errors
    /// When an archive is none, or a node has no container runtime.
    pub fn load_all(&self, archives: &[PathBuf]) -> Result<()> {
        std::thread::scope(|scope| {
            let load = |number, process| move || self.load(number, process, archives);
            let loads: Vec<_> = (1..)
                .zip(&self.nodes)
                .map(|(number, process)| scope.spawn(load(number, *process)))
                .collect();
            loads.into_iter().try_for_each(|load| {
                load.join()
                    .unwrap_or_else(|_| bail!("loading images panicked"))
            })
        })
    }

    fn load(&self, number: u8, process: i32, archives: &[PathBuf]) -> Result<()> {
        let name = name(number);
        let runtime = self.file_of(number, "containers");
        let what = format!("the container runtime of {name}");
        until(&self.plane, &what, || runtime.exists().then_some(()))
            .with_context(|| self.logs())?;
        for archive in archives {
            let file = File::open(archive)
                .with_context(|| format!("cannot open {}", archive.display()))?;
            let mut import = inside(process);
            import
                .args(["ctr", "-n", "k8s.io", "images", "import"])
                .args(["--snapshotter", "overlayfs", "-"])
                .stdin(file);
            run(&mut import).with_context(|| format!("{name}: {}", archive.display()))?;
        }
        Ok(())
    }

    /// Loads an archive into every node, and names its image by this reference too.
    ///
    /// # Errors
    ///
    /// If a node does not take it.
    pub fn load_as(&self, archive: &Path, image: &str, reference: &str) -> Result<()> {
        self.load_all(&[archive.to_owned()])?;
        self.tag(image, reference)
    }

    /// Names an image of every node by this reference too.
    ///
    /// # Errors
    ///
    /// If a node does not have the image.
    pub fn tag(&self, image: &str, reference: &str) -> Result<()> {
        for process in &self.nodes {
            let mut tag = inside(*process);
            tag.args(["ctr", "-n", "k8s.io", "images", "tag"]);
            run(tag.args([image, reference]))?;
        }
        Ok(())
    }

    async fn until_ready(&self, name: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.plane.client().await?);
        wait_for(&format!("{name} to be ready"), PATIENCE, || async {
            if let Some(part) = self.plane.ended() {
                return Ok(Err(format!("{} ended", part.program())));
            }
            let node = nodes
                .get_opt(name)
                .await
                .map_err(|error| error.to_string())?;
            let node = node.ok_or_else(|| "it is not there".to_owned())?;
            let conditions = node
                .status
                .unwrap_or_default()
                .conditions
                .unwrap_or_default();
            let ready = conditions
                .iter()
                .find(|condition| condition.type_ == "Ready");
            match ready {
                Some(condition) if condition.status == "True" => Ok(Ok(())),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .and_then(|ready| ready.map_err(|why| anyhow::anyhow!(why)))
        .with_context(|| self.logs())
    }
}

/// A command that enters a node through its first process.
fn inside(process: i32) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["-t", &process.to_string()]);
    command.args(["-m", "-n", "-p", "-u", "-i", "-C", "-r", "-w"]);
    command
}

/// The name of a node.
fn name(number: u8) -> String {
    format!("node-{number}")
}

/// Address of a node on the switch.
fn address(number: u8) -> IpAddr {
    IpAddr::from([10, 199, 0, 10 + number])
}

/// The addresses of its pods.
fn pods(number: u8) -> String {
    format!("10.244.{number}.0/24")
}

/// Routes to the pods of nodes, in the format of the scripts.
fn routes(nodes: impl Iterator<Item = u8>) -> String {
    let route = |number| format!("{}={}", pods(number), address(number));
    nodes.map(route).collect::<Vec<_>>().join(",")
}

fn start_switch(plane: &mut ControlPlane, nodes: u8) -> Result<i32> {
    let dir = plane.dir().to_owned();
    let words: Vec<OsString> = vec![
        "unshare".into(),
        "--net".into(),
        "sh".into(),
        dir.join("switch.sh").into(),
        dir.clone().into(),
        routes(1..=nodes).into(),
    ];
    let process = plane.start_command(Part::Switch, &words)?;
    let ready = dir.join("switch");
    until(plane, "the switch", || ready.exists().then_some(()))
        .with_context(|| plane.log_of(Part::Switch))?;
    Ok(process)
}

fn start_relay(plane: &mut ControlPlane, switch: i32) -> Result<SocketAddr> {
    let note = plane.dir().join("relay");
    let words: Vec<OsString> = vec![
        crate::program("control-plane").into(),
        "relay".into(),
        format!("/proc/{switch}/ns/net").into(),
        format!("{GATEWAY}:{SERVICE_PORT}").into(),
        note.clone().into(),
    ];
    plane.start_command(Part::Relay, &words)?;
    until(plane, "the relay", || {
        std::fs::read_to_string(&note).ok()?.parse().ok()
    })
}

/// Looks until there is something, as long as every part runs.
fn until<T>(plane: &ControlPlane, what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if let Some(part) = plane.ended() {
            bail!("{} ended: {}", part.program(), plane.log_of(part));
        }
        if began.elapsed() > PATIENCE {
            bail!("waited {} s for {what}", PATIENCE.as_secs());
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{command:?}: {text}");
    }
    Ok(())
}
