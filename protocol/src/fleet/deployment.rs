//! The object `FleetDeployment`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::time::WallTime;

/// `spec` of a `FleetDeployment`. Only `stop` may change, from false to true.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeploymentSpec {
    /// Environment whose guests change.
    pub environment: String,
    /// Name of the `ControllerRevision` that they are brought to.
    pub revision: String,
    /// Cause of the deployment.
    #[serde(default)]
    pub kind: DeploymentKind,
    /// Instances that take part. An empty list stands for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<String>,
    /// Failed deployment that this one takes back.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rollback_of: String,
    /// Reason, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Ends the deployment where it is.
    #[serde(default)]
    pub stop: bool,
    /// Time that the deployment stands for. Only of the kind `Cron`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick: Option<Tick>,
}

impl DeploymentSpec {
    /// A deployment for all guests of an environment, without a reason.
    #[must_use]
    pub fn new(
        environment: impl Into<String>,
        revision: impl Into<String>,
        kind: DeploymentKind,
    ) -> Self {
        Self {
            environment: environment.into(),
            revision: revision.into(),
            kind,
            instances: Vec::new(),
            rollback_of: String::new(),
            reason: String::new(),
            stop: false,
            tick: None,
        }
    }
}

/// A time at which an environment of the type `Cron` is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tick {
    /// The time at which it was due.
    pub at: WallTime,
    /// Earlier times since the run before, at which nothing ran.
    #[serde(default)]
    pub missed: u32,
}

/// Cause of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum DeploymentKind {
    /// A person started it.
    #[default]
    User,
    /// A guest joined, or started again from its image.
    NewInstance,
    /// A guest runs another program than the environment's.
    HealthRepair,
    /// A guest was relabelled, and belongs to the environment or no longer does.
    GroupChange,
    /// A deployment failed.
    Rollback,
    /// A time of an environment of the type `Cron` came.
    Cron,
}

impl DeploymentKind {
    /// Whether the engine made it because of a change of the guests or of the time.
    #[must_use]
    pub const fn is_of_monitor(self) -> bool {
        matches!(
            self,
            Self::NewInstance | Self::HealthRepair | Self::GroupChange | Self::Cron
        )
    }
}

/// `status` of a `FleetDeployment`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeploymentStatus {
    /// How far the deployment is.
    pub state: DeploymentState,
    /// Terminal state that follows `ToBeStopped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<DeploymentState>,
    /// Guests by result, counted from the instances.
    pub progress: Progress,
    /// Groups in their order, if the revision has any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupStatus>,
    /// Hooks that were asked, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookStatus>,
    /// Gate that holds every remaining guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<BlockedBy>,
    /// What led to the ending, for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
    /// Time behind closed windows and bakes, which the deadline leaves out.
    #[serde(skip_serializing_if = "is_zero")]
    pub held_seconds: u64,
    /// First grant could be given from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<WallTime>,
    /// Time of the terminal state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<WallTime>,
    /// Number of the engine's run that started it.
    pub epoch: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the form that serde asks for"
)]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A hook that was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HookStatus {
    /// Name of the hook.
    pub name: String,
    /// Time of the question.
    pub asked_at: WallTime,
    /// Time at which it was allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_at: Option<WallTime>,
}

/// A group of guests within a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupStatus {
    /// Name of the group.
    pub name: String,
    /// How far the group is.
    pub state: GroupState,
    /// Members that run the version, settled.
    pub done: u32,
    /// Members that take part.
    pub total: u32,
    /// What the judge said last, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub judgement: String,
    /// Looks that the judge has taken in this state. Each spends a share of the error.
    #[serde(default)]
    pub looks: u32,
    /// Start of the bake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baking_since: Option<WallTime>,
}

/// How far a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum GroupState {
    /// A group before it has not passed.
    Waiting,
    /// Its canaries get turns.
    Canaries,
    /// Its canaries are watched.
    CanariesBake,
    /// Its other members get turns.
    Rest,
    /// All of it is watched.
    Bake,
    /// The next group may go.
    Passed,
}

/// How far a deployment is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub enum DeploymentState {
    /// Waits for the lock of its environment.
    #[default]
    Pending,
    /// Guests get turns.
    InProgress,
    /// A gate holds every remaining guest.
    Blocked,
    /// Gives no turn, and waits for those in flight.
    ToBeStopped,
    /// A person ended it.
    Stopped,
    /// All guests are settled.
    Complete,
    /// A newer one took its place before it began.
    Canceled,
    /// Trials ended badly.
    Unhealthy,
    /// It took too long.
    TimedOut,
}

impl DeploymentState {
    /// Every state, the terminal ones last.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::InProgress,
        Self::Blocked,
        Self::ToBeStopped,
        Self::Stopped,
        Self::Complete,
        Self::Canceled,
        Self::Unhealthy,
        Self::TimedOut,
    ];

    /// Whether no state follows.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Pending | Self::InProgress | Self::Blocked | Self::ToBeStopped => false,
            Self::Stopped | Self::Complete | Self::Canceled | Self::Unhealthy | Self::TimedOut => {
                true
            }
        }
    }
}

/// Guests by result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Progress {
    /// Run the version, settled.
    pub done: u32,
    /// All that take part.
    pub total: u32,
    /// In a turn.
    pub in_flight: u32,
    /// Trials ended badly.
    pub failed: u32,
    /// Held by a gate of their own for long. The deployment ends without them.
    pub deferred: u32,
    /// Left as they are.
    pub skipped: u32,
}

/// Gate that holds every remaining guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedBy {
    /// Name of the gate.
    pub gate: String,
    /// A sentence for people.
    pub detail: String,
    /// Time at which the gate closed.
    pub since: WallTime,
}

impl DeploymentSpec {
    /// The spec of an object.
    ///
    /// # Errors
    /// A text for people, if the object has no such spec.
    pub fn of_object(object: &Value) -> Result<Self, String> {
        Self::deserialize(&object["spec"]).map_err(|error| error.to_string())
    }
}
