//! The size of a guest: the pod's requests and metadata, then the order to its runner.

use protocol::object::Pod;
use protocol::runner::{RunnerPhase, RunnerState, SizeOrder};
use protocol::time::Span;
use protocol::trace::TraceId;
use protocol::units::{Bytes, Resources};
use serde_json::Value;

use crate::core::action::Action;
use crate::core::draft::Draft;
use crate::core::kind::Kind;
use crate::core::metadata::{self, PatchOp};
use crate::core::observe::{Fit, grows, ordered, size_of, status_size};
use crate::core::problem::{Problem, peer_text};
use crate::core::requests;
use crate::core::view::RunnerView;

/// Shortest pause between two writes of a pod's requests while its guest shrinks.
pub const REQUESTS_INTERVAL: Span = Span::from_secs(1);
/// Longest time for which an order of a controller that has ended may be on its way.
pub const ORDER_LASTS: Span = Span::from_secs(10);

impl Draft<'_> {
    /// Syncs the pod, then orders the size. The scheduler sums up a node by its pods and must never
    /// see a guest grow before its pod. So a growth waits for the sync. A size below that of the
    /// boot but above the pod's annotation waits too. Other orders go out beside the sync. The
    /// pod's requests say the size if they cover both resources, and its metadata may follow the
    /// guest then. Otherwise the counted annotations say it.
    pub(super) fn sync_and_size(&mut self, pod: &Pod) {
        if pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        let wanted = self.vm.spec.guest.in_use();
        let annotated = metadata::annotated_size(&pod.metadata);
        let size = if self.may_say_less() {
            wanted
        } else {
            wanted.field_max(annotated.unwrap_or_default())
        };
        let ops = metadata::expected_at(self.vm, self.input.settings, size).patch(&pod.metadata);
        let resize = self.requests(pod);
        let by_requests = self.is_sized_by_requests(pod);
        let unsure = self.input.resize_unsure.iter().map(Vec::as_slice);
        let mut changes = unsure.chain(self.input.resizing);
        let may_be_less = changes.any(|ops| requests::undercuts(self.vm, ops));
        let counted = metadata::counted(&ops);
        let in_sync = (by_requests || counted.is_empty())
            && !may_be_less
            && !resize.as_ref().is_some_and(|resize| resize.grows);
        let is_above_annotated =
            !by_requests && annotated.is_none_or(|annotated| wanted.has_field_above(annotated));
        let waits = |state: &RunnerState| is_above_annotated || grows(wanted, state);
        if let RunnerView::Known(state) = self.input.runner {
            if self.fit(state) == Fit::Unordered && (in_sync || !waits(state)) {
                self.order(pod, wanted);
            } else {
                self.plug_ahead(pod, state, by_requests);
            }
        }
        let is_shown = matches!(self.input.runner, RunnerView::Known(state)
            if self.fit(state) != Fit::Reached && (by_requests || !waits(state)));
        let can_wait = is_shown && self.may_be_quick();
        self.sync(pod, ops, counted, can_wait);
        if let Some(resize) = resize
            && (resize.grows || !self.has_yet_to_shrink())
            && !(resize.grows && self.has_a_head_start(wanted))
        {
            let (name, ops) = (pod.metadata.name.clone(), resize.ops);
            self.actions.push(Action::ResizePod { name, ops });
        }
        if self.overlay_is_wanted() && self.input.settings.network_attachment.is_none() {
            self.problems.push(Problem::NoOverlay);
        }
    }

    /// Patches all metadata in one write. If that is refused or undone, the counted annotations go
    /// first in a write of their own.
    fn sync(&mut self, pod: &Pod, ops: Vec<PatchOp>, counted: Vec<PatchOp>, can_wait: bool) {
        let is_refused = self.input.failures.contains_key(&Kind::PatchPodMetadata);
        let name = || pod.metadata.name.clone();
        if is_refused && !counted.is_empty() && !can_wait {
            let (name, ops) = (name(), counted);
            self.actions.push(Action::PatchPodCounted { name, ops });
        }
        // A refused patch stays planned, or the plan would forget the refusal.
        if !ops.is_empty() && (is_refused || !can_wait) {
            let name = name();
            self.actions.push(Action::PatchPodMetadata { name, ops });
        }
    }

    fn order(&mut self, pod: &Pod, size: Resources) {
        let trace = TraceId {
            vm: self.vm.metadata.key(),
            revision: self.revision(),
        };
        let over = match self.input.runner {
            RunnerView::Known(state) => state.orders,
            RunnerView::NoLink | RunnerView::Silent { .. } => None,
        };
        self.actions.push(Action::SetSize {
            pod: pod.metadata.name.clone(),
            order: SizeOrder {
                cpu: size.cpu,
                memory: size.mem,
                trace,
            },
            over,
        });
    }

    /// Change of the pod's requests. An API server or a node that refuses it is reported and delays
    /// no growth: the scheduler has permitted the size, and it alone accounts for the node's
    /// headroom.
    fn requests(&mut self, pod: &Pod) -> Option<requests::Change> {
        if !self.input.settings.true_requests {
            return None;
        }
        if let Some(message) = requests::pending(pod) {
            self.problems.push(Problem::RequestsPending {
                pod: pod.metadata.name.clone(),
                message: peer_text(message),
            });
        }
        let has = match self.input.runner {
            RunnerView::Known(state) => self.may_have(state),
            RunnerView::NoLink | RunnerView::Silent { .. } => None,
        };
        let mut change = requests::change(self.vm, pod, has)?;
        change.grows &= !self.input.failures.contains_key(&Kind::ResizePod);
        Some(change)
    }

    /// The most that a guest has, or may get by an order in flight. `None` for a runner that has
    /// just adopted its QEMU or receives it, and while an order of an earlier controller may still
    /// arrive.
    fn may_have(&mut self, state: &RunnerState) -> Option<Resources> {
        if self.has_just_taken_over() {
            return None;
        }
        if matches!(state.phase, RunnerPhase::Booting | RunnerPhase::Receiving) {
            return None;
        }
        let mut has = size_of(state);
        let requested = state.memory.requested.0;
        has.mem = has.mem.max(Bytes(state.memory.base.0 + requested));
        let newest = state.resize.as_ref().map(|report| ordered(&report.order));
        let orders = newest.into_iter().chain(self.ordering());
        Some(orders.fold(has, Resources::field_max))
    }

    /// Whether an order of an earlier controller may still reach the runner. If so, looks again.
    fn has_just_taken_over(&mut self) -> bool {
        let at = self.input.took_over_at;
        at.is_some_and(|at| self.is_before(at + ORDER_LASTS))
    }

    /// Whether the pod may say less than it does. The guest has the size of its boot or of an
    /// earlier order until the status shows less. After a crash of the controller the status may
    /// show too little.
    fn may_say_less(&mut self) -> bool {
        let RunnerView::Known(state) = self.input.runner else {
            return false;
        };
        let shown = self
            .vm
            .spec
            .guest
            .in_use()
            .field_max(status_size(&self.status));
        let has = self.may_have(state);
        has.is_some_and(|has| !has.has_field_above(shown))
    }

    /// Whether the guest shrinks and its pod's requests followed lately. If so, looks again.
    fn has_yet_to_shrink(&mut self) -> bool {
        let is_there = matches!(self.input.runner, RunnerView::Known(state) if self.fit(state) == Fit::Reached);
        let next = self.input.wanted_since.max(self.input.resized_at) + REQUESTS_INTERVAL;
        !is_there && self.is_before(next)
    }

    /// Whether the pod's requests give others the size of its guest.
    fn is_sized_by_requests(&self, pod: &Pod) -> bool {
        self.input.settings.true_requests
            && !self.input.failures.contains_key(&Kind::ResizePod)
            && requests::cover_vm(self.vm, pod)
    }

    pub(in crate::core) fn overlay_is_wanted(&self) -> bool {
        let extra = self.vm.spec.extra_network.as_ref();
        extra
            .and_then(|extra| extra.get("enable"))
            .and_then(Value::as_bool)
            == Some(true)
    }
}
