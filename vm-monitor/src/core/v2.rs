//! What version 2 of the link adds: capabilities, details of requests and refusals, sizes that were
//! seen, pushed metrics.
//!
//! Nothing here is reached by a session of version 1, and nothing is added to a frame before the
//! agent has named the capability for it.

use protocol::monitor::{AgentFrame, Allocation, FrameError};
use protocol::monitor_v2::{
    AgentBodyV2, AgentFrameV2, AskReason, Capabilities, GroupGauges, GuestMetrics, METRICS_PERIODS,
    MonitorBodyV2, MonitorFrameV2, OBSERVE_LIMIT, UpscaleDetails, Urgency,
};
use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;

pub use super::event::Seen;
use super::growth_request::GrowthRequest;
use super::jobs::{Growth, Job};
use super::{Action, ConnectionId, Monitor};

/// Between two looks at whether the guest sees its new size.
const OBSERVE_EVERY: Span = Span::from_millis(50);

impl Monitor {
    /// What may be added to this session's frames.
    pub(super) fn capabilities(&self) -> Capabilities {
        self.session
            .map(|session| session.capabilities)
            .unwrap_or_default()
    }

    /// Reads a frame of a session of version 2. A frame that is one of version 1 is given back.
    pub(super) fn frame_v2(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        text: &str,
    ) -> Result<Option<AgentFrame>, FrameError> {
        let AgentFrameV2 { body, id } = AgentFrameV2::decode(text)?;
        let names = match body {
            AgentBodyV2::Plain(body) => return Ok(Some(AgentFrame { body, id })),
            AgentBodyV2::Schedule(schedule) => {
                self.counters.received.add("Schedule");
                self.schedule_came(now, connection, id, schedule);
                return Ok(None);
            }
            AgentBodyV2::Capabilities { names } => names,
        };
        self.counters.received.add("Capabilities");
        let named = Capabilities::of_names(&names);
        let agreed = Capabilities {
            schedule: named.schedule && self.setup.asks_schedule,
            ..named
        };
        let Some(session) = self.session.as_mut() else {
            return Ok(None);
        };
        session.capabilities = agreed;
        tracing::info!(
            connection = connection.0,
            ?agreed,
            "the agent's capabilities"
        );
        // The answer is all that would be done for an agent that names everything, with the period
        // agreed on. A schedule is named only to an agent that has named it.
        let all = Capabilities {
            schedule: agreed.schedule,
            ..Capabilities::all(agreed.metrics.unwrap_or(METRICS_PERIODS.1))
        };
        let names = all.names();
        self.send_v2(connection, id, MonitorBodyV2::Capabilities { names });
        self.schedule.begin(now, agreed.schedule);
        if agreed.ask_details {
            self.outbox.push_back(Action::Observe);
        }
        self.metrics_at = agreed.metrics.map(|_| now);
        Ok(None)
    }

    /// An `UpscaleRequest` in this session's form.
    pub(super) fn asked_body(&self, ask: &GrowthRequest) -> MonitorBodyV2 {
        MonitorBodyV2::Asked(UpscaleDetails {
            reason: ask.reason,
            urgency: Some(self.urgency(ask)),
            wanted: self.wanted(ask),
        })
    }

    fn urgency(&self, ask: &GrowthRequest) -> Urgency {
        let ahead = self.watch.ahead(self.threshold);
        let (used, total) = (ask.used.unwrap_or_default(), self.total.unwrap_or_default());
        // At its present climb, memory is full before growth comes.
        let is_racing =
            ask.climb > 0 && self.total.is_some() && used.0.saturating_add(ahead.0) >= total.0;
        match ask.reason {
            AskReason::OomEvent | AskReason::PsiFull => Urgency::Critical,
            _ if is_racing => Urgency::Critical,
            AskReason::Forecast => Urgency::Soon,
            _ => Urgency::Now,
        }
    }

