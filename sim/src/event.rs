//! Everything that can be waiting in the queue.

use agent::core::{RequestId, SystemMetrics};
use neonvm_controller::core as controller;
use neonvm_controller::core::metadata::PatchOp;
use neonvm_runner::core::sizer;
use protocol::monitor::MonitorFrame;
use protocol::permit::{AgentRequest, PermitRefusal, PluginResponse};
use protocol::runner::RunnerState;
use protocol::units::Resources;
use scheduler::core::elect::LeaseState;
use serde_json::Value;

use crate::election::{LeaseCall, LeaseResponse};
use crate::journal::Part;
use crate::orders::{CommandOrigin, RunnerCommand};
use crate::policy::PolicyEvent;
use crate::store::{Change, Kind, Object};

/// Who follows which kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reader {
    /// Part that holds the watch, an agent or scheduler by its number.
    pub part: Part,
    /// Kind of the objects that the watch reports.
    pub kind: Kind,
}

/// Who asked to be woken. Numbers tell apart those that came and went under the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sleeper {
    /// The agent's task of a VM.
    AgentTask(usize, u64),
    Scheduler(usize, u64),
    /// A scheduler's part in the election.
    Election(usize, u64),
    /// The controller's task of a VM.
    Controller(usize, u64),
    Runner(usize, u64),
    Monitor(usize, u64),
}

/// One process of a scheduler's replica, from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incarnation {
    /// Number of the replica, from 0.
    pub replica: usize,
    /// Number of the process within the replica. Each start raises it.
    pub epoch: u64,
}

/// Who called the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// An agent's task patches its VM.
    AgentTask {
        vm: usize,
        agent_task: u64,
        id: RequestId,
        /// Patches of the VM that had taken effect when this one was sent.
        landed: u64,
    },
    /// A scheduler writes a VM.
    Write { of: Incarnation, id: u64 },
    /// A scheduler reads a VM.
    Read { of: Incarnation, id: u64 },
    /// A scheduler binds a pod.
    Bind { of: Incarnation, id: u64 },
    /// The controller, about a VM.
    Controller {
        vm: usize,
        epoch: u64,
        kind: controller::Kind,
        began: controller::Moment,
    },
}

/// What is asked of the API server.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    /// JSON patch of a VM.
    PatchVm(String, Value),
    /// JSON patch of a pod.
    PatchPod(String, Value),
    /// JSON patch of a pod's labels and annotations.
    SyncPod(String, Vec<PatchOp>),
    /// JSON patch of what a pod requests, by its subresource.
    ResizePod(String, Vec<PatchOp>),
    /// Merge patch of a VM, or of its status.
    MergeVm(String, Value),
    Get(Kind, String),
    /// Binds a pod (name, uid, node).
    Bind(String, String, String),
    /// Creates a pod.
    CreatePod(Value),
    /// Deletes a pod (name, uid).
    DeletePod(String, String),
}

/// How a call of the API server ended, as its caller sees it.
#[derive(Debug, Clone)]
pub(crate) enum ApiResponse {
    /// The object as it is now.
    Object(Object),
    /// A refusal with its status.
    Status(u16, String),
    /// No answer: nothing is known.
    Nothing,
}

/// A call on its way.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Part and request to which the answer goes.
    pub caller: Caller,
    /// Request to the API server, with the object's name and content.
    pub operation: Operation,
    /// The size an agent's patch sets: what the VM may yet become.
    pub target: Option<(usize, Resources)>,
}

/// A pod. A controller gives the name of a pod that is gone to the next one; a node knows each by
/// its uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodId {
    /// Name of the pod, which a later pod may have again.
    pub name: String,
    /// Uid from the API server; no later pod has it again.
    pub uid: String,
}

/// What the node does for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chore {
    /// Starts its QEMU.
    Start,
    /// The guest is up.
    Ready,
    /// Stops its QEMU and forgets it.
    Stop,
}

