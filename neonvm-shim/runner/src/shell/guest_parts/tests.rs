use std::net::SocketAddr;

use axum::extract::DefaultBodyLimit;
use axum::routing::any;
use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use super::*;

/// A guest's daemon that responds with 409 and the request: its line, key and length of the body.
async fn daemon() -> SocketAddrV4 {
    let seen = async |request: Request| {
        let line = format!("{} {}", request.method(), request.uri());
        let shown = request.headers().get(header::AUTHORIZATION);
        let shown = shown
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let declared = request.headers().get(header::CONTENT_LENGTH).cloned();
        let body: Bytes = request.into_body().collect().await.unwrap().to_bytes();
        let text = format!("{line} {shown:?} {declared:?} {}", body.len());
        (StatusCode::CONFLICT, text)
    };
    let routes = Router::new().fallback(any(seen));
    let routes = routes.layer(DefaultBodyLimit::disable());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
        unreachable!("bound to an IPv4 address")
    };
    tokio::spawn(async move { axum::serve(listener, routes).await });
    address
}

/// Control routes of a runner whose guest's daemon is at `address`.
fn runner(address: SocketAddrV4, key: PathBuf) -> Router {
    let state = crate::shell::initial_state::waiting_state();
    let handle = Handle {
        inputs: mpsc::channel(1).0,
        state: watch::channel(state).1,
        guest_counts: false,
        guest: GuestLink { address, key },
    };
    routes().with_state(handle)
}

/// Response of the routes to a request, over a connection.
async fn asked(routes: &Router, line: &str, body: Vec<u8>) -> (u16, String) {
    let (client, server) = tokio::io::duplex(1 << 16);
    let service = hyper_util::service::TowerToHyperService::new(routes.clone());
    let server =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server), service);
    tokio::spawn(server);
    let (mut sender, connection) = handshake(TokioIo::new(client)).await.unwrap();
    tokio::spawn(connection);
    let (method, uri) = line.split_once(' ').unwrap();
    let request = hyper::Request::builder().method(method).uri(uri);
    let request = request.header("authorization", "Bearer of-the-controller");
    let request = request.header("host", "runner").body(Body::from(body));
    let response = sender.send_request(request.unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn program_is_streamed_to_the_guest_with_the_guests_own_key() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("guestd.key");
    let made = guestd_key::make(&key).unwrap();
    let routes = runner(daemon().await, key);
    let bytes = 5 << 20;
    let line = "PUT /v1/guest/parts/monitor?sha256=0&token=t";
    let (status, text) = asked(&routes, line, vec![7; bytes]).await;
    assert_eq!(status, 409, "the guest's status is relayed");
    assert!(
        text.starts_with("PUT /v1/parts/monitor?sha256=0&token=t "),
        "{text}"
    );
    assert!(
        text.ends_with(&format!("Some(\"{bytes}\") {bytes}")),
        "{text}"
    );
    assert!(
        text.contains(&format!("Bearer {}", made.as_str())),
        "{text}"
    );
    let (_, text) = asked(&routes, "POST /v1/guest/parts/guestd/keep", Vec::new()).await;
    assert!(text.starts_with("POST /v1/parts/guestd/keep "), "{text}");
    let (_, text) = asked(&routes, "GET /v1/guest/parts", Vec::new()).await;
    assert!(text.starts_with("GET /v1/parts "), "{text}");
}

/// Requirement: R44
#[tokio::test]
async fn notice_is_relayed_to_the_guest_within_its_bound() {
    let routes = runner(daemon().await, PathBuf::from("/nowhere/guestd.key"));
    for method in ["PUT", "DELETE"] {
        let line = format!("{method} /v1/guest/notice");
        let (status, text) = asked(&routes, &line, vec![b'x'; 100]).await;
        assert_eq!(status, 409, "the guest's status is relayed");
        assert!(text.starts_with(&format!("{method} /v1/notice ")), "{text}");
    }
    let line = "PUT /v1/guest/notice";
    assert_eq!(asked(&routes, line, vec![b'x'; 1 << 20]).await.0, 413);
    assert_eq!(
        asked(&routes, "POST /v1/guest/notice", Vec::new()).await.0,
        405
    );
}

#[tokio::test]
async fn other_paths_and_long_programs_do_not_reach_the_guest() {
    let routes = runner(daemon().await, PathBuf::from("/nowhere/guestd.key"));
    for line in [
        "PUT /v1/guest/parts/sshd",
        "PUT /v1/guest/parts/..%2Ffiles",
        "POST /v1/guest/parts/monitor/run",
        "POST /v1/guest/parts/..%2F..%2Fcpu/try",
    ] {
        assert_eq!(asked(&routes, line, Vec::new()).await.0, 404, "{line}");
    }
    let bytes = usize::try_from(PROGRAM_BYTES).unwrap() + 1;
    let (status, text) = asked(&routes, "PUT /v1/guest/parts/monitor", vec![0; bytes]).await;
    assert_eq!(status, 413, "{text}");
}

#[tokio::test]
async fn guest_that_is_away_is_a_bad_gateway() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
        unreachable!("bound to an IPv4 address")
    };
    drop(listener);
    let routes = runner(address, PathBuf::new());
    let (status, text) = asked(&routes, "GET /v1/guest/parts", Vec::new()).await;
    assert_eq!(status, 502);
    assert!(
        text.starts_with("failed to relay to the guest's daemon: "),
        "{text}"
    );
}
