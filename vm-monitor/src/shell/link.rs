//! One agent's connection, from accept to close: upgrade, handshake, frames both ways.

use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use protocol::monitor::{MONITOR_FRAME_LIMIT_BYTES, Version, VersionResponse};
use protocol::time::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_util::sync::CancellationToken;
use transport::{Listener, Stream};

use super::accept;
use super::clock::Clock;
use super::inbox::{Goodbye, INBOX_LIMIT, Inbox, Outgoing};
#[cfg(feature = "tls")]
use super::tls::{self, Identity};
use super::token::AgentToken;
use super::upgrade::upgraded;
use crate::core::handshake::{HandshakeFailure, Refused, negotiate};
use crate::core::throttle::Throttle;
use crate::core::{CloseReason, ConnectionId, Event, Received};

/// Connections that may be on their way through the handshake at once. An agent needs one; the rest
/// are strangers, and each of them is gone after the time limit.
pub const HANDSHAKES_AT_ONCE: usize = 16;
/// Frames to one agent that may wait to be written. While it does not read, nothing is read from it
/// either, so at most an inbox full of its requests is answered; twice that leaves room for
/// requests of our own.
pub const OUTGOING_LIMIT: usize = 2 * INBOX_LIMIT;
/// Frames longer than this are not read at all, and end the connection. Between
/// [`MONITOR_FRAME_LIMIT_BYTES`] and this they are read, dropped and answered.
pub const HARD_FRAME_LIMIT_BYTES: usize = 4 * MONITOR_FRAME_LIMIT_BYTES;
/// How long one write may take.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// How long input is read and dropped after our close frame.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

type Socket = WebSocketStream<TokioIo<Upgraded>>;

impl Goodbye {
    fn frame(self) -> CloseFrame {
        let (code, reason) = match self {
            Self::Core(CloseReason::Replaced) => (CloseCode::Policy, "a newer agent has connected"),
            Self::Core(CloseReason::NotUtf8) => (CloseCode::Invalid, "text frame is not UTF-8"),
            Self::Core(CloseReason::TooLarge) => (CloseCode::Size, "frame is too large"),
            Self::ShuttingDown => (CloseCode::Away, "the monitor is shutting down"),
            Self::Restarting => (CloseCode::Restart, "the monitor changes its program"),
        };
        CloseFrame {
            code,
            reason: reason.into(),
        }
    }
}

/// The agent's port: a listener, and what an agent has to show.
#[derive(Debug)]
pub struct AgentPort {
    /// Listener at `--addr`, TCP or vsock.
    pub door: Listener,
    /// The token that agents must show, where one is asked for.
    pub token: Option<AgentToken>,
    /// Our certificate and the agents' authority; none on a port without TLS.
    #[cfg(feature = "tls")]
    pub identity: Option<Identity>,
}

/// What every connection needs.
#[derive(Debug, Clone)]
pub struct Links {
    /// Where events go.
    pub inbox: mpsc::Sender<Inbox>,
    /// Clock of the whole process, for the pause of a peer that sends too fast.
    pub clock: Clock,
    /// From accept to completed handshake.
    pub ready_limit: Duration,
}

/// Accepts connections until cancelled. While `paused` they wait in the kernel's queue.
pub async fn serve(
    port: AgentPort,
    links: Links,
    mut paused: watch::Receiver<bool>,
    cancel: CancellationToken,
) {
    #[cfg(feature = "tls")]
    let mut identity = port.identity;
    let slots = Arc::new(Semaphore::new(HANDSHAKES_AT_ONCE));
    let mut next = 0_u64;
    while let Some(stream) = accept::next_unless(&mut paused, &port.door, &cancel).await {
        let deadline = Instant::now() + links.ready_limit;
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            links.handshake_failed(HandshakeFailure::TooMany).await;
            continue;
        };
        next += 1;
        #[cfg(feature = "tls")]
        let tls = identity.as_mut().map(Identity::acceptor);
        let (connection, links, token) = (ConnectionId(next), links.clone(), port.token.clone());
        tokio::spawn(async move {
            let ready = async {
                #[cfg(feature = "tls")]
                let stream = match tls {
                    Some(acceptor) => tls::accept(acceptor, stream).await?,
                    None => stream,
                };
                make_ready(stream, token).await
            };
            let ready = timeout_at(deadline, ready).await;
            drop(slot);
            match ready {
                Ok(Ok(Some((socket, version)))) => {
                    links.serve_agent(connection, version, socket).await;
                }
                // A plain HTTP request, answered.
                Ok(Ok(None)) => {}
                Ok(Err(failure)) => links.handshake_failed(failure).await,
                Err(_) => links.handshake_failed(HandshakeFailure::TimedOut).await,
            }
        });
    }
}

/// From an accepted stream to a socket that has said `{"version":N}`.
async fn make_ready(
    stream: Stream,
    token: Option<AgentToken>,
) -> Result<Option<(Socket, Version)>, HandshakeFailure> {
    let Some(stream) = upgraded(stream, token).await? else {
        return Ok(None);
    };
    let config = WebSocketConfig::default()
        .read_buffer_size(4 * 1024)
        .write_buffer_size(0)
        .max_write_buffer_size(HARD_FRAME_LIMIT_BYTES)
        .max_message_size(Some(HARD_FRAME_LIMIT_BYTES))
        .max_frame_size(Some(HARD_FRAME_LIMIT_BYTES));
    let io = TokioIo::new(stream);
    let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    match first_frame(&mut socket).await {
        Ok(version) => {
            let answer = VersionResponse::Version(version);
            let sent = socket.send(text_of(&answer)).await;
            sent.map_err(|_| HandshakeFailure::Closed)?;
            Ok(Some((socket, version)))
        }
        Err(refused) => {
            if refused.failure != HandshakeFailure::Closed {
                // The peer may be gone already; the failure is counted either way.
                let _ = socket.send(text_of(&refused.answer)).await;
                let reason = "handshake failed".into();
                close(
                    &mut socket,
                    CloseFrame {
                        code: CloseCode::Protocol,
                        reason,
                    },
                )
                .await;
            }
            Err(refused.failure)
        }
    }
}

