//! Drives the cores: the one place that asks a core of the world for all it has to do.

use protocol::core::Core;
use protocol::time::Timestamp;

use crate::world::World;

/// A turn of one core.
pub(crate) struct Turn<T> {
    part: &'static str,
    vm: Option<usize>,
    now: T,
    limit: usize,
}

impl<T> Turn<T> {
    /// A turn at one time of the core of this part and VM. A core that starts more than `limit`
    /// actions in it counts as one that never stops.
    pub(crate) fn new(part: &'static str, vm: Option<usize>, now: T, limit: usize) -> Self {
        Self {
            part,
            vm,
            now,
            limit,
        }
    }
}

/// A core without further actions.
pub(crate) struct Rest {
    /// When to drive it again if no event comes first.
    pub deadline: Option<Timestamp>,
}

impl World {
    /// Carries out the actions of a core until it has none. `None`: the core is gone, or it never
    /// stops, which is a violation.
    pub(crate) fn drive<C: Core>(
        &mut self,
        turn: &Turn<C::Time>,
        core: impl Fn(&mut Self) -> Option<&mut C>,
        mut act: impl FnMut(&mut Self, C::Action),
    ) -> Option<Rest> {
        for _ in 0..turn.limit {
            let driven = core(self)?;
            let Some(action) = driven.poll_action(turn.now) else {
                let deadline = driven.poll_deadline();
                return Some(Rest { deadline });
            };
            act(self, action);
        }
        self.checks.fail(
            "n05_level_triggered_without_spinning",
            turn.vm,
            format!("the {}'s core never stops", turn.part),
        );
        None
    }
}

/// The next action of a core whose world lets other parts act between two of its actions.
pub(crate) fn step<C: Core>(core: Option<&mut C>, now: C::Time) -> Option<C::Action> {
    core?.poll_action(now)
}
