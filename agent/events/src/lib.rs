//! Events about the VMs of one node: what they used (billing) and how they scale. The agent reports
//! sizes and goals; this crate meters them, keeps the events on disk and delivers them in batches.
//!
//! [`core`] decides, [`shell`] does I/O. Entry: [`Events::start`] with [`Settings`].

#![forbid(unsafe_code)]

pub mod core;
pub mod shell;

pub use core::scaling_events::{GoalComponents, LastReported, Reporting};
pub use shell::{
    BillingSettings, EventLogError, EventReceiverError, Events, EventsError, Goal, ScalingSender,
    ScalingSettings, Settings, Unsent, UsageMeter, join,
};
