//! Addresses of guests in the overlay network (docs/compatibility/neonvm.md §2.11). The question
//! this answers: given the holders of a pool's addresses, which one does this VM get, and which can
//! be taken back?
//!
//! A pool is an IPPool object: decimal offsets from the first address of its range, each with the
//! namespace and name of its holder, and in `podref` the VM's uid. Every change is one write on the
//! version that was read, so of two controllers one has to read again. A VM with the namespace and
//! name of an earlier holder has its own uid written before it uses the address. A concurrent write
//! that takes the address back is then refused.
//!
//! Invariants:
//! * No address has two holders, and a VM that requests one again gets the one it holds.
//!   `no_address_twice_whoever_is_interrupted`
//! * An address is taken back only from a VM that has been away for [`GRACE`].
//!   `address_of_missing_vm_is_taken_back_after_grace`

pub mod config;
pub mod holder;
mod leaks;
mod pool;

pub use config::{ConfigError, GRACE, Overlay, Range};
pub use holder::Holder;
pub use leaks::Leaks;
pub use pool::{Claim, claim, claim_any, release};

#[cfg(test)]
mod tests;
