//! The client of one VM's monitor: connects, reconnects, and runs one session per link. Source:
//! docs/compatibility/agent.md §4.1.
//!
//! ```text
//!   connect + handshake --ok--> MonitorUp, then: frames in, requests out, a health check every 5 s
//!      ^      |                          |
//!      |    failed        ended (by the peer, a breach, failed health checks, a blocked write)
//!      +--- wait the rest of 5 s <--- MonitorDown
//! ```
//! A monitor that changes its program says so by the close code 1012. That is no fault, and the
//! next dial follows at once, but at most once a second ([`RESTART_GAP`]).
//!
//! A monitor that exceeds its rate is read slowly. A flood closes the link, with a growing wait
//! before the next one ([`crate::core::conversation::pace`]). Reads and writes do not block each
//! other: frames go through a bounded queue to a writer task. A write that takes longer than a
//! response may take ends the link.

mod errors;
mod paced;
pub(super) mod request;
mod session;
mod tls;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::clock::Clock;
use futures::{SinkExt, StreamExt};
use hyper::header::{AUTHORIZATION, HeaderValue};
use protocol::monitor::{AGENT_FRAME_LIMIT_BYTES, PATH, Version};
use protocol::time::Span;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_util::sync::CancellationToken;
use transport::Stream;

use super::config;
use super::input::{Input, InputKind};
use super::metrics::AgentMetrics;
use super::vm_feed::VmFeed;
use crate::core::conversation::pace::Backoff;
use crate::core::conversation::{self, Conversation, HandshakeError, Limits};

use errors::{Ended, close_frame};
use paced::Paced;
use request::REQUEST_BOUND;
use session::{CLOSE_TIMEOUT, Session, Socket, WRITE_BOUND, write};

/// Read buffer of a link, bytes. Frames are short, and each VM has a link.
const READ_BUFFER_BYTES: usize = 4096;
/// Largest number of frames without text before a monitor's version.
const HANDSHAKE_FRAMES: usize = 16;

/// Shortest time between two dials of a monitor that says that it restarts.
const RESTART_GAP: Duration = Duration::from_secs(1);

/// The task that keeps one VM's link up.
pub(super) struct Link {
    pub config: config::Monitor,
    /// Period of pushed metrics; equals the scrape period.
    pub push_every: Span,
    pub health_check_every: Span,
    pub pod_ip: String,
    /// Number of the guest's vsock device; it is dialled instead of the pod.
    pub vsock_cid: Option<u32>,
    /// Value of `Authorization`; a monitor whose guest has a token refuses a link without it.
    pub token: Option<HeaderValue>,
    pub clock: Clock,
    pub metrics: AgentMetrics,
    /// The VM object.
    pub feed: watch::Receiver<VmFeed>,
    pub inputs: mpsc::Sender<Input>,
}

