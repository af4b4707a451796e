//! The client of one VM's monitor: connects, connects again, carries calls, checks its health.
//! Source: docs/compatibility/agent.md §4.1.
//!
//! ```text
//!   connect + handshake --ok--> MonitorUp, then: frames in, calls out, a health check every 5 s
//!      ^      |                          |
//!      |    failed                     ended (peer, protocol, no health for too long, a write that blocks)
//!      +--- wait the rest of 5 s <--- MonitorDown
//! ```
//! A monitor that sends more than it may is read slowly, and left for longer and longer if it goes
//! on ([`crate::core::conversation::pace`]). Reads and writes never wait for one another: frames to
//! send go through a bounded queue to a writer of their own, and a write that takes longer than a
//! response may ends the connection.

mod errors;
mod paced;
mod tls;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::clock::Clock;
use futures::{SinkExt, StreamExt};
use hyper::header::{AUTHORIZATION, HeaderValue};
use protocol::monitor::{AGENT_FRAME_LIMIT_BYTES, PATH, Version};
use protocol::monitor_v2::AgentFrameV2;
use protocol::time::Span;
use protocol::units::Resources;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_util::sync::CancellationToken;
use transport::Stream;

use super::config;
use super::input::{Input, InputKind};
use super::metrics::AgentMetrics;
use crate::core::conversation::pace::Backoff;
use crate::core::conversation::{
    self, Answer, Ask, CallError, Conversation, Downscaled, HandshakeError, Limits, Output,
};

use errors::{Ended, close_frame, code_of, endpoint_of};
use paced::Paced;

/// Frames waiting to be written: every call, a health check and a handful of refusals. A peer that
/// makes more pile up does not read, and the connection ends.
const WRITE_BOUND: usize = 16;
/// Calls waiting to be taken up; the core makes one at a time.
pub(super) const CALL_BOUND: usize = 4;
/// Read buffer of a connection, bytes: frames are short and there is a connection per VM.
const READ_BUFFER_BYTES: usize = 4096;
/// Frames without text before a monitor says its version; more are no handshake.
const HANDSHAKE_FRAMES: usize = 16;
/// How long a close frame may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

type Socket = WebSocketStream<Stream>;

/// What is asked of the monitor, and where the answer goes.
#[derive(Debug)]
pub(super) enum Call {
    Upscale(
        Resources,
        oneshot::Sender<Result<Option<Resources>, CallError>>,
    ),
    Downscale(Resources, oneshot::Sender<Result<Downscaled, CallError>>),
}

/// Where an answer goes.
#[derive(Debug)]
enum Reply {
    Upscale(oneshot::Sender<Result<Option<Resources>, CallError>>),
    Downscale(oneshot::Sender<Result<Downscaled, CallError>>),
}

impl Reply {
    /// Passes it on; a receiver that has gone does not want to know.
    fn give(self, outcome: Result<Answer, CallError>) {
        match (self, outcome) {
            (Self::Upscale(to), Ok(Answer::Upscale { observed })) => drop(to.send(Ok(observed))),
            (Self::Downscale(to), Ok(Answer::Downscale(said))) => drop(to.send(Ok(said))),
            (Self::Upscale(to), outcome) => drop(to.send(Err(error_of(outcome)))),
            (Self::Downscale(to), outcome) => drop(to.send(Err(error_of(outcome)))),
        }
    }
}

fn error_of(outcome: Result<Answer, CallError>) -> CallError {
    outcome.err().unwrap_or(CallError::WrongKind)
}

/// The connection loop of one VM.
pub(super) struct Link {
    pub config: config::Monitor,
    /// How often metrics may be pushed: as often as they would be scraped.
    pub push_every: Span,
    pub health_check_every: Span,
    pub pod_ip: String,
    /// The guest's number, if it has a vsock device: it is dialled there instead.
    pub vsock_cid: Option<u32>,
    /// Shown to the monitor, which refuses the connection without it where its guest was given one.
    pub token: Option<HeaderValue>,
    pub clock: Clock,
    pub metrics: AgentMetrics,
    pub inputs: mpsc::Sender<Input>,
}

