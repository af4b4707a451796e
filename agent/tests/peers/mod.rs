//! The agent's peers as the tests need them, on real sockets: an API server with the two lists the
//! agent follows and the patch it makes, a scheduler, and a guest with a metrics page and a
//! monitor. What they see goes into one trace, in the order seen.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a kit: each test program uses a part of it, on numbers of its own making"
)]

pub mod api;
pub mod guest;
pub mod policies;
pub mod program;
pub mod scheduler;
pub mod sly;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::{Addresses, Config, Params, Ports, RunError, StateHandle};
use daemon_kit::StageLog;
use daemon_kit::bearer::VmKey;
use daemon_kit::clock::Clock;
use protocol::monitor::Allocation;
use protocol::permit::AgentRequest;
use protocol::time::Timestamp;
use protocol::units::Resources;
use serde_json::{Value, json};
use test_network::http::Request;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long anything may take before a test gives up waiting for it.
const LIMIT: Duration = Duration::from_secs(30);

/// Something a peer saw.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    Permit(AgentRequest),
    /// CPU quantity, slots, revision value.
    Patch(String, u64, i64),
    /// A patch came that is not carried out yet.
    PatchHeld,
    /// A patch came, was answered well, and changed nothing.
    PatchIgnored,
    Granted(Allocation),
    AskedToShrink(Allocation),
    HealthCheck,
    Connected(u32),
    Refused,
    /// Why a connection came to no TLS.
    NoTls(String),
    Complaint(String),
    /// Id and names.
    Capabilities(u64, Vec<String>),
    /// Id, and the text.
    Schedule(u64, String),
    Scrape,
}

/// What all peers saw, in order.
#[derive(Clone, Default)]
pub struct Trace {
    seen: Arc<Mutex<Vec<(Timestamp, Seen)>>>,
    changed: Arc<Notify>,
    clock: Clock,
}

impl Trace {
    pub fn push(&self, seen: Seen) {
        self.seen
            .lock()
            .expect("no test panics here")
            .push((self.clock.now(), seen));
        self.changed.notify_waiters();
    }

    pub fn all(&self) -> Vec<Seen> {
        self.seen
            .lock()
            .expect("no test panics here")
            .iter()
            .map(|(_, seen)| seen.clone())
            .collect()
    }

    pub fn timed(&self) -> Vec<(Timestamp, Seen)> {
        self.seen.lock().expect("no test panics here").clone()
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn count(&self, wanted: impl Fn(&Seen) -> bool) -> usize {
        self.all().iter().filter(|seen| wanted(seen)).count()
    }

    /// Waits until the trace fulfils a condition.
    #[track_caller]
    pub fn until<T>(
        &self,
        what: &str,
        mut found: impl FnMut(&[Seen]) -> Option<T>,
    ) -> impl Future<Output = T> {
        let (trace, what) = (self.clone(), what.to_owned());
        async move {
            let wait = async {
                loop {
                    let changed = trace.changed.notified();
                    tokio::pin!(changed);
                    changed.as_mut().enable();
                    if let Some(value) = found(&trace.all()) {
                        return value;
                    }
                    changed.await;
                }
            };
            match tokio::time::timeout(LIMIT, wait).await {
                Ok(value) => value,
                Err(_) => panic!("waited in vain until {what}; seen: {:#?}", trace.all()),
            }
        }
    }
}

/// Waits until a condition holds that no peer's trace shows.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !holds() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited in vain until {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Shared by all tests of a process, so that no two use the same addresses.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// A loopback address of its own.
pub fn address() -> std::net::IpAddr {
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let block = std::process::id() % 200 + 20;
    std::net::Ipv4Addr::new(127, block as u8, (n / 250) as u8, (n % 250 + 2) as u8).into()
}

/// An agent and everything around it.
pub struct World {
    pub trace: Trace,
    pub api: api::Api,
    pub scheduler: scheduler::Scheduler,
    pub guest: guest::Guest,
    pub state: StateHandle,
    pub stages: StageLog,
    pub addresses: Option<Addresses>,
    pub config: Value,
    pub events_folder: Option<std::path::PathBuf>,
    /// What the agent shows to the scheduler, if not what its configuration says.
    pub permit_token: Option<String>,
    /// Of which the agent makes what it shows to monitors.
    pub monitor_key: Option<VmKey>,
    /// The agent's clock.
    pub clock: Clock,
    pub journal: Option<std::path::PathBuf>,
    pub policy_program: Option<std::path::PathBuf>,
    cancel: CancellationToken,
    agent: Option<JoinHandle<Result<(), RunError>>>,
}

impl World {
    /// All peers, with one VM `default/vm` at one unit of 1 to 4, and no agent yet.
    pub async fn new() -> Self {
        let trace = Trace::default();
        let api = api::Api::start(trace.clone()).await;
        let scheduler = scheduler::Scheduler::start(trace.clone(), address()).await;
        let guest = guest::Guest::start(trace.clone(), address()).await;
        let mut config: Value =
            serde_json::from_str(include_str!("../../config/one-machine.json")).expect("is JSON");
        config["metrics"]["system"]["port"] = json!(guest.metrics_port);
        config["monitor"]["serverPort"] = json!(guest.monitor_port);
        config["scheduler"]["requestPort"] = json!(scheduler.port);
        config["dumpState"] = Value::Null;
        // As in a cluster: one machine alone holds sizes.
        config["scaling"]["defaultConfig"]["downscaleHoldSeconds"] = json!(0);
        api.put_scheduler(&scheduler.ip.to_string());
        api.put_vm(api::vm("vm", &guest.ip.to_string()));
        Self {
            trace,
            api,
            scheduler,
            guest,
            state: StateHandle::new(),
            stages: StageLog::new(1000),
            addresses: None,
            config,
            events_folder: None,
            permit_token: None,
            monitor_key: None,
            clock: Clock::new(),
            journal: None,
            policy_program: None,
            cancel: CancellationToken::new(),
            agent: None,
        }
    }

