//! Chain of the actions of a run. Each names the hash of the one before, so a line that was cut,
//! moved or edited within a segment is found, although its own checksum holds.
//!
//! A cut at the end of the newest segment is not found: nothing follows it.

use protocol::journal::{Action, Record, encode};
use sha2::{Digest as _, Sha256};

/// Bytes of the hash that are kept.
const HASH_BYTES: usize = 16;

/// Chain of the actions of one run.
#[derive(Debug, Clone)]
pub struct ActionChain(Position);

#[derive(Debug, Clone)]
enum Position {
    /// No action precedes the next one.
    Begin,
    /// Earlier actions of the run are unknown.
    Unknown,
    /// Hash of the newest action.
    After(String),
}

impl ActionChain {
    /// The chain of a run that begins.
    #[must_use]
    pub const fn of_new_run() -> Self {
        Self(Position::Begin)
    }

    /// The chain of a run whose first segments are gone.
    #[must_use]
    pub const fn of_running() -> Self {
        Self(Position::Unknown)
    }

    /// What the next action names. `None` if any name will do.
    fn expected(&self) -> Option<String> {
        match &self.0 {
            Position::Begin => Some("0".repeat(2 * HASH_BYTES)),
            Position::Unknown => None,
            Position::After(hash) => Some(hash.clone()),
        }
    }

    /// The record of the next action.
    pub(super) fn link(&self, mut action: Action) -> Action {
        action.prev = self.expected();
        action
    }

    /// Takes an action as the newest one.
    pub(super) fn take(&mut self, action: &Action) {
        let line = encode(&Record::Action(action.clone()));
        let digest = Sha256::digest(line.as_bytes());
        let digits = digest[..HASH_BYTES].iter();
        self.0 = Position::After(digits.map(|byte| format!("{byte:02x}")).collect());
    }

    /// Whether an action that was read follows the one before. Actions of parts without a chain
    /// name none, and follow if no action of a chain precedes.
    pub fn follows(&mut self, action: &Action) -> bool {
        let Some(prev) = &action.prev else {
            return !matches!(self.0, Position::After(_));
        };
        let expected = self.expected();
        self.take(action);
        expected.is_none_or(|expected| expected == *prev)
    }
}
