//! One plan for a VM: from the stored objects, the reports of pod and runner and the recent
//! failures to the status and the actions. Pure: the same input gives the same plan, and a plan
//! whose actions have all been carried out plans nothing more.

use protocol::vm::VmPhase;

use super::action::VmEdit;
use super::draft::{Draft, has_finalizer};
use super::view::PlanInput;

pub use super::draft::Plan;

/// Plans the actions for a VM now, and its status.
#[must_use]
pub fn plan(input: &PlanInput<'_>) -> Plan {
    let mut draft = Draft::new(input);
    if input.vm.metadata.deletion_timestamp.is_some() {
        draft.deletion();
        return draft.done();
    }
    if !has_finalizer(input.vm) {
        draft.edit(VmEdit::AddFinalizer);
        return draft.done();
    }
    if input.vm.spec.cpu_scaling_mode.is_none() {
        draft.edit(VmEdit::SetScalingMode(
            input.settings.default_cpu_scaling_mode,
        ));
        return draft.done();
    }
    match draft.status.phase {
        // These two belong to the migration, as long as there is one.
        VmPhase::PreMigrating | VmPhase::Migrating => {
            if !draft.release_claim() {
                return draft.done();
            }
        }
        phase => {
            draft.prepare();
            if phase == VmPhase::Pending || phase.is_alive() {
                draft.certificate();
            }
            match phase {
                _ if draft.power() => {}
                VmPhase::New if !draft.has_address() => {}
                VmPhase::New => draft.status.phase = VmPhase::Pending,
                VmPhase::Pending => draft.pending(),
                VmPhase::Running | VmPhase::Scaling => draft.alive(),
                _ => draft.ended(),
            }
        }
    }
    draft.conclude();
    if draft.stored.phase.is_alive() {
        draft.has_runner_secret();
    }
    draft.done()
}
