//! One session of a link: carries frames, requests and pauses between the monitor, the
//! conversation and the VM's task. It has a loop of its own, because it stops reading from a
//! monitor that exceeds its rate, and because outputs may wait for the VM's task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::clock::Clock;
use daemon_kit::driver::sleep_until;
use futures::{SinkExt, StreamExt};
use protocol::core::Core as _;
use protocol::monitor_v2::AgentFrameV2;
use tokio::sync::{Notify, mpsc, watch};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_util::sync::CancellationToken;
use transport::Stream;

use super::errors::{Ended, code_of, endpoint_of};
use super::request::{LinkRequest, Responder};
use crate::core::conversation::{
    Conversation, Event, MonitorRequest, MonitorRequestError, MonitorResponse, Output,
};
use crate::shell::input::{Input, InputKind};
use crate::shell::metrics::AgentMetrics;
use crate::shell::vm_feed::VmFeed;

/// Frames that wait for the writer: all requests, a health check and a few complaints. More pile up
/// only if the peer does not read; then the link ends.
pub(super) const WRITE_BOUND: usize = 16;
/// Time limit of a close frame.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) type Socket = WebSocketStream<Stream>;

/// Writes frames until the queue is dropped, a write fails, or one takes longer than `limit`.
pub(super) async fn write(
    mut sink: futures::stream::SplitSink<Socket, Message>,
    mut queue: mpsc::Receiver<Message>,
    limit: Duration,
) {
    while let Some(message) = queue.recv().await {
        let is_close = matches!(message, Message::Close(_));
        let bound = if is_close { CLOSE_TIMEOUT } else { limit };
        match tokio::time::timeout(bound, sink.send(message)).await {
            Ok(Ok(())) if !is_close => {}
            _ => return,
        }
    }
}

/// State of one session.
pub(super) struct Session<'a> {
    pub clock: Clock,
    pub metrics: &'a AgentMetrics,
    pub feed: &'a watch::Receiver<VmFeed>,
    pub inputs: &'a mpsc::Sender<Input>,
    pub generation: u64,
    pub conversation: Conversation,
    pub frames: mpsc::Sender<Message>,
    /// Channels for the outcomes, by the id of the request.
    pub responders: BTreeMap<u64, Responder>,
    /// Notified when the stream below pauses.
    pub paused: Arc<Notify>,
    /// The first pause has been logged.
    pub was_paused: bool,
}

