//! The agent's side of the link. It blocks, so that nothing delays the time of a frame.

use std::net::TcpStream;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes, WebSocket};

use super::process::Monitor;
use super::timing::{PATIENCE, relay};

/// A connection that has shaken hands.
pub(super) struct Client {
    socket: WebSocket<TcpStream>,
    next_id: u64,
}

impl Client {
    /// Dials a monitor and agrees on version 1.
    pub(super) fn connect(monitor: &Monitor) -> Result<Self> {
        let stream = TcpStream::connect(monitor.addr).context("dial the monitor")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let url = format!("ws://{}/monitor", monitor.addr);
        let (socket, _) = tokio_tungstenite::tungstenite::client(url, stream)
            .map_err(|error| anyhow::anyhow!("WebSocket: {error}"))?;
        let mut client = Self { socket, next_id: 2 };
        client.socket.send(Message::text(r#"{"min":1,"max":1}"#))?;
        let answer = read(&mut client.socket)?;
        if answer != json!({ "version": 1 }) {
            bail!("handshake: {answer}");
        }
        Ok(client)
    }

    /// A request, and its id.
    fn request(&mut self, kind: &str, content: &Value) -> (u64, Message) {
        let id = self.next_id;
        self.next_id += 2;
        let frame = json!({ "content": content, "type": kind, "id": id });
        (id, Message::text(frame.to_string()))
    }

    /// Sends a request.
    pub(super) fn send(&mut self, kind: &str, content: &Value) -> Result<()> {
        let (_, frame) = self.request(kind, content);
        Ok(self.socket.send(frame)?)
    }

    /// Sends a request and reads its response.
    pub(super) fn call(&mut self, kind: &str, content: &Value) -> Result<Value> {
        let (_, answer) = self.timed_call(kind, content)?;
        Ok(answer)
    }

    /// As [`Self::call`], with the time on the link. To write the request's text and to understand
    /// the answer's is the client's own work, which is not in it.
    pub(super) fn timed_call(&mut self, kind: &str, content: &Value) -> Result<(Duration, Value)> {
        let (id, frame) = self.request(kind, content);
        let began = Instant::now();
        self.socket.send(frame)?;
        loop {
            let text = read_text(&mut self.socket)?;
            let took = began.elapsed();
            let frame = parse(&text)?;
            if frame["id"] == id {
                return Ok((took, frame));
            }
        }
    }

    /// Waits until the monitor has enough readings of this use to decide by.
    pub(super) fn settle(&mut self, monitor: &Monitor, used: u64) -> Result<()> {
        let calm = format!("{}Mi", used >> 20);
        monitor.wait_state("readings to decide by", |state| {
            let samples = state["samples"].as_array();
            samples.is_some_and(|all| all.len() >= 2 && all.iter().all(|one| *one == calm))
        })
    }

    /// One half to send on, and the frames that come with their times.
    pub(super) fn split(self) -> Result<(Self, Receiver<(Instant, Value)>)> {
        let stream = self.socket.get_ref().try_clone()?;
        // Frames come seldom; the end of the process ends the reading thread.
        stream.set_read_timeout(None)?;
        let config = Some(WebSocketConfig::default());
        let mut socket = WebSocket::from_raw_socket(stream, Role::Client, config);
        let frames = relay(move || read(&mut socket));
        Ok((self, frames))
    }
}

/// Reads the next text frame.
fn read(socket: &mut WebSocket<TcpStream>) -> Result<Value> {
    parse(&read_text(socket)?)
}

fn read_text(socket: &mut WebSocket<TcpStream>) -> Result<Utf8Bytes> {
    loop {
        if let Message::Text(text) = socket.read()? {
            return Ok(text);
        }
    }
}

fn parse(text: &Utf8Bytes) -> Result<Value> {
    serde_json::from_str(text.as_str()).context("a frame that is no JSON")
}
