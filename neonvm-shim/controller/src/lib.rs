//! Controller of VirtualMachine objects. It makes their runner pods, keeps their status, and passes
//! every change of size on to the runner that owns QEMU. Source of the behaviour:
//! docs/compatibility/neonvm.md §2; improvements: §7.3.
//!
//! [`core`] decides and touches nothing; [`shell`] watches, writes and talks to the runners.

#![forbid(unsafe_code)]

pub mod args;
pub mod core;
pub mod shell;

pub use core::overlay::Overlay;
pub use core::{AffinityStyle, Settings};
pub use shell::{
    Metrics, Params, RunError, SettingsError, StateHandle, Waits, Webhook, WebhookNames, run,
    serve_admin, settings,
};
