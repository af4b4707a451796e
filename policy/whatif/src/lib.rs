//! What would a recorded time have been with another policy? The shipped core of the agent runs
//! again for each VM of a journal, fed the recorded samples, in a model of its peers.
//!
//! * The guest needs the memory and the load that it had. Where it had no more to use, its need is
//!   *censored*.
//! * The scheduler permits all, but no more than it gave where it gave less than was requested.
//! * The monitor refuses for ten minutes what it refused, until the need is smaller or the record
//!   shows that it approved such a size. It refuses sizes below 1.15 of the need and 100 MiB. It
//!   requests growth while the need is over 85 % of the memory.
//! * Patches of the VM object succeed. The guest has the size after the median recorded time.
//!
//! The parts:
//!
//! * [`Reader`] takes the records of a journal and gives the [`History`] of each VM.
//! * [`Tried`] is one VM's history beside what its decider and a [`Candidate`] make of it.
//! * [`Report`] sums them up. Its first line is the model's error: what decided in truth runs in
//!   the same model, and its figures stand beside the recorded ones.
//!
//! The crate is pure. An [`Adviser`] asks the policy.
//!
//! # Limits
//! Other VMs of the node are not modelled, so `i.node.starved_cu` is 0 and no limit on VMs that
//! shrink at once applies. Feeds are not modelled.

#![forbid(unsafe_code)]

mod adviser;
mod chart;
mod columns;
mod history;
mod html;
mod peers;
mod report;
#[cfg(test)]
mod tests;
mod text;
mod trace;
mod tried;
mod world;

pub use adviser::{Adviser, Candidate, Questions};
pub use columns::{Columns, Window};
pub use history::{History, Reader};
pub use html::{Title, page};
pub use report::{ModelError, Report, VmReport};
pub use tried::{Curves, Tried};
