//! Repositories that are published, served, attacked and read.

#![expect(clippy::unwrap_used, reason = "a helper that fails ends its test")]

#[path = "repository/attacks.rs"]
mod attacks;
#[path = "repository/channels.rs"]
mod channels;
#[path = "repository/forger.rs"]
mod forger;
#[path = "repository/publish.rs"]
mod publish;
#[path = "repository/python.rs"]
mod python;
#[path = "repository/server.rs"]
mod server;
#[path = "repository/shop.rs"]
mod shop;
