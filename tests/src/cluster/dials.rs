//! Connections between the components of a cluster, from the kernel's lists of their networks.
//!
//! Pods are recognized by their programs and identified by their addresses. The kernel lists a
//! connection for a minute after its end, so a sample every second misses few. UDP, components in
//! the network of their node, and connections of guests, which pods only forward, are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use procfs::net::TcpState;
use procfs::process::{Process, all_processes};
use protocol::annotations::LABEL_VM_NAME;
use tokio_util::task::AbortOnDropHandle;

use super::groups::is_in_group;

/// Interval between two samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// Address of a guest behind the bridge of its pod.
const GUEST: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 254, 254));
/// Programs by which pods are recognized, as images name them.
const PROGRAMS: [(&str, End); 6] = [
    ("neonvm-controller", End::Controller),
    ("autoscale-scheduler", End::Scheduler),
    ("autoscaler-agent", End::Agent),
    ("policy-controller", End::PolicyController),
    ("bellows-fleet", End::Fleet),
    ("runner", End::Vm),
];

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The API server, at its address for pods.
    ApiServer,
    /// The pod of a controller.
    Controller,
    /// A scheduler's pod, kube-scheduler beside it included.
    Scheduler,
    /// The pod of an agent.
    Agent,
    /// The pod of a controller of policies.
    PolicyController,
    /// The pod of a driver of rollouts.
    Fleet,
    /// A VM's pod: its runner, its QEMU, or its guest, to which the pod's ports lead.
    Vm,
    /// The guest, dialled from inside its pod.
    Guest,
    /// Another address: a node, for which kubelet and API server connect, or a stranger.
    Other(IpAddr),
}

/// A connection that there was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dial {
    /// End that opened the connection.
    pub who: End,
    /// End at the dialled address, whether or not it accepted.
    pub whom: End,
    /// TCP port at the dialled end.
    pub port: u16,
}

/// A socket of a pod.
#[derive(Debug, Clone, Copy)]
struct Row {
    here: SocketAddr,
    /// `None` for one that listens.
    there: Option<SocketAddr>,
}

/// Addresses are resolved on demand, because a connection may be seen before its pod.
#[derive(Debug, Default)]
struct Known {
    ends: BTreeMap<IpAddr, End>,
    listened: BTreeSet<(End, u16)>,
    dialled: BTreeSet<(End, SocketAddr)>,
    answered: BTreeSet<(End, IpAddr, u16)>,
}

/// Samples the pods of one cluster until it is dropped.
#[derive(Debug)]
pub struct Dials {
    known: Arc<Mutex<Known>>,
    /// Dropping it ends the sampling thread.
    _goes_on: Sender<()>,
    /// Reads the addresses of VMs' pods.
    _pods: Option<AbortOnDropHandle<()>>,
}

impl Dials {
    /// Starts to sample the processes in the control group `group`.
    pub(super) fn watch(group: String) -> Self {
        let known = Arc::<Mutex<Known>>::default();
        let (goes_on, ended) = channel();
        let noted = Arc::clone(&known);
        std::thread::spawn(move || {
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                look(&group, &noted);
            }
        });
        Self {
            known,
            _goes_on: goes_on,
            _pods: None,
        }
    }

    /// Takes the addresses of VMs' pods from the API as well: the runner of one that is refused may
    /// begin and end between two looks.
    #[must_use]
    pub fn and_pods_of(self, client: kube::Client) -> Self {
        let known = Arc::clone(&self.known);
        let config = watcher::Config::default().labels(LABEL_VM_NAME);
        let pods = watcher(Api::<Pod>::all(client), config).default_backoff();
        let note = move |pod: Pod| {
            let ip = pod.status.and_then(|status| status.pod_ip?.parse().ok());
            if let Some(ip) = ip {
                lock(&known).ends.entry(ip).or_insert(End::Vm);
            }
        };
        let all = pods.applied_objects().for_each(move |pod| {
            // A failed watch restarts.
            let _ = pod.map(&note);
            std::future::ready(())
        });
        Self {
            _pods: Some(AbortOnDropHandle::new(tokio::spawn(all))),
            ..self
        }
    }

    /// All connections since the first sample.
    #[must_use]
    pub fn seen(&self) -> BTreeSet<Dial> {
        let known = lock(&self.known);
        let end_of = |ip: IpAddr| match known.ends.get(&ip) {
            Some(end) => *end,
            None if ip == GUEST => End::Guest,
            None => End::Other(ip),
        };
        let dialled = known.dialled.iter().map(|(who, at)| Dial {
            who: *who,
            whom: if at.ip().is_loopback() {
                *who
            } else {
                end_of(at.ip())
            },
            port: at.port(),
        });
        let answered = known.answered.iter().map(|(whom, from, port)| Dial {
            who: end_of(*from),
            whom: *whom,
            port: *port,
        });
        dialled.chain(answered).collect()
    }
}

