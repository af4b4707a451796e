use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use protocol::runner::ORDERS_NAME;
use test_authority::Authority;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::shell::bounded_server::{self, Bounds};

/// A server with one page and a certificate in `dir`.
async fn serve(dir: &Path) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    behind(listener, Some(&dir.join("token")));
    at
}

fn behind(listener: TcpListener, token: Option<&Path>) {
    let page = Router::new().route("/", get(|| async { "here" }));
    let (acceptor, cancel) = (TlsAcceptor::new(token), CancellationToken::new());
    tokio::spawn(bounded_server::serve(
        listener,
        acceptor,
        page,
        Bounds::DEPLOYED,
        cancel,
    ));
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<String> {
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer).await {
        // The peer closes the connection without a TLS alert after its last byte.
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
        _ => {}
    }
    Ok(String::from_utf8(answer).unwrap())
}

async fn in_the_clear(at: SocketAddr) -> String {
    ask(TcpStream::connect(at).await.unwrap()).await.unwrap()
}

async fn by_tls(at: SocketAddr, trusted: &str) -> io::Result<String> {
    let config = daemon_kit::tls::trusting(trusted.as_bytes()).unwrap();
    let stream = TcpStream::connect(at).await?;
    let name = ServerName::try_from(ORDERS_NAME).unwrap();
    ask(TlsConnector::from(config).connect(name, stream).await?).await
}

fn is_page(answer: &str) -> bool {
    answer.starts_with("HTTP/1.0 200 ") && answer.ends_with("here")
}

#[tokio::test]
async fn one_port_serves_tls_and_plain_http() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    ours.signs(ORDERS_NAME).put(dir.path(), "tls");
    let at = serve(dir.path()).await;
    assert!(is_page(&in_the_clear(at).await));
    assert!(is_page(&by_tls(at, &ours.pem).await.unwrap()));
    by_tls(at, &other.pem).await.unwrap_err();
    assert!(is_page(&in_the_clear(at).await), "after one who hung up");
}

#[tokio::test]
async fn silent_connection_delays_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new("ours");
    ours.signs(ORDERS_NAME).put(dir.path(), "tls");
    let at = serve(dir.path()).await;
    let silent = TcpStream::connect(at).await.unwrap();
    let mut half = TcpStream::connect(at).await.unwrap();
    half.write_all(&[HANDSHAKE]).await.unwrap();
    assert!(is_page(&in_the_clear(at).await));
    assert!(is_page(&by_tls(at, &ours.pem).await.unwrap()));
    // Those two are still open.
    for waits in [silent, half] {
        let read = waits.try_read(&mut [0]);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}

/// A kubelet puts a secret's files behind a link that it moves, readable by the pod's group if it
/// has one.
#[tokio::test]
async fn files_of_a_kubelet_are_read_and_replaced() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let dir = tempfile::tempdir().unwrap();
    let at = serve(dir.path()).await;
    for name in ORDERS_IDENTITY {
        symlink(Path::new("..data").join(name), dir.path().join(name)).unwrap();
    }
    for turn in ["first", "second"] {
        let authority = Authority::new(turn);
        let data = dir.path().join(turn);
        std::fs::create_dir(&data).unwrap();
        let (cert, key) = authority.signs(ORDERS_NAME).put(&data, "tls");
        for file in [cert, key] {
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o440)).unwrap();
        }
        symlink(turn, dir.path().join("..next")).unwrap();
        std::fs::rename(dir.path().join("..next"), dir.path().join("..data")).unwrap();
        assert!(
            is_page(&by_tls(at, &authority.pem).await.unwrap()),
            "{turn}"
        );
    }
}

#[tokio::test]
async fn certificate_may_appear_later_and_change() {
    let dir = tempfile::tempdir().unwrap();
    let at = serve(dir.path()).await;
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    by_tls(at, &first.pem).await.unwrap_err();
    assert!(is_page(&in_the_clear(at).await));
    first.signs(ORDERS_NAME).put(dir.path(), "tls");
    assert!(is_page(&by_tls(at, &first.pem).await.unwrap()));
    second.signs(ORDERS_NAME).put(dir.path(), "tls");
    assert!(is_page(&by_tls(at, &second.pem).await.unwrap()));
    by_tls(at, &first.pem).await.unwrap_err();
}

#[tokio::test]
async fn tls_needs_a_token() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    behind(listener, None);
    assert!(is_page(&in_the_clear(at).await));
    let any = Authority::new("any");
    let tls = by_tls(at, &any.pem);
    let ended = timeout(Duration::from_secs(5), tls).await;
    ended.unwrap().unwrap_err();
}
