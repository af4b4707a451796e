//! The client of one VM's monitor: connects, connects again, carries calls, checks its health. Source: spec/agent.md §4.1.
//!
//! ```text
//!   connect + handshake --ok--> MonitorUp, then: frames in, calls out, a health check every 5 s
//!      ^      |                          |
//!      |    failed                     ended (peer, protocol, no health for too long, a write that blocks)
//!      +--- wait the rest of 5 s <--- MonitorDown
//! ```
//! Reads and writes never wait for one another: frames to send go through a bounded queue to a writer of their own, and a write
//! that takes longer than a response may ends the connection.

mod errors;
#[cfg(test)]
mod tests;
mod tls;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use protocol::monitor::{
    AGENT_FIRST_ID, AGENT_FRAME_LIMIT_BYTES, AgentBody, Allocation, FrameError, FrameErrorKind,
    MonitorBody, MonitorFrame, PATH, Version, VersionRange, VersionResponse,
};
use protocol::monitor_v2::{
    AgentBodyV2, AgentFrameV2, Asked, Capabilities, MonitorBodyV2, MonitorFrameV2, Refused, Urgency,
};
use protocol::units::{Bytes, Resources};
use telemetry::clock::Clock;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_util::sync::CancellationToken;

use super::config;
use super::input::{Input, InputKind};
use super::metrics::AgentMetrics;
use crate::core::{DownscaleAnswer, Wish};

pub(super) use errors::CallError;
use errors::{Ended, close_frame};

/// Frames waiting to be written: every call, a health check and a handful of refusals. A peer that makes more pile up does not
/// read, and the connection ends.
const WRITE_BOUND: usize = 16;
/// Calls waiting to be taken up; the core makes one at a time.
pub(super) const CALL_BOUND: usize = 4;
/// Read buffer of a connection, bytes: frames are short and there is a connection per VM.
const READ_BUFFER_BYTES: usize = 4096;
/// Wishes closer together than this are one: a guest must not be able to keep the agent busy. The first one always counts.
const WISH_GAP: Duration = Duration::from_millis(100);
/// How long a close frame may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// What we can use of version 2. Metrics are scraped, from monitors of either version alike.
const CAPABILITIES: Capabilities = Capabilities {
    ask_details: true,
    refusal_details: true,
    observed: true,
    metrics: None,
};
/// Every how many health checks in a row a line is written.
const HEALTHY_LOG_EVERY: u64 = 10;

/// Bytes both ways, by TLS or without.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

type Socket = WebSocketStream<Box<dyn Duplex>>;

/// What is asked of the monitor, and where the answer goes.
#[derive(Debug)]
pub(super) enum Call {
    Upscale(Resources, oneshot::Sender<Result<(), CallError>>),
    Downscale(
        Resources,
        oneshot::Sender<Result<DownscaleAnswer, CallError>>,
    ),
}

/// Who waits for the answer under an id.
#[derive(Debug)]
enum Waiter {
    Upscale(oneshot::Sender<Result<(), CallError>>),
    Downscale(oneshot::Sender<Result<DownscaleAnswer, CallError>>),
    Health,
    Capabilities,
}

impl Waiter {
    fn endpoint(&self) -> &'static str {
        match self {
            Self::Upscale(_) => "UpscaleNotification",
            Self::Downscale(_) => "DownscaleRequest",
            Self::Health => "HealthCheck",
            Self::Capabilities => "Capabilities",
        }
    }
}

/// The connection loop of one VM.
pub(super) struct Link {
    pub config: config::Monitor,
    pub health_check_every: Duration,
    pub pod_ip: String,
    pub clock: Clock,
    pub metrics: AgentMetrics,
    pub inputs: mpsc::Sender<Input>,
}

