//! The state of the model: VMs, objects, calls, undelivered updates and the scheduler's core.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use scheduler::core::Core;
use scheduler::core::event::CallId;
use scheduler::core::migrate::MigrationRule;

use super::oracle::{Broken, Oracle};

/// How far the model goes.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    pub(crate) vms: usize,
    pub(crate) rule: MigrationRule,
    /// Requests of agents that differ from what is.
    pub(crate) asks: u8,
    /// Migrations that fail.
    pub(crate) failures: u8,
    /// Calls whose answer is lost.
    pub(crate) losses: u8,
    /// Times that time passes.
    pub(crate) pauses: u8,
    /// Seconds that pass at once.
    pub(crate) pause: u64,
    /// Migration objects that are made.
    pub(crate) objects: u32,
}

/// How far a migration is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// A VM and its pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Vm {
    pub(crate) size: u32,
    pub(super) version: u64,
    /// Its pod, numbered anew with each move.
    pub(super) pod: u32,
    pub(super) node: usize,
}

/// A migration object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Object {
    pub(super) vm: usize,
    pub(super) pod: u32,
    pub(super) uid: u32,
    pub(super) phase: Phase,
}

/// An update that a watch has not delivered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum WatchUpdate {
    Pod {
        vm: usize,
        pod: u32,
        node: usize,
        role: Role,
    },
    PodGone {
        vm: usize,
        pod: u32,
    },
    Migration(Object),
    MigrationGone(Object),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Settled,
    Source,
    Target,
}

/// A call at the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Call {
    Create(CallId, usize, u32),
    Delete(CallId, usize, u32),
}

impl Hash for Call {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The number names the call and says nothing of it.
        match self {
            Self::Create(_, vm, pod) => (0, vm, *pod).hash(state),
            Self::Delete(_, vm, uid) => (1, vm, *uid).hash(state),
        }
    }
}

/// A core, told apart by its digest.
#[derive(Clone)]
pub(super) struct Brain(pub(super) Arc<Core>, u64);

impl Brain {
    pub(super) fn new(core: Core) -> Self {
        let mut hasher = DefaultHasher::new();
        core.digest(&mut hasher);
        Self(Arc::new(core), hasher.finish())
    }
}

impl fmt::Debug for Brain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {:016x}", self.1)
    }
}

impl PartialEq for Brain {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}

impl Hash for Brain {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.1.hash(state);
    }
}

/// What a run has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Reached {
    pub(crate) for_denied: bool,
    pub(crate) arrived: bool,
    pub(crate) failed: bool,
}

/// The whole system.
#[derive(Debug, Clone, PartialEq, Hash)]
pub(crate) struct State {
    pub(super) now: u64,
    pub(super) vms: Vec<Vm>,
    pub(super) objects: Vec<Object>,
    pub(super) calls: Vec<Call>,
    pub(super) pods: VecDeque<WatchUpdate>,
    pub(super) migrations: VecDeque<WatchUpdate>,
    pub(super) brain: Brain,
    pub(super) last_uid: u32,
    pub(super) asks: u8,
    pub(super) failures: u8,
    pub(super) losses: u8,
    pub(super) pauses: u8,
    pub(super) oracle: Oracle,
    pub(crate) broken: Broken,
    pub(crate) reached: Reached,
}

impl State {
    /// Whether two live migrations move one VM.
    pub(crate) fn moves_twice(&self) -> bool {
        let live = |object: &&Object| matches!(object.phase, Phase::Pending | Phase::Running);
        let mut vms: Vec<usize> = self.objects.iter().filter(live).map(|it| it.vm).collect();
        vms.sort_unstable();
        vms.windows(2).any(|pair| pair[0] == pair[1])
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.calls.is_empty()
            && self.pods.is_empty()
            && self.migrations.is_empty()
            && self.objects.is_empty()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The agent of a VM asks for so much.
    Ask(usize, u32),
    /// A call takes effect and is answered.
    Land(usize),
    /// A call takes effect and its answer is lost.
    LandUnheard(usize),
    /// A call is lost.
    Lose(usize),
    /// The controller takes the next step with a migration.
    Move(usize),
    /// A migration fails.
    Fail(usize),
    /// The watch of pods tells all that it has to.
    SeePods,
    /// The watch of migrations tells the next.
    SeeMigration,
    /// So many seconds pass.
    Pass(u64),
}
