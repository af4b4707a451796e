//! Everything with a clock, a socket or a file: it moves bytes, asks the core what to do and tells
//! it what happened.

mod accept;
pub mod admin;
pub mod alarm;
pub mod cli;
pub mod clock;
pub mod config;
pub mod control;
pub mod exec;
pub mod gauges;
pub mod hooks;
pub mod inbox;
pub mod link;
pub mod logging;
pub mod memory;
pub mod owner;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod pressure;
pub mod process;
pub mod reclaim;
pub mod render;
pub mod render_pressure;
pub mod runnable;
mod schedule;
pub mod self_test;
#[cfg(feature = "tls")]
pub mod tls;
pub mod token;
pub mod upgrade;