async fn first_frame(socket: &mut Socket) -> Result<Version, Refused> {
    loop {
        return match socket.next().await {
            Some(Ok(Message::Text(text))) if text.len() <= MONITOR_FRAME_LIMIT_BYTES => {
                negotiate(text.as_str())
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
            Some(Ok(Message::Close(_))) | None => Err(Refused::new(HandshakeFailure::Closed, "")),
            Some(Ok(Message::Text(_)) | Err(WsError::Capacity(_) | WsError::Utf8(_))) => {
                let error = "first frame is not a version range: too large or not UTF-8";
                Err(Refused::new(HandshakeFailure::NotARange, error))
            }
            Some(Ok(Message::Binary(_) | Message::Frame(_))) => {
                let error = "first frame is not text";
                Err(Refused::new(HandshakeFailure::NotText, error))
            }
            Some(Err(_)) => Err(Refused::new(HandshakeFailure::Closed, "")),
        };
    }
}

fn text_of(answer: &VersionResponse) -> Message {
    let text = serde_json::to_string(answer).expect("a version answer is plain JSON");
    Message::text(text)
}

impl Links {
    async fn handshake_failed(&self, failure: HandshakeFailure) {
        self.tell(Event::HandshakeFailed(failure)).await;
    }

    async fn tell(&self, event: Event) {
        // A closed inbox means that the process is ending.
        let _ = self.inbox.send(Inbox::Event(event)).await;
    }

    async fn serve_agent(&self, connection: ConnectionId, version: Version, mut socket: Socket) {
        let (outgoing, mut from_owner) = mpsc::channel(OUTGOING_LIMIT);
        let ready = Inbox::Ready {
            connection,
            version,
            outgoing,
        };
        if self.inbox.send(ready).await.is_ok() {
            let goodbye = self
                .converse(connection, &mut socket, &mut from_owner)
                .await;
            if let Some(goodbye) = goodbye {
                close(&mut socket, goodbye.frame()).await;
            }
        }
        self.tell(Event::AgentGone { connection }).await;
    }

    /// Frames both ways until one side ends it; with a goodbye if that is ours.
    async fn converse(
        &self,
        connection: ConnectionId,
        socket: &mut Socket,
        from_owner: &mut mpsc::Receiver<Outgoing>,
    ) -> Option<Goodbye> {
        let mut throttle = Throttle::default();
        let mut read_again_at = Timestamp::default();
        let mut is_readable = true;
        loop {
            let throttled = read_again_at > self.clock.now();
            tokio::select! {
                biased;
                outgoing = from_owner.recv() => match outgoing {
                    Some(Outgoing::Text(text)) => {
                        timeout(WRITE_LIMIT, socket.send(Message::text(text))).await.ok()?.ok()?;
                    }
                    Some(Outgoing::Close(goodbye)) => return Some(goodbye),
                    // The owner gave this connection up: it reads too slowly.
                    None => return None,
                },
                () = tokio::time::sleep_until(self.clock.instant(read_again_at)), if throttled => {}
                message = socket.next(), if is_readable && !throttled => {
                    read_again_at = throttle.note(self.clock.now());
                    let what = match message {
                        Some(Ok(Message::Text(text))) if text.len() > MONITOR_FRAME_LIMIT_BYTES => {
                            Received::TooLarge { bytes: text.len() }
                        }
                        Some(Ok(Message::Text(text))) => Received::Text(text.as_str().to_owned()),
                        Some(Ok(Message::Binary(_))) => Received::NotText,
                        // Pings are answered by the library; a close is echoed by the next read.
                        Some(Ok(_)) => continue,
                        Some(Err(WsError::Utf8(_))) => Received::NotUtf8,
                        Some(Err(WsError::Capacity(_))) => Received::FarTooLarge,
                        Some(Err(_)) | None => return None,
                    };
                    // After these the stream cannot be read on; the core answers, then closes.
                    is_readable = !matches!(what, Received::NotUtf8 | Received::FarTooLarge);
                    self.tell(Event::Received { connection, what }).await;
                }
            }
        }
    }
}

/// Sends a close frame and closes TCP right behind it, as a server has to (RFC 6455 §7.1.1).
///
/// Only our half is closed at first, and the peer's input is read and dropped until the peer closes
/// its half. A socket closed with unread input would be reset, and the reset would take our last
/// frames back from a peer that is slow to read them (RFC 1122 §4.2.2.13). A peer that does not
/// close within [`CLOSE_LIMIT`] still has the close frame: the kernel keeps sending it.
async fn close(socket: &mut Socket, frame: CloseFrame) {
    let goodbye = async {
        if socket.close(Some(frame)).await.is_err() || socket.get_mut().shutdown().await.is_err() {
            return;
        }
        let mut ignored = [0; 1024];
        while matches!(socket.get_mut().read(&mut ignored).await, Ok(count) if count > 0) {}
    };
    let _ = timeout(CLOSE_LIMIT, goodbye).await;
}
