//! The decision. [`tally`] holds the figures of an hour and adds them up, [`gate`] applies the
//! rules to them.

pub mod gate;
#[cfg(test)]
mod gate_seeds;
#[cfg(test)]
mod gate_tests;
pub mod tally;
