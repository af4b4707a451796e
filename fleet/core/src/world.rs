//! Input of the engine: the objects of one environment, and what was seen of its guests.

use std::collections::BTreeMap;

use protocol::fleet::{
    DeploymentSpec, DeploymentStatus, EnvironmentSpec, EnvironmentStatus, InstancePart, Resolved,
    Rollout, TurnResult, TurnSpec, TurnVerb, Window, parse_windows,
};
use protocol::parts::PartState;
use protocol::time::WallTime;

use crate::judge::Readings;
use crate::permit::Gate;

/// Longest text of a health check.
const CHECK_CHARS: usize = 200;

/// Objects of one environment and its guests.
#[derive(Debug, Clone, PartialEq)]
pub struct World {
    /// The environment that the engine decides about.
    pub environment: Environment,
    /// Revisions by name.
    pub revisions: BTreeMap<String, Revision>,
    /// Deployments of the environment.
    pub deployments: Vec<Deployment>,
    /// VMs that the selector matches, by instance. VMs that it matched before are among them until
    /// they run their image's program again.
    pub guests: BTreeMap<String, Guest>,
    /// Whether the channel calls the version critical. Such a version waits for no window or bake.
    pub is_critical: bool,
}

/// The environment, as the engine reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct Environment {
    /// Name in its namespace.
    pub name: String,
    /// What people asked for.
    pub spec: EnvironmentSpec,
    /// What the engine wrote last.
    pub status: EnvironmentStatus,
    /// Whether it is to be deleted.
    pub is_deleted: bool,
    /// Whether its deletion waits for the engine.
    pub has_finalizer: bool,
}

/// A revision of the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// Limits of its deployments.
    pub rollout: Rollout,
    /// The program that it stands for.
    pub program: Resolved,
    /// Whether its image may be used.
    pub image: ImageCheck,
}

/// Whether the image of a revision may be used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ImageCheck {
    /// The revision stands for a program, which its hash alone checks.
    #[default]
    NotAnImage,
    /// No key is set by which images are signed.
    NoKey,
    /// The holder of the key signed the image.
    Signed,
    /// The image is not used. The text says why.
    Refused(String),
}

/// A deployment of the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// Name in its namespace.
    pub name: String,
    /// Time of its creation.
    pub created: WallTime,
    /// What people asked for.
    pub spec: DeploymentSpec,
    /// What the engine wrote last.
    pub status: DeploymentStatus,
    /// Answers of hooks, by the hooks' names.
    pub answers: BTreeMap<String, String>,
}

/// A VM that the selector matches, or matched before.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Guest {
    /// Node of the VM.
    pub node: String,
    /// Whether no label keeps it out.
    pub is_enrolled: bool,
    /// Identifier of the guest's boot. Empty if unknown.
    pub boot: String,
    /// The part, as its daemon reports it.
    pub observed: Observed,
    /// Signs of its health.
    pub facts: Facts,
    /// Gate of the VM itself.
    pub gate: Option<Gate>,
    /// Whether the selector matches it no longer.
    pub has_left: bool,
    /// Whether the environment of its newest turn is gone.
    pub is_orphan: bool,
    /// Newest turn of the part.
    pub turn: Option<TurnSpec>,
    /// End of a turn of the part.
    pub last: Option<InstancePart>,
    /// Labels of the VM, which decide its group.
    pub labels: BTreeMap<String, String>,
    /// Image of the VM. Canaries differ in it.
    pub image: String,
    /// Size of the VM. Canaries differ in it.
    pub size: String,
    /// Windows of the VM or its namespace, which narrow the environment's.
    pub windows: Vec<Window>,
    /// Time since the guest's boot. `None` if unknown.
    pub uptime_seconds: Option<u64>,
    /// What the guest went through, since its program was kept if that is the newest release.
    pub readings: Option<Readings>,
    /// Whether its own gate has been closed for long. The engine sets it.
    pub is_deferred: bool,
}

