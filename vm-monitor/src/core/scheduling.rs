//! The schedule of upgrades: asked of the agent, written to its file, not read.
//!
//! The last one stays while the link is lost.

use protocol::monitor_v2::{
    MonitorBodyV2, SCHEDULE_PERIODS_S, SYSTEMD_TIMER, Schedule, ScheduleRequest,
};
use protocol::release::RELEASE;
use protocol::time::{Span, Timestamp};

use super::schedule::OpenRequest;
use super::{Action, ConnectionId, Monitor};

impl Monitor {
    /// Asks for the schedule if that is due, and gives up a request that is open for too long.
    pub(super) fn poll_schedule(&mut self, now: Timestamp) -> Option<Action> {
        self.schedule.deadline().filter(|at| now >= *at)?;
        if let Some(open) = self.schedule.open.take() {
            tracing::warn!("the agent does not answer the request for a schedule");
            self.schedule.failed(now, open.since);
            return None;
        }
        let (connection, id) = self.next_own_id()?;
        self.schedule.open = Some(OpenRequest { id, since: now });
        let request = ScheduleRequest {
            version: RELEASE.to_owned(),
            kind: SYSTEMD_TIMER.to_owned(),
        };
        self.send_v2(connection, id, MonitorBodyV2::ScheduleRequest(request));
        self.outbox.pop_back()
    }

    /// When [`Monitor::poll_schedule`] has something to do next.
    pub(super) fn schedule_at(&self) -> Option<Timestamp> {
        self.schedule.deadline()
    }

    /// The agent has answered. What no request waits for is refused.
    pub(super) fn schedule_came(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        id: u64,
        schedule: Schedule,
    ) {
        let Some(request) = self.schedule.answered(id) else {
            let why = format!("no request for a schedule is open under id {id}");
            return self.invalid(connection, id, &why);
        };
        let (least, most) = SCHEDULE_PERIODS_S;
        let period = Span::from_secs(schedule.valid_s.clamp(least, most));
        self.schedule.next_at = Some(now + period);
        self.schedule.writing_since = Some(request.since);
        let spec = schedule.spec;
        self.outbox.push_back(Action::WriteSchedule { spec });
    }

    /// The schedule was written to its file, or could not be.
    pub(super) fn schedule_written(&mut self, now: Timestamp, is_written: bool) {
        let Some(since) = self.schedule.writing_since.take() else {
            return;
        };
        if is_written {
            self.schedule.failing_since = None;
        } else {
            self.schedule.failed(now, since);
        }
    }

    /// The agent complains about a frame of ours.
    pub(super) fn schedule_refused(&mut self, now: Timestamp, id: u64) {
        if let Some(request) = self.schedule.answered(id) {
            tracing::warn!("the agent refuses the request for a schedule");
            self.schedule.failed(now, request.since);
        }
    }
}
