//! Phase Running of a migration: the guest is on its way, until one write gives it to the target.

use protocol::migration::{IncomingStage, OutgoingStage};
use protocol::time::{Span, Timestamp};
use protocol::vm::VmPhase;
use serde_json::json;

use super::plan::{Draft, PodView};
use super::reason::Reason;
use crate::core::problem::peer_text;

/// Progress is written at most this often.
const PROGRESS_INTERVAL: Span = Span::from_secs(1);

impl Draft<'_> {
    /// Running: the guest is on its way, and still the source's.
    pub(super) fn running(&mut self) {
        let source = self.source();
        let source_gone = match source {
            PodView::Absent => true,
            PodView::Present(pod) => self.end(pod).is_some(),
            PodView::Unknown => false,
        };
        let loaded = self
            .incoming()
            .is_some_and(|report| report.stage == IncomingStage::Loaded);
        let handed_over = self
            .outgoing()
            .is_some_and(|report| report.stage == OutgoingStage::HandedOver);
        let target = match self.target() {
            PodView::Present(pod) => Some(pod),
            _ => None,
        };
        // All of it is there, and nothing here will ever run it again: it is the target's. Nothing
        // but this decides it.
        if let (true, true, Some(target)) = (loaded, handed_over || source_gone, target)
            && self.vm.is_some()
            && self.end(target).is_none()
            && self
                .hopeless()
                .is_none_or(|reason| matches!(reason, Reason::TimedOut { .. }))
        {
            self.keep_figures(true);
            return self.write_vm(VmPhase::Running, Some(target));
        }
        if let Some(reason) = self.hopeless() {
            return self.fail(&reason);
        }
        if self.live_source().is_none() || self.live_target().is_none() {
            return;
        }
        let Some(report) = self.incoming() else {
            let pod = self.stored.target_pod_name.clone();
            return self.waits_for_runner(&pod);
        };
        if report.stage == IncomingStage::Failed {
            let why = peer_text(report.problem.as_deref().unwrap_or_default());
            return self.fail(&Reason::TargetRefused { why });
        }
        let (to, pod) = (
            report.destination.clone(),
            self.stored.source_pod_name.clone(),
        );
        match self.outgoing() {
            Some(report) if report.stage == OutgoingStage::Failed => self.refused(),
            Some(report) if report.stage != OutgoingStage::Holding => self.keep_figures(false),
            _ if to.is_none() => {
                let target = self.stored.target_pod_name.clone();
                self.waits_for_runner(&target);
            }
            _ => self.send(pod.clone(), to, &pod),
        }
    }

    /// The figures of the source, once a second, and the last ones always.
    pub(super) fn keep_figures(&mut self, last: bool) {
        let Some(progress) = self.outgoing().and_then(|report| report.progress.clone()) else {
            return;
        };
        let info = Some(json!(progress));
        if info == self.stored.info {
            return;
        }
        let known = self.stored.info.as_ref();
        let due = known.is_none_or(|info| {
            let then = info["totalTimeMs"].as_i64().unwrap_or(0);
            let apart = progress.total_time_ms.saturating_sub(then);
            u64::try_from(apart).unwrap_or(0) >= PROGRESS_INTERVAL.as_millis() || apart < 0
        });
        if last || due {
            self.status.info = info;
        } else {
            let again: Timestamp = self.input.at.now + PROGRESS_INTERVAL;
            self.wake_at(again);
        }
    }
}
