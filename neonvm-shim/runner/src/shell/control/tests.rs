use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;
use crate::shell::metrics::Metrics;
use daemon_kit::admin::metrics_route;

/// Longer than any wait of a passing test.
const FOR_EVER: Duration = Duration::from_secs(600);

#[test]
fn member_has_the_spelling_of_neonvms_runner() {
    let text = serde_json::to_string(&Vcpus {
        vcpus: MilliCpu(1500),
    })
    .unwrap();
    assert_eq!(text, r#"{"VCPUs":"1500m"}"#);
    let read: Vcpus = serde_json::from_str(r#"{"VCPUs":0.25}"#).unwrap();
    assert_eq!(read.vcpus, MilliCpu(250));
}

#[test]
fn count_of_the_guest_replaces_the_limit() {
    let cpus = CpuState {
        limit: MilliCpu(1500),
        plugged: 4,
        guest_online: Some(2),
        ahead: None,
    };
    assert_eq!(reported(cpus, true), MilliCpu(1500));
    let fewer = CpuState {
        guest_online: Some(1),
        ahead: None,
        ..cpus
    };
    assert_eq!(reported(fewer, true), MilliCpu(1000));
    assert_eq!(reported(fewer, false), MilliCpu(1500));
}

/// Status of the response to a request.
async fn status(at: std::net::SocketAddr, request: &str, token: Option<&str>) -> u16 {
    let shown = token.map_or(String::new(), |token| format!("Authorization: {token}\r\n"));
    let request = test_network::http::Request {
        line: request,
        head: &shown,
        body: "",
    };
    let answer = request.ask(at).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// A pod's server with or without a token, and the driver's end of its channel.
async fn server(
    token: Option<Token>,
    bounds: Bounds,
) -> (std::net::SocketAddr, mpsc::Receiver<Input>) {
    server_at(token, false, bounds).await
}

/// A pod's server at an address that counts as loopback or not.
async fn server_at(
    token: Option<Token>,
    is_loopback: bool,
    bounds: Bounds,
) -> (std::net::SocketAddr, mpsc::Receiver<Input>) {
    let (inputs, taken) = mpsc::channel(4);
    let state = crate::shell::initial_state::waiting_state();
    let (sender, state) = watch::channel(state);
    let handle = Handle {
        inputs,
        state,
        guest_counts: false,
        guest: GuestLink {
            address: std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 1),
            key: PathBuf::new(),
        },
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let routes = pod(token, is_loopback, bounds)
        .with_state(handle)
        .merge(metrics_route(Metrics::new(false).1));
    tokio::spawn(async move {
        let _held = sender;
        let cancel = CancellationToken::new();
        bounded_server::serve(listener, TlsAcceptor::new(None), routes, bounds, cancel).await;
    });
    (at, taken)
}

const ORDERS: [&str; 11] = [
    "GET /v1/guest/parts",
    "PUT /v1/guest/parts/monitor",
    "POST /v1/guest/parts/monitor/try",
    "GET /v1/state",
    "PUT /v1/size",
    "POST /v1/stop",
    "PUT /v1/outgoing",
    "DELETE /v1/outgoing/x",
    "POST /v1/outgoing/x/done",
    "PUT /v1/incoming",
    "POST /v1/incoming/x/begin",
];

#[tokio::test]
async fn orders_at_a_pod_need_its_token() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "right").unwrap();
    let token = Token::new(file.path()).unwrap();
    let (at, _taken) = server(Some(token), Bounds::DEPLOYED).await;
    for shown in [None, Some("Bearer wrong"), Some("right"), Some("Bearer ")] {
        for request in ORDERS.into_iter().chain(["POST /cpu_change"]) {
            assert_eq!(status(at, request, shown).await, 401, "{request} {shown:?}");
        }
        assert_eq!(status(at, "GET /ready", shown).await, 503);
        assert_eq!(status(at, "GET /cpu_current", shown).await, 200);
        assert_eq!(status(at, "GET /metrics", shown).await, 200);
    }
    let shown = Some("Bearer right");
    assert_eq!(status(at, "GET /v1/state", shown).await, 200);
    // Authorized, and then found to have no body.
    assert_eq!(status(at, "POST /cpu_change", shown).await, 400);
}

#[tokio::test]
async fn pod_without_a_token_has_only_neonvms_routes() {
    let (at, _taken) = server(None, Bounds::DEPLOYED).await;
    for request in ORDERS {
        assert_eq!(status(at, request, None).await, 404, "{request}");
    }
    assert_eq!(status(at, "GET /cpu_current", None).await, 200);
    assert_eq!(status(at, "POST /cpu_change", None).await, 400);
}

/// Requirement: W4. Every user of the machine can connect to a loopback address.
#[tokio::test]
async fn loopback_address_takes_no_order_with_or_without_a_token() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "right").unwrap();
    for token in [None, Some(Token::new(file.path()).unwrap())] {
        let (at, mut taken) = server_at(token, true, Bounds::DEPLOYED).await;
        for request in ORDERS {
            assert_eq!(
                status(at, request, Some("Bearer right")).await,
                404,
                "{request}"
            );
        }
        for request in ["POST /cpu_change", "GET /cpu_change"] {
            assert_eq!(status(at, request, Some("Bearer right")).await, 403);
        }
        assert_eq!(status(at, "GET /ready", None).await, 503);
        assert_eq!(status(at, "GET /cpu_current", None).await, 200);
        assert_eq!(status(at, "GET /metrics", None).await, 200);
        assert!(taken.try_recv().is_err(), "nothing reached the supervisor");
    }
}

