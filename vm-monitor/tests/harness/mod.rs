//! A real monitor on loopback ports, with folders that hold a group's and the kernel's files, and
//! an agent to talk to it.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its part of it"
)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use protocol::monitor::{AgentBody, AgentFrame, Allocation, MonitorBody, MonitorFrame};
use protocol::monitor_v2::{
    AgentBodyV2, AgentFrameV2, Capabilities, MonitorBodyV2, MonitorFrameV2,
};
use tempfile::TempDir;
use test_network::http::Request;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};
use tokio_util::sync::CancellationToken;
use transport::Stream;
use vm_monitor::core::decision::Watched;
use vm_monitor::{Bound, Config, RunError};

/// No wait of a test is longer. Only a failure takes this long.
pub const DEADLINE: Duration = Duration::from_secs(20);
pub const GIB: u64 = 1 << 30;
pub const MIB: u64 = 1 << 20;

/// Ends the test if something does not happen.
pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match timeout(DEADLINE, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not within {DEADLINE:?}"),
    }
}

/// A guest's files: a cgroup v2 group and the part of /proc the monitor reads, of a machine with 4
/// GiB.
pub struct Files {
    folder: TempDir,
}

impl Files {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["cgroup", "proc", "proc/pressure"] {
            std::fs::create_dir(folder.path().join(name)).expect("made");
        }
        let files = Self { folder };
        let meminfo = "MemTotal:        4194304 kB\nMemFree:         1000000 kB\nMemAvailable:    3000000 kB\n\
                       Buffers:            1000 kB\nCached:           200000 kB\nActive(anon):      10240 kB\n\
                       Inactive(anon):    20480 kB\n";
        files.write(&files.proc_root().join("meminfo"), meminfo);
        files.write(
            &files.proc_root().join("loadavg"),
            "0.26 1.75 0.80 1/150 4242\n",
        );
        files.set_cpus(2);
        let pressure = "some avg10=1.50 avg60=0.10 avg300=0.00 total=77\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=5\n";
        files.write(&files.proc_root().join("pressure/memory"), pressure);
        files.write(&files.cgroup().join("memory.pressure"), pressure);
        files.set_usage(100 * MIB);
        files
    }

    pub fn cgroup(&self) -> PathBuf {
        self.folder.path().join("cgroup")
    }

    pub fn proc_root(&self) -> PathBuf {
        self.folder.path().join("proc")
    }

    /// Replaces a file at once, as a reader sees it.
    pub fn write(&self, path: &Path, text: &str) {
        let draft = self.folder.path().join("draft");
        std::fs::write(&draft, text).expect("written");
        std::fs::rename(&draft, path).expect("in its place");
    }

    /// The group's anonymous memory, in bytes.
    pub fn set_usage(&self, bytes: u64) {
        let (active, inactive) = (bytes / 2, bytes - bytes / 2);
        let text = format!(
            "anon {bytes}\nfile 4096\nkernel 1048576\ninactive_anon {inactive}\nactive_anon {active}\ninactive_file 4096\n"
        );
        self.write(&self.cgroup().join("memory.stat"), &text);
    }

    /// Writes a `/proc/stat` with this number of CPUs online.
    pub fn set_cpus(&self, count: u32) {
        let lines: String = (0..count).map(|n| format!("cpu{n} 1 2 3 4\n")).collect();
        let stat = self.proc_root().join("stat");
        self.write(&stat, &format!("cpu  9 9 9 9\n{lines}intr 7\n"));
    }

    /// The machine's memory.
    pub fn set_machine_total(&self, bytes: u64) {
        let meminfo = self.proc_root().join("meminfo");
        let text = std::fs::read_to_string(&meminfo).expect("there");
        let (_, rest) = text.split_once('\n').expect("lines");
        self.write(&meminfo, &format!("MemTotal: {} kB\n{rest}", bytes >> 10));
    }

    pub fn config(&self) -> Config {
        Config {
            addr: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
            metrics_addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            watched: Watched::Cgroup,
            cgroup: Some(self.cgroup()),
            // The real one would tell of this machine.
            cgroup_root: self.cgroup().with_file_name("no-cgroups"),
            proc_root: self.proc_root(),
            hooks: None,
            ..Config::default()
        }
    }
}

/// A running monitor.
pub struct Guest {
    pub files: Files,
    pub addr: SocketAddr,
    pub metrics: SocketAddr,
    pub cancel: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

impl Guest {
    pub async fn start() -> Self {
        let files = Files::new();
        let config = files.config();
        Self::with(files, config).await
    }