impl Link {
    /// Connects and reconnects until cancelled.
    pub(super) async fn run(self, cancel: CancellationToken) {
        let mut generation = 0_u64;
        let mut was_connected = true;
        let mut backoff = Backoff::default();
        loop {
            let began = Instant::now();
            let since = self.clock.now();
            generation += 1;
            let ended = match self.connect(&cancel).await {
                Ok((socket, version, paused)) => {
                    was_connected = true;
                    let connection = (socket, paused);
                    self.serve(connection, version, generation, &cancel).await
                }
                Err(ended) => ended,
            };
            if matches!(ended, Ended::Cancelled | Ended::TaskGone) {
                return;
            }
            log_end(&ended, &mut was_connected);
            if self
                .send(InputKind::MonitorDown { generation })
                .await
                .is_err()
            {
                return;
            }
            let retry = self.config.connection_retry_min_wait.duration();
            let gap = match ended {
                Ended::Restarting => retry.min(RESTART_GAP),
                _ => retry,
            };
            let earliest = began + gap;
            let lasted = self.clock.now().since(since);
            let wait = backoff.ended(ended.is_flood(), lasted).to_duration();
            let next = earliest.max(Instant::now() + wait);
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = cancel.cancelled() => return,
            }
        }
    }

    async fn send(&self, kind: InputKind) -> Result<(), Ended> {
        let input = Input::new(self.clock.now(), kind);
        self.inputs.send(input).await.map_err(|_| Ended::TaskGone)
    }

    async fn connect(
        &self,
        cancel: &CancellationToken,
    ) -> Result<(Socket, Version, Arc<Notify>), Ended> {
        let limit = self.config.connection_timeout.duration();
        tokio::select! {
            // Boxed, because the handshake's state is not needed while the link is up.
            connected = tokio::time::timeout(limit, Box::pin(self.handshake())) => {
                connected.unwrap_or(Err(Ended::ConnectTimedOut))
            }
            () = cancel.cancelled() => Err(Ended::Cancelled),
        }
    }

    async fn handshake(&self) -> Result<(Socket, Version, Arc<Notify>), Ended> {
        let address = format!("{}:{}", self.pod_ip, self.config.server_port);
        let dialled = self.dial(&address).await.map_err(Ended::Connect)?;
        let paused = Arc::new(Notify::new());
        let paced: Stream = Box::new(Paced::new(dialled, self.clock, Arc::clone(&paused)));
        let stream: Stream = match &self.config.tls {
            None => paced,
            Some(files) => Box::new(tls::connect(files, &self.pod_ip, paced).await?),
        };
        let limits = WebSocketConfig::default()
            .max_message_size(Some(AGENT_FRAME_LIMIT_BYTES))
            .max_frame_size(Some(AGENT_FRAME_LIMIT_BYTES))
            .read_buffer_size(READ_BUFFER_BYTES)
            .write_buffer_size(0);
        let url = format!("ws://{address}{PATH}");
        let refused = |error| Ended::Upgrade(Box::new(error));
        let mut request = url.into_client_request().map_err(refused)?;
        if let Some(token) = &self.token {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        let (mut socket, _) =
            tokio_tungstenite::client_async_with_config(request, stream, Some(limits))
                .await
                .map_err(refused)?;
        let offered = conversation::offer(self.config.highest_version);
        let offer = serde_json::to_string(&offered).map_err(|_| HandshakeError::Unreadable)?;
        let broken = |error| Ended::Broken(Box::new(error));
        socket.send(Message::text(offer)).await.map_err(broken)?;
        let first = first_text(&mut socket).await;
        let chosen = first.and_then(|text| Ok(conversation::chosen(offered, &text)?));
        let outcome = match chosen {
            Ok(version) => return Ok((socket, version, paused)),
            Err(ended) => ended,
        };
        let frame = close_frame(&outcome);
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, socket.close(Some(frame))).await;
        Err(outcome)
    }

    async fn dial(&self, address: &str) -> io::Result<Stream> {
        if let Some(cid) = self.vsock_cid {
            let port = u32::from(self.config.server_port);
            return Ok(Box::new(transport::dial_vsock(cid, port).await?));
        }
        Ok(Box::new(transport::dial_tcp(address).await?))
    }

    fn limits(&self) -> Limits {
        Limits {
            response: self.config.response_timeout.span(),
            health_check_every: self.health_check_every,
            unhealthy: self.config.max_health_check_failures.span(),
            push_every: self.push_every,
        }
    }

    /// Runs one session until it ends.
    async fn serve(
        &self,
        (socket, paused): (Socket, Arc<Notify>),
        version: Version,
        generation: u64,
        cancel: &CancellationToken,
    ) -> Ended {
        let (requests_tx, requests) = mpsc::channel(REQUEST_BOUND);
        // The core must see the link before an upscale request that the monitor has sent already.
        if let Err(ended) = self
            .send(InputKind::MonitorUp {
                generation,
                requests: requests_tx,
            })
            .await
        {
            return ended;
        }
        tracing::info!(generation, version = version.0, "connected to the monitor");
        let (sink, stream) = socket.split();
        let (frames, queue) = mpsc::channel(WRITE_BOUND);
        let write_limit = self.config.response_timeout.duration();
        let mut writer = tokio::spawn(write(sink, queue, write_limit));
        let mut session = Session {
            clock: self.clock,
            metrics: &self.metrics,
            feed: &self.feed,
            inputs: &self.inputs,
            generation,
            conversation: Conversation::new(self.clock.now(), version, self.limits()),
            frames,
            responders: std::collections::BTreeMap::new(),
            paused,
            was_paused: false,
        };
        let ended = session.run(stream, requests, &mut writer, cancel).await;
        session.finish().await;
        let _ = session
            .frames
            .try_send(Message::Close(Some(close_frame(&ended))));
        // The writer ends by itself when its queue is dropped. A peer that does not read cannot
        // delay this task.
        ended
    }
}

/// Logs the end of a link. Only the first of consecutive failures is logged above debug.
fn log_end(ended: &Ended, was_connected: &mut bool) {
    let error = daemon_kit::chain(ended);
    if matches!(ended, Ended::Restarting) {
        tracing::info!("the monitor changes its program");
    } else if std::mem::take(was_connected) {
        tracing::warn!(error, "no connection to the monitor");
    } else {
        tracing::debug!(error, "still no connection to the monitor");
    }
}

async fn first_text(socket: &mut Socket) -> Result<String, Ended> {
    for _ in 0..HANDSHAKE_FRAMES {
        match socket.next().await {
            None => return Err(Ended::Closed),
            Some(Err(error)) => return Err(Ended::Broken(Box::new(error))),
            Some(Ok(Message::Text(text))) => return Ok(text.to_string()),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Close(_))) => return Err(Ended::Closed),
            Some(Ok(_)) => return Err(HandshakeError::Unreadable.into()),
        }
    }
    Err(HandshakeError::Unreadable.into())
}
