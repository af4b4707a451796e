//! One agent's connection: which agent the monitor serves, and how it reads the agent's frames.

use protocol::monitor::{
    AgentBody, AgentFrame, FrameErrorKind, MAX_ID, MONITOR_FIRST_ID, MONITOR_FRAME_LIMIT_BYTES,
    MonitorBody, MonitorFrame, Version,
};
use protocol::monitor_v2::Capabilities;
use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;

use super::Monitor;
use super::event::{Action, CloseReason, ConnectionId, Received};
use super::handshake::HandshakeFailure;
use super::jobs::Request;
use super::session::{Session, shorten};

/// Between two lines in the log about strangers at the door, for each reason. The counters have all
/// of them.
const STRANGER_LOG_EVERY: Span = Span::from_secs(60);

impl Monitor {
    pub(super) fn agent_ready(
        &mut self,
        now: Timestamp,
        (connection, version): (ConnectionId, Version),
        total: Option<Bytes>,
    ) {
        self.counters.connections += 1;
        if let Some(old) = self.session.take() {
            self.counters.replaced += 1;
            let reason = CloseReason::Replaced;
            self.outbox.push_back(Action::Close {
                connection: old.connection,
                reason,
            });
        }
        self.session = Some(Session {
            connection,
            version,
            capabilities: Capabilities::default(),
            next_id: MONITOR_FIRST_ID,
        });
        if version < Version::V2 {
            self.schedule.begin(now, false);
        } else {
            self.schedule.link_lost();
        }
        self.growth = None;
        self.metrics_at = None;
        self.weighing = None;
        self.shrunk_at = None;
        self.peak.clear();
        self.window.clear();
        self.watch.restart(now);
        self.stalled = None;
        self.waiting.clear();
        self.total = total;
        self.threshold = total.map(|total| self.setup.rules.threshold(total));
        tracing::info!(connection = connection.0, total = ?total, threshold = ?self.threshold, "agent connected");
        if let Some(total) = total {
            // Once at the start of each connection, so that missing rights show before they matter.
            self.waiting.push_back(Request::Start { total });
        }
    }

    /// Somebody came as far as the door. Whoever it is must not be able to fill the log.
    pub(super) fn handshake_failed(&mut self, now: Timestamp, failure: HandshakeFailure) {
        let reason = failure.label();
        self.counters.handshake_failures.add(reason);
        let last = self.strangers_logged.get(&failure);
        if last.is_none_or(|at| now.since(*at) >= STRANGER_LOG_EVERY) {
            self.strangers_logged.insert(failure, now);
            let count = self.counters.handshake_failures.get(reason);
            tracing::warn!(reason, count, "handshake failed");
        }
    }

    pub(super) fn agent_gone(&mut self, connection: ConnectionId) {
        if self
            .session
            .is_some_and(|session| session.connection == connection)
        {
            tracing::info!(connection = connection.0, "agent gone");
            self.session = None;
            self.schedule.link_lost();
            self.waiting.clear();
            self.growth = None;
            self.metrics_at = None;
            self.weighing = None;
        }
    }

    pub(super) fn received(&mut self, now: Timestamp, connection: ConnectionId, what: Received) {
        let (label, complaint, close) = match what {
            Received::Text(text) => return self.frame(now, connection, &text),
            Received::NotText => return self.counters.received.add("not_text"),
            Received::TooLarge { bytes } => {
                let limit = MONITOR_FRAME_LIMIT_BYTES;
                let complaint = format!("frame has {bytes} bytes, the limit is {limit}");
                ("too_large", complaint, None)
            }
            Received::NotUtf8 => {
                let complaint = "text frame is not UTF-8".to_owned();
                ("not_utf8", complaint, Some(CloseReason::NotUtf8))
            }
            Received::FarTooLarge => {
                let complaint = "frame is too large to be read".to_owned();
                ("too_large", complaint, Some(CloseReason::TooLarge))
            }
        };
        self.counters.received.add(label);
        self.invalid(connection, 0, &complaint);
        if let Some(reason) = close {
            self.outbox.push_back(Action::Close { connection, reason });
            self.agent_gone(connection);
        }
    }

    pub(super) fn frame(&mut self, now: Timestamp, connection: ConnectionId, text: &str) {
        let is_v2 = self
            .session
            .is_some_and(|session| session.version >= Version::V2);
        let decoded = if is_v2 {
            self.frame_v2(now, connection, text)
        } else {
            AgentFrame::decode(text).map(Some)
        };
        let AgentFrame { body, id } = match decoded {
            Ok(Some(frame)) => frame,
            Ok(None) => return,
            Err(error) => {
                self.counters.received.add(match error.kind {
                    FrameErrorKind::NotJson => "not_json",
                    FrameErrorKind::NotAFrame => "not_a_frame",
                    FrameErrorKind::UnknownType => "unknown_type",
                    FrameErrorKind::BadContent => "bad_content",
                });
                return self.invalid(connection, error.id, &error.reason);
            }
        };
        self.counters.received.add(body.wire_type());
        match body {
            AgentBody::HealthCheck => self.send(connection, id, MonitorBody::HealthCheck),
            AgentBody::DownscaleRequest { target } => {
                self.enqueue(Request::Downscale {
                    connection,
                    id,
                    target,
                });
            }
            AgentBody::UpscaleNotification { granted } => {
                self.enqueue(Request::Upscale {
                    connection,
                    id,
                    granted,
                });
            }
            AgentBody::InvalidMessage { error } | AgentBody::InternalError { error } => {
                tracing::debug!(id, error = %shorten(error), "the agent complains");
                self.schedule_refused(now, id);
            }
        }
    }

    /// The connection served and the next id of our own for it.
    pub(super) fn next_own_id(&mut self) -> Option<(ConnectionId, u64)> {
        let session = self.session.as_mut()?;
        let id = session.next_id;
        session.next_id = if id + 2 < MAX_ID {
            id + 2
        } else {
            MONITOR_FIRST_ID
        };
        Some((session.connection, id))
    }

    pub(super) fn invalid(&mut self, connection: ConnectionId, id: u64, why: &str) {
        let error = shorten(why.to_owned());
        tracing::debug!(id, error, "bad frame from the agent");
        self.send(connection, id, MonitorBody::InvalidMessage { error });
    }

    pub(super) fn send(&mut self, connection: ConnectionId, id: u64, body: MonitorBody) {
        self.counters.sent.add(body.wire_type());
        let frame = MonitorFrame { body, id };
        self.outbox.push_back(Action::Send { connection, frame });
    }
}