    /// Starts the agent with the configuration as it is now.
    pub async fn start(&mut self) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let url = self.api.url.parse().expect("is a URL");
        let client = kube::Client::try_from(kube::Config::new(url)).expect("makes a client");
        let config = Config::from_json(&self.config.to_string()).expect("a good configuration");
        let mut params = Params::new(config, "node-1".into(), client, address());
        params.ports = Ports {
            metrics: 0,
            vm_metrics: 0,
        };
        params.state = self.state.clone();
        params.events_folder = self.events_folder.clone();
        params.permit_token = self.permit_token.clone();
        params.monitor_key = self.monitor_key.clone();
        params.clock = self.clock;
        params.journal = self.journal.clone();
        params.policy_program = self.policy_program.clone();
        params.stages = self.stages.clone();
        params.health_check_every = Duration::from_millis(200);
        // An agent may be started again after its end.
        self.cancel = CancellationToken::new();
        let bound = agent::bind(params).await.expect("binds");
        self.addresses = Some(bound.addresses().expect("has addresses"));
        self.agent = Some(tokio::spawn(bound.run(self.cancel.clone())));
    }

    /// Starts the agent and waits until it counts on the monitor.
    pub async fn start_connected(&mut self) {
        self.start().await;
        let approved = "/pods/0/runner/executorState/Monitor/Approved";
        until("the agent counts on the monitor", || {
            self.state
                .dump()
                .pointer(approved)
                .is_some_and(Value::is_object)
        })
        .await;
    }

    /// Ends the agent and checks that it ended well.
    pub async fn stop(&mut self) {
        self.cancel.cancel();
        if let Some(agent) = self.agent.take() {
            let ended = tokio::time::timeout(LIMIT, agent)
                .await
                .expect("ends in time");
            ended.expect("no crash").expect("ends well");
        }
        assert_eq!(self.state.managed(), 0, "nothing is managed after the end");
    }

    /// Waits until a line of the global metrics begins like this.
    pub async fn until_metric(&self, line: &str) {
        self.until_line(|a| a.metrics, line).await;
    }

    /// Waits until a line of a metrics page begins like this.
    pub async fn until_line(&self, pick: fn(&Addresses) -> std::net::SocketAddr, line: &str) {
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            let text = self.get(pick, "/metrics").await;
            if text.lines().any(|have| have.starts_with(line)) {
                return;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{line} is not in:\n{text}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until a metrics page does not contain a text any more.
    pub async fn until_gone(&self, pick: fn(&Addresses) -> std::net::SocketAddr, gone: &str) {
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            let text = self.get(pick, "/metrics").await;
            if !text.contains(gone) {
                return;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{gone} is still in:\n{text}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Body of a page of one of the agent's servers.
    pub async fn get(&self, pick: fn(&Addresses) -> std::net::SocketAddr, path: &str) -> String {
        let address = pick(self.addresses.as_ref().expect("the agent runs"));
        http_get(address, path, "").await
    }
}

/// One request by hand; returns head and body.
pub async fn http_get(address: std::net::SocketAddr, path: &str, body: &str) -> String {
    http("GET", address, path, body).await
}

/// The same with any method.
pub async fn http(method: &str, address: std::net::SocketAddr, path: &str, body: &str) -> String {
    let line = &format!("{method} {path}");
    let request = Request {
        body,
        ..Request::new(line)
    };
    request.ask(address).await.expect("answers")
}

pub fn is_patch(seen: &Seen) -> bool {
    matches!(seen, Seen::Patch(..))
}

pub fn patched_to(slots: u64) -> impl Fn(&Seen) -> bool {
    move |seen| matches!(seen, Seen::Patch(_, to, _) if *to == slots)
}

/// So many compute units.
pub fn units(n: u32) -> Resources {
    Resources::new(250, 1 << 30).saturating_mul(n)
}

/// The permit requests seen: the size told or asked, and the permit held.
pub fn permits(all: &[Seen]) -> Vec<(Resources, Option<Resources>)> {
    let of = |seen: &Seen| match seen {
        Seen::Permit(request) => Some((request.resources, request.last_permit)),
        _ => None,
    };
    all.iter().filter_map(of).collect()
}

pub async fn until_asked_again(world: &World) {
    let asked = permits(&world.trace.all()).len();
    world
        .trace
        .until("two more heartbeats", |all| {
            (permits(all).len() >= asked + 2).then_some(())
        })
        .await;
}

pub fn position(all: &[Seen], wanted: impl Fn(&Seen) -> bool) -> Option<usize> {
    all.iter().position(wanted)
}
