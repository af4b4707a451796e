//! The next order of a guest whose move is open.

use protocol::fleet::{MoveResult, RunnerMove, RunnerMoveEnd};
use protocol::time::Span;

use super::memory::Memory;
use super::world::{Guest, Migration, Settings, World, is_same_runner};
use crate::engine::Now;
use crate::permit::Gate;

/// Longest migration, from the moment that its VM is taken, seconds.
pub const COMPLETION_SECONDS: i32 = 3600;
/// Longest move, from its decision.
pub const MOVE_LIMIT: Span = Span::from_secs(2 * 3600);
/// Longest time until a moved guest has been well for long enough.
pub const WELL_WITHIN: Span = Span::from_secs(600);

/// Order about a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Write the decision into the instance.
    Begin(RunnerMove),
    /// Change `spec.runnerImage` of the VM, and no other field.
    Name {
        /// The value that is there.
        from: Option<String>,
        /// The value to write.
        to: String,
    },
    /// Change the field back, and no other.
    PutBack {
        /// The value that is there.
        from: String,
        /// The value to write. `None` removes the field.
        to: Option<String>,
    },
    /// Create the migration.
    Migrate {
        /// Name of the object.
        migration: String,
    },
    /// Delete the migration.
    Delete {
        /// Name of the object.
        migration: String,
    },
    /// Write the end into the instance.
    End(RunnerMoveEnd),
}

/// What follows for a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Carry this out.
    Order(Order),
    /// Nothing: it needs nothing, or its migration goes on.
    Wait,
    /// Wait for a gate.
    Gate(Gate),
}

/// `spec.runnerImage`, compared with the move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    /// As before the move.
    Before,
    /// As the move wants it.
    After,
    /// Somebody else's value.
    Other,
    /// The field has no part in the move.
    Unused,
}

fn named(guest: &Guest, open: &RunnerMove, settings: &Settings) -> Named {
    if !settings.by_image {
        Named::Unused
    } else if guest.named.as_deref() == Some(open.to.as_str()) {
        Named::After
    } else if guest.named == open.from {
        Named::Before
    } else {
        Named::Other
    }
}

/// The next step of an open move.
#[must_use]
pub fn next(guest: &Guest, world: &World, settings: &Settings, memory: &Memory, now: Now) -> Next {
    let Some(open) = guest.open() else {
        return Next::Wait;
    };
    let step = Step {
        guest,
        open,
        named: named(guest, open, settings),
        memory,
        settings,
        now,
    };
    match &guest.migration {
        Migration::Leaving => Next::Wait,
        Migration::Live if step.is_late() => step.delete(),
        Migration::Live => Next::Wait,
        // It started again meanwhile, and its new pod has the new runner.
        Migration::Failed(_) if guest.has_arrived() => step.arrived(),
        Migration::Failed(reason) => step.back(MoveResult::Bad, reason),
        Migration::Foreign => step.back(MoveResult::Skip, "another migration has its name"),
        Migration::Succeeded | Migration::Absent if guest.has_arrived() => step.arrived(),
        // Its pod is not known for a moment, or has the runner of before.
        Migration::Succeeded if !step.is_late() => Next::Wait,
        Migration::Succeeded => step.back(MoveResult::Bad, "its pod has another runner"),
        Migration::Absent => step.absent(world),
    }
}

struct Step<'a> {
    guest: &'a Guest,
    open: &'a RunnerMove,
    named: Named,
    memory: &'a Memory,
    settings: &'a Settings,
    now: Now,
}

impl Step<'_> {
    fn is_late(&self) -> bool {
        let micros = self.now.wall.0.saturating_sub(self.open.since.0);
        u64::try_from(micros).is_ok_and(|micros| micros > MOVE_LIMIT.0)
    }

    fn delete(&self) -> Next {
        Next::Order(Order::Delete {
            migration: self.open.migration.clone(),
        })
    }

    /// The guest runs by the new runner.
    fn arrived(&self) -> Next {
        let since = |moment| self.now.monotonic.since(moment);
        let memory = self.memory;
        if memory
            .well_since
            .is_some_and(|at| since(at) >= self.settings.well_for)
        {
            return self.end(MoveResult::Good, "");
        }
        if memory.moved_at.is_some_and(|at| since(at) >= WELL_WITHIN) {
            let reason = if self.guest.has_other_pod {
                "its former pod is still there"
            } else {
                "its guest does not answer by the new runner"
            };
            return self.end(MoveResult::Bad, reason);
        }
        Next::Wait
    }

    /// No migration, and the runner of before: it is still to be made, or it was taken away.
    fn absent(&self, world: &World) -> Next {
        let memory = self.memory;
        if let Some(reason) = &memory.refused {
            return self.back(MoveResult::Skip, reason);
        }
        match (memory.was_seen, self.is_late()) {
            (true, true) => return self.back(MoveResult::Bad, "it did not end in time"),
            (true, false) => return self.back(MoveResult::Skip, "its migration was deleted"),
            (false, true) => return self.back(MoveResult::Skip, "it was held for too long"),
            (false, false) => {}
        }
        let wanted = world.wanted.as_ref();
        if !wanted.is_some_and(|wanted| is_same_runner(&wanted.to, &self.open.to)) {
            return self.back(MoveResult::Skip, "another runner is wanted");
        }
        match (self.named, self.guest.gate) {
            (Named::Other, _) => self.back(MoveResult::Skip, ""),
            (_, Some(gate)) => Next::Gate(gate),
            (Named::Before, None) => Next::Order(Order::Name {
                from: self.open.from.clone(),
                to: self.open.to.clone(),
            }),
            (Named::After | Named::Unused, None) => Next::Order(Order::Migrate {
                migration: self.open.migration.clone(),
            }),
        }
    }

    /// Puts the field back, then writes the end.
    fn back(&self, result: MoveResult, reason: &str) -> Next {
        match self.named {
            Named::After if self.may_put_back() => Next::Order(Order::PutBack {
                from: self.open.to.clone(),
                to: self.open.from.clone(),
            }),
            Named::After => {
                let why = self.memory.stays.as_deref();
                let why = why.unwrap_or("its pod does not have the image of before");
                let reason = format!("{reason}; spec.runnerImage stays: {why}");
                self.end(result, &reason)
            }
            Named::Other => {
                let named = self.guest.named.as_deref().unwrap_or("nothing");
                let reason = format!("somebody else set spec.runnerImage to {named}");
                self.end(MoveResult::Skip, &reason)
            }
            Named::Before | Named::Unused => self.end(result, reason),
        }
    }

    /// Whether the VM's pod proves the image of before. Without one the VM gets the controller's
    /// image again. A record alone must not name an image: it may have been forged.
    fn may_put_back(&self) -> bool {
        let is_proven = self.open.from.is_none() || self.open.from == self.guest.runs;
        is_proven && self.memory.stays.is_none()
    }

    fn end(&self, result: MoveResult, reason: &str) -> Next {
        Next::Order(Order::End(RunnerMoveEnd {
            migration: self.open.migration.clone(),
            to: self.open.to.clone(),
            result,
            reason: reason.to_owned(),
            at: self.now.wall,
        }))
    }
}
