use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// A client and its peer.
async fn pair() -> (HttpClient, DuplexStream) {
    let (ours, theirs) = duplex(1 << 16);
    let client = HttpClient::over(ours, "peer").await.expect("starts");
    (client, theirs)
}

/// Reads the head of one request.
async fn head(peer: &mut DuplexStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(peer.read_u8().await.expect("a request"));
    }
    String::from_utf8(head).expect("text")
}

/// Result of a request to a peer that sends `response` and then closes.
async fn answered(response: &str) -> Result<Bytes, HttpError> {
    let (client, mut peer) = pair().await;
    let response = response.to_owned();
    tokio::spawn(async move {
        head(&mut peer).await;
        // A client that refuses the response closes early.
        let _ = peer.write_all(response.as_bytes()).await;
    });
    let mut client = client.with_body_limit(64);
    client.send(Method::GET, "/x", "", LIMIT).await
}

#[tokio::test]
async fn connection_carries_requests_with_host_and_token() {
    let (client, mut peer) = pair().await;
    let server = tokio::spawn(async move {
        let mut heads = Vec::new();
        for _ in 0..2 {
            heads.push(head(&mut peer).await);
            let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            peer.write_all(response).await.expect("sent");
        }
        (heads, peer)
    });
    let mut client = client.with_bearer("it");
    for _ in 0..2 {
        let body = client.send(Method::GET, "/x?y=1", "", LIMIT).await;
        assert_eq!(body.expect("a success"), "ok");
        let usable = async {
            while !client.is_usable() {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(LIMIT, usable).await;
        waited.expect("the connection is kept");
    }
    let (heads, _peer) = server.await.expect("serves");
    for head in heads {
        assert!(head.starts_with("GET /x?y=1 HTTP/1.1\r\n"), "{head}");
        for line in [
            "host: peer",
            "authorization: Bearer it",
            "content-type: application/json",
        ] {
            assert!(head.contains(&format!("\r\n{line}\r\n")), "{line}: {head}");
        }
    }
}

#[tokio::test]
async fn refusal_is_an_error_with_its_text() {
    let text = "HTTP/1.1 409 No\r\ncontent-length: 6\r\n\r\n why\n\n";
    let error = answered(text).await.expect_err("refused");
    assert_eq!(error.to_string(), "409 Conflict: why");
    let body = answered("HTTP/1.1 204 No\r\n\r\n").await;
    assert_eq!(body.expect("a success"), "");
}

#[tokio::test]
async fn malformed_truncated_and_oversized_responses_are_errors() {
    let long_head = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(1 << 20));
    for response in [
        "",
        "no HTTP\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        &long_head,
    ] {
        let error = answered(response).await.expect_err(response);
        assert!(matches!(error, HttpError::Broken(_)), "{error}");
    }
    let body = "x".repeat(65);
    for response in [
        format!("HTTP/1.1 200 OK\r\ncontent-length: 65\r\n\r\n{body}"),
        format!("HTTP/1.1 500 No\r\n\r\n{body}"),
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n41\r\n{body}\r\n0\r\n\r\n"),
    ] {
        let error = answered(&response).await.expect_err("too long");
        assert!(matches!(error, HttpError::TooLong(64)), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn response_that_does_not_end_is_late() {
    for begun in ["", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"] {
        let (mut client, mut peer) = pair().await;
        let server = tokio::spawn(async move {
            head(&mut peer).await;
            peer.write_all(begun.as_bytes()).await.expect("sent");
            std::future::pending::<()>().await;
        });
        let error = client.send(Method::GET, "/x", "", LIMIT).await;
        let error = error.expect_err("late");
        assert!(matches!(error, HttpError::Late(LIMIT)), "{error}");
        server.abort();
    }
}
