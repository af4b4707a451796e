//! Who carries out what the engine of a rollout decides? The driver of all environments, a part of
//! `bellows up`.
//!
//! A look reads the objects, the VMs and their guests. Each environment has one engine, which gets
//! its part of the look. Its writes are carried out one after another, its calls to guests beside.
//!
//! * [`run`]: the loop.
//! * `look`: reads what the engines decide from.
//! * `guest`: one guest, seen from outside.
//! * `calls`: orders to a guest.
//!
//! # Rules
//! * An engine's number of writes is read before the first list of a look.
//! * Every exchange has a time limit. A call to one guest delays neither another nor a write.
//! * Without a running deployment nothing is written, and guests are read every 30 s.

#![forbid(unsafe_code)]

mod calls;
mod driver;
mod guest;
mod look;

pub use driver::{Params, run};
