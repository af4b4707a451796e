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

/// Who advises the agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PolicyKind {
    /// No VM has a policy.
    #[default]
    None,
    /// Each VM has a policy that asks for the built-in goal.
    Builtin,
    /// Each VM has a policy that gives every answer there is, faults, and none.
    Hostile,
    /// VM 0 has the policy `batch` of the library. No other VM has one.
    Batch,
}

/// Which part is made to cheat, so that a checker can be seen to fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sabotage {
    /// The scheduler's writes approve many times what it decided.
    DoubleGrant,
    /// The scheduler answers what was asked, whatever is written.
    AnswerBeforeWrite,
    /// A first contact is answered with a unit less than it tells.
    CutFirstContact,
    /// A permit is halved on its way to the agent.
    GarblePermit,
    /// A permit request reports one unit less than the object uses.
    ReportTooLittle,
    /// The agent's patches grow to twice the size in use.
    PatchAbovePermit,
    /// The agent's patches take a unit more than the monitor approved.
    PatchBelowApproval,
    /// The agent's patches test nothing.
    PatchUntested,
    /// The agent counts in half units.
    HalfUnits,
    /// The agent takes a guest whose metrics it does not get for an idle one.
    ShrinkBlind,
    /// The scheduler is told that pods are gone that are not.
    ForgetPod,
    /// The scheduler is shown more in use than there is.
    LeakHold,
    /// Nothing the agents patch ever arrives.
    DeafApi,
    /// With each order, the pod of the guest it is for is deleted.
    DeleteRunning,
    /// Each pod is created with a twin.
    TwinPods,
    /// The monitor is told of three times as much as there is.
    TellTooMuch,
    /// After its first permit request a task sends no other.
    NoHeartbeat,
    /// A task asks to be woken at once, for ever.
    Spin,
    /// A guest's memory grows by itself.
    GrowUnseen,
    /// Of two schedulers each acts as if it were alone.
    NoLease,
    /// With each order, its pod requests next to nothing.
    RequestLess,
    /// A runner's quota is raised with what it is to plug ahead.
    HurryAhead,
    /// CPUs that are said to have left stay plugged.
    KeepAhead,
    /// The agent waits two minutes before it connects to a monitor again.
    SlowDial,
    /// A core is not told the rate of its policy's shrinks.
    NoDeclineRate,
    /// A core is not told its policy's largest size.
    NoPolicyLimit,
    /// A core is told that the built-in goal decides as soon as there is no advice.
    EarlyFallback,
    /// Old advice reaches the core again when there is none.
    StaleAdvice,
    /// The policy of a batch VM is not told what other VMs lack.
    DeafBatch,
}

/// What determines one run: the same options give the same run.
#[derive(Debug, Clone, Serialize)]
pub struct Options {
    /// Everything follows from it.
    pub seed: u64,
    /// VMs in the world, numbered from 0. None is added or removed later.
    pub vms: usize,
    /// Nodes they share; 0 takes one per eight VMs.
    pub nodes: usize,
    /// Ends after this much virtual time.
    pub length: Span,
    /// Ends after this many steps at the latest.
    pub steps: u64,
    /// How much goes wrong.
    pub level: Level,
    /// Replicas of the scheduler: one without a Lease, or two that hold one in turn.
    pub replicas: usize,
    /// Pods request what their VMs have, as on Kubernetes.
    pub requests: bool,
    /// Who advises the agents.
    pub policy: PolicyKind,
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
            replicas: 1,
            requests: false,
            policy: PolicyKind::None,
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
