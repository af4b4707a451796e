//! Input of the core: guests with their runners, and what is wanted.

use protocol::fleet::{Blackout, RunnerMove, RunnerMoveEnd, Window};
use protocol::time::{Span, WallTime};

use crate::hash;
use crate::permit::Gate;

/// Namespace and name of a VM.
pub type Key = (String, String);

/// What people allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Whether runners are images that `spec.runnerImage` of a VM names. On one machine they are
    /// programs, and no field of a VM changes.
    pub by_image: bool,
    /// Whether guests without KVM are moved.
    pub without_kvm: bool,
    /// Guests that move at the same time. One per node in any case.
    pub max_in_flight: usize,
    /// Attempts in one guest to bring one runner.
    pub attempts: u32,
    /// Time at which a person ordered the moves. Then no window and no spacing holds them, and ends
    /// of before do not count.
    pub ordered_at: Option<WallTime>,
    /// Times at which guests move.
    pub windows: Vec<Window>,
    /// Times at which no guest moves, also within windows.
    pub blackouts: Vec<Blackout>,
    /// Between two passes.
    pub pass_every: Span,
    /// Between two looks while guests move.
    pub look_every: Span,
    /// Time for which a moved guest must be well before its move counts.
    pub well_for: Span,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            by_image: true,
            without_kvm: false,
            max_in_flight: 1,
            attempts: 2,
            ordered_at: None,
            windows: Vec::new(),
            blackouts: Vec::new(),
            pass_every: Span::from_secs(1800),
            look_every: Span::from_secs(3),
            well_for: Span::from_secs(30),
        }
    }
}

/// The runner that guests should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its image, or `sha256:HEX` of its program on one machine.
    pub to: String,
    /// Version of its release.
    pub version: String,
    /// Whether the release is critical. It waits for no window.
    pub is_critical: bool,
}

/// What was seen at a time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct World {
    /// The runner that guests should have. `None` while it is unknown or not verified.
    pub wanted: Option<Wanted>,
    /// VMs whose pod was found by uid, owner and label.
    pub guests: Vec<Guest>,
}

/// A VM with its own pod.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Guest {
    /// Namespace and name of the VM.
    pub key: Key,
    /// Uid of the VM.
    pub uid: String,
    /// Node of the VM.
    pub node: String,
    /// `spec.runnerImage` of the VM.
    pub named: Option<String>,
    /// Runner of the VM's pod: its image, or `sha256:HEX` of its program. `None` if unknown.
    pub runs: Option<String>,
    /// Whether another pod of the VM is there.
    pub has_other_pod: bool,
    /// Whether the VM runs, is not degraded since its move began, and its guest answers at the
    /// runner.
    pub is_healthy: bool,
    /// Whether the VM is degraded while it runs.
    pub is_degraded: bool,
    /// Newest move, as the instance has it.
    pub turn: Option<RunnerMove>,
    /// End of a move, as the instance has it.
    pub end: Option<RunnerMoveEnd>,
    /// Object of the newest move's name.
    pub migration: Migration,
    /// Gate of the VM itself.
    pub gate: Option<Gate>,
    /// Why the guest cannot be moved.
    pub fixed: Option<Fixed>,
    /// Windows of the VM or its namespace, which narrow the settings'.
    pub windows: Vec<Window>,
}

/// The object with the name of a move's migration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Migration {
    /// There is none.
    #[default]
    Absent,
    /// It waits or runs.
    Live,
    /// It is to be deleted, and its controller has not let it go.
    Leaving,
    /// The guest was moved.
    Succeeded,
    /// The guest stayed where it was.
    Failed(String),
    /// It is of somebody else, or of another VM.
    Foreign,
}

/// Why a guest cannot be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fixed {
    /// It has disks on claims, which one pod writes at a time.
    DisksOnClaims,
    /// It has swap or an empty disk, which stay on their node.
    DisksOfNode,
    /// It runs without KVM, so that it would stand still while it is sent.
    WithoutKvm,
}

impl Fixed {
    /// The reason, for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DisksOnClaims => "its disks on claims do not move",
            Self::DisksOfNode => "its swap or empty disks do not move to another node",
            Self::WithoutKvm => {
                "it runs without KVM, so that it would stand still while it is sent"
            }
        }
    }
}

impl Guest {
    /// Its newest move, if that has no end.
    #[must_use]
    pub fn open(&self) -> Option<&RunnerMove> {
        let ended = self.end.as_ref().map(|end| end.migration.as_str());
        let turn = self.turn.as_ref();
        turn.filter(|turn| ended != Some(turn.migration.as_str()))
    }

    /// Whether its pod has the runner of the newest move.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        let to = self.turn.as_ref().map(|turn| turn.to.as_str());
        let is_at = |runs: &str| to.is_some_and(|to| is_same_runner(runs, to));
        self.runs.as_deref().is_some_and(is_at)
    }

    /// Whether the moved guest is well and alone.
    #[must_use]
    pub const fn is_well(&self) -> bool {
        self.is_healthy && !self.has_other_pod
    }
}

/// Whether two texts name one runner: the same text, or the same digest.
#[must_use]
pub fn is_same_runner(one: &str, other: &str) -> bool {
    let digest = |text: &str| text.rsplit_once("sha256:").map(|(_, hex)| hex.to_owned());
    one == other || digest(one).is_some_and(|one| Some(one) == digest(other))
}

/// Name of the migration of an attempt: the same for the same attempt.
#[must_use]
pub fn migration_name(uid: &str, to: &str, attempt: u32) -> String {
    let hash = hash::of(&["runner", uid, to, &attempt.to_string()]);
    format!("fleet-{:08x}", hash & 0xffff_ffff)
}
