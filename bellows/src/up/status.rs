//! What `bellows up` says about itself: `GET /v1/status`.

use serde::{Deserialize, Serialize};

/// The answer of `/v1/status`. Members are added, never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Our version.
    pub(crate) version: String,
    /// Process id.
    pub(crate) pid: u32,
    /// Seconds since it started.
    pub(crate) uptime_s: u64,
    /// Name of the Node object.
    pub(crate) node: String,
    /// N of the loopback block 127.N.0.0/16.
    pub(crate) block: u8,
    /// The state directory.
    pub(crate) state_dir: String,
    /// The kubeconfig.
    pub(crate) kubeconfig: String,
    /// The accelerator of guests and why it is that one.
    pub(crate) accel: String,
    /// Whether every part is ready.
    pub(crate) ready: bool,
    /// The parts in the order in which they start.
    pub(crate) parts: Vec<PartStatus>,
    /// Guests that are left alone because the store does not have their pods, as `namespace/pod`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) orphans: Vec<String>,
}

/// What to do about guests without objects; `None` if there are none.
pub(crate) fn orphans_line(status: &Status) -> Option<String> {
    let orphans = &status.orphans;
    (!orphans.is_empty()).then(|| {
        format!(
            "the store has never shown {} of the guests here, which are left alone: {}; bring their objects back with \
             bellows adopt, or let one go with bellows adopt --release NAME",
            orphans.len(),
            orphans.join(", ")
        )
    })
}

/// One part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartStatus {
    /// Its name.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) phase: PartPhase,
    /// Where it listens, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<String>,
    /// What it waits for, or how it ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) note: String,
}

/// Where a part is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PartPhase {
    /// Runs, but waits for something.
    Starting,
    /// Does its work.
    Ready,
    /// Has ended.
    Ended,
}

impl PartPhase {
    /// For people.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Ended => "ended",
        }
    }
}
