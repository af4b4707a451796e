//! What one VM adds to the tallies of its policy's versions.

use protocol::journal::Answered;
use protocol::monitor_v2::AskReason;
use protocol::permit::NamespacedName;
use protocol::policy::Role;

use super::super::runtime::PolicyRuntime;
use super::active::Active;
use crate::core::questions::is_shrink;
use crate::core::tallies::Ended;
use crate::core::{Core, DownscaleResponse, Event};

/// Counts the end of a question.
pub(super) fn ended(
    (runtime, number): (&PolicyRuntime, u32),
    vm: &NamespacedName,
    active: &Active,
    record: &Answered,
    core: &Core,
) {
    let ended = Ended {
        number,
        vm: &vm.to_string(),
        decides: active.role == Role::Live,
        fault: record.fault,
        faults_in_a_row: active.faults_in_a_row,
        is_shrink: record.cu.is_some_and(|units| is_shrink(core, units)),
    };
    let (at, version) = (runtime.moment(), active.policy.version());
    runtime.tallies().ended(at, &version, &ended);
}

/// Counts what an event says about the version that decides.
pub(super) fn event((runtime, number): (&PolicyRuntime, u32), live: &Active, event: &Event) {
    match event {
        Event::MonitorUpscaleRequested(request) if request.reason == Some(AskReason::OomEvent) => {
            let (at, has_headroom) = (runtime.moment(), runtime.has_headroom());
            let mut tallies = runtime.tallies();
            tallies.oom_kill(at, &live.policy.version(), number, has_headroom);
        }
        Event::MonitorDownscaleDone(_, Ok(DownscaleResponse::Denied(_))) => {
            let at = runtime.moment();
            let mut tallies = runtime.tallies();
            tallies.refused_shrink(at, &live.policy.version());
        }
        _ => {}
    }
}
