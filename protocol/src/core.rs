//! The interface between a core and the driver that owns it: which calls may a driver make, and in
//! which order?
//!
//! A core decides without I/O, clock, task or random source. A driver passes it the time and what
//! happened, carries out its actions, and sleeps until its deadline. The shells and the simulator
//! drive cores through this trait alone.
//!
//! ```text
//! input ─► handle ─► poll_action until None ─► poll_deadline ─► sleep until it, or the next input
//! ```

use crate::time::Timestamp;

/// A deterministic state machine.
pub trait Core {
    /// Time that the driver passes in: [`Timestamp`], or a type that has one.
    type Time: Copy;
    /// Something that happened.
    type Event;
    /// Something to do. The core counts it as begun.
    type Action;

    /// Updates the state by one event. Actions that follow from it wait for [`Self::poll_action`].
    fn handle(&mut self, now: Self::Time, event: Self::Event);

    /// The next action. The driver calls it until `None` after each event and at each deadline.
    fn poll_action(&mut self, now: Self::Time) -> Option<Self::Action>;

    /// When [`Self::poll_action`] is due if no event comes first. Valid after it returned `None`.
    fn poll_deadline(&self) -> Option<Timestamp>;
}

/// A core that may be absent: then it takes no event and has no action.
impl<C: Core> Core for Option<C> {
    type Time = C::Time;
    type Event = C::Event;
    type Action = C::Action;

    fn handle(&mut self, now: C::Time, event: C::Event) {
        if let Some(core) = self {
            core.handle(now, event);
        }
    }

    fn poll_action(&mut self, now: C::Time) -> Option<C::Action> {
        self.as_mut()?.poll_action(now)
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        self.as_ref()?.poll_deadline()
    }
}