#[derive(Debug)]
pub(crate) enum Event {
    /// A part asked to be woken.
    Wake(Sleeper),
    /// A watch tells of a change.
    Seen(Reader, u64, Change),
    /// A watch begins anew with a list.
    Relist(Reader, u64),
    /// The list is there.
    Listed(Reader, u64, u64, Vec<Object>),
    /// A call reaches the API server.
    CallArrives(u64, Box<Call>),
    /// Its answer reaches the caller.
    CallAnswers(u64, ApiResponse),
    /// A call arrives that its caller gave up long ago.
    StalledCall(Box<Call>),
    /// A call about the Lease reaches the API server.
    LeaseArrives(Incarnation, u64, LeaseCall),
    /// Its answer reaches the caller.
    LeaseAnswers(Incarnation, u64, LeaseResponse),
    /// The watch of the Lease tells of a state.
    LeaseSeen(Incarnation, LeaseState),
    /// A permit request reaches the scheduler.
    PermitArrives(u64, Box<AgentRequest>),
    /// Its answer reaches the agent.
    PermitAnswers(u64, Result<PluginResponse, PermitRefusal>),
    /// The connection of a permit request is gone.
    PermitBreaks(u64),
    /// The agent's task tries to reach the monitor.
    Dial {
        vm: usize,
        agent_task: u64,
    },
    /// The monitor has a new connection.
    GuestLinked {
        vm: usize,
        connection: u64,
    },
    /// The agent has it too.
    AgentLinked {
        vm: usize,
        connection: u64,
    },
    /// A frame reaches the monitor.
    ToMonitor {
        vm: usize,
        connection: u64,
        text: String,
    },
    /// A frame reaches the agent.
    ToAgent {
        vm: usize,
        connection: u64,
        frame: MonitorFrame,
    },
    /// The monitor notices that a connection is gone.
    GuestUnlinked {
        vm: usize,
        connection: u64,
    },
    /// The agent notices it.
    AgentUnlinked {
        vm: usize,
        connection: u64,
    },
    /// No answer of the monitor in time.
    CallOverdue {
        vm: usize,
        connection: u64,
        id: u64,
    },
    /// The agent's task scrapes the guest.
    Scrape {
        vm: usize,
        agent_task: u64,
    },
    /// Something happens to the policy of the agent's task.
    Policy {
        vm: usize,
        agent_task: u64,
        what: PolicyEvent,
    },
    /// The page is there.
    Scraped {
        vm: usize,
        agent_task: u64,
        page: Option<SystemMetrics>,
    },
    /// A reply of QEMU or guest to the runner.
    Reply {
        vm: usize,
        runner: u64,
        event: sizer::Event,
    },
    /// A call to the monitor could not be sent.
    CallNotSent {
        vm: usize,
        agent_task: u64,
        id: RequestId,
        up: bool,
    },
    /// CPUs come and go in the guest.
    CpusSettle {
        vm: usize,
        machine: u64,
    },
    MemoryMoves {
        vm: usize,
        machine: u64,
    },
    /// The controller's question to a runner is answered.
    News {
        vm: usize,
        epoch: u64,
    },
    /// What the controller tells a runner reaches it.
    OrderArrives {
        origin: CommandOrigin,
        pod: String,
        command: RunnerCommand,
    },
    /// Its answer reaches the controller, or there is none in time.
    OrderAnswers {
        origin: CommandOrigin,
        answer: Option<Result<Box<RunnerState>, String>>,
    },
    /// The node works on a pod.
    Chore {
        vm: usize,
        pod: PodId,
        chore: Chore,
    },
    /// A guest's load changes.
    Load(usize),
    /// Something goes wrong.
    InjectFault,
    /// A crashed part starts again.
    Start(Part),
    Quiesce,
    /// The world must have converged. Then the next fault phase begins.
    CheckConverged,
}

impl Event {
    /// Its name and the VM it is about, for the journal.
    #[must_use]
    pub(crate) fn mark(&self) -> (&'static str, usize) {
        const NONE: usize = usize::MAX;
        match self {
            Self::Wake(
                Sleeper::AgentTask(vm, _)
                | Sleeper::Controller(vm, _)
                | Sleeper::Runner(vm, _)
                | Sleeper::Monitor(vm, _),
            ) => ("wake", *vm),
            Self::Wake(Sleeper::Scheduler(..) | Sleeper::Election(..)) => ("wake", NONE),
            Self::Seen(..) => ("seen", NONE),
            Self::Relist(..) => ("relist", NONE),
            Self::Listed(..) => ("listed", NONE),
            Self::CallArrives(..) => ("call arrives", NONE),
            Self::CallAnswers(..) => ("call answers", NONE),
            Self::StalledCall(_) => ("stalled call", NONE),
            Self::LeaseArrives(..) => ("lease arrives", NONE),
            Self::LeaseAnswers(..) => ("lease answers", NONE),
            Self::LeaseSeen(..) => ("lease seen", NONE),
            Self::PermitArrives(..) => ("permit arrives", NONE),
            Self::PermitAnswers(..) => ("permit answers", NONE),
            Self::PermitBreaks(_) => ("permit breaks", NONE),
            Self::Dial { vm, .. } => ("dial", *vm),
            Self::GuestLinked { vm, .. } => ("guest linked", *vm),
            Self::AgentLinked { vm, .. } => ("agent linked", *vm),
            Self::ToMonitor { vm, .. } => ("to monitor", *vm),
            Self::ToAgent { vm, .. } => ("to agent", *vm),
            Self::GuestUnlinked { vm, .. } => ("guest unlinked", *vm),
            Self::AgentUnlinked { vm, .. } => ("agent unlinked", *vm),
            Self::CallOverdue { vm, .. } => ("call overdue", *vm),
            Self::Scrape { vm, .. } => ("scrape", *vm),
            Self::Scraped { vm, .. } => ("scraped", *vm),
            Self::Policy { vm, .. } => ("policy", *vm),
            Self::Reply { vm, .. } => ("reply", *vm),
            Self::CallNotSent { vm, .. } => ("call not sent", *vm),
            Self::CpusSettle { vm, .. } => ("cpus settle", *vm),
            Self::MemoryMoves { vm, .. } => ("memory moves", *vm),
            Self::News { vm, .. } => ("news", *vm),
            Self::OrderArrives { origin, .. } => ("order arrives", origin.vm),
            Self::OrderAnswers { origin, .. } => ("order answers", origin.vm),
            Self::Chore { vm, .. } => ("chore", *vm),
            Self::Load(vm) => ("load", *vm),
            Self::InjectFault => ("mischief", NONE),
            Self::Start(..) => ("start", NONE),
            Self::Quiesce => ("calm", NONE),
            Self::CheckConverged => ("judge", NONE),
        }
    }
}
