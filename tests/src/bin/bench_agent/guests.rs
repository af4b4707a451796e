//! The guests of many VMs in one process. Each has a metrics endpoint and a monitor at its own
//! loopback address.
//!
//! A guest reports the load that it is set to, approves every shrink, and records when a load was
//! first read.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use futures::{SinkExt as _, StreamExt as _};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::tungstenite::Message;

/// Ports inside a guest, as the agent's shipped configuration has them.
pub(super) const METRICS_PORT: u16 = 9100;
pub(super) const MONITOR_PORT: u16 = 10301;
/// Samples on a page, about as many as the exporter of a small guest shows.
const PAGE_SAMPLES: usize = 120;
/// Memory of a page, bytes: all, available, file cache. So little is used that load alone decides.
const MEMORY: [u64; 3] = [8 << 30, (8 << 30) - (200 << 20), 100 << 20];
/// Differences between two readings of an idle guest, which change no decision.
const NOISE: f64 = 0.01;
const NOISE_STEPS: usize = 7;

/// Address of VM `n` in the block `127.block.0.0/16`.
pub(super) fn address(block: u8, n: usize) -> IpAddr {
    let part = |value: usize| u8::try_from(value).unwrap_or(u8::MAX);
    Ipv4Addr::new(127, block, part(1 + n / 200), part(1 + n % 200)).into()
}

/// Behaviour of a guest towards its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Temper {
    /// Follows the protocol.
    Honest,
    /// Its monitor sends growth requests without pause.
    Floods,
    /// Its monitor accepts connections and never answers.
    Stalls,
    /// Its monitor breaks the protocol after the connection.
    Lies,
}

struct Guest {
    /// Load average shown, bits of an `f64`.
    load: AtomicU64,
    is_noisy: AtomicBool,
    /// Time of the first read of the current load.
    first_read: Mutex<Option<Instant>>,
    reads: AtomicUsize,
    /// Wishes for the monitor to send, counted.
    wishes: watch::Sender<u64>,
    temper: watch::Sender<Temper>,
    is_connected: AtomicBool,
    approvals: AtomicUsize,
}

#[derive(Clone)]
pub(super) struct Guests {
    all: Arc<Vec<Arc<Guest>>>,
    filler: Arc<str>,
}

impl Guests {
    /// Serves `count` guests.
    pub(super) async fn start(block: u8, count: usize) -> Result<Self> {
        let guest = |_| {
            Arc::new(Guest {
                load: AtomicU64::new(0),
                is_noisy: AtomicBool::new(true),
                first_read: Mutex::new(None),
                reads: AtomicUsize::new(0),
                wishes: watch::channel(0).0,
                temper: watch::channel(Temper::Honest).0,
                is_connected: AtomicBool::new(false),
                approvals: AtomicUsize::new(0),
            })
        };
        let guests = Self {
            all: Arc::new((0..count).map(guest).collect()),
            filler: filler().into(),
        };
        for (n, guest) in guests.all.iter().enumerate() {
            let ip = address(block, n);
            let listen = async |port| {
                let address = SocketAddr::new(ip, port);
                let bound = TcpListener::bind(address).await;
                bound.with_context(|| format!("cannot listen on {address}"))
            };
            let (metrics, monitor) = (listen(METRICS_PORT).await?, listen(MONITOR_PORT).await?);
            tokio::spawn(serve_metrics(
                metrics,
                Arc::clone(guest),
                Arc::clone(&guests.filler),
            ));
            tokio::spawn(serve_monitor(monitor, Arc::clone(guest)));
        }
        Ok(guests)
    }

    /// Shows another load from now on.
    pub(super) fn set_load(&self, n: usize, load: f64, is_noisy: bool) {
        let guest = &self.all[n];
        guest.load.store(load.to_bits(), Ordering::SeqCst);
        guest.is_noisy.store(is_noisy, Ordering::SeqCst);
        *lock(&guest.first_read) = None;
    }

    /// Time of the first read of the current load.
    pub(super) fn first_read(&self, n: usize) -> Option<Instant> {
        *lock(&self.all[n].first_read)
    }

    /// Has a monitor request growth.
    pub(super) fn wish(&self, n: usize) {
        self.all[n].wishes.send_modify(|count| *count += 1);
    }

    /// Changes how a guest treats its agent; an open connection to its monitor ends.
    pub(super) fn turn(&self, n: usize, temper: Temper) {
        self.all[n].temper.send_replace(temper);
    }

    /// Number of guests with an agent on both endpoints.
    pub(super) fn attended(&self) -> usize {
        let is_attended = |guest: &&Arc<Guest>| {
            guest.is_connected.load(Ordering::SeqCst) && guest.reads.load(Ordering::SeqCst) > 0
        };
        self.all.iter().filter(is_attended).count()
    }

