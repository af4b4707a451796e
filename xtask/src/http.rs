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
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\nconnection: close\r\n\r\n"
    )?;
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
    if head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        return dechunk(body);
    }
    Ok(body.to_owned())
}

fn dechunk(mut body: &str) -> Result<String> {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).context("bad chunk size")?;
        if size == 0 {
            return Ok(whole);
        }
        whole.push_str(rest.get(..size).context("chunk is cut off")?);
        body = rest.get(size + 2..).context("chunk is cut off")?;
    }
    bail!("the answer is cut off")
}

#[cfg(test)]
mod tests {
    #[test]
    fn chunks_are_joined() {
        assert_eq!(
            super::dechunk("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").expect("joins"),
            "abcde"
        );
        assert!(super::dechunk("5\r\nab").is_err());
    }
}
