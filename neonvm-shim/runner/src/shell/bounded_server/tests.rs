use std::net::SocketAddr;
use std::path::Path;

use axum::Extension;
use axum::routing::get;
use protocol::runner::ORDERS_NAME;
use test_authority::Authority;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

/// Longer than any wait of a passing test.
const LIMIT: Duration = Duration::from_secs(600);
/// A request on a connection that stays open.
const KEPT: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

/// A server of these routes with short timeouts, with TLS by the certificate beside a token.
async fn serves(routes: Router, token: Option<&Path>) -> SocketAddr {
    let bounds = Bounds {
        patience: Duration::from_millis(50),
        authenticated_idle: LIMIT,
        ..Bounds::DEPLOYED
    };
    serves_within(bounds, routes, token).await
}

async fn serves_within(bounds: Bounds, routes: Router, token: Option<&Path>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (acceptor, cancel) = (TlsAcceptor::new(token), CancellationToken::new());
    tokio::spawn(serve(listener, acceptor, routes, bounds, cancel));
    at
}

fn page() -> Router {
    Router::new().route("/", get(async || "here"))
}

/// Sends `bytes` and nothing else, and returns the whole response until the server closes the
/// connection.
async fn until_hung_up_on(at: SocketAddr, words: &[u8]) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(words).await.unwrap();
    let mut said = String::new();
    let ended = timeout(LIMIT, stream.read_to_string(&mut said)).await;
    // With unread bytes the connection is reset instead of closed.
    let _ = ended.expect("hung up on");
    said
}

#[tokio::test]
async fn unfinished_request_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new("ours");
    ours.signs(ORDERS_NAME).put(dir.path(), "tls");
    let token = dir.path().join("token");
    for token in [None, Some(token.as_path())] {
        let at = serves(page(), token).await;
        for begun in ["", "G", "GET / HTTP/1.1\r\nHost: x\r\n"] {
            assert_eq!(
                until_hung_up_on(at, begun.as_bytes()).await,
                "",
                "{begun:?}"
            );
        }
        for next in ["", "G"] {
            let words = format!("{KEPT}{KEPT}{next}");
            let said = until_hung_up_on(at, words.as_bytes()).await;
            assert_eq!(said.matches("here").count(), 2, "{said}");
        }
    }
    // A handshake record without its content.
    let at = serves(page(), Some(&token)).await;
    let begun = [0x16, 3, 1, 2, 0];
    assert_eq!(until_hung_up_on(at, &begun).await, "");
}

#[tokio::test]
async fn request_in_progress_outlives_the_idle_timeout() {
    let (answer, due) = watch::channel(false);
    let late = async move || {
        let _ = due.clone().wait_for(|due| *due).await;
        "late"
    };
    let at = serves(page().route("/late", get(late)), None).await;
    let mut waits = TcpStream::connect(at).await.unwrap();
    let question = b"GET /late HTTP/1.0\r\n\r\n";
    waits.write_all(question).await.unwrap();
    // One after the other, each for the idle timeout.
    for _ in 0..3 {
        until_hung_up_on(at, b"G").await;
    }
    answer.send_replace(true);
    let mut said = String::new();
    waits.read_to_string(&mut said).await.unwrap();
    assert!(said.ends_with("late"), "{said}");
}

/// Routes of which `/known` authenticates its connection.
fn with_known() -> Router {
    let known = async |Extension(accepted): Extension<Accepted>| {
        accepted.authenticate();
        "here"
    };
    page().route("/known", get(known))
}

/// Sends a request for `/known` and reads its response.
async fn authenticates(stream: &mut TcpStream) {
    let question = KEPT.replace("GET /", "GET /known");
    stream.write_all(question.as_bytes()).await.unwrap();
    let mut said = Vec::new();
    while !said.ends_with(b"here") {
        said.push(stream.read_u8().await.unwrap());
    }
}

#[tokio::test]
async fn authenticated_connection_may_be_idle_longer() {
    let at = serves(with_known(), None).await;
    let mut stream = TcpStream::connect(at).await.unwrap();
    for _ in 0..3 {
        authenticates(&mut stream).await;
        until_hung_up_on(at, b"G").await;
    }
}

#[tokio::test]
async fn authenticated_connection_is_not_closed_for_another() {
    let bounds = Bounds {
        connections: 2,
        patience: LIMIT,
        authenticated_idle: LIMIT,
    };
    let at = serves_within(bounds, with_known(), None).await;
    let mut stream = TcpStream::connect(at).await.unwrap();
    authenticates(&mut stream).await;
    let mut idle = TcpStream::connect(at).await.unwrap();
    for _ in 0..3 {
        let next = TcpStream::connect(at).await.unwrap();
        let ended = timeout(LIMIT, idle.read(&mut [0])).await;
        assert_eq!(ended.expect("closed for the next one").unwrap(), 0);
        idle = next;
    }
    authenticates(&mut stream).await;
    // All slots are taken by authenticated connections.
    authenticates(&mut idle).await;
    assert_eq!(until_hung_up_on(at, b"").await, "");
    authenticates(&mut stream).await;
}
