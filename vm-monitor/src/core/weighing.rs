//! What weighs on memory beside its use, before a shrink is decided on.
//!
//! A shrink is never approved on old figures. For each request the use, swap, stalls, free memory
//! and page cache are read. The zones are read only where the shrink would be approved and these
//! figures, with the remembered sizes of the zones, leave it open whether the kernel could do it.

use protocol::time::Timestamp;

use super::decision::{Basis, Refusal, ShrinkDecision, Weight, judge};
use super::jobs::{Shrink, Weighing};
use super::zones::{ZoneSizes, Zones};
use super::{Action, Monitor};

impl Monitor {
    /// What weighs on memory was read, perhaps without the zones.
    pub(super) fn weighed(&mut self, now: Timestamp, weight: Weight) {
        let Some(weighing) = self.weighing.as_mut() else {
            return;
        };
        weighing.weight = Some(weight);
        let mem = weighing.target.mem;
        let verdict = self.judge_shrink(now, mem, weight);
        // In the order of the checks the zones come before the pressure.
        let is_open = matches!(
            verdict,
            ShrinkDecision::Approve(_) | ShrinkDecision::Refuse(Refusal::Pressure { .. })
        );
        if is_open && self.needs_zones(now, mem, &weight) {
            return self.outbox.push_back(Action::ReadZones);
        }
        self.decide_shrink(now, verdict);
    }

    /// The zones were read, or could not be.
    pub(super) fn zones_read(&mut self, now: Timestamp, zones: Option<Zones>) {
        let Some(weighing) = self.weighing else {
            return;
        };
        // A newer request, whose own figures are still to be read.
        let Some(weight) = weighing.weight else {
            return;
        };
        let known = zones.zip(weight.total);
        self.zone_sizes = known.map(|(zones, total)| ZoneSizes::new(now, &zones, total));
        let weight = Weight { zones, ..weight };
        let verdict = self.judge_shrink(now, weighing.target.mem, weight);
        self.decide_shrink(now, verdict);
    }

    fn judge_shrink(&self, now: Timestamp, mem: u64, weight: Weight) -> ShrinkDecision {
        let basis = Basis {
            rules: &self.setup.rules,
            watched: self.setup.watched,
            window: &self.window,
            threshold: self.threshold,
            peak: self.peak.highest(now, self.setup.rules.peak_window),
            weight,
        };
        judge(basis, mem, now)
    }

    /// Whether only the zones can tell that the kernel could give back what the shrink takes.
    fn needs_zones(&self, now: Timestamp, mem: u64, weight: &Weight) -> bool {
        if weight.zones.is_some() {
            return false;
        }
        let (Some(total), Some(by)) = (weight.total, weight.shrinks_by(mem)) else {
            return false;
        };
        let can_give = self.zone_sizes.zip(weight.idle);
        !can_give.is_some_and(|(sizes, idle)| sizes.can_give(now, by, total, idle))
    }

    fn decide_shrink(&mut self, now: Timestamp, verdict: ShrinkDecision) {
        let Some(weighing) = self.weighing.take() else {
            return;
        };
        let Weighing {
            connection,
            id,
            target,
            ..
        } = weighing;
        match verdict {
            ShrinkDecision::Approve(approval) => {
                let shrink = Shrink {
                    connection,
                    id,
                    target,
                    approval,
                };
                self.squeeze_before_shrink(now, shrink);
            }
            ShrinkDecision::Refuse(refusal) => self.refuse(now, connection, id, target, &refusal),
            ShrinkDecision::Fail(failure) => {
                self.counters.downscales.add("failed");
                self.fail(connection, id, &failure);
            }
        }
    }
}
