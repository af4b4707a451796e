//! Runs of hooks: before a shrink, where they may veto it, and after a growth.

use protocol::monitor::Allocation;
use protocol::time::Timestamp;

use super::cache::CacheVerdict;
use super::decision::{Approval, Refusal};
use super::hooks::{HookEvent, HookSizes, HookVeto};
use super::jobs::Job;
use super::{Action, ConnectionId, Monitor, OperationId};

impl Monitor {
    /// A shrink would be approved: asks the hooks first, if there are any.
    pub(super) fn hooks_before_shrink(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        id: u64,
        (target, approval): (Allocation, Approval),
    ) {
        let usable = self.setup.rules.usable(target.mem);
        if self.setup.hooks {
            let job = Job::BeforeShrink {
                connection,
                id,
                target,
                approval,
            };
            return self.run_hooks(HookEvent::BeforeShrink, target, job);
        }
        let job = Job::Downscale {
            connection,
            id,
            approval,
        };
        self.set_cache_then(now, usable, job);
    }

    /// Runs the hooks of an event for a job that waits for them.
    pub(super) fn run_hooks(&mut self, event: HookEvent, target: Allocation, job: Job) {
        let operation = OperationId(self.next_operation);
        self.next_operation += 1;
        let was_usable = match event {
            HookEvent::BeforeShrink => self.total,
            // By now the total is the new one.
            HookEvent::AfterGrow => None,
        };
        let sizes = HookSizes {
            target,
            usable: self.setup.rules.usable(target.mem),
            was_usable,
            used: self.watch.used(),
        };
        self.outbox.push_back(Action::RunHooks {
            operation,
            event,
            sizes,
        });
        self.job = Some((operation, job));
    }

    /// The hooks have ended. Those nobody waits for are of no use any more.
    pub(super) fn hooks_done(
        &mut self,
        now: Timestamp,
        operation: OperationId,
        outcome: Result<(), HookVeto>,
    ) {
        let Some((_, job)) = self.job.take_if(|(waited_for, _)| *waited_for == operation) else {
            return;
        };
        match (job, outcome) {
            (
                Job::BeforeShrink {
                    connection,
                    id,
                    target,
                    approval,
                },
                outcome,
            ) => match outcome {
                Ok(()) => {
                    self.counters.hooks.add("passed");
                    let usable = self.setup.rules.usable(target.mem);
                    let job = Job::Downscale {
                        connection,
                        id,
                        approval,
                    };
                    self.set_cache_then(now, usable, job);
                }
                Err(veto) => {
                    self.counters.hooks.add("vetoed");
                    if self.serves(connection) {
                        self.refuse(now, connection, id, target, &Refusal::Hook(veto));
                    }
                }
            },
            (
                Job::AfterGrow {
                    connection,
                    id,
                    observed,
                },
                outcome,
            ) => {
                match outcome {
                    Ok(()) => self.counters.hooks.add("passed"),
                    // The memory is there whatever a hook makes of it.
                    Err(failure) => {
                        self.counters.hooks.add("failed");
                        tracing::warn!(%failure, "a hook failed after a growth");
                    }
                }
                if self.serves(connection) {
                    self.confirm_upscale(now, connection, id, observed);
                }
            }
            // No other job waits for hooks.
            (job, _) => self.finish(now, job, CacheVerdict::GoOn),
        }
    }
}
