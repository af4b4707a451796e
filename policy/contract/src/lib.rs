//! The contract between the agent and a policy: the question ([`Input`]), the answer ([`Answer`]),
//! both for sets ([`SetInput`], [`sets::SetAnswer`]), the policy itself ([`Spec`]), the file that
//! carries it ([`Pack`]), the past ([`History`]) and the lines between the agent and its worker
//! ([`frames`]).
//!
//! Nothing here reads a clock, a file or a socket. Every number is an `f64` with its unit in the
//! name. Equal values have equal canonical texts, so equal questions have equal checksums.

#![forbid(unsafe_code)]

mod answer;
mod canonical;
pub mod divide;
pub mod frames;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod history;
mod input;
mod pack;
mod packed;
mod recheck;
mod set_input;
pub mod sets;
mod spec;
pub mod tally;

pub use answer::{Answer, MAX_NOTE_BYTES, MAX_VOTES, Note, Reason, Vote, Want, number_value};
pub use history::{Column, History, SLOT_SECONDS, SLOTS, Seconds};
pub use input::{
    Builtin, Failing, Feed, Input, NodeLoad, Old, PermitCut, Refused, ShrinkRefused, Time, Unit,
    Vm, Votes, WishSeen,
};
pub use pack::{MAX_PACK_BYTES, Pack, PackError};
pub use packed::PackedPast;
pub use protocol::policy::{Fault, FeedSource, Refusal, Role, Scope, Series};
use protocol::time::Span;
pub use recheck::Recheck;
pub use set_input::{ClusterSeen, FeedSum, MAX_NODES_SHOWN, NodeSeen, SetInput, SetOld, SetSeen};
pub use spec::{CONTRACT, Digest, Spec};

/// Shortest time between two questions about a VM.
pub const ASK_EVERY: Span = Span::from_secs(1);
/// Longest time between two questions about a VM with fresh metrics.
pub const ASK_AT_LATEST: Span = Span::from_secs(10);
/// Time between two questions about sets.
pub const ASK_SETS_EVERY: Span = Span::from_secs(10);

/// JSON Schema of an answer.
#[must_use]
pub fn schema() -> serde_json::Value {
    answer::schema()
}

/// Type declarations of question, answer and helpers in Luau, for editors.
#[must_use]
pub fn stubs() -> String {
    [
        input::STUBS,
        &answer::stubs(),
        set_input::STUBS,
        input::STUBS_STD,
    ]
    .concat()
}
