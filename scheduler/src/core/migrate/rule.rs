//! The configuration of migrations.

use protocol::time::Span;
use serde::{Deserialize, Serialize};

/// The reason for migrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MigrationMode {
    /// None: pressure is reported only. Migrations that are over are still deleted.
    Off,
    /// As in the deployed plugin: only use above the watermark, with or without a target node, any
    /// number at a time, and without a pause after a failure.
    Deployed,
    /// Use above the watermark and denied increases, only with a target node, and within the bounds
    /// of the rule.
    Pressure,
}

/// When VMs are migrated. Only VMs with the opt-in label are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct MigrationRule {
    /// The reason for migrations.
    pub mode: MigrationMode,
    /// VMs that may leave one node at a time; 0 is no bound. One migration may use 1 GiB/s, which
    /// fills a 10 Gbit/s link, and a VM does not grow meanwhile. Two at once both take longer and
    /// free no headroom sooner.
    pub max_per_node: u32,
    /// Pause between two migrations of a VM, in seconds. Each further pause is twice as long.
    pub backoff_seconds: u32,
    /// Longest pause between two migrations of a VM, in seconds.
    pub backoff_max_seconds: u32,
    /// A migration of ours without progress for this long is cancelled, in seconds; 0 is never.
    pub stuck_seconds: u32,
}

impl Default for MigrationRule {
    fn default() -> Self {
        Self {
            mode: MigrationMode::Pressure,
            max_per_node: 1,
            // Agents send requests every few seconds. In a minute a VM has the size that it wants.
            backoff_seconds: 60,
            backoff_max_seconds: 3600,
            // A target pod with headroom starts within seconds. A kubelet that has not pulled the
            // image within a minute will not.
            stuck_seconds: 60,
        }
    }
}

impl MigrationRule {
    /// The rule without migrations.
    #[must_use]
    pub fn off() -> Self {
        Self {
            mode: MigrationMode::Off,
            ..Self::default()
        }
    }

    /// The rule of the deployed plugin.
    #[must_use]
    pub fn deployed() -> Self {
        Self {
            mode: MigrationMode::Deployed,
            ..Self::default()
        }
    }

    /// Whether this is the default rule.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether denied increases are pressure.
    #[must_use]
    pub fn counts_denied(&self) -> bool {
        self.mode != MigrationMode::Deployed
    }

    /// Whether a VM leaves only if another node has headroom for it.
    pub(super) fn needs_target(&self) -> bool {
        self.mode != MigrationMode::Deployed
    }

    /// Most VMs that may leave a node at a time.
    pub(super) fn at_a_time(&self) -> usize {
        match (self.mode, self.max_per_node) {
            (MigrationMode::Off, _) => 0,
            (MigrationMode::Deployed, _) | (_, 0) => usize::MAX,
            (MigrationMode::Pressure, most) => usize::try_from(most).unwrap_or(usize::MAX),
        }
    }

    /// The pause after the `attempts`-th migration of a VM in a row.
    pub(super) fn pause(&self, attempts: u32) -> Span {
        if self.mode == MigrationMode::Deployed {
            return Span(0);
        }
        let seconds = u64::from(self.backoff_seconds) << attempts.saturating_sub(1).min(20);
        Span::from_secs(seconds.min(u64::from(self.backoff_max_seconds)))
    }

    /// The time without progress after which a migration is cancelled. `None`: never.
    pub(super) fn stuck_after(&self) -> Option<Span> {
        let cancels = self.mode != MigrationMode::Deployed && self.stuck_seconds > 0;
        cancels.then(|| Span::from_secs(u64::from(self.stuck_seconds)))
    }
}