    pub async fn with(files: Files, config: Config) -> Self {
        let bound = Bound::bind(&config).await.expect("free ports");
        let addr = bound.monitor.door.address().expect("bound").to_string();
        let addr = addr.parse().expect("TCP");
        let metrics = bound.metrics.as_ref().expect("a free port");
        let metrics = metrics.local_addr().expect("bound");
        let cancel = CancellationToken::new();
        let task = tokio::spawn(vm_monitor::run(config, bound, cancel.clone()));
        Self {
            files,
            addr,
            metrics,
            cancel,
            task,
        }
    }

    /// Ends the monitor; its files are left.
    pub async fn stop(self) -> Files {
        self.cancel.cancel();
        let ended = soon("the monitor ends", self.task).await;
        ended.expect("no panic").expect("no error");
        self.files
    }

    /// A connected agent that has shaken hands.
    pub async fn agent(&self) -> Agent {
        Agent::connect(self.addr).await
    }

    /// A WebSocket that has not shaken hands.
    pub async fn dial(&self) -> Agent {
        Agent::dial(self.addr).await
    }

    /// Body of a page on the metrics port, which must have this status.
    pub async fn page(&self, path: &str, status: u16) -> String {
        let (got, body) = http_get(self.metrics, path).await;
        assert_eq!(got, status, "{path}: {body}");
        body
    }

