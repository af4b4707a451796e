//! Runs a policy: a pure function from a question and a past to an answer.
//!
//! * The interpreter is Luau. A policy reaches a frozen list of names, none of which reads a
//!   clock, a file or chance. Its program runs from its start for every question, so it keeps
//!   nothing.
//! * A call is bounded by interrupts and by memory. Both are counted, so the same question ends the
//!   same way on every machine. What no interrupt bounds is bounded by the clock of the parent,
//!   which kills the process.
//! * Memory is freed between calls, never during one: what a call takes depends on nothing else.

#![forbid(unsafe_code)]

mod answer;
mod budget;
mod engine;
mod failure;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod globals;
mod helpers;
mod math;
mod past;
mod question;
mod set_helpers;
mod syntax;
mod text;

pub use answer::{MAX_ANSWER, MAX_DEPTH};
pub use budget::{MAX_MEMORY, MAX_STEPS};
pub use engine::{Engine, Evaluation};
pub use failure::{Failed, LoadError};
pub use syntax::{Finding, lint, series_named};

/// Name and version of the interpreter, for the journal.
#[must_use]
pub fn version() -> String {
    engine::version()
}