    /// Number of approved shrinks.
    pub(super) fn approvals(&self) -> usize {
        let of = |guest: &Arc<Guest>| guest.approvals.load(Ordering::SeqCst);
        self.all.iter().map(of).sum()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything on a page that an agent does not want.
fn filler() -> String {
    let mut page = String::new();
    for n in 0..(PAGE_SAMPLES - 5) / 5 {
        page.push_str(&format!("# HELP host_disk_{n}_total Bytes of a device.\n"));
        page.push_str(&format!("# TYPE host_disk_{n}_total counter\n"));
        for device in ["vda", "vdb", "vdc", "vdd", "vde"] {
            page.push_str(&format!(
                "host_disk_{n}_total{{device=\"{device}\",collector=\"disk\",host=\"guest\"}} {}\n",
                n * 1_234_567
            ));
        }
    }
    page
}

async fn serve_metrics(listener: TcpListener, guest: Arc<Guest>, filler: Arc<str>) {
    while let Ok((stream, _)) = listener.accept().await {
        // A failure only makes the connection slower.
        let _ = stream.set_nodelay(true);
        let (guest, filler) = (Arc::clone(&guest), Arc::clone(&filler));
        let service = hyper::service::service_fn(move |_: Request<hyper::body::Incoming>| {
            let page = guest.page(&filler);
            async move { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(page)))) }
        });
        tokio::spawn(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

impl Guest {
    fn page(&self, filler: &str) -> String {
        let read = self.reads.fetch_add(1, Ordering::SeqCst);
        let mut load = f64::from_bits(self.load.load(Ordering::SeqCst));
        if self.is_noisy.load(Ordering::SeqCst) {
            let step = u8::try_from(read % NOISE_STEPS).unwrap_or(0);
            load += NOISE * f64::from(step);
        }
        let mut page = filler.to_owned();
        let [total, available, cached] = MEMORY;
        for (name, value) in [
            ("host_load1", load),
            ("host_load5", load),
            ("host_memory_total_bytes", as_f64(total)),
            ("host_memory_available_bytes", as_f64(available)),
            ("host_memory_cached_bytes", as_f64(cached)),
        ] {
            page.push_str(&format!("# TYPE {name} gauge\n{name} {value}\n"));
        }
        lock(&self.first_read).get_or_insert_with(Instant::now);
        page
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^53")]
const fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}

async fn serve_monitor(listener: TcpListener, guest: Arc<Guest>) {
    while let Ok((stream, _)) = listener.accept().await {
        let guest = Arc::clone(&guest);
        tokio::spawn(async move {
            // The agent connects again if this one fails; that many fail shows in `attended`.
            let _ = attend(stream, &guest).await;
            guest.is_connected.store(false, Ordering::SeqCst);
        });
    }
}

/// One connection of the monitor protocol, version 1.
async fn attend(stream: TcpStream, guest: &Guest) -> Result<()> {
    stream.set_nodelay(true)?;
    let socket = tokio_tungstenite::accept_async(stream).await?;
    let (mut sink, mut frames) = socket.split();
    let range = frames.next().await.context("closed")??;
    let range: Value = serde_json::from_str(range.to_text()?)?;
    if range["min"] != 1 {
        bail!("handshake: {range}");
    }
    sink.send(Message::text(r#"{"version":1}"#)).await?;
    let (out, mut replies) = mpsc::channel::<Value>(16);
    let (mut wishes, mut temper) = (guest.wishes.subscribe(), guest.temper.subscribe());
    guest.is_connected.store(true, Ordering::SeqCst);
    let is = *temper.borrow_and_update();
    match is {
        Temper::Honest => {}
        Temper::Floods => {
            let wish = json!({ "type": "UpscaleRequest", "id": 1 }).to_string();
            loop {
                sink.feed(Message::text(wish.clone())).await?;
            }
        }
        Temper::Stalls => while frames.next().await.is_some_and(|frame| frame.is_ok()) {},
        Temper::Lies => {
            sink.send(Message::text(r#"{"type":"DownscaleResult","id":2}"#))
                .await?
        }
    }
    let mut next_id = 1_u64;
    loop {
        tokio::select! {
            frame = frames.next() => {
                let Message::Text(text) = frame.context("closed")?? else { continue };
                if let Some(reply) = guest.reply(&serde_json::from_str(text.as_str())?) {
                    out.send(reply).await?;
                }
            }
            Some(reply) = replies.recv() => sink.send(Message::text(reply.to_string())).await?,
            Ok(()) = temper.changed() => bail!("the guest is of another temper now"),
            Ok(()) = wishes.changed() => {
                let wish = json!({ "type": "UpscaleRequest", "id": next_id });
                next_id += 2;
                sink.send(Message::text(wish.to_string())).await?;
            }
        }
    }
}

impl Guest {
    fn reply(&self, request: &Value) -> Option<Value> {
        let id = &request["id"];
        match request["type"].as_str()? {
            "DownscaleRequest" => {
                self.approvals.fetch_add(1, Ordering::SeqCst);
                Some(json!({ "type": "DownscaleResult", "Ok": true, "Status": "", "id": id }))
            }
            "UpscaleNotification" => Some(json!({ "type": "UpscaleConfirmation", "id": id })),
            "HealthCheck" => Some(json!({ "type": "HealthCheck", "id": id })),
            _ => None,
        }
    }
}
