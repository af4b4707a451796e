//! Squeezes before shrinks: when they begin, their steps, and what follows from their end.

use protocol::time::Timestamp;
use protocol::units::Bytes;

use super::decision::{Approval, Refusal};
use super::jobs::{Job, Shrink};
use super::squeeze::{GaveUp, Squeeze, Step};
use super::working_set::Gauge;
use super::{Action, Monitor, OperationId};

impl Monitor {
    /// A shrink would be approved: squeezes first, if that is wanted and there is something to fit
    /// into.
    pub(super) fn squeeze_before_shrink(&mut self, now: Timestamp, shrink: Shrink) {
        let Approval::Fits { total, .. } = shrink.approval else {
            return self.squeezed_enough(now, shrink);
        };
        if !self.setup.squeezes {
            return self.squeezed_enough(now, shrink);
        }
        let operation = OperationId(self.next_operation);
        self.next_operation += 1;
        // The first step only looks.
        let bytes = Bytes(0);
        self.outbox.push_back(Action::Squeeze { operation, bytes });
        let squeeze = Squeeze::new(now, total);
        self.job = Some((operation, Job::Squeeze { shrink, squeeze }));
    }

    fn squeezed_enough(&mut self, now: Timestamp, shrink: Shrink) {
        let Shrink {
            connection,
            id,
            target,
            approval,
        } = shrink;
        self.hooks_before_shrink(now, connection, id, (target, approval));
    }

    /// A step was taken and looked at; without figures there is no group to squeeze, or no means
    /// to.
    pub(super) fn squeezed(
        &mut self,
        now: Timestamp,
        operation: OperationId,
        gauge: Option<Gauge>,
    ) {
        let is_this = |job: &mut (OperationId, Job)| {
            job.0 == operation && matches!(job.1, Job::Squeeze { .. })
        };
        let Some((
            _,
            Job::Squeeze {
                shrink,
                mut squeeze,
            },
        )) = self.job.take_if(is_this)
        else {
            // Given up meanwhile.
            return;
        };
        // Whoever asked is gone: nothing more is taken.
        if !self.serves(shrink.connection) {
            return;
        }
        let Some(gauge) = gauge else {
            self.counters.squeezes.add("impossible");
            return self.squeezed_enough(now, shrink);
        };
        match squeeze.step(now, gauge) {
            Step::Take(bytes) => {
                self.outbox.push_back(Action::Squeeze { operation, bytes });
                self.job = Some((operation, Job::Squeeze { shrink, squeeze }));
            }
            Step::Done => {
                self.counters.squeezes.add("done");
                self.squeezed_enough(now, shrink);
            }
            Step::GiveUp(why) => self.give_squeeze_up(now, &shrink, &squeeze, why),
        }
    }

    /// When a squeeze has to end.
    pub(super) fn squeeze_until(&self) -> Option<Timestamp> {
        match &self.job {
            Some((_, Job::Squeeze { squeeze, .. })) => Some(squeeze.until),
            _ => None,
        }
    }

    /// Gives up a squeeze whose time is over, though its step has not ended.
    pub(super) fn end_overdue_squeeze(&mut self, now: Timestamp) {
        if self.squeeze_until().is_none_or(|until| now < until) {
            return;
        }
        if let Some((_, Job::Squeeze { shrink, squeeze })) = self.job.take()
            && self.serves(shrink.connection)
        {
            self.give_squeeze_up(now, &shrink, &squeeze, GaveUp::TooSlow);
        }
        self.start_next_job(now);
    }

    fn give_squeeze_up(&mut self, now: Timestamp, shrink: &Shrink, squeeze: &Squeeze, why: GaveUp) {
        self.counters.squeezes.add(why.label());
        let refusal = Refusal::Squeezed(squeeze.given_up(why));
        self.refuse(now, shrink.connection, shrink.id, shrink.target, &refusal);
    }
}