impl Link {
    /// Connects forever, until cancelled.
    pub(super) async fn run(self, cancel: CancellationToken) {
        let mut generation = 0_u64;
        let mut was_connected = true;
        loop {
            let began = Instant::now();
            generation += 1;
            let ended = match self.connect(&cancel).await {
                Ok((socket, version)) => {
                    was_connected = true;
                    self.serve(socket, version, generation, &cancel).await
                }
                Err(ended) => ended,
            };
            if matches!(ended, Ended::Cancelled | Ended::TaskGone) {
                return;
            }
            // Only the first of a run of failed attempts is worth a line above debug.
            let error = telemetry::chain(&ended);
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
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = cancel.cancelled() => return,
            }
        }
    }

    async fn send(&self, kind: InputKind) -> Result<(), Ended> {
        let input = Input {
            arrived: self.clock.now(),
            kind,
        };
        self.inputs.send(input).await.map_err(|_| Ended::TaskGone)
    }

    async fn connect(&self, cancel: &CancellationToken) -> Result<(Socket, Version), Ended> {
        let limit = self.config.connection_timeout.duration();
        tokio::select! {
            // Boxed: what it needs is not needed again while the connection lasts.
            connected = tokio::time::timeout(limit, Box::pin(self.handshake())) => {
                connected.unwrap_or(Err(Ended::ConnectTimedOut))
            }
            () = cancel.cancelled() => Err(Ended::Cancelled),
        }
    }

    async fn handshake(&self) -> Result<(Socket, Version), Ended> {
        let address = format!("{}:{}", self.pod_ip, self.config.server_port);
        let stream = TcpStream::connect(&address).await.map_err(Ended::Connect)?;
        stream.set_nodelay(true).map_err(Ended::Connect)?;
        let stream: Box<dyn Duplex> = match &self.config.tls {
            None => Box::new(stream),
            Some(files) => {
                let peer = stream.peer_addr().map_err(Ended::Connect)?.ip();
                Box::new(tls::connect(files, peer, stream).await?)
            }
        };
        let limits = WebSocketConfig::default()
            .max_message_size(Some(AGENT_FRAME_LIMIT_BYTES))
            .max_frame_size(Some(AGENT_FRAME_LIMIT_BYTES))
            .read_buffer_size(READ_BUFFER_BYTES)
            .write_buffer_size(0);
        let url = format!("ws://{address}{PATH}");
        let (mut socket, _) =
            tokio_tungstenite::client_async_with_config(url, stream, Some(limits))
                .await
                .map_err(|error| Ended::Upgrade(Box::new(error)))?;
        let range = VersionRange {
            min: Version::V1,
            max: self.config.highest_version,
        };
        let offer = serde_json::to_string(&range).map_err(|_| Ended::Handshake)?;
        let broken = |error| Ended::Broken(Box::new(error));
        socket.send(Message::text(offer)).await.map_err(broken)?;
        let outcome = match first_text(&mut socket).await {
            Ok(text) => match serde_json::from_str::<VersionResponse>(&text) {
                Ok(VersionResponse::Version(version))
                    if version >= range.min && version <= range.max =>
                {
                    return Ok((socket, version));
                }
                Ok(VersionResponse::Version(Version(other))) => Ended::Version(other),
                Ok(VersionResponse::Error(text)) => {
                    Ended::Refused(text.chars().take(200).collect())
                }
                Err(_) => Ended::Handshake,
            },
            Err(ended) => ended,
        };
        let frame = close_frame(&outcome);
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, socket.close(Some(frame))).await;
        Err(outcome)
    }

    /// Carries one connection until it ends.
    async fn serve(
        &self,
        socket: Socket,
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
            version,
            generation,
            frames,
            next_id: AGENT_FIRST_ID,
            waiting: BTreeMap::new(),
            unhealthy_since: None,
            healthy: 0,
            last_wish: None,
        };
        if version >= Version::V2
            && let Err(ended) = session.name_capabilities()
        {
            return ended;
        }
        let ended = session.run(stream, calls, &mut writer, cancel).await;
        session.fail_all();
        let _ = session
            .frames
            .try_send(Message::Close(Some(close_frame(&ended))));
        // The writer ends by itself when its queue is gone; a peer that does not read cannot hold us here.
        ended
    }
}

async fn first_text(socket: &mut Socket) -> Result<String, Ended> {
    loop {
        match socket.next().await {
            None => return Err(Ended::Closed),
            Some(Err(error)) => return Err(Ended::Broken(Box::new(error))),
            Some(Ok(Message::Text(text))) => return Ok(text.to_string()),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Close(_))) => return Err(Ended::Closed),
            Some(Ok(_)) => return Err(Ended::Handshake),
        }
    }
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

