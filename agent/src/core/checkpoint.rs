//! A core's whole state as a journal record, and back. Replay starts from such a record. The code
//! names every member of the core, so a new member does not compile until it is recorded or left
//! out on purpose.

mod advice;
mod peers;
mod samples;
mod settings;
mod stamps;

use std::collections::VecDeque;

use protocol::journal::{
    Block, CalmPart, Checkpoint, CoreSettings, FaultCounts as Counts, Size, Step,
};
use protocol::permit::NamespacedName;
use protocol::time::Timestamp;

use super::machine::{Core, Timed};
use super::revision::RevisionSource;
use super::stabilization::Stabilization;
use super::warnings::{FaultCounts, Warnings};
use advice::{policy_of, policy_record};
use peers::{monitor_of, monitor_record, patch_of, patch_record, scheduler_of, scheduler_record};
pub(super) use peers::{upscale_request_of, upscale_request_record};
use samples::reached_by;
pub(super) use samples::{info_of, lfc_of, lfc_record, object_record, system_of, system_record};
use settings::config_of;
pub use settings::settings;
use stamps::{micros, time};
pub(super) use stamps::{stamp_of, stamped};

impl Core {
    /// Record of the whole state, for VM number `vm` at `now`.
    #[must_use]
    pub fn checkpoint(&self, vm: u32, now: Timestamp) -> Checkpoint {
        let Self {
            config,
            vm: info,
            scheduler,
            monitor,
            vm_patch,
            system,
            lfc,
            revisions,
            target_revision,
            last_desired,
            faults,
            stabilization,
            policy,
            was_pre_migrating,
            pending_warnings,
            next_id,
            // The shell takes them after each step.
            observations: _,
            // A restored core carries nothing out.
            patch_base: _,
            patch_number: _,
            // No decision reads these.
            computations: _,
            last: _,
        } = self;
        let name = NamespacedName {
            namespace: info.namespace.clone(),
            name: info.name.clone(),
        };
        let system_step = system
            .as_ref()
            .map(|sample| (sample.at.0, Step::System(system_record(&sample.value))));
        let lfc_step = lfc
            .as_ref()
            .map(|sample| (sample.at.0, Step::Lfc(lfc_record(&sample.value))));
        let mut metrics: Vec<(u64, Step)> = system_step.into_iter().chain(lfc_step).collect();
        metrics.sort_by_key(|(at, _)| *at);
        Checkpoint {
            calm: stabilization_record(stabilization),
            faults: counts_record(faults),
            issued: revisions.issued_at.iter().map(|at| at.0).collect(),
            metrics: (!metrics.is_empty()).then_some(Block(metrics)),
            monitor: monitor_record(monitor),
            name: name.to_string(),
            next: *next_id,
            obj: object_record(
                info,
                &config.default_scaling,
                reached_by(info),
                *was_pre_migrating,
            ),
            patch: patch_record(vm_patch),
            plugin: scheduler_record(scheduler),
            policy: policy_record(policy),
            rev: revisions.last,
            t: now.0,
            target: stamped(*target_revision),
            tick: config.timers.permit_request_tick.0,
            vm,
            want: last_desired.map(Size::from),
            warn: pending_warnings.0,
        }
    }

    /// Restores a core from its checkpoint.
    #[must_use]
    pub fn restore(settings: &CoreSettings, from: &Checkpoint) -> Self {
        let config = config_of(settings, from.tick);
        let mut core = Self::new(
            config,
            info_of(&from.obj, &from.name, &config.default_scaling),
        );
        core.scheduler = scheduler_of(&from.plugin);
        core.monitor = monitor_of(&from.monitor);
        core.vm_patch = patch_of(&from.patch);
        for (at, step) in from.metrics.iter().flat_map(|block| &block.0) {
            let at = Timestamp(*at);
            match step {
                Step::System(sample) => {
                    core.system = Some(Timed {
                        at,
                        value: system_of(sample),
                    })
                }
                Step::Lfc(sample) => {
                    core.lfc = Some(Timed {
                        at,
                        value: lfc_of(sample),
                    })
                }
                Step::Tick
                | Step::Renewed
                | Step::Again(_)
                | Step::Advised(_)
                | Step::Shadowed(_)
                | Step::Feeds(_)
                | Step::Advice(_)
                | Step::Terms(_) => {}
            }
        }
        core.revisions = RevisionSource {
            last: from.rev,
            issued_at: from
                .issued
                .iter()
                .copied()
                .map(Timestamp)
                .collect::<VecDeque<_>>(),
        };
        core.target_revision = stamp_of(from.target);
        core.last_desired = from.want.map(Into::into);
        core.stabilization = stabilization_of(&from.calm);
        core.policy = policy_of(&from.policy);
        core.faults = counts_of(&from.faults);
        core.was_pre_migrating = from.obj.migrating;
        core.pending_warnings = Warnings(from.warn);
        core.next_id = from.next;
        core
    }
}

fn stabilization_record(stabilization: &Stabilization) -> CalmPart {
    let Stabilization {
        grown_at,
        shrunk_at,
        below_since,
    } = *stabilization;
    CalmPart {
        below: micros(below_since),
        grown: micros(grown_at),
        shrunk: micros(shrunk_at),
    }
}

fn stabilization_of(part: &CalmPart) -> Stabilization {
    Stabilization {
        grown_at: time(part.grown),
        shrunk_at: time(part.shrunk),
        below_since: time(part.below),
    }
}

fn counts_record(faults: &FaultCounts) -> Counts {
    let FaultCounts {
        approved_above_use,
        use_above_permit,
        downscale_below_denied,
        desired_out_of_bounds,
        invalid_permit,
        unknown_reply,
        observation_lost,
    } = *faults;
    Counts {
        approved_above_use,
        use_above_permit,
        downscale_below_denied,
        desired_out_of_bounds,
        invalid_permit,
        unknown_reply,
        observation_lost,
    }
}

fn counts_of(counts: &Counts) -> FaultCounts {
    FaultCounts {
        approved_above_use: counts.approved_above_use,
        use_above_permit: counts.use_above_permit,
        downscale_below_denied: counts.downscale_below_denied,
        desired_out_of_bounds: counts.desired_out_of_bounds,
        invalid_permit: counts.invalid_permit,
        unknown_reply: counts.unknown_reply,
        observation_lost: counts.observation_lost,
    }
}
