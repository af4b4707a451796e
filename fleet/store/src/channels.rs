//! Channels, and the environments that follow them, as they were read.

use protocol::fleet::{ChannelSpec, ChannelStatus, EnvironmentSpec, EnvironmentStatus};
use serde_json::Value;

use crate::revisions::KeptRevision;

/// A channel as it was read.
#[derive(Debug, Clone)]
pub struct LoadedChannel {
    /// Namespace of the channel and its environments.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// The repository and the name in it.
    pub spec: ChannelSpec,
    /// What the channel said last.
    pub status: ChannelStatus,
    pub(crate) object: Value,
}

impl LoadedChannel {
    /// An annotation of the object.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.object["metadata"]["annotations"][key].as_str()
    }

    /// Number of the spec, which grows with each change.
    #[must_use]
    pub fn generation(&self) -> i64 {
        let generation = self.object["metadata"]["generation"].as_i64();
        generation.unwrap_or_default()
    }
}

/// An environment that follows a channel.
#[derive(Debug, Clone)]
pub struct Follower {
    /// Name of the environment.
    pub name: String,
    /// What it is to be.
    pub spec: EnvironmentSpec,
    /// What it is.
    pub status: EnvironmentStatus,
    /// Its readable revisions, the newest first.
    pub revisions: Vec<KeptRevision>,
    pub(crate) object: Value,
}
