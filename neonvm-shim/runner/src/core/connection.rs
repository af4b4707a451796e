//! How a guest's first device is connected: by a bridge, by passt, or by QEMU's user network.

use super::transfer::Manifest;
use crate::config::{RunnerConfig, Walls};

/// Connection of the guest's first device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection<'a> {
    /// A bridge in the pod's network namespace.
    Bridge,
    /// A process of passt, inside these walls.
    Passt(&'a Walls),
    /// QEMU's own user network, without a process beside it.
    UserNetwork,
}

/// Connection of a guest: by the configuration if it boots here, else the one it booted with.
#[must_use]
pub fn connection<'a>(config: &'a RunnerConfig, arrival: Option<&Manifest>) -> Connection<'a> {
    if is_bridged(config, arrival) {
        return Connection::Bridge;
    }
    let walls = config.walls.as_ref();
    match walls.filter(|_| arrival.is_none_or(|from| from.passt)) {
        Some(walls) => Connection::Passt(walls),
        None => Connection::UserNetwork,
    }
}

/// Whether a bridge connects a guest. A guest that boots follows the configuration, a migrated one
/// the connection it booted with.
#[must_use]
pub fn is_bridged(config: &RunnerConfig, arrival: Option<&Manifest>) -> bool {
    arrival.map_or(config.network.bridged, |from| from.bridged)
}