    /// The size in which the use expected when growth has come fits below its threshold, with room
    /// for the next shrink's buffer; never less than there is.
    fn wanted(&self, ask: &GrowthRequest) -> Option<Allocation> {
        let rules = &self.setup.rules;
        let used = ask.used.or_else(|| self.window.mean())?;
        let ahead = self.watch.ahead(self.threshold);
        let expected = Bytes(used.0.saturating_add(ahead.0));
        let now_is = self.total?.0.saturating_add(rules.kernel_reserve.0);
        Some(Allocation {
            cpu: f64::from(self.seen.cpus?),
            mem: rules.smallest_for(expected).max(now_is),
        })
    }

    /// Waits until the guest sees a growth before anything rests on it.
    pub(super) fn watch_growth(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        id: u64,
        granted: Allocation,
    ) {
        self.growth = Some(Growth {
            connection,
            id,
            granted,
            until: now + OBSERVE_LIMIT,
            look_at: now,
        });
    }

    /// What the guest sees was read.
    pub(super) fn observed(&mut self, now: Timestamp, seen: Seen) {
        self.seen = seen;
        let Some(growth) = self.growth else { return };
        let usable = self.setup.rules.usable(growth.granted.mem);
        let is_there = seen.has(growth.granted, usable);
        if !is_there && now < growth.until {
            return;
        }
        self.growth = None;
        if is_there {
            self.growth_has_come(now);
        } else {
            self.counters.upscales.add("not_seen");
            tracing::warn!(
                id = growth.id,
                granted = growth.granted.mem,
                ?seen,
                "the guest does not see its new size"
            );
        }
        // What is not there cannot be used.
        let total = match seen.total.filter(|_| !is_there) {
            Some(total) => total.min(usable),
            None => usable,
        };
        let job = Job::Upscale {
            connection: growth.connection,
            id: growth.id,
            granted: growth.granted,
            total,
            observed: seen.allocation(),
        };
        self.set_cache_then(now, total, job);
    }

    /// What version 2 has to do now, if anything.
    pub(super) fn poll_v2(&mut self, now: Timestamp) -> Option<Action> {
        if let Some(growth) = self.growth.as_mut().filter(|growth| now >= growth.look_at) {
            growth.look_at = (now + OBSERVE_EVERY).min(growth.until.max(now + Span(1)));
            return Some(Action::Observe);
        }
        let period = self.capabilities().metrics?;
        self.metrics_at.filter(|at| now >= *at)?;
        self.metrics_at = Some(now + period);
        Some(Action::Measure)
    }

    /// When version 2 has something to do next.
    pub(super) fn deadline_v2(&self) -> Option<Timestamp> {
        let look_at = self.growth.map(|growth| growth.look_at);
        look_at.into_iter().chain(self.metrics_at).min()
    }

    /// The figures to push were read; the group's own are known here.
    pub(super) fn measured(&mut self, mut metrics: GuestMetrics) {
        if self.capabilities().metrics.is_none() {
            return;
        }
        let bytes = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0);
        metrics.cgroup = GroupGauges {
            current: bytes(self.watch.bound()),
            used: bytes(self.watch.used()),
            threshold: bytes(self.threshold),
            working_set: bytes(self.estimator.estimate()),
        };
        if let Some((connection, id)) = self.next_own_id() {
            self.send_v2(connection, id, MonitorBodyV2::Metrics(Box::new(metrics)));
        }
    }

    /// After a growth the agent learns at once what the guest has.
    pub(super) fn push_metrics_soon(&mut self, now: Timestamp) {
        if let Some(at) = self.metrics_at.as_mut() {
            *at = (*at).min(now);
        }
    }

    pub(super) fn send_v2(&mut self, connection: ConnectionId, id: u64, body: MonitorBodyV2) {
        self.counters.sent.add(body.wire_type());
        let frame = MonitorFrameV2 { body, id };
        self.outbox.push_back(Action::SendV2 { connection, frame });
    }
}
