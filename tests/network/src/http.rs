//! HTTP by hand, for tests that read raw responses or run outside of a tokio runtime.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest time for a response of [`Request::ask`].
const PATIENCE: Duration = Duration::from_secs(60);
/// Most bytes read of a response.
const LIMIT_BYTES: u64 = 16 << 20;

/// A request as it is sent, byte for byte.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// Method and path, such as `GET /metrics`.
    pub line: &'a str,
    /// Header lines, each with its `\r\n`.
    pub head: &'a str,
    /// The bytes after the head.
    pub body: &'a str,
}

impl<'a> Request<'a> {
    /// A request without a body.
    #[must_use]
    pub fn new(line: &'a str) -> Self {
        Self {
            line,
            ..Self::default()
        }
    }

    /// Sends the request from a task of tokio, as [`Request::send`] does.
    ///
    /// # Errors
    /// When the server refuses the connection, or sends nothing for a minute.
    pub async fn ask(self, to: SocketAddr) -> io::Result<String> {
        let [line, head, body] = [self.line, self.head, self.body].map(str::to_owned);
        let exchange = move || {
            let (line, head, body) = (&*line, &*head, &*body);
            Request { line, head, body }.send(to, PATIENCE)
        };
        let asked = tokio::task::spawn_blocking(exchange).await;
        asked.map_err(io::Error::other)?
    }

    /// Sends the request over a new connection. Returns status line, headers and body of the
    /// response.
    ///
    /// # Errors
    /// When the server refuses the connection, or sends nothing within `patience`.
    pub fn send(self, to: SocketAddr, patience: Duration) -> io::Result<String> {
        let stream = TcpStream::connect_timeout(&to, patience)?;
        stream.set_read_timeout(Some(patience))?;
        self.over(stream)
    }

    /// Sends the request over `stream`, and reads until the server closes it or the read times out.
    ///
    /// # Errors
    /// When the server sends nothing.
    pub fn over(self, mut stream: TcpStream) -> io::Result<String> {
        let Self { line, head, body } = self;
        let (host, length) = (stream.peer_addr()?, body.len());
        let connection = if head.contains("Upgrade") {
            "Upgrade"
        } else {
            "close"
        };
        let text = format!(
            "{line} HTTP/1.1\r\nHost: {host}\r\nConnection: {connection}\r\n{head}\
             Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(text.as_bytes())?;
        let mut answer = Vec::new();
        let read = stream.take(LIMIT_BYTES).read_to_end(&mut answer);
        // An upgraded connection stays open, and a refusing server may reset it.
        if answer.is_empty() {
            read?;
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}
