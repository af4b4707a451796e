//! Policies of sets: which policy is asked what, and what its answer changes.
//!
//! Every 10 s the core wants to read sets, nodes, pods and policies. It asks each version about the
//! sets of each namespace that chose the policy. A live answer changes counts, versions, commands
//! and values of those sets, and the wish for nodes. A candidate's answer changes the report alone.
//! Answers are lines of the journal, and their figures are hours that the gate decides by.
//!
//! # Invariants
//! * A fault changes no set: `v33_fault_keeps_each_set_as_it_is`.
//! * A candidate changes no set: `v06_candidate_of_sets_changes_none`.
//! * A count moves by no more than the rates of its set: `v13_counts_pass_the_rates_of_the_set`.

mod answered;
mod changes;
mod events;
mod hours;
mod pace;
mod question;
mod records;
mod state;
mod wishes;
mod world;

pub use answered::{SetReport, SetSaid};
pub use events::{Action, End, Event, Pages, Question, SetPatch, Values};
pub use question::question_now;
pub use state::SetsCore;
pub use wishes::{DENIED_FOR, WishChange};
pub use world::{Objects, SetPolicy, Version, World};