/// One connection.
struct Session<'a> {
    link: &'a Link,
    version: Version,
    generation: u64,
    frames: mpsc::Sender<Message>,
    next_id: u64,
    waiting: BTreeMap<u64, (Instant, Waiter)>,
    unhealthy_since: Option<Instant>,
    healthy: u64,
    last_wish: Option<(Instant, Option<Urgency>)>,
}

impl Session<'_> {
    async fn run(
        &mut self,
        mut stream: futures::stream::SplitStream<Socket>,
        mut calls: mpsc::Receiver<Call>,
        writer: &mut tokio::task::JoinHandle<()>,
        cancel: &CancellationToken,
    ) -> Ended {
        let every = self.link.health_check_every;
        let mut health = tokio::time::interval_at(Instant::now() + every, every);
        health.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let deadline = self.waiting.values().map(|(deadline, _)| *deadline).min();
            let step = tokio::select! {
                message = stream.next() => self.received(message).await,
                call = calls.recv() => match call {
                    Some(call) => self.call(call),
                    None => Err(Ended::TaskGone),
                },
                () = sleep_until(deadline) => self.expire().await,
                _ = health.tick() => self.check_health(),
                _ = &mut *writer => Err(Ended::WriteBlocked),
                () = cancel.cancelled() => Err(Ended::Cancelled),
            };
            if let Err(ended) = step {
                return ended;
            }
        }
    }

    /// The first frame of version 2.
    fn name_capabilities(&mut self) -> Result<(), Ended> {
        let names = CAPABILITIES.names();
        self.ask(AgentBodyV2::Capabilities { names }, Waiter::Capabilities)
    }

    /// Hands a frame to the writer. Frames of version 1 are the same in version 2.
    fn write(&self, body: impl Into<AgentBodyV2>, id: u64) -> Result<(), Ended> {
        let body = body.into();
        let text = AgentFrameV2 { body, id }.encode();
        self.frames
            .try_send(Message::text(text))
            .map_err(|_| Ended::WriteBlocked)
    }

    fn ask(&mut self, body: impl Into<AgentBodyV2>, waiter: Waiter) -> Result<(), Ended> {
        let id = self.next_id;
        self.next_id += 2;
        let endpoint = waiter.endpoint();
        if let Err(ended) = self.write(body, id) {
            self.link
                .metrics
                .monitor_call(endpoint, CallError::NotSent.code());
            let _ = answer(waiter, Err(CallError::NotSent));
            return Err(ended);
        }
        let deadline = Instant::now() + self.link.config.response_timeout.duration();
        self.waiting.insert(id, (deadline, waiter));
        Ok(())
    }

    fn call(&mut self, call: Call) -> Result<(), Ended> {
        let allocation = |size: Resources| Allocation {
            cpu: size.cpu.as_cores(),
            mem: size.mem.0,
        };
        match call {
            Call::Upscale(size, reply) => {
                let granted = allocation(size);
                self.ask(
                    AgentBody::UpscaleNotification { granted },
                    Waiter::Upscale(reply),
                )
            }
            Call::Downscale(size, reply) => {
                let target = allocation(size);
                self.ask(
                    AgentBody::DownscaleRequest { target },
                    Waiter::Downscale(reply),
                )
            }
        }
    }

    fn check_health(&mut self) -> Result<(), Ended> {
        let is_pending = self
            .waiting
            .values()
            .any(|(_, waiter)| matches!(waiter, Waiter::Health));
        if is_pending {
            Ok(())
        } else {
            self.ask(AgentBody::HealthCheck, Waiter::Health)
        }
    }

    /// Gives up on answers that are overdue.
    async fn expire(&mut self) -> Result<(), Ended> {
        let now = Instant::now();
        let overdue: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, (deadline, _))| *deadline <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in overdue {
            self.settle(id, Err(CallError::TimedOut)).await?;
        }
        Ok(())
    }

    async fn received(&mut self, message: Option<Result<Message, WsError>>) -> Result<(), Ended> {
        let text = match message {
            None | Some(Ok(Message::Close(_))) => return Err(Ended::Closed),
            Some(Err(error)) => return Err(Ended::Broken(Box::new(error))),
            Some(Ok(Message::Text(text))) => text,
            Some(Ok(_)) => return Ok(()),
        };
        match self.decode(&text) {
            Ok(frame) => self.frame(frame).await,
            Err(error) => {
                self.link
                    .metrics
                    .monitor_message("unknown", "[error: unreadable]");
                match error.kind {
                    FrameErrorKind::NotJson | FrameErrorKind::NotAFrame => {
                        Err(Ended::NotAFrame(error.reason))
                    }
                    FrameErrorKind::UnknownType => {
                        self.settle(error.id, Err(CallError::UnknownAnswer)).await?;
                        self.write(
                            AgentBody::InvalidMessage {
                                error: error.reason,
                            },
                            error.id,
                        )
                    }
                    FrameErrorKind::BadContent => {
                        self.settle(error.id, Err(CallError::BadAnswer)).await?;
                        let text = error.reason.clone();
                        self.write(AgentBody::InvalidMessage { error: text }, error.id)?;
                        Err(Ended::BadContent(error.reason))
                    }
                }
            }
        }
    }

    /// Reads a frame by the version agreed on.
    fn decode(&self, text: &str) -> Result<MonitorFrameV2, FrameError> {
        if self.version >= Version::V2 {
            return MonitorFrameV2::decode(text);
        }
        let MonitorFrame { body, id } = MonitorFrame::decode(text)?;
        let body = MonitorBodyV2::Plain(body);
        Ok(MonitorFrameV2 { body, id })
    }

    async fn frame(&mut self, frame: MonitorFrameV2) -> Result<(), Ended> {
        let id = frame.id;
        let answer = match frame.body {
            MonitorBodyV2::Plain(MonitorBody::UpscaleRequest) => return self.wish(None).await,
            MonitorBodyV2::Asked(asked) => return self.wish(Some(asked)).await,
            MonitorBodyV2::Plain(body) => plain_answer(id, body),
            MonitorBodyV2::Refused(Refused {
                status,
                reason,
                smallest,
            }) => {
                let smallest = smallest.map(size_of);
                tracing::debug!(
                    id,
                    status,
                    reason = reason.label(),
                    smallest = smallest.map(|size| size.mem.0),
                    "the monitor refused a shrink"
                );
                Ok(Answer::Downscale(smallest.map_or(
                    DownscaleAnswer::Denied,
                    DownscaleAnswer::DeniedBelow,
                )))
            }
            MonitorBodyV2::Confirmed { observed } => {
                tracing::debug!(
                    id,
                    cpus = observed.cpu,
                    mem = observed.mem,
                    "the guest sees its size"
                );
                Ok(Answer::Upscale)
            }
            MonitorBodyV2::Capabilities { names } => {
                let agreed = Capabilities::of_names(&names);
                tracing::debug!(?agreed, "the monitor's capabilities");
                Ok(Answer::Capabilities)
            }
            // Nobody asked for them.
            MonitorBodyV2::Metrics(_) => return Ok(()),
        };
        let is_complaint = answer.is_err();
        if self.waiting.contains_key(&id) {
            return self.settle(id, answer).await;
        }
        // A complaint about something nobody waits for is only noted: answering it could go on for ever.
        if is_complaint {
            tracing::debug!(id, ?answer, "the monitor complains");
            return Ok(());
        }
        let error = format!("nobody waits for an answer under id {id}");
        self.write(AgentBody::InvalidMessage { error }, id)
    }

    /// Passes a wish on, unless it follows too closely on one that was as urgent.
    async fn wish(&mut self, asked: Option<Asked>) -> Result<(), Ended> {
        self.link.metrics.monitor_message("UpscaleRequest", "ok");
        let urgency = asked.and_then(|asked| asked.urgency);
        let now = Instant::now();
        let is_repeated = self
            .last_wish
            .is_some_and(|(at, before)| now - at < WISH_GAP && urgency <= before);
        if is_repeated {
            return Ok(());
        }
        self.last_wish = Some((now, urgency));
        let generation = self.generation;
        let wish = Wish {
            reason: asked.map(|asked| asked.reason),
            wanted: asked
                .and_then(|asked| asked.wanted)
                .map(|wanted| Bytes(wanted.mem)),
        };
        self.link
            .send(InputKind::MonitorWish { generation, wish })
            .await
    }

    /// Ends the wait under an id, if there is one.
    async fn settle(&mut self, id: u64, got: Result<Answer, CallError>) -> Result<(), Ended> {
        let Some((_, waiter)) = self.waiting.remove(&id) else {
            return Ok(());
        };
        let endpoint = waiter.endpoint();
        let is_health = matches!(waiter, Waiter::Health);
        let outcome = answer(waiter, got);
        let code = outcome
            .as_ref()
            .map_or_else(|error| error.code(), |()| "ok");
        self.link.metrics.monitor_call(endpoint, code);
        if is_health {
            self.health_checked(outcome).await
        } else {
            Ok(())
        }
    }

    async fn health_checked(&mut self, outcome: Result<(), CallError>) -> Result<(), Ended> {
        let Err(error) = outcome else {
            self.unhealthy_since = None;
            self.healthy += 1;
            if self.healthy.is_multiple_of(HEALTHY_LOG_EVERY) {
                tracing::debug!(count = self.healthy, "health checks succeed");
            }
            return self.link.send(InputKind::MonitorHealthy).await;
        };
        let error = telemetry::chain(&error);
        tracing::warn!(error, "health check of the monitor failed");
        self.healthy = 0;
        let now = Instant::now();
        let since = *self.unhealthy_since.get_or_insert(now);
        if now - since > self.link.config.max_health_check_failures.duration() {
            return Err(Ended::Unhealthy);
        }
        Ok(())
    }

    fn fail_all(&mut self) {
        for (_, (_, waiter)) in std::mem::take(&mut self.waiting) {
            self.link
                .metrics
                .monitor_call(waiter.endpoint(), CallError::Disconnected.code());
            let _ = answer(waiter, Err(CallError::Disconnected));
        }
    }
}