    /// The state as `/debug/state` shows it, once `is_so`.
    pub async fn state_when(
        &self,
        what: &str,
        is_so: impl Fn(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        soon(what, async {
            loop {
                let text = self.page("/debug/state", 200).await;
                let state = serde_json::from_str(&text).expect("JSON");
                if is_so(&state) {
                    return state;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    /// Lets the group use exactly this, and waits until the window holds nothing else.
    pub async fn settle(&self, bytes: u64) {
        self.files.set_usage(bytes);
        self.five_readings(bytes).await;
    }

    /// Waits until the window holds five readings of exactly this.
    pub async fn five_readings(&self, bytes: u64) {
        let five = serde_json::to_value([protocol::units::Bytes(bytes); 5]).expect("encodes");
        let is_so =
            |state: &serde_json::Value| state["samples"] == five && state["read_failure"].is_null();
        self.state_when("five readings", is_so).await;
    }

    /// Waits until a shrink is approved: before the peak of a moment ago is forgotten it is refused
    /// for that.
    pub async fn shrinks_at_last(&self, agent: &mut Agent, bytes: u64) {
        let approved = async {
            loop {
                if let MonitorBody::DownscaleResult { ok: true, .. } = agent.downscale(bytes).await
                {
                    return;
                }
                self.state_when("the next reading", |_| true).await;
            }
        };
        soon("approved", approved).await;
    }
}

/// Status and body of a plain GET.
pub async fn http_get(addr: SocketAddr, path: &str) -> (u16, String) {
    soon("http", async {
        let line = &format!("GET {path}");
        let text = Request::new(line).ask(addr).await.expect("answered");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        (status.expect("a status"), body.to_owned())
    })
    .await
}

/// The agent's side of a connection.
pub struct Agent {
    pub socket: WebSocketStream<Stream>,
    next_id: u64,
}

impl Agent {
    /// Dials a monitor and shakes hands.
    pub async fn connect(addr: SocketAddr) -> Self {
        Self::dial(addr).await.version_one().await
    }

    /// Offers version 1 alone, and asserts that the monitor agrees to it.
    pub async fn version_one(mut self) -> Self {
        self.send_text(r#"{"min":1,"max":1}"#).await;
        assert_eq!(self.text().await, r#"{"version":1}"#);
        self
    }

    /// Dials a monitor, agrees on version 2 and names capabilities.
    pub async fn connect_v2(addr: SocketAddr, capabilities: Capabilities) -> Self {
        Self::dial(addr).await.version_two(capabilities).await
    }

    /// Agrees on version 2 and names capabilities.
    pub async fn version_two(self, capabilities: Capabilities) -> Self {
        let mut agent = self;
        agent.send_text(r#"{"min":1,"max":2}"#).await;
        assert_eq!(agent.text().await, r#"{"version":2}"#);
        let names = capabilities.names();
        let body = AgentBodyV2::Capabilities { names };
        let id = agent.take_id();
        agent.send_text(&AgentFrameV2 { body, id }.encode()).await;
        let answer = agent.frame_v2().await;
        assert!(
            matches!(answer.body, MonitorBodyV2::Capabilities { .. }),
            "{answer:?}"
        );
        assert_eq!(answer.id, id);
        agent
    }

    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 2;
        id
    }

    pub async fn frame_v2(&mut self) -> MonitorFrameV2 {
        let text = self.text().await;
        MonitorFrameV2::decode(&text).expect("a frame of ours")
    }

    /// The next frame that is so; others are dropped.
    pub async fn frame_where(&mut self, is_so: impl Fn(&MonitorFrameV2) -> bool) -> MonitorBodyV2 {
        loop {
            let frame = self.frame_v2().await;
            if is_so(&frame) {
                return frame.body;
            }
        }
    }

    /// Dials a monitor.
    pub async fn dial(addr: SocketAddr) -> Self {
        let stream = soon("connect", TcpStream::connect(addr)).await;
        let stream = stream.expect("connected");
        Self::over(Box::new(stream)).await.expect("upgraded")
    }

    /// Upgrades a connection to a WebSocket.
    pub async fn over(stream: Stream) -> Result<Self, Error> {
        Self::over_with(stream, None).await
    }

    /// Dials a monitor and shows a value of `Authorization`.
    pub async fn dial_with(addr: SocketAddr, shown: Option<&str>) -> Result<Self, Error> {
        let stream = soon("connect", TcpStream::connect(addr)).await;
        Self::over_with(Box::new(stream.expect("connected")), shown).await
    }

    async fn over_with(stream: Stream, shown: Option<&str>) -> Result<Self, Error> {
        let mut request = "ws://guest/monitor".into_client_request()?;
        if let Some(shown) = shown {
            let shown = shown.parse().expect("a header");
            request.headers_mut().insert("authorization", shown);
        }
        let dialled = soon("upgrade", client_async(request, stream)).await;
        let (socket, response) = dialled?;
        assert_eq!(response.status(), 101);
        Ok(Self { socket, next_id: 2 })
    }

    pub async fn send(&mut self, message: Message) {
        soon("send", self.socket.send(message)).await.expect("sent");
    }

    pub async fn send_text(&mut self, text: &str) {
        self.send(Message::text(text)).await;
    }

    /// Sends a request under the next even id, which it returns.
    pub async fn ask(&mut self, body: AgentBody) -> u64 {
        let id = self.take_id();
        self.send_text(&AgentFrame { body, id }.encode()).await;
        id
    }

    /// The next text frame.
    pub async fn text(&mut self) -> String {
        loop {
            match soon("a frame", self.socket.next()).await {
                Some(Ok(Message::Text(text))) => return text.as_str().to_owned(),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                other => panic!("no text frame: {other:?}"),
            }
        }
    }

    pub async fn frame(&mut self) -> MonitorFrame {
        let text = self.text().await;
        assert!(text.len() < 2048, "answers are short: {text}");
        MonitorFrame::decode(&text).expect("a frame of ours")
    }

    /// Asks, and takes the answer under that id; requests of the monitor's own in between are
    /// dropped.
    pub async fn call(&mut self, body: AgentBody) -> MonitorBody {
        let id = self.ask(body).await;
        loop {
            let frame = self.frame().await;
            if frame.body != MonitorBody::UpscaleRequest {
                assert_eq!(frame.id, id, "{frame:?}");
                return frame.body;
            }
        }
    }

    pub async fn downscale(&mut self, mem: u64) -> MonitorBody {
        let target = Allocation { cpu: 0.25, mem };
        self.call(AgentBody::DownscaleRequest { target }).await
    }

    pub async fn upscale(&mut self, mem: u64) -> MonitorBody {
        let granted = Allocation { cpu: 2.0, mem };
        self.call(AgentBody::UpscaleNotification { granted }).await
    }

    pub async fn is_alive(&mut self) -> bool {
        self.call(AgentBody::HealthCheck).await == MonitorBody::HealthCheck
    }

    /// Reads to the end of the connection; the close frame, if one came.
    pub async fn closed(&mut self) -> Option<CloseFrame> {
        loop {
            match soon("the end", self.socket.next()).await {
                Some(Ok(Message::Close(frame))) => return frame,
                Some(Ok(_)) => {}
                Some(Err(Error::ConnectionClosed | Error::AlreadyClosed)) | None => return None,
                Some(Err(error)) => panic!("{error}"),
            }
        }
    }
}
