//! Decisions about events: how much a VM used, which goals are reported, when a batch is sent.

pub mod batches;
pub mod billing;
pub mod scaling_events;
