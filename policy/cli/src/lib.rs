//! Asks policies in a process that may do nothing but answer, and checks them before they are used.
//!
//! * [`jail`]: what the process gives up before it reads a policy.
//! * [`worker`]: the loop of questions and answers.
//! * [`client`]: the parent's side, with a clock.
//! * [`adviser`]: a worker behind the model of what would have been.
//! * [`check`]: whether a policy keeps the rules of the contract on made-up questions.
//! * [`scope`]: questions about VMs and about sets.
//! * [`fixtures`] and [`suite`]: whether it answers what its author wrote beside it.

#![forbid(unsafe_code)]

pub mod adviser;
pub mod check;
pub mod client;
pub mod fixtures;
pub mod jail;
pub mod made_up;
mod made_up_sets;
pub mod scope;
pub mod suite;
pub mod worker;