#[test]
fn empty_token_is_refused_and_a_new_one_is_used() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(Token::new(file.path()).is_err());
    std::fs::write(file.path(), "abc\n").unwrap();
    let token = Token::new(file.path()).unwrap();
    let shown = |text: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, text.parse().unwrap());
        token.is_shown(&headers)
    };
    assert!(!token.is_shown(&HeaderMap::new()));
    assert!(shown("Bearer abc") && !shown("Bearer new"));
    std::fs::write(file.path(), "new").unwrap();
    assert!(!shown("Bearer abc") && shown("Bearer new"));
    std::fs::write(file.path(), "").unwrap();
    assert!(!shown("Bearer ") && !shown("Bearer new"));
}

/// An order with the token, on a connection that is kept or closed.
fn order(connection: &str) -> String {
    let body = r#"{"VCPUs":1}"#;
    let length = body.len();
    format!(
        "POST /cpu_change HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\nAuthorization: Bearer right\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Sends an order and accepts it; fails if the connection breaks.
async fn is_taken(stream: &mut TcpStream, connection: &str, taken: &mut mpsc::Receiver<Input>) {
    let text = order(connection);
    stream.write_all(text.as_bytes()).await.unwrap();
    let input = timeout(FOR_EVER, taken.recv()).await.expect("an order");
    let Some(Input::CpuChange(_, reply)) = input else {
        panic!("another input");
    };
    let state = crate::shell::initial_state::waiting_state();
    reply.send(Ok(state)).expect("it is waited for");
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.unwrap();
    assert_eq!(line, *b"HTTP/1.1 200");
    while !is_head_over(stream).await {}
}

/// Reads a line; returns whether it is the empty one.
async fn is_head_over(stream: &mut TcpStream) -> bool {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        line.push(stream.read_u8().await.unwrap());
    }
    line == b"\r\n"
}

#[tokio::test]
async fn half_open_connections_do_not_delay_an_order() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "right").unwrap();
    let bounds = Bounds {
        connections: 4,
        patience: FOR_EVER,
        authenticated_idle: FOR_EVER,
    };
    let (at, mut taken) = server(Some(Token::new(file.path()).unwrap()), bounds).await;
    let mut before = TcpStream::connect(at).await.unwrap();
    is_taken(&mut before, "keep-alive", &mut taken).await;
    let mut half_open = Vec::new();
    for turn in 0..3 {
        for begun in ["G", "POST /cpu_change HTTP/1.1\r\n", ""].repeat(4) {
            let mut stream = TcpStream::connect(at).await.unwrap();
            stream.write_all(begun.as_bytes()).await.unwrap();
            half_open.push(stream);
        }
        let mut anew = TcpStream::connect(at).await.unwrap();
        is_taken(&mut anew, "close", &mut taken).await;
        // An authenticated connection stays, whatever arrives.
        is_taken(&mut before, "keep-alive", &mut taken).await;
        assert_eq!(status(at, "GET /ready", None).await, 503, "turn {turn}");
    }
    // The number of connections stays within its limit.
    let mut gone = 0;
    for mut stream in half_open.drain(..).take(30) {
        let ended = timeout(FOR_EVER, stream.read(&mut [0])).await.unwrap();
        gone += usize::from(ended.unwrap_or(0) == 0);
    }
    assert_eq!(gone, 30);
}

#[tokio::test]
async fn unfinished_order_is_refused() {
    let bounds = Bounds {
        patience: Duration::from_millis(50),
        ..Bounds::DEPLOYED
    };
    let (at, _taken) = server(None, bounds).await;
    let mut stream = TcpStream::connect(at).await.unwrap();
    let whole = order("keep-alive");
    let part = &whole.as_bytes()[..whole.len() - 2];
    stream.write_all(part).await.unwrap();
    let mut answer = String::new();
    let ended = timeout(FOR_EVER, stream.read_to_string(&mut answer)).await;
    ended.expect("hung up on").unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}
