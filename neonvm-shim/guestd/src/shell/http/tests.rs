use std::net::SocketAddr;

use protocol::units::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::time::{Instant, sleep};

use super::*;

const QUIET: Duration = Duration::from_millis(25);
const BLOCK: Duration = Duration::from_millis(10);

fn machine(cpus_online: u32, generation: u64) -> GuestState {
    GuestState {
        generation,
        cpus_online,
        cpus_present: 4,
        cpus_possible: 4,
        mem_total: Bytes(generation << 27),
        mem_available: Bytes(0),
        boot_id: String::new(),
        kernel: String::new(),
        uptime_s: 0,
        programs: Vec::new(),
        parts: protocol::parts::PartStates::new(),
    }
}

/// Delay in ms and generation of the response to a long-poll after generation 1. A block of
/// memory arrives every 10 ms until there are `blocks`; a second CPU arrives with block
/// `cpu_at`.
async fn answered(blocks: u64, cpu_at: Option<u64>, quiet: Duration) -> (u128, u64) {
    let (tx, rx) = watch::channel(machine(1, 1));
    let began = Instant::now();
    let question = tokio::spawn(async move {
        wait_for_change(rx.clone(), 1, quiet).await;
        let generation = rx.borrow().generation;
        (began.elapsed().as_millis(), generation)
    });
    for block in 1..=blocks {
        sleep(BLOCK).await;
        let cpus = 1 + u32::from(cpu_at.is_some_and(|at| block >= at));
        tx.send_replace(machine(cpus, 1 + block));
        if question.is_finished() {
            break;
        }
    }
    question.await.expect("no panic")
}

/// Status for a program of this machine that connects to `host` from `from`.
async fn status_of(at: SocketAddr, host: &str, from: &str) -> String {
    let socket = TcpSocket::new_v4().expect("a socket");
    let from = SocketAddr::new(from.parse().expect("an address"), 0);
    socket.bind(from).expect("an address of this machine");
    let there = SocketAddr::new(host.parse().expect("an address"), at.port());
    let mut stream = socket.connect(there).await.expect("somebody listens");
    let body = r#"{"authorized_keys":{"data":"bWluZQ=="}}"#;
    let length = body.len();
    let request = format!("PUT /files/mnt/ssh HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
    // The server may close the connection before the request.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test]
async fn programs_of_the_guest_are_refused() {
    let root = tempfile::tempdir().expect("a directory");
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let at = listener.local_addr().expect("bound");
    let (_tx, state) = watch::channel(machine(1, 1));
    let served = Served {
        state,
        keeper: mpsc::channel(1).0,
        files_root: root.path().to_owned(),
        overlay: None,
        runtime: Runtime::new(root.path().join("no-drive")),
        parts: Arc::new(crate::shell::parts::tests::parts(root.path())),
        notice: Notice::new(root.path().join("notice")),
        now: || WallTime(0),
    };
    let cancel = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, Arc::new(served), cancel.clone()));
    for (host, from) in [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.2"),
        ("127.1.2.3", "127.1.2.3"),
    ] {
        assert_eq!(status_of(at, host, from).await, "", "{host} from {from}");
    }
    let left = std::fs::read_dir(root.path()).expect("readable").count();
    assert_eq!(left, 0, "nothing is written");
    cancel.cancel();
    serving.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn memory_that_grows_in_blocks_is_reported_once() {
    assert_eq!(answered(8, None, QUIET).await, (80 + 25, 9));
    assert_eq!(
        answered(1, None, Duration::ZERO).await,
        (10, 2),
        "who does not ask for quiet gets the first"
    );
}

#[tokio::test(start_paused = true)]
async fn cpu_is_reported_at_once() {
    assert_eq!(answered(1, Some(1), QUIET).await, (10, 2));
    assert_eq!(answered(3, Some(3), QUIET).await, (30, 4));
}

#[tokio::test(start_paused = true)]
async fn memory_that_never_rests_is_reported_in_time() {
    let (after_ms, _) = answered(100, None, QUIET).await;
    assert_eq!(after_ms, 10 + 250);
}

#[tokio::test(start_paused = true)]
async fn missed_change_is_reported_at_once() {
    let (_tx, rx) = watch::channel(machine(1, 5));
    let began = Instant::now();
    wait_for_change(rx, 4, QUIET).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
}