/// TCP ports at which components of a cluster listen for others, with the component that owns the
/// network.
pub(super) fn listening(group: &str) -> BTreeSet<(End, u16)> {
    let mut ports = BTreeSet::new();
    for process in all_processes().into_iter().flatten().flatten() {
        let Some((end, _)) = part(&process, group) else {
            continue;
        };
        let rows = rows_of(&process);
        let open = rows.iter().filter(|row| {
            let ip = row.here.ip().to_canonical();
            row.there.is_none() && !ip.is_loopback() && !is_link_local(ip)
        });
        ports.extend(open.map(|row| (end, row.here.port())));
    }
    ports
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a sample. A process that ends meanwhile is left out.
fn look(group: &str, known: &Mutex<Known>) {
    let mut networks = BTreeSet::new();
    for process in all_processes().into_iter().flatten().flatten() {
        let Some((end, network)) = part(&process, group) else {
            continue;
        };
        if networks.insert(network) {
            let rows = rows_of(&process);
            let mut known = lock(known);
            if let Some(server) = api_server(&process) {
                known.ends.insert(server, End::ApiServer);
            }
            known.note(end, &rows);
        }
    }
}

/// The sockets of a process' network.
fn rows_of(process: &Process) -> Vec<Row> {
    let entries = [process.tcp(), process.tcp6()];
    let entries = entries.into_iter().flatten().flatten();
    let rows = entries.map(|entry| Row {
        here: entry.local_address,
        there: (entry.state != TcpState::Listen).then_some(entry.remote_address),
    });
    rows.collect()
}

/// The component of a process and its network. `None` if it belongs to no component of this
/// cluster.
fn part(process: &Process, group: &str) -> Option<(End, u64)> {
    let words = process.cmdline().ok()?;
    // A program may be started by its loader.
    let names = words.iter().map(|word| word.rsplit('/').next());
    let mut found = names.filter_map(|name| PROGRAMS.iter().find(|(it, _)| Some(*it) == name));
    let (_, end) = found.next()?;
    if !is_in_group(process, group) {
        return None;
    }
    let namespaces = process.namespaces().ok()?;
    let network = namespaces.0.get(std::ffi::OsStr::new("net"))?;
    Some((*end, network.identifier))
}

/// Address of the API server in a pod's environment.
fn api_server(process: &Process) -> Option<IpAddr> {
    let given = process.environ().ok()?;
    let host = given.get(std::ffi::OsStr::new("KUBERNETES_SERVICE_HOST"))?;
    host.to_str()?.parse().ok()
}

impl Known {
    /// Records the connections of one pod. Those to a listening port are incoming, all others
    /// outgoing.
    ///
    /// A program that ends or starts may have connections of a port at which it does not listen.
    fn note(&mut self, end: End, rows: &[Row]) {
        for row in rows.iter().filter(|row| row.there.is_none()) {
            self.listened.insert((end, row.here.port()));
            // A pod that is gone after seconds may be seen between two of its connections.
            let at = row.here.ip().to_canonical();
            if !at.is_unspecified() && !at.is_loopback() && !is_link_local(at) {
                self.ends.insert(at, end);
            }
        }
        let connected = rows.iter().filter_map(|row| Some((row.here, row.there?)));
        for (here, there) in connected {
            let from = here.ip().to_canonical();
            let to = SocketAddr::new(there.ip().to_canonical(), there.port());
            if !from.is_loopback() && !is_link_local(from) {
                self.ends.insert(from, end);
            }
            if !self.listened.contains(&(end, here.port())) {
                self.dialled.insert((end, to));
            } else if !to.ip().is_loopback() {
                self.answered.insert((end, to.ip(), here.port()));
            }
        }
    }
}

/// The pod's side of its bridge, the same in each.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if ip.is_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(here: &str, there: &str) -> Row {
        Row {
            here: here.parse().expect("an address"),
            there: there.parse().ok(),
        }
    }

    #[test]
    fn connections_to_a_listening_port_are_incoming_and_others_outgoing() {
        let known = Arc::<Mutex<Known>>::default();
        let agent = [
            row("0.0.0.0:9100", "-"),
            row("10.0.0.2:9100", "10.0.0.1:4000"),
            row("10.0.0.2:5000", "10.0.0.3:10301"),
            row("[::ffff:127.0.0.1]:5001", "[::ffff:127.0.0.1]:7"),
            row("10.0.0.2:5002", "10.0.0.7:25183"),
        ];
        lock(&known).note(End::Agent, &agent);
        // The program ends, and a connection to its port is still open.
        lock(&known).note(End::Agent, &agent[1..]);
        let vm = [row("10.0.0.3:6000", "10.0.0.9:80")];
        lock(&known).note(End::Vm, &vm);
        // Seen only while it listened.
        lock(&known).note(End::Vm, &[row("10.0.0.7:25183", "-")]);
        let dials = Dials {
            known,
            _goes_on: channel().0,
            _pods: None,
        };
        let other = |text: &str| End::Other(text.parse().expect("an address"));
        let wanted = [
            (other("10.0.0.1"), End::Agent, 9100),
            (End::Agent, End::Vm, 10301),
            (End::Agent, End::Agent, 7),
            (End::Agent, End::Vm, 25183),
            (End::Vm, other("10.0.0.9"), 80),
        ];
        let wanted = wanted.map(|(who, whom, port)| Dial { who, whom, port });
        assert_eq!(dials.seen(), BTreeSet::from(wanted));
    }
}
