//! Addresses of runners.

use std::path::PathBuf;

use crate::core::observe::PodRunner;

/// Address of a runner's HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunnerAddress {
    /// On a socket of this machine.
    Socket(PathBuf),
    /// TLS port at the pod's address.
    Pod(PodRunner),
}

impl std::fmt::Display for RunnerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Pod(runner) => runner.fmt(f),
        }
    }
}