impl Session<'_> {
    pub(super) async fn run(
        &mut self,
        mut stream: futures::stream::SplitStream<Socket>,
        mut requests: mpsc::Receiver<LinkRequest>,
        writer: &mut tokio::task::JoinHandle<()>,
        cancel: &CancellationToken,
    ) -> Ended {
        loop {
            if let Err(ended) = self.take_outputs().await {
                return ended;
            }
            let pause = self.conversation.paused_until(self.clock.now());
            let deadline = self.conversation.poll_deadline();
            let wake = pause.into_iter().chain(deadline).min();
            let step = tokio::select! {
                message = stream.next(), if pause.is_none() => self.received(message),
                () = self.paused.notified() => {
                    self.handle(Event::StreamPaused);
                    Ok(())
                }
                request = requests.recv() => match request {
                    Some(request) => {
                        self.request(request);
                        Ok(())
                    }
                    None => Err(Ended::TaskGone),
                },
                () = sleep_until(self.clock, wake) => Ok(()),
                _ = &mut *writer => Err(Ended::WriteBlocked),
                () = cancel.cancelled() => Err(Ended::Cancelled),
            };
            self.handle(Event::Elapsed);
            if let Err(ended) = step {
                return ended;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        self.conversation.handle(self.clock.now(), event);
    }

    async fn input(&self, kind: InputKind) -> Result<(), Ended> {
        let input = Input::new(self.clock.now(), kind);
        self.inputs.send(input).await.map_err(|_| Ended::TaskGone)
    }

    fn request(&mut self, request: LinkRequest) {
        let now = self.clock.now();
        let (id, responder) = match request {
            LinkRequest::Upscale { size, outcome } => {
                let id = self.conversation.upscale(now, size);
                (id, Responder::Upscale(outcome))
            }
            LinkRequest::Downscale { size, outcome } => {
                let id = self.conversation.downscale(now, size);
                (id, Responder::Downscale(outcome))
            }
        };
        self.responders.insert(id, responder);
    }

    fn received(&mut self, message: Option<Result<Message, WsError>>) -> Result<(), Ended> {
        match message {
            Some(Ok(Message::Close(Some(frame)))) if frame.code == CloseCode::Restart => {
                Err(Ended::Restarting)
            }
            None | Some(Ok(Message::Close(_))) => Err(Ended::Closed),
            Some(Err(error)) => Err(Ended::Broken(Box::new(error))),
            Some(Ok(Message::Text(text))) => {
                self.handle(Event::Text(text.as_str().to_owned()));
                Ok(())
            }
            Some(Ok(_)) => {
                self.handle(Event::Ignored);
                Ok(())
            }
        }
    }

    /// Carries out all outputs of the conversation.
    async fn take_outputs(&mut self) -> Result<(), Ended> {
        while let Some(output) = self.conversation.poll_action(self.clock.now()) {
            match output {
                Output::Send(frame) => self.write(&frame)?,
                Output::Done {
                    id,
                    request,
                    outcome,
                } => self.done(id, request, outcome).await?,
                Output::UpscaleRequest(request) => {
                    self.metrics.monitor_message("UpscaleRequest", "ok");
                    if let Some(request) = request {
                        let generation = self.generation;
                        let kind = InputKind::MonitorUpscaleRequest {
                            generation,
                            request,
                        };
                        self.input(kind).await?;
                    }
                }
                Output::Pushed(metrics) => {
                    let generation = self.generation;
                    let kind = InputKind::Pushed {
                        generation,
                        metrics,
                    };
                    self.input(kind).await?;
                }
                Output::ScheduleRequest { id, request } => {
                    self.metrics.monitor_message("ScheduleRequest", "ok");
                    let annotation = self.feed.borrow().schedule.as_deref().map(str::to_owned);
                    self.handle(Event::Schedule {
                        id,
                        kind: request.kind,
                        annotation,
                    });
                }
                Output::Unreadable => {
                    self.metrics
                        .monitor_message("unknown", "[error: unreadable]");
                }
                Output::Complaint(complaint) => {
                    tracing::debug!(%complaint, "complaint of the monitor about an unknown id");
                }
                Output::Paused => self.note_pause(),
                Output::End(breach) => return Err(breach.into()),
            }
        }
        Ok(())
    }

    /// Counts a pause, and logs the first one of a session.
    fn note_pause(&mut self) {
        self.metrics.monitor_paused();
        if !std::mem::replace(&mut self.was_paused, true) {
            tracing::warn!(
                generation = self.generation,
                "monitor exceeds its rate and is read slowly"
            );
        }
    }

    /// Queues a frame for the writer.
    fn write(&mut self, frame: &AgentFrameV2) -> Result<(), Ended> {
        let message = Message::text(frame.encode());
        self.frames.try_send(message).map_err(|_| {
            self.handle(Event::Unsent(frame.id));
            Ended::WriteBlocked
        })
    }

    /// Passes on the outcome of a request.
    async fn done(
        &mut self,
        id: u64,
        request: MonitorRequest,
        outcome: Result<MonitorResponse, MonitorRequestError>,
    ) -> Result<(), Ended> {
        let code = outcome.as_ref().map_or_else(code_of, |_| "ok");
        self.metrics.monitor_call(endpoint_of(request), code);
        tracing::debug!(id, ?request, ?outcome, "monitor request ended");
        if let Some(responder) = self.responders.remove(&id) {
            responder.send(outcome);
            return Ok(());
        }
        match (request, outcome) {
            (MonitorRequest::Health, Ok(_)) => self.input(InputKind::MonitorHealthy).await,
            (MonitorRequest::Health, Err(error)) => {
                let error = daemon_kit::chain(&error);
                tracing::warn!(error, "health check of the monitor failed");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Ends all open requests.
    pub(super) async fn finish(&mut self) {
        self.handle(Event::Closed);
        while let Some(output) = self.conversation.poll_action(self.clock.now()) {
            if let Output::Done {
                id,
                request,
                outcome,
            } = output
            {
                // The VM's task may be gone as well.
                let _ = self.done(id, request, outcome).await;
            }
        }
    }
}
