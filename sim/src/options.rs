//! What a run is asked to be.

use protocol::time::Span;
use serde::Serialize;

/// How much goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing: every message arrives within milliseconds.
    None,
    /// Links lose and delay now and then, a part crashes every few minutes.
    Light,
    /// Everything at once, all the time.
    Heavy,
}

/// Which part is made to cheat, so that a checker can be seen to fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sabotage {
    /// The API server doubles what the scheduler writes as approved, and the scheduler says so.
    DoubleGrant,
    /// The scheduler's answers carry a unit more than is written.
    AnswerBeforeWrite,
    /// A permit request reports one unit less than the object uses.
    ReportTooLittle,
    /// The agent's patches ask for a unit more than it was permitted.
    PatchAbovePermit,
    /// The agent's patches take a unit more than the monitor approved.
    PatchBelowApproval,
    /// Decisions ask for half a unit.
    HalfUnits,
    /// The agent is told a shrink is allowed without anybody asking the monitor, and metrics never come.
    ShrinkBlind,
    /// The scheduler forgets a pod it counts.
    ForgetPod,
    /// Nothing the agent patches ever arrives.
    DeafApi,
    /// The controller's orders make the guest restart.
    RestartGuest,
    /// The first contact of an agent is answered with less than it uses.
    CutFirstContact,
    /// The monitor is told of more than there is.
    TellTooMuch,
    /// Heartbeats are swallowed by the agent.
    NoHeartbeat,
    /// A part asks to be woken at once, for ever.
    Spin,
    /// The memory of a guest grows by itself.
    GrowUnseen,
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct Options {
    /// Everything follows from it.
    pub seed: u64,
    /// Virtual machines.
    pub vms: usize,
    /// Nodes they share; 0 takes one per eight VMs.
    pub nodes: usize,
    /// Ends after this much virtual time.
    pub length: Span,
    /// Ends after this many steps at the latest.
    pub steps: u64,
    /// How much goes wrong.
    pub level: Level,
    /// The part that cheats, in tests of the checkers.
    pub sabotage: Option<Sabotage>,
}

impl Options {
    /// A short run of a few VMs on two nodes.
    #[must_use]
    pub fn short(seed: u64, level: Level, steps: u64) -> Self {
        Self {
            seed,
            vms: 3 + usize::try_from(seed % 4).unwrap_or(0),
            nodes: 1 + usize::try_from(seed % 2).unwrap_or(0),
            length: Span::from_secs(24 * 3600),
            steps,
            level,
            sabotage: None,
        }
    }

    /// Nodes in the world.
    #[must_use]
    pub fn node_count(&self) -> usize {
        if self.nodes == 0 {
            self.vms.div_ceil(8).max(1)
        } else {
            self.nodes
        }
    }
}
