//! Tests of the limits with real sockets.

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::http::Limits;
use super::*;

const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
/// Longer than any wait of a passing test on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

struct Fixture {
    address: SocketAddr,
    counters: ServerCounters,
    /// Lets `/late` respond.
    release: Arc<Notify>,
    cancel: CancellationToken,
    server: JoinHandle<()>,
}

async fn fixture(total: usize, when_full: WhenFull) -> Fixture {
    let release = Arc::new(Notify::new());
    let late = Arc::clone(&release);
    let routes = Router::new()
        .route("/", get(async || "ok"))
        .route("/", post(async |body: String| body))
        .route(
            "/late",
            get(async move || {
                late.notified().await;
                "late"
            }),
        );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("has an address");
    let (counters, cancel) = (ServerCounters::unregistered(), CancellationToken::new());
    let bounds = Bounds {
        total,
        per_peer: total,
        when_full,
    };
    let server = http::serve(
        listener,
        routes,
        (bounds, Limits::PAGES),
        counters.clone(),
        cancel.clone(),
    );
    Fixture {
        address,
        counters,
        release,
        cancel,
        server: tokio::spawn(server),
    }
}

impl Fixture {
    /// A connection that has sent `said`.
    async fn connection(&self, said: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("connects");
        stream.write_all(said.as_bytes()).await.expect("writes");
        stream
    }

    /// Waits until this number of connections was closed for `reason`.
    async fn until_closed(&self, reason: Reason, count: u64) {
        let wait = async {
            while self.counters.count(reason) < count {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(LIMIT, wait).await.expect("closed in time");
    }

    async fn stop(self) {
        self.cancel.cancel();
        let stopped = timeout(LIMIT, self.server).await;
        stopped.expect("in time").expect("no panic");
    }
}

async fn answer(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    while !text.ends_with("ok") && !text.ends_with("late") {
        let byte = timeout(LIMIT, stream.read_u8()).await.expect("in time");
        match byte {
            Ok(byte) => text.push(char::from(byte)),
            Err(_) => break,
        }
    }
    text
}

#[tokio::test]
async fn idle_and_half_open_connections_exclude_no_peer() {
    let fixture = fixture(4, WhenFull::CloseIdlest).await;
    let mut idle = Vec::new();
    for n in 0..12 {
        let half = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf";
        let said = ["", "GET / HT", half][n % 3];
        idle.push(fixture.connection(said).await);
    }
    fixture.until_closed(Reason::Peer, 8).await;
    let mut honest = fixture.connection(GET).await;
    assert!(answer(&mut honest).await.starts_with("HTTP/1.1 200"));
    let mut ended = Vec::new();
    timeout(LIMIT, idle[0].read_to_end(&mut ended))
        .await
        .expect("the longest idle connection is closed")
        .ok();
    fixture.stop().await;
}

#[tokio::test]
async fn request_in_progress_is_never_cut_off() {
    let fixture = fixture(2, WhenFull::CloseIdlest).await;
    let late = "GET /late HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut first = fixture.connection(late).await;
    let mut second = fixture.connection(late).await;
    // The server may read the requests only after the first connections of the flood.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for _ in 0..10 {
        drop(fixture.connection(GET).await);
    }
    fixture.until_closed(Reason::Peer, 10).await;
    fixture.release.notify_waiters();
    assert!(answer(&mut first).await.ends_with("late"));
    assert!(answer(&mut second).await.ends_with("late"));
    fixture.stop().await;
}

#[tokio::test]
async fn full_server_that_waits_closes_no_connection() {
    let fixture = fixture(2, WhenFull::Wait).await;
    let mut open = vec![fixture.connection(GET).await, fixture.connection(GET).await];
    for stream in &mut open {
        assert!(answer(stream).await.starts_with("HTTP/1.1 200"));
    }
    let mut waits = fixture.connection(GET).await;
    let early = timeout(Duration::from_millis(200), waits.read_u8()).await;
    assert!(early.is_err(), "{early:?}");
    let first = &mut open[0];
    first.write_all(GET.as_bytes()).await.expect("writes");
    assert!(answer(first).await.starts_with("HTTP/1.1 200"));
    drop(open.pop());
    assert!(answer(&mut waits).await.starts_with("HTTP/1.1 200"));
    assert_eq!(fixture.counters.count(Reason::Capacity), 0);
    fixture.stop().await;
}

#[tokio::test]
async fn connection_is_closed_for_another_one_when_descriptors_run_out() {
    let bounds = Bounds {
        total: 9,
        per_peer: 9,
        when_full: WhenFull::CloseIdlest,
    };
    let open = Arc::new(OpenConnections::new(bounds, ServerCounters::unregistered()));
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    let [idle, busy] = [(); 2].map(|()| open.admit(peer, None).expect("a place"));
    let _request = busy.request();
    let error = std::io::Error::from_raw_os_error(nix::errno::Errno::EMFILE as i32);
    open.accept_failed(&error).await;
    assert!(idle.0.closing.is_cancelled());
    open.accept_failed(&error).await;
    assert!(!busy.0.closing.is_cancelled());
    assert_eq!(open.counters.count(Reason::Descriptors), 1);
}