impl Link {
    /// Connects forever, until cancelled.
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
                    let carrier = (socket, paused);
                    self.serve(carrier, version, generation, &cancel).await
                }
                Err(ended) => ended,
            };
            if matches!(ended, Ended::Cancelled | Ended::TaskGone) {
                return;
            }
            // Only the first of a run of failed attempts is worth a line above debug.
            let error = daemon_kit::chain(&ended);
            if std::mem::take(&mut was_connected) {
                tracing::warn!(error, "no connection to the monitor");
            } else {
                tracing::debug!(error, "still no connection to the monitor");
            }
            if self
                .send(InputKind::MonitorDown { generation })
                .await
                .is_err()
            {
                return;
            }
            let next = began + self.config.connection_retry_min_wait.duration();
            let lasted = self.clock.now().since(since);
            let wait = backoff.ended(ended.is_flood(), lasted).to_duration();
            let next = next.max(Instant::now() + wait);
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
            // Boxed: what it needs is not needed again while the connection lasts.
            connected = tokio::time::timeout(limit, Box::pin(self.handshake())) => {
                connected.unwrap_or(Err(Ended::ConnectTimedOut))
            }
            () = cancel.cancelled() => Err(Ended::Cancelled),
        }
    }

    async fn handshake(&self) -> Result<(Socket, Version, Arc<Notify>), Ended> {
        let address = format!("{}:{}", self.pod_ip, self.config.server_port);
        let stream = self.dial(&address).await.map_err(Ended::Connect)?;
        let paused = Arc::new(Notify::new());
        let stream: Stream = Box::new(Paced::new(stream, self.clock, Arc::clone(&paused)));
        let stream: Stream = match &self.config.tls {
            None => stream,
            Some(files) => Box::new(tls::connect(files, &self.pod_ip, stream).await?),
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
        let answer = first_text(&mut socket).await;
        let chosen = answer.and_then(|text| Ok(conversation::chosen(offered, &text)?));
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

    /// Carries one connection until it ends.
    async fn serve(
        &self,
        (socket, paused): (Socket, Arc<Notify>),
        version: Version,
        generation: u64,
        cancel: &CancellationToken,
    ) -> Ended {
        let (calls_tx, calls) = mpsc::channel(CALL_BOUND);
        // Active before anything is read, so that a wish already waiting finds it so.
        if let Err(ended) = self
            .send(InputKind::MonitorUp {
                generation,
                calls: calls_tx,
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
            link: self,
            generation,
            conversation: Conversation::new(self.clock.now(), version, self.limits()),
            frames,
            replies: BTreeMap::new(),
            paused,
            was_paused: false,
        };
        let ended = session.run(stream, calls, &mut writer, cancel).await;
        session.finish().await;
        let _ = session
            .frames
            .try_send(Message::Close(Some(close_frame(&ended))));
        // The writer ends by itself when its queue is gone; a peer that does not read cannot hold
        // us here.
        ended
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

/// Writes frames until the queue ends, a write fails, or one takes too long.
async fn write(
    mut sink: futures::stream::SplitSink<Socket, Message>,
    mut queue: mpsc::Receiver<Message>,
    limit: Duration,
) {
    while let Some(message) = queue.recv().await {
        let is_close = matches!(message, Message::Close(_));
        let limit = if is_close { CLOSE_TIMEOUT } else { limit };
        match tokio::time::timeout(limit, sink.send(message)).await {
            Ok(Ok(())) if !is_close => {}
            _ => return,
        }
    }
}

/// One connection: carries what its conversation decides.
struct Session<'a> {
    link: &'a Link,
    generation: u64,
    conversation: Conversation,
    frames: mpsc::Sender<Message>,
    replies: BTreeMap<u64, Reply>,
    /// Notified when the carrier pauses.
    paused: Arc<Notify>,
    /// It has been logged that this connection pauses.
    was_paused: bool,
}

impl Session<'_> {
    async fn run(
        &mut self,
        mut stream: futures::stream::SplitStream<Socket>,
        mut calls: mpsc::Receiver<Call>,
        writer: &mut tokio::task::JoinHandle<()>,
        cancel: &CancellationToken,
    ) -> Ended {
        loop {
            if let Err(ended) = self.carry_out().await {
                return ended;
            }
            let now = self.link.clock.now();
            let pause = self.conversation.paused_until(now);
            let deadline = self.conversation.poll_deadline();
            let rest = pause.map_or(deadline, |until| until.min(deadline));
            let rest = rest.since(now);
            let step = tokio::select! {
                message = stream.next(), if pause.is_none() => self.received(message),
                () = self.paused.notified() => {
                    self.conversation.carrier_paused(self.link.clock.now());
                    Ok(())
                }
                call = calls.recv() => match call {
                    Some(call) => {
                        self.call(call);
                        Ok(())
                    }
                    None => Err(Ended::TaskGone),
                },
                () = tokio::time::sleep(rest.to_duration()) => Ok(()),
                _ = &mut *writer => Err(Ended::WriteBlocked),
                () = cancel.cancelled() => Err(Ended::Cancelled),
            };
            self.conversation.elapsed(self.link.clock.now());
            if let Err(ended) = step {
                return ended;
            }
        }
    }

    fn call(&mut self, call: Call) {
        let now = self.link.clock.now();
        let (id, reply) = match call {
            Call::Upscale(size, reply) => {
                (self.conversation.upscale(now, size), Reply::Upscale(reply))
            }
            Call::Downscale(size, reply) => {
                let id = self.conversation.downscale(now, size);
                (id, Reply::Downscale(reply))
            }
        };
        self.replies.insert(id, reply);
    }

    fn received(&mut self, message: Option<Result<Message, WsError>>) -> Result<(), Ended> {
        match message {
            None | Some(Ok(Message::Close(_))) => Err(Ended::Closed),
            Some(Err(error)) => Err(Ended::Broken(Box::new(error))),
            Some(Ok(Message::Text(text))) => {
                self.conversation.received(self.link.clock.now(), &text);
                Ok(())
            }
            Some(Ok(_)) => {
                self.conversation.ignored(self.link.clock.now());
                Ok(())
            }
        }
    }

    /// Does what the conversation wants done, until it wants nothing more.
    async fn carry_out(&mut self) -> Result<(), Ended> {
        while let Some(output) = self.conversation.poll_action() {
            match output {
                Output::Send(frame) => self.write(&frame)?,
                Output::Done { id, ask, outcome } => self.done(id, ask, outcome).await?,
                Output::Wish(wish) => {
                    self.link.metrics.monitor_message("UpscaleRequest", "ok");
                    if let Some(wish) = wish {
                        let generation = self.generation;
                        let kind = InputKind::MonitorWish { generation, wish };
                        self.link.send(kind).await?;
                    }
                }
                Output::Pushed(metrics) => {
                    let generation = self.generation;
                    let kind = InputKind::Pushed {
                        generation,
                        metrics,
                    };
                    self.link.send(kind).await?;
                }
                Output::Unreadable => {
                    let metrics = &self.link.metrics;
                    metrics.monitor_message("unknown", "[error: unreadable]");
                }
                Output::Complaint(complaint) => {
                    tracing::debug!(%complaint, "the monitor complains of what nobody waits for");
                }
                Output::Paused => self.note_pause(),
                Output::End(breach) => return Err(breach.into()),
            }
        }
        Ok(())
    }

    /// Counts a pause, and logs the first one of a connection.
    fn note_pause(&mut self) {
        self.link.metrics.monitor_paused();
        if !std::mem::replace(&mut self.was_paused, true) {
            tracing::warn!(
                generation = self.generation,
                "monitor sends more than it may: it is read slowly"
            );
        }
    }

    /// Hands a frame to the writer.
    fn write(&mut self, frame: &AgentFrameV2) -> Result<(), Ended> {
        let message = Message::text(frame.encode());
        self.frames.try_send(message).map_err(|_| {
            self.conversation.unsent(self.link.clock.now(), frame.id);
            Ended::WriteBlocked
        })
    }

    /// Passes on how a call ended.
    async fn done(
        &mut self,
        id: u64,
        ask: Ask,
        outcome: Result<Answer, CallError>,
    ) -> Result<(), Ended> {
        let code = outcome.as_ref().map_or_else(code_of, |_| "ok");
        self.link.metrics.monitor_call(endpoint_of(ask), code);
        tracing::debug!(id, ?ask, ?outcome, "a call of the monitor ended");
        if let Some(reply) = self.replies.remove(&id) {
            reply.give(outcome);
            return Ok(());
        }
        match (ask, outcome) {
            (Ask::Health, Ok(_)) => self.link.send(InputKind::MonitorHealthy).await,
            (Ask::Health, Err(error)) => {
                let error = daemon_kit::chain(&error);
                tracing::warn!(error, "health check of the monitor failed");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Ends what still waits: nobody may wait for a connection that is gone.
    async fn finish(&mut self) {
        self.conversation.close();
        while let Some(output) = self.conversation.poll_action() {
            if let Output::Done { id, ask, outcome } = output {
                // The task that would hear of it may have gone as well.
                let _ = self.done(id, ask, outcome).await;
            }
        }
    }
}
