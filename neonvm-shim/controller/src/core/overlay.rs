//! Addresses of guests in the overlay network (docs/compatibility/neonvm.md §2.11). The question
//! this answers: given who holds which address of a pool, which one does this VM get, and which can
//! be taken back?
//!
//! A pool is an IPPool object: decimal offsets from the first address of its range, each with the
//! namespace and name of the VM that holds it, and in `podref` that VM's uid. Every change is one
//! write on the version that was read, so of two controllers one has to look again. A VM of the
//! same namespace and name has its own uid written before it uses what an earlier one held: whoever
//! was about to take that back is refused.
//!
//! Invariants:
//! * No address is held twice, and a VM that asks again gets the one it holds.
//!   `no_address_twice_whoever_is_interrupted`
//! * An address is taken back only from a VM that is not there, and has not been for [`GRACE`].
//!   `what_nobody_owns_is_taken_back_after_a_while`

mod config;
mod leaks;
mod pool;

pub use config::{ConfigError, Overlay, Range};
pub use leaks::{GRACE, Leaks};
pub use pool::{Claim, Holder, claim, claim_any, release};

#[cfg(test)]
mod tests;
