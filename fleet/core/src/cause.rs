//! Why a turn ended, as a value beside its text. Metrics and rules read the value.

/// Cause of the end of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndCause {
    /// The program was kept, or the guest runs the image's program again.
    Kept,
    /// The VM had the condition `Degraded`.
    Degraded,
    /// The metrics page did not answer.
    Page,
    /// The agent was not connected.
    Agent,
    /// The part held too much memory.
    Memory,
    /// The program on trial ended by itself.
    Ended,
    /// The part could not change.
    Busy,
    /// The guest or its runner did not answer.
    Unanswered,
    /// The deployment gives no more turns, or the guest does not belong to it any more.
    Stopped,
    /// A gate, an order that was refused, or a guest that began again.
    Other,
}

/// A cause with its text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// For rules and figures.
    pub cause: EndCause,
    /// For people, with figures and names.
    pub text: String,
}

impl Why {
    /// A cause with its text.
    #[must_use]
    pub fn new(cause: EndCause, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { cause, text }
    }
}