/// The part, as the guest's daemon reports it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Observed {
    /// The fleet cannot change parts of this guest. The text says why.
    Unmanaged(String),
    /// The VM's runner does not answer, or a node has no pod of its agent.
    #[default]
    Unreachable,
    /// The runner answers, and the guest's daemon does not.
    Silent,
    /// State of the part.
    Seen(PartFacts),
}

/// State of the part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartFacts {
    /// Report of the daemon.
    pub state: PartState,
    /// Why the last trial was taken back, if it was.
    pub returned: Returned,
}

/// Who took a program on trial back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Returned {
    /// The guest, because the program ended.
    #[default]
    Ended,
    /// The guest, because the host did not keep the program in time.
    NotKept,
    /// The host, because of the proof or of a stop.
    ByHost,
}

/// The condition `Degraded` of a VM, while it is true.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Degradation {
    /// Problems of the VM, as its condition says them.
    pub message: String,
    /// Time of its last transition. `None` if the condition names none.
    pub since: Option<WallTime>,
    /// Whether the VM is being resized.
    pub in_resize: bool,
}

/// Signs of a guest's health.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// The VM's condition `Degraded`. `None` if it is not degraded.
    pub degraded: Option<Degradation>,
    /// What speaks against the part as seen from outside, for people. `None` if nothing does.
    pub fault: Option<String>,
    /// Why the operator's health check calls the guest unhealthy. `None` if it does not.
    pub check: Option<String>,
    /// Whether the part's metrics page answers. `None` if it was not asked.
    pub page_answers: Option<bool>,
    /// Whether the agent is connected. `None` if none is expected.
    pub agent_connected: Option<bool>,
    /// Whether the agent began so recently that it need not be connected.
    pub agent_is_new: bool,
}

/// Whether a turn has no end: an end counts only for the turn whose token it names.
#[must_use]
pub fn is_open(turn: Option<&TurnSpec>, last: Option<&InstancePart>) -> bool {
    let ended = last.map(|part| &part.last.token);
    turn.is_some_and(|turn| ended != Some(&turn.token))
}

/// Environment that has the part of a guest. It has it until a turn has gone back to the image's
/// program.
#[must_use]
pub fn claim<'a>(turn: Option<&'a TurnSpec>, last: Option<&InstancePart>) -> Option<&'a str> {
    let turn = turn?;
    let is_back = turn.verb == TurnVerb::Back && !is_open(Some(turn), last);
    let is_done = last.map(|part| part.last.result) == Some(TurnResult::Good);
    (!is_back || !is_done).then_some(turn.environment.as_str())
}

/// Windows of a VM's owner, from their annotation. If it cannot be read, the guest is not changed
/// by guess: the gate holds it.
#[must_use]
pub fn owner_windows(annotation: Option<&str>, trial_seconds: u64) -> (Vec<Window>, Option<Gate>) {
    match annotation.map(|text| parse_windows(text, trial_seconds)) {
        None => (Vec::new(), None),
        Some(Ok(windows)) => (windows, None),
        Some(Err(_)) => (Vec::new(), Some(Gate::Window)),
    }
}

/// What the operator's health check says against a guest, from the annotation of its VM.
#[must_use]
pub fn health_check(annotation: Option<&str>) -> Option<String> {
    let text = annotation?.trim().chars().filter(|c| !c.is_control());
    let text: String = text.take(CHECK_CHARS).collect();
    (!text.is_empty()).then_some(text)
}

impl Guest {
    /// Whether its newest turn has no end.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        is_open(self.turn.as_ref(), self.last.as_ref())
    }

    /// Environment that has the part of this guest.
    #[must_use]
    pub fn claim(&self) -> Option<&str> {
        let turn = self.turn.as_ref().filter(|_| !self.is_orphan);
        claim(turn, self.last.as_ref())
    }

    /// Whether it counts for the budget.
    #[must_use]
    pub fn takes_part(&self) -> bool {
        self.is_enrolled && !matches!(self.observed, Observed::Unmanaged(_))
    }
}
