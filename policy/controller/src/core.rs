//! The decision. [`tally`] holds the figures of an hour and adds them up, [`gate`] applies the
//! rules to them, [`reconcile`] makes a policy's next status of the ruling.

mod evidence;
pub mod gate;
#[cfg(test)]
mod gate_seeds;
#[cfg(test)]
mod gate_sets_tests;
#[cfg(test)]
mod gate_tests;
pub mod reconcile;
pub mod revisions;
pub mod sets;
pub mod tally;
pub mod words;
