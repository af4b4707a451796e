//! The smallest HTTP client that reads our own daemons' JSON over a unix or TCP socket: one GET,
//! then the connection ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest answer read, bytes.
const LIMIT_BYTES: u64 = 16 << 20;

/// GET over a unix socket.
pub(crate) fn get_unix(socket: &Path, path: &str) -> Result<String> {
    let stream =
        UnixStream::connect(socket).with_context(|| format!("connect {}", socket.display()))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    get(stream, path)
}

/// GET over TCP.
pub(crate) fn get_tcp(address: SocketAddr, path: &str) -> Result<String> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)
        .with_context(|| format!("connect {address}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    get(stream, path)
}

fn get(mut stream: impl Read + Write, path: &str) -> Result<String> {
    // Version 1.0 has no chunks.
    let request = format!("GET {path} HTTP/1.0\r\naccept: application/json\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut raw = Vec::new();
    stream.take(LIMIT_BYTES).read_to_end(&mut raw)?;
    let text = String::from_utf8(raw).context("the answer is not UTF-8")?;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .context("the answer has no header")?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        bail!("GET {path}: status {status}: {}", body.trim());
    }
    Ok(body.to_owned())
}
