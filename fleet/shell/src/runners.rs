//! Ways to the runners of guests: control sockets of this machine, or the ports of pods.

mod pods;
mod secret;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use daemon_kit::http_client::{HttpError, over_unix};
use hyper::Method;
use protocol::runner::control_socket;
use protocol::time::WallTime;

pub(crate) use pods::{Pod, Pods, PodsByOwner};

/// The runner of a VM's pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Runner {
    pub(crate) namespace: String,
    pub(crate) vm: String,
    /// Uid of the VM, which owns its pod and its secret.
    pub(crate) uid: String,
    pub(crate) pod: String,
    /// Port at the pod's address. `None` without a pod of this VM, and on one machine.
    pub(crate) at: Option<SocketAddr>,
    /// Start of the pod's runner. `None` if it is unknown, and on one machine.
    pub(crate) started: Option<WallTime>,
}

/// Way to all runners.
#[derive(Debug, Clone)]
pub(crate) enum Runners {
    /// Control sockets below the state directory.
    Sockets(PathBuf),
    /// Ports of pods, by TLS.
    Pods(Pods),
}

impl Runners {
    /// Sends a request over a new connection and reads the whole response within `limit`.
    pub(crate) async fn send(
        &self,
        runner: &Runner,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
        limit: Duration,
    ) -> Result<Bytes, HttpError> {
        match self {
            Self::Sockets(state_dir) => {
                let socket = control_socket(state_dir, &runner.namespace, &runner.pod);
                over_unix(&socket, method, path, body, limit).await
            }
            Self::Pods(pods) => pods.send(runner, method, path, body.into(), limit).await,
        }
    }

    /// Access to pods, in a cluster.
    pub(crate) const fn pods(&self) -> Option<&Pods> {
        match self {
            Self::Sockets(_) => None,
            Self::Pods(pods) => Some(pods),
        }
    }
}
