//! When VMs are migrated, as the configuration says.

use protocol::time::Span;
use serde::{Deserialize, Serialize};

/// What is migrated for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MigrationMode {
    /// Nothing: pressure is shown and that is all. Migrations that are over are still cleaned up.
    Off,
    /// As the deployed plugin does: use above the watermark alone, whether or not there is a node
    /// to go to, as many at a time as it takes, and a VM whose migration failed again at once.
    Deployed,
    /// Use above the watermark and what was denied; only where there is room, and within the bounds
    /// below.
    Pressure,
}

/// When VMs are migrated. Only VMs that opted in by their label ever are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct MigrationRule {
    /// What for.
    pub mode: MigrationMode,
    /// VMs that may be leaving one node at a time; 0 is no bound. One stream of the 1 GiB/s that a
    /// migration may use fills a 10 Gbit/s link, and a VM gets nothing more while it moves: two at
    /// once both take longer, and free no room sooner.
    pub max_per_node: u32,
    /// Pause after a VM's migration before the next of that VM, seconds; doubled with each that
    /// follows.
    pub backoff_seconds: u32,
    /// Longest such pause, seconds.
    pub backoff_max_seconds: u32,
    /// A migration of ours that makes no progress for so long is cancelled, seconds; 0 is never.
    pub stuck_seconds: u32,
}

impl Default for MigrationRule {
    fn default() -> Self {
        Self {
            mode: MigrationMode::Pressure,
            max_per_node: 1,
            // Agents ask every few seconds: in a minute a VM has grown to what it wants.
            backoff_seconds: 60,
            backoff_max_seconds: 3600,
            // A target pod that has room starts within seconds; within a minute the kubelet has
            // pulled its image or will not.
            stuck_seconds: 60,
        }
    }
}

impl MigrationRule {
    /// Nothing is migrated.
    #[must_use]
    pub fn off() -> Self {
        Self {
            mode: MigrationMode::Off,
            ..Self::default()
        }
    }

    /// As the deployed plugin.
    #[must_use]
    pub fn deployed() -> Self {
        Self {
            mode: MigrationMode::Deployed,
            ..Self::default()
        }
    }

    /// Whether nothing differs from what ships.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether denied wishes are pressure.
    #[must_use]
    pub fn counts_denied(&self) -> bool {
        self.mode != MigrationMode::Deployed
    }

    /// Whether a node with room must exist.
    pub(super) fn needs_target(&self) -> bool {
        self.mode != MigrationMode::Deployed
    }

    /// How many VMs may be leaving a node at a time.
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

    /// After how long without progress a migration is cancelled.
    pub(super) fn stuck_after(&self) -> Option<Span> {
        let cancels = self.mode != MigrationMode::Deployed && self.stuck_seconds > 0;
        cancels.then(|| Span::from_secs(u64::from(self.stuck_seconds)))
    }
}
