//! One metrics endpoint of a guest. Between two requests its connection is kept as a bare socket.
//!
//! An agent keeps one connection per VM. A pooled HTTP client would hold 33 KB of buffers for each
//! and use them for a few milliseconds in five seconds. HTTP state is therefore made for one
//! exchange at a time.

use std::net::IpAddr;
use std::pin::pin;

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use protocol::exposition::{Page, PageError};
use tokio::net::TcpStream;

/// Largest page read, bytes; a node_exporter with all collectors writes about 200 KB.
const PAGE_LIMIT_BYTES: usize = 1 << 20;
/// Size of the read buffer, bytes; a usual page fits into one read.
const READ_BYTES: usize = 16 << 10;

/// Why a scrape failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScrapeError {
    /// The address is malformed.
    #[error("{0:?} is no address")]
    Address(String),
    /// The port is closed or not reachable.
    #[error("could not connect")]
    Connect(#[source] std::io::Error),
    /// The connection broke, or the response is not HTTP.
    #[error("could not ask for the page")]
    Request(#[source] hyper::Error),
    /// The body is incomplete.
    #[error("could not read the page")]
    Body(#[source] hyper::Error),
    /// The status was not 200.
    #[error("status {0}")]
    Status(u16),
    /// The page was not complete in time.
    #[error("no whole page in time")]
    TimedOut,
    /// The page is larger than the bound.
    #[error("the page is larger than {PAGE_LIMIT_BYTES} bytes")]
    TooLarge,
    /// The page lacks a metric, or is malformed.
    #[error("the page cannot be used")]
    Page(#[source] PageError),
}

impl ScrapeError {
    /// The `cause` label of the failure counter.
    pub(super) fn cause(&self) -> &'static str {
        match self {
            Self::Address(_) => "address",
            Self::Connect(_) => "connect",
            Self::Request(_) => "request",
            Self::Body(_) => "broken",
            Self::Status(_) => "status",
            Self::TimedOut => "slow",
            Self::TooLarge => "large",
            Self::Page(_) => "garbled",
        }
    }
}

/// A guest's endpoint and its kept connection.
pub(super) struct Endpoint {
    host: String,
    port: u16,
    /// Host and port as the value of `Host`.
    authority: String,
    kept: Option<TcpStream>,
}

impl Endpoint {
    /// The endpoint at `/metrics` of a guest, not connected yet.
    pub(super) fn new(host: &str, port: u16) -> Self {
        let authority = match host.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
            _ => format!("{host}:{port}"),
        };
        Self {
            host: host.to_owned(),
            port,
            authority,
            kept: None,
        }
    }

    /// Scrapes into the page that `blank` makes. The caller bounds the time; a dropped request
    /// closes its connection.
    ///
    /// # Errors
    /// [`ScrapeError`].
    pub(super) async fn get(&mut self, blank: impl Fn() -> Page) -> Result<Page, ScrapeError> {
        if let Some(stream) = self.kept.take().filter(is_silent) {
            match self.exchange(stream, blank()).await {
                // The peer closed the kept connection at the same time.
                Err(ScrapeError::Request(_)) => {}
                done => return done,
            }
        }
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(ScrapeError::Connect)?;
        // Without it requests are only slower.
        let _ = stream.set_nodelay(true);
        self.exchange(stream, blank()).await
    }

    async fn exchange(&mut self, stream: TcpStream, page: Page) -> Result<Page, ScrapeError> {
        let request = self.request()?;
        let (sender, connection) = http1::Builder::new()
            .read_buf_exact_size(Some(READ_BYTES))
            .handshake(TokioIo::new(stream))
            .await
            .map_err(ScrapeError::Request)?;
        let mut connection = pin!(connection.without_shutdown());
        let mut exchange = pin!(send(sender, request, page));
        let (page, ended) = tokio::select! {
            biased;
            page = &mut exchange => (page?, connection.await),
            // The peer has closed the connection. Its response may still be unread.
            ended = &mut connection => (exchange.await?, ended),
        };
        self.kept = ended
            .ok()
            .filter(|parts| parts.read_buf.is_empty())
            .map(|parts| parts.io.into_inner());
        Ok(page)
    }

    fn request(&self) -> Result<Request<Empty<Bytes>>, ScrapeError> {
        Request::get("/metrics")
            .header(hyper::header::HOST, &self.authority)
            .body(Empty::new())
            .map_err(|_| ScrapeError::Address(self.authority.clone()))
    }
}

/// Whether a kept connection is open and has no unread bytes.
fn is_silent(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0]);
    read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Sends the request and reads the page. Dropping the sender then ends the HTTP state.
