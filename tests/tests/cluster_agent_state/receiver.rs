//! A receiver of usage events that refuses them until it is told to accept them.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const HEAD_END: &[u8] = b"\r\n\r\n";

#[derive(Debug, Default)]
struct Seen {
    accepts: bool,
    /// Idempotency keys in the order of their coming.
    refused: Vec<String>,
    received: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Receiver {
    /// Base address, as the configuration of agents names it.
    pub(super) url: String,
    seen: Arc<Mutex<Seen>>,
}

impl Receiver {
    pub(super) fn start(listener: std::net::TcpListener) -> Result<Self> {
        let receiver = Self {
            url: format!("http://{}", listener.local_addr()?),
            seen: Arc::default(),
        };
        let (listener, seen) = (TcpListener::from_std(listener)?, receiver.seen.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let seen = seen.clone();
                // A broken connection is a failed attempt of the agent's.
                tokio::spawn(async move { drop(answer(stream, &seen).await) });
            }
        });
        Ok(receiver)
    }

    pub(super) fn accept(&self) {
        lock(&self.seen).accepts = true;
    }

    pub(super) fn refused(&self) -> Vec<String> {
        lock(&self.seen).refused.clone()
    }

    pub(super) fn received(&self) -> Vec<String> {
        lock(&self.seen).received.clone()
    }
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(mut stream: TcpStream, seen: &Mutex<Seen>) -> Result<()> {
    let body: Value = serde_json::from_slice(&body(&mut stream).await?)?;
    let events = body["events"].as_array().context("events")?;
    let keys = events
        .iter()
        .filter_map(|event| event["idempotency_key"].as_str());
    let keys: Vec<String> = keys.map(str::to_owned).collect();
    let status = {
        let mut seen = lock(seen);
        if seen.accepts {
            seen.received.extend(keys);
            "200 OK"
        } else {
            seen.refused.extend(keys);
            "503 Service Unavailable"
        }
    };
    let text = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(text.as_bytes()).await?;
    Ok(())
}

/// Reads a request with a length. Returns its body.
async fn body(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let ended = bytes
            .windows(HEAD_END.len())
            .position(|part| part == HEAD_END);
        if let Some(head) = ended {
            let body = head + HEAD_END.len();
            let length = length(&String::from_utf8_lossy(&bytes[..head]))?;
            if bytes.len() >= body + length {
                return Ok(bytes[body..body + length].to_vec());
            }
        }
        let read = stream.read_buf(&mut bytes).await?;
        anyhow::ensure!(read > 0, "the request is not whole");
    }
}

fn length(head: &str) -> Result<usize> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let (_, value) = found.context("a length")?;
    Ok(value.trim().parse()?)
}
