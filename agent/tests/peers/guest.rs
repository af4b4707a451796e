//! A guest: a metrics page, written by hand so that it can misbehave, and a monitor on a WebSocket.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use futures::{SinkExt, StreamExt};
use protocol::monitor::{AgentBody, AgentFrame, Allocation, MonitorBody, MonitorFrame};
use protocol::monitor_v2::{
    AgentBodyV2, AgentFrameV2, MonitorBodyV2, MonitorFrameV2, RefusalReason, Refused,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::{Seen, Trace};

/// What the metrics page is like.
#[derive(Debug, Clone, PartialEq)]
pub enum Page {
    /// Load and memory in use, GiB of 4.
    Good(f64, f64),
    /// Accepts and says nothing.
    Silent,
    Text(String),
    /// Lines without end.
    Endless,
    /// A body announced as this long; lines are sent until the other side has had enough.
    Long(u64),
    /// This instead of a response.
    Raw(Vec<u8>),
    /// A good page of which the last part never comes, over a connection whose writing side is
    /// closed.
    HalfClosed,
    Unavailable,
}

impl Page {
    pub fn text(load: f64, gib: f64) -> String {
        let total = 4.0 * 1_073_741_824.0;
        let available = total - gib * 1_073_741_824.0 + 104_857_600.0;
        let gauge = |name: &str, value: f64| format!("# TYPE {name} gauge\n{name} {value}\n");
        [
            ("host_load1", load),
            ("host_load5", load),
            ("host_memory_total_bytes", total),
            ("host_memory_available_bytes", available.min(total)),
            ("host_memory_cached_bytes", 0.0),
        ]
        .map(|(name, value)| gauge(name, value))
        .concat()
    }
}

/// Text in place of which the connection is closed with the code 1012.
const RESTART: &str = "(restart)";

/// How the monitor behaves.
#[derive(Debug, Clone, Default)]
pub struct Manners {
    /// Refuses every shrink.
    pub refuses: Arc<AtomicBool>,
    /// Reads and never answers.
    pub is_mute: Arc<AtomicBool>,
    /// Answers every call with a health check's answer.
    pub confuses: Arc<AtomicBool>,
    /// Sends wishes without pause, and reads nothing.
    pub floods: Arc<AtomicBool>,
    /// Speaks version 2.
    pub speaks_v2: Arc<AtomicBool>,
    /// In version 2: confirms a growth with what was granted, as seen in the guest.
    pub observes: Arc<AtomicBool>,
    /// In version 2: refuses to have less memory than this, and says so.
    pub smallest_gib: Arc<Mutex<Option<u64>>>,
    /// Speaks TLS, by this.
    pub tls: Arc<Mutex<Option<Arc<rustls::ServerConfig>>>>,
    /// What a caller's `Authorization` has to be.
    pub authorization: Arc<Mutex<Option<String>>>,
    /// Answers the version range with this instead of the right thing.
    pub greeting: Arc<Mutex<Option<String>>>,
}

#[derive(Clone)]
pub struct Guest {
    pub ip: IpAddr,
    pub metrics_port: u16,
    pub monitor_port: u16,
    pub manners: Manners,
    page: Arc<Mutex<Page>>,
    words: broadcast::Sender<String>,
    connections: Arc<AtomicU32>,
    trace: Trace,
}

impl Guest {
    pub async fn start(trace: Trace, ip: IpAddr) -> Self {
        Self::start_at(trace, ip, [0, 0]).await
    }

    /// One with these ports: of its page, of its monitor.
    pub async fn start_at(trace: Trace, ip: IpAddr, [metrics, monitor]: [u16; 2]) -> Self {
        let metrics = TcpListener::bind((ip, metrics)).await.expect("binds");
        let monitor = TcpListener::bind((ip, monitor)).await.expect("binds");
        let guest = Self {
            ip,
            metrics_port: metrics.local_addr().expect("has an address").port(),
            monitor_port: monitor.local_addr().expect("has an address").port(),
            manners: Manners::default(),
            page: Arc::new(Mutex::new(Page::Good(0.0, 0.0))),
            words: broadcast::channel(16).0,
            connections: Arc::default(),
            trace,
        };
        let (pages, words) = (guest.clone(), guest.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = metrics.accept().await {
                tokio::spawn(pages.clone().serve_page(stream));
            }
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = monitor.accept().await {
                tokio::spawn(words.clone().accept_monitor(stream));
            }
        });
        guest
    }

    pub fn set(&self, page: Page) {
        *self.page.lock().expect("no test panics here") = page;
    }

    /// Says something to whoever is connected.
    pub fn say(&self, frame: &MonitorFrame) {
        self.say_raw(&frame.encode());
    }

    /// Closes the connection as a monitor that changes its program does.
    pub fn restart(&self) {
        self.say_raw(RESTART);
    }

    pub fn say_raw(&self, text: &str) {
        self.words
            .send(text.to_owned())
            .expect("an agent is connected");
    }

    async fn serve_page(self, mut stream: TcpStream) {
        let mut request = vec![0_u8; 4096];
        loop {
            match stream.read(&mut request).await {
                Ok(n) if n > 0 => {}
                _ => return,
            }
            self.trace.push(Seen::Scrape);
            let page = self.page.lock().expect("no test panics here").clone();
            let body = match page {
                Page::Good(load, gib) => Page::text(load, gib),
                Page::Text(text) => text,
                Page::Unavailable => {
                    let answer = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
                    let _ = stream.write_all(answer.as_bytes()).await;
                    continue;
                }
                Page::Silent => {
                    // Until the other side gives up.
                    while matches!(stream.read(&mut request).await, Ok(n) if n > 0) {}
                    return;
                }
                Page::Raw(bytes) => {
                    let _ = stream.write_all(&bytes).await;
                    return;
                }
                Page::HalfClosed => {
                    let page = Page::text(9.0, 3.0);
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", page.len());
                    let part = &page.as_bytes()[..page.len() - 5];
                    let _ = stream.write_all(&[head.as_bytes(), part].concat()).await;
                    let _ = stream.shutdown().await;
                    while matches!(stream.read(&mut request).await, Ok(n) if n > 0) {}
                    return;
                }
                page @ (Page::Endless | Page::Long(_)) => {
                    let head = match page {
                        Page::Long(length) => {
                            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n")
                        }
                        _ => "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
                    };
                    let mut written = stream.write_all(head.as_bytes()).await;
                    while written.is_ok() {
                        written = stream.write_all(b"host_noise 1\n").await;
                    }
                    return;
                }
            };
            let length = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    async fn accept_monitor(self, stream: TcpStream) {
        let tls = self
            .manners
            .tls
            .lock()
            .expect("no test panics here")
            .clone();
        match tls {
            None => self.serve_monitor(stream).await,
            Some(config) => match TlsAcceptor::from(config).accept(stream).await {
                Ok(stream) => self.serve_monitor(stream).await,
                Err(error) => self.trace.push(Seen::NoTls(error.to_string())),
            },
        }
    }

    #[expect(
        clippy::result_large_err,
        reason = "the type of the WebSocket library's callback"
    )]
    async fn serve_monitor(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let wanted = self.manners.authorization.lock();
        let wanted = wanted.expect("no test panics here").clone();
        let admit = |request: &Request, response: Response| {
            let shown = request.headers().get("authorization");
            if wanted.is_none() || shown.and_then(|shown| shown.to_str().ok()) == wanted.as_deref()
            {
                return Ok(response);
            }
            self.trace.push(Seen::Refused);
            let mut refused = ErrorResponse::new(None);
            *refused.status_mut() = StatusCode::UNAUTHORIZED;
            Err(refused)
        };
        let Ok(mut socket) = tokio_tungstenite::accept_hdr_async(stream, admit).await else {
            return;
        };
        let Some(Ok(Message::Text(range))) = socket.next().await else {
            return;
        };
        assert_eq!(range.as_str(), r#"{"min":1,"max":2}"#);
        let greeting = self
            .manners
            .greeting
            .lock()
            .expect("no test panics here")
            .clone();
        if let Some(greeting) = greeting {
            self.trace.push(Seen::Refused);
            let _ = socket.send(Message::text(greeting)).await;
            // The agent closes, with the code for a broken protocol.
            while let Some(Ok(message)) = socket.next().await {
                if let Message::Close(Some(frame)) = message {
                    assert_eq!(u16::from(frame.code), 1002);
                }
            }
            return;
        }
        let version = if self.manners.speaks_v2.load(Ordering::Relaxed) {
            r#"{"version":2}"#
        } else {
            r#"{"version":1}"#
        };
        if socket.send(Message::text(version)).await.is_err() {
            return;
        }
        let mut words = self.words.subscribe();
        let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        self.trace.push(Seen::Connected(number));
        if self.manners.floods.load(Ordering::Relaxed) {
            return flood(socket).await;
        }
        loop {
            let out = tokio::select! {
                word = words.recv() => word.ok(),
                message = socket.next() => match message {
                    Some(Ok(Message::Text(text))) => self.heard(&text),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => None,
                    _ => return,
                },
            };
            if out.as_deref() == Some(RESTART) {
                let frame = CloseFrame {
                    code: CloseCode::Restart,
                    reason: "".into(),
                };
                let _ = socket.close(Some(frame)).await;
                return;
            }
            if let Some(text) = out
                && socket.send(Message::text(text)).await.is_err()
            {
                return;
            }
        }
    }

    /// Notes a frame of the agent and says what to answer.
    fn heard(&self, text: &str) -> Option<String> {
        if self.manners.speaks_v2.load(Ordering::Relaxed)
            && let Ok(AgentFrameV2 {
                body: AgentBodyV2::Capabilities { names },
                id,
            }) = AgentFrameV2::decode(text)
        {
            self.trace.push(Seen::Capabilities(id, names.clone()));
            let body = MonitorBodyV2::Capabilities { names };
            return Some(MonitorFrameV2 { body, id }.encode());
        }
        if let Ok(AgentFrameV2 {
            body: AgentBodyV2::Schedule(schedule),
            id,
        }) = AgentFrameV2::decode(text)
        {
            self.trace.push(Seen::Schedule(id, schedule.spec));
            return None;
        }
        let AgentFrame { body, id } = AgentFrame::decode(text).expect("the agent's frames decode");
        if let Some(body) = self.details(&body) {
            return Some(MonitorFrameV2 { body, id }.encode());
        }
        let answer = match body {
            AgentBody::HealthCheck => {
                self.trace.push(Seen::HealthCheck);
                MonitorBody::HealthCheck
            }
            AgentBody::UpscaleNotification { granted } => {
                self.trace.push(Seen::Granted(granted));
                MonitorBody::UpscaleConfirmation
            }
            AgentBody::DownscaleRequest { target } => {
                self.trace.push(Seen::AskedToShrink(target));
                let ok = !self.manners.refuses.load(Ordering::Relaxed);
                MonitorBody::DownscaleResult {
                    ok,
                    status: "as told".into(),
                }
            }
            AgentBody::InvalidMessage { error } | AgentBody::InternalError { error } => {
                self.trace.push(Seen::Complaint(error));
                return None;
            }
        };
        assert_eq!(id % 2, 0, "the agent's ids are even");
        if self.manners.is_mute.load(Ordering::Relaxed) {
            return None;
        }
        let body = if self.manners.confuses.load(Ordering::Relaxed) {
            MonitorBody::HealthCheck
        } else {
            answer
        };
        Some(MonitorFrame { body, id }.encode())
    }

    /// An answer that only version 2 has.
    fn details(&self, body: &AgentBody) -> Option<MonitorBodyV2> {
        match body {
            AgentBody::UpscaleNotification { granted }
                if self.manners.observes.load(Ordering::Relaxed) =>
            {
                self.trace.push(Seen::Granted(*granted));
                let observed = *granted;
                Some(MonitorBodyV2::Confirmed { observed })
            }
            AgentBody::DownscaleRequest { target } => {
                let gib = (*self
                    .manners
                    .smallest_gib
                    .lock()
                    .expect("no test panics here"))?;
                let smallest = Allocation {
                    cpu: target.cpu,
                    mem: gib << 30,
                };
                (target.mem < smallest.mem).then(|| {
                    self.trace.push(Seen::AskedToShrink(*target));
                    MonitorBodyV2::Refused(Refused {
                        status: "in use".into(),
                        reason: RefusalReason::InUse,
                        smallest: Some(smallest),
                        again: None,
                    })
                })
            }
            _ => None,
        }
    }
}

/// Sends wishes until the other side has had enough.
async fn flood<S: AsyncRead + AsyncWrite + Unpin>(mut socket: WebSocketStream<S>) {
    let frame = MonitorFrame {
        body: MonitorBody::UpscaleRequest,
        id: 1,
    };
    let wish = frame.encode();
    while socket.feed(Message::text(wish.clone())).await.is_ok() {}
}