/// A size as the core has it: a part of a milli-CPU counts as a whole one; what is below zero, or no number, as none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and NaN becomes 0"
)]
fn size_of(allocation: Allocation) -> Resources {
    Resources::new((allocation.cpu * 1000.0).ceil() as u32, allocation.mem)
}

/// What came back under an id.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Upscale,
    Downscale(DownscaleAnswer),
    Health,
    Capabilities,
}

/// What a frame of version 1 answers.
fn plain_answer(id: u64, body: MonitorBody) -> Result<Answer, CallError> {
    match body {
        MonitorBody::DownscaleResult { ok, status } => {
            tracing::debug!(id, ok, status, "the monitor answered a shrink");
            Ok(Answer::Downscale(if ok {
                DownscaleAnswer::Allowed
            } else {
                DownscaleAnswer::Denied
            }))
        }
        MonitorBody::UpscaleConfirmation => Ok(Answer::Upscale),
        MonitorBody::HealthCheck => Ok(Answer::Health),
        MonitorBody::InternalError { error } => Err(CallError::Internal(error)),
        MonitorBody::InvalidMessage { error } => Err(CallError::Invalid(error)),
        // A request is no answer.
        MonitorBody::UpscaleRequest => Err(CallError::WrongKind),
    }
}

/// Passes an answer on if it is of the right kind; says how the call ended.
fn answer(waiter: Waiter, got: Result<Answer, CallError>) -> Result<(), CallError> {
    // A receiver that has gone does not want to know.
    match (waiter, got) {
        (Waiter::Upscale(reply), Ok(Answer::Upscale)) => {
            let _ = reply.send(Ok(()));
            Ok(())
        }
        (Waiter::Downscale(reply), Ok(Answer::Downscale(answer))) => {
            let _ = reply.send(Ok(answer));
            Ok(())
        }
        (Waiter::Health, Ok(Answer::Health)) | (Waiter::Capabilities, Ok(Answer::Capabilities)) => {
            Ok(())
        }
        (waiter, got) => {
            let error = got.err().unwrap_or(CallError::WrongKind);
            match waiter {
                Waiter::Upscale(reply) => drop(reply.send(Err(error.clone()))),
                Waiter::Downscale(reply) => drop(reply.send(Err(error.clone()))),
                Waiter::Health | Waiter::Capabilities => {}
            }
            Err(error)
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