async fn send(
    mut sender: http1::SendRequest<Empty<Bytes>>,
    request: Request<Empty<Bytes>>,
    mut page: Page,
) -> Result<Page, ScrapeError> {
    let response = sender
        .send_request(request)
        .await
        .map_err(ScrapeError::Request)?;
    if response.status() != hyper::StatusCode::OK {
        return Err(ScrapeError::Status(response.status().as_u16()));
    }
    let mut body = response.into_body();
    let mut read = 0_usize;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(ScrapeError::Body)?.into_data() {
            read += data.len();
            if read > PAGE_LIMIT_BYTES {
                return Err(ScrapeError::TooLarge);
            }
            page.feed(&data);
        }
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn page() -> String {
        let gauge = |name| format!("# TYPE {name} gauge\n{name} 0.5\n");
        let memory = ["total", "available", "cached"].map(|of| format!("host_memory_{of}_bytes"));
        memory
            .iter()
            .map(String::as_str)
            .chain(["host_load1", "host_load5"])
            .map(gauge)
            .collect()
    }

    /// Reads one request and sends `response`.
    async fn respond(stream: &mut TcpStream, response: &str) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.expect("a request"));
        }
        let request = String::from_utf8(request).expect("text");
        assert!(
            request.starts_with("GET /metrics HTTP/1.1\r\n"),
            "{request}"
        );
        assert!(request.contains("\r\nhost: 127.0.0.1:"), "{request}");
        stream.write_all(response.as_bytes()).await.expect("sent");
    }

    fn whole(headers: &str) -> String {
        let (page, length) = (page(), page().len());
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{headers}\r\n{page}")
    }

    async fn pair() -> (TcpListener, Endpoint) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let port = listener.local_addr().expect("an address").port();
        (listener, Endpoint::new("127.0.0.1", port))
    }

    async fn reads(endpoint: &mut Endpoint) {
        let page = endpoint.get(Page::system).await.expect("a page");
        page.into_system().expect("all samples");
    }

    #[tokio::test]
    async fn connection_is_reused() {
        let (listener, mut endpoint) = pair().await;
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a peer");
            for _ in 0..3 {
                respond(&mut stream, &whole("")).await;
            }
        });
        for _ in 0..3 {
            reads(&mut endpoint).await;
            assert!(endpoint.kept.is_some());
        }
        server.await.expect("one connection for all");
    }

    #[tokio::test]
    async fn closed_connection_is_replaced() {
        let (listener, mut endpoint) = pair().await;
        let server = tokio::spawn(async move {
            for headers in ["", "connection: close\r\n", ""] {
                let (mut stream, _) = listener.accept().await.expect("a peer");
                respond(&mut stream, &whole(headers)).await;
            }
        });
        for _ in 0..3 {
            reads(&mut endpoint).await;
        }
        server.await.expect("a connection each");
    }

    #[tokio::test]
    async fn page_that_ends_with_the_connection_is_read() {
        let (listener, mut endpoint) = pair().await;
        let server = tokio::spawn(async move {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.expect("a peer");
                respond(&mut stream, &format!("HTTP/1.1 200 OK\r\n\r\n{}", page())).await;
            }
        });
        reads(&mut endpoint).await;
        reads(&mut endpoint).await;
        server.await.expect("a connection each");
    }

    #[tokio::test]
    async fn truncated_page_is_an_error_and_the_next_one_is_read() {
        let (listener, mut endpoint) = pair().await;
        let server = tokio::spawn(async move {
            for response in [whole("").replace("0.5\n", ""), whole("")] {
                let (mut stream, _) = listener.accept().await.expect("a peer");
                respond(&mut stream, &response).await;
            }
        });
        let broken = endpoint.get(Page::system).await;
        assert!(matches!(broken, Err(ScrapeError::Body(_))), "not enough");
        reads(&mut endpoint).await;
        server.await.expect("served");
    }

    #[tokio::test]
    async fn surplus_bytes_are_not_read_as_the_next_page() {
        let (listener, mut endpoint) = pair().await;
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a peer");
            respond(
                &mut stream,
                &format!("{}HTTP/1.1 500 No\r\n\r\n", whole("")),
            )
            .await;
            let (mut stream, _) = listener.accept().await.expect("a peer");
            respond(&mut stream, &whole("")).await;
        });
        reads(&mut endpoint).await;
        reads(&mut endpoint).await;
        server.await.expect("served");
    }
}
