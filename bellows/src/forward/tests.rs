//! Tests with a peer of a forwarded port: an API server with the kubelet behind it.

use futures::{SinkExt as _, StreamExt as _};
use hyper::http::HeaderValue;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};

use super::*;

const AT: PodPort<'_> = PodPort {
    namespace: "kube-system",
    pod: "autoscaler-agent-x",
    port: 9100,
};
const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n";
const DATA: u8 = 0;
const ERROR: u8 = 1;

/// Behaviour of the peer after the request.
enum Peer {
    /// Sends these pieces of the pod's answer and keeps the connection open.
    Answers(&'static [&'static str]),
    /// Sends these pieces, then closes the WebSocket.
    Closes(&'static [&'static str]),
    /// Sends these pieces, then drops the TCP connection.
    Breaks(&'static [&'static str]),
    /// The kubelet reports an error of the port.
    Reports(&'static str),
    /// The API server answers with this status and opens no WebSocket.
    Refuses(u16),
}

async fn asked(peer: Peer) -> Result<Value, ForwardError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let url = format!("http://{address}").parse().expect("a URL");
    let config = kube::Config::new(url);
    let client = api_client::connect(config).expect("a client");
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        if let Peer::Refuses(status) = peer {
            refuse(stream, status).await;
        } else {
            forward(stream, peer).await;
        }
    });
    let answer = get(&client, AT, "/debug/state").await;
    server.await.expect("a server without a panic");
    answer
}

async fn refuse(mut stream: TcpStream, code: u16) {
    let mut head = [0; 4096];
    let _ = stream.read(&mut head).await.expect("a request");
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": "Refused", "message": "that is not for you"});
    let body = status.to_string();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {code} Refused\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).await.expect("a client");
}

#[expect(
    clippy::result_large_err,
    reason = "the type of the library's callback"
)]
fn admit(request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
    let path = "/api/v1/namespaces/kube-system/pods/autoscaler-agent-x/portforward";
    assert_eq!(request.uri().path(), path);
    let query = request.uri().query().unwrap_or_default();
    assert!(query.contains("ports=9100"), "{query}");
    let protocol = HeaderValue::from_static("v4.channel.k8s.io");
    let headers = response.headers_mut();
    headers.insert("sec-websocket-protocol", protocol);
    Ok(response)
}

async fn forward(stream: TcpStream, peer: Peer) {
    let socket = tokio_tungstenite::accept_hdr_async(stream, admit).await;
    let mut socket = socket.expect("a WebSocket");
    for channel in [DATA, ERROR] {
        send(&mut socket, channel, &AT.port.to_le_bytes()).await;
    }
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let message = socket.next().await.expect("a message").expect("a message");
        let message = message.into_data();
        assert_eq!(message.first(), Some(&DATA));
        request.extend_from_slice(&message[1..]);
    }
    assert!(request.starts_with(b"GET /debug/state HTTP/1.1\r\n"));
    match peer {
        Peer::Answers(pieces) => {
            say(&mut socket, pieces).await;
            // The client closes the connection.
            while let Some(Ok(_)) = socket.next().await {}
        }
        Peer::Closes(pieces) => {
            say(&mut socket, pieces).await;
            socket.close(None).await.expect("a closing frame");
            while let Some(Ok(_)) = socket.next().await {}
        }
        Peer::Breaks(pieces) => say(&mut socket, pieces).await,
        Peer::Reports(text) => {
            send(&mut socket, ERROR, text.as_bytes()).await;
            socket.close(None).await.expect("a closing frame");
        }
        Peer::Refuses(_) => unreachable!("it has no WebSocket"),
    }
}

async fn say(socket: &mut WebSocketStream<TcpStream>, pieces: &[&str]) {
    for piece in pieces {
        send(socket, DATA, piece.as_bytes()).await;
    }
}

async fn send(socket: &mut WebSocketStream<TcpStream>, channel: u8, bytes: &[u8]) {
    let message = [&[channel], bytes].concat();
    let sent = socket.send(Message::binary(message)).await;
    sent.expect("a client");
}

#[tokio::test]
async fn answer_in_pieces_is_taken_as_one_while_the_connection_stays_open() {
    let answer = asked(Peer::Answers(&[HEAD, "{\"a\"", ":1}"])).await;
    assert_eq!(answer.expect("JSON"), json!({"a": 1}));
}

#[tokio::test]
async fn whole_answer_before_a_closed_connection_is_taken() {
    let answer = asked(Peer::Closes(&[HEAD, "{\"a\":1}"])).await;
    assert_eq!(answer.expect("JSON"), json!({"a": 1}));
}

#[tokio::test]
async fn truncated_answer_is_an_error() {
    for pieces in [&[][..], &[HEAD], &[HEAD, "{\"a\""]] {
        for peer in [Peer::Closes(pieces), Peer::Breaks(pieces)] {
            let error = asked(peer).await.expect_err("half an answer");
            let text = daemon_kit::chain(&error);
            let cut = "the connection ended before the answer was whole";
            assert!(text.starts_with(cut), "{pieces:?}: {text}");
        }
    }
}

#[tokio::test]
async fn refusals_quote_the_server() {
    const FORBIDDEN: &str = "HTTP/1.1 403 Forbidden\r\ncontent-length: 9\r\n\r\nnot here\n";
    let report = asked(Peer::Reports("dial 127.0.0.1:9100: connection refused")).await;
    let report = report.expect_err("no answer").to_string();
    let wanted = "its kubelet reaches no port 9100: dial 127.0.0.1:9100: connection refused";
    assert_eq!(report, wanted);
    let refused = asked(Peer::Answers(&[FORBIDDEN])).await;
    let refused = refused.expect_err("a refusal").to_string();
    assert_eq!(refused, "it answers 403 Forbidden: not here");
    let garbled = asked(Peer::Answers(&[HEAD, "no json"])).await;
    assert!(matches!(garbled, Err(ForwardError::Json(_))), "{garbled:?}");
}

#[tokio::test]
async fn status_of_the_api_server_is_kept() {
    for code in [401, 403, 404, 500] {
        let refused = asked(Peer::Refuses(code)).await;
        let Err(ForwardError::Open(kube::Error::Api(status))) = &refused else {
            panic!("{refused:?}");
        };
        assert_eq!(status.code, code);
        assert_eq!(status.message, "that is not for you");
    }
}
