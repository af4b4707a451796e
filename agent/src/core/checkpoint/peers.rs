//! Records of the peers' states: scheduler, VM object, monitor.

use protocol::journal::{
    Approval, Denial, MonitorPart, Ongoing as OngoingRecord, PatchPart, PluginPart, Size,
    UpscaleRecord, Wished,
};
use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;

use super::stamps::{micros, stamp_of, stamped, time};
use crate::core::actions::RequestId;
use crate::core::desired::Denied;
use crate::core::event::UpscaleRequest;
use crate::core::monitor::{
    Approved, DeniedDownscale, Kind, MonitorState, Ongoing, RequestedUpscale,
};
use crate::core::scheduler::{LastRequest, SchedulerState};
use crate::core::vm_patch::VmPatchState;

pub(super) fn scheduler_record(state: &SchedulerState) -> PluginPart {
    let SchedulerState {
        ongoing,
        last_request,
        last_failure_at,
        permit,
        current_revision,
        is_unanswered,
        migrating_since,
    } = state;
    PluginPart {
        failed: micros(*last_failure_at),
        last: last_request.map(|last| (last.at.0, last.resources.into(), stamped(last.revision))),
        migrating: micros(*migrating_since),
        ongoing: ongoing.map(|id| id.0),
        permit: permit.map(Size::from),
        rev: (*current_revision).into(),
        unanswered: *is_unanswered,
    }
}

pub(super) fn scheduler_of(part: &PluginPart) -> SchedulerState {
    SchedulerState {
        ongoing: part.ongoing.map(RequestId),
        last_request: part.last.map(|(at, size, revision)| LastRequest {
            at: Timestamp(at),
            resources: size.into(),
            revision: stamp_of(revision),
        }),
        last_failure_at: time(part.failed),
        permit: part.permit.map(Into::into),
        current_revision: part.rev.into(),
        is_unanswered: part.unanswered,
        migrating_since: time(part.migrating),
    }
}

pub(super) fn patch_record(state: &VmPatchState) -> PatchPart {
    let VmPatchState {
        ongoing,
        request_failed_at,
        last_success,
        uncertain,
        was_resized,
        version,
        unjudged,
        target_revision,
        current_revision,
    } = state;
    PatchPart {
        failed: micros(*request_failed_at),
        last: micros(*last_success),
        moved: *was_resized,
        ongoing: ongoing.map(|(id, size)| (id.0, size.into())),
        rev: (*current_revision).into(),
        seen: unjudged.map(|(version, size)| (version, size.into())),
        target: stamped(*target_revision),
        uncertain: uncertain.map(|(low, high)| (low.into(), high.into())),
        version: *version,
    }
}

pub(super) fn patch_of(part: &PatchPart) -> VmPatchState {
    VmPatchState {
        ongoing: part.ongoing.map(|(id, size)| (RequestId(id), size.into())),
        request_failed_at: time(part.failed),
        last_success: time(part.last),
        uncertain: part.uncertain.map(|(low, high)| (low.into(), high.into())),
        was_resized: part.moved,
        version: part.version,
        unjudged: part.seen.map(|(version, size)| (version, size.into())),
        target_revision: stamp_of(part.target),
        current_revision: part.rev.into(),
    }
}

pub(super) fn monitor_record(state: &MonitorState) -> MonitorPart {
    let MonitorState {
        ongoing,
        requested_upscale,
        denied_downscale,
        approved,
        is_in_doubt,
        downscale_failure_at,
        upscale_failure_at,
        current_revision,
    } = state;
    MonitorPart {
        again: denied_downscale
            .and_then(|denial| denial.again)
            .map(|again| again.0),
        approved: approved.map(|range| Approval(range.low.into(), range.high.into())),
        denied: denied_downscale.map(|denial| {
            let Denied {
                current,
                requested,
                smallest: _,
            } = denial.denied;
            Denial(denial.at.0, current.into(), requested.into())
        }),
        doubt: *is_in_doubt,
        down_failed: micros(*downscale_failure_at),
        least: denied_downscale
            .and_then(|denial| denial.denied.smallest)
            .map(Size::from),
        ongoing: ongoing.map(|call| OngoingRecord {
            id: call.id.0,
            rev: stamped(call.revision),
            size: call.resources.into(),
            up: call.kind == Kind::Upscale,
        }),
        rev: (*current_revision).into(),
        up_failed: micros(*upscale_failure_at),
        wish: requested_upscale.map(|requested| {
            let details = upscale_request_record(requested.request);
            UpscaleRecord(requested.at.0, requested.base.into(), details)
        }),
    }
}

pub(in crate::core) fn upscale_request_record(request: UpscaleRequest) -> Wished {
    let UpscaleRequest { reason, wanted } = request;
    Wished {
        reason,
        wanted: wanted.map(|bytes| bytes.0),
    }
}

pub(in crate::core) fn upscale_request_of(record: Wished) -> UpscaleRequest {
    UpscaleRequest {
        reason: record.reason,
        wanted: record.wanted.map(Bytes),
    }
}

pub(super) fn monitor_of(part: &MonitorPart) -> MonitorState {
    MonitorState {
        ongoing: part.ongoing.map(|call| Ongoing {
            id: RequestId(call.id),
            kind: if call.up {
                Kind::Upscale
            } else {
                Kind::Downscale
            },
            resources: call.size.into(),
            revision: stamp_of(call.rev),
        }),
        requested_upscale: part
            .wish
            .map(|UpscaleRecord(at, base, details)| RequestedUpscale {
                at: Timestamp(at),
                base: base.into(),
                request: upscale_request_of(details),
            }),
        denied_downscale: part
            .denied
            .map(|Denial(at, current, requested)| DeniedDownscale {
                at: Timestamp(at),
                denied: Denied {
                    current: current.into(),
                    requested: requested.into(),
                    smallest: part.least.map(Into::into),
                },
                again: part.again.map(Span),
            }),
        approved: part.approved.map(|Approval(low, high)| Approved {
            low: low.into(),
            high: high.into(),
        }),
        is_in_doubt: part.doubt,
        downscale_failure_at: time(part.down_failed),
        upscale_failure_at: time(part.up_failed),
        current_revision: part.rev.into(),
    }
}
