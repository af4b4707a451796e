//! The world: one clock, one queue, all parts, and the truth about every VM.
//!
//! ```text
//!   queue ─► step: one event ─► the part it is for ─► what the part asks for ─► links (delay, loss, …) ─► queue
//!                                                     └─► checks after every step
//! ```

mod step;

use std::collections::{BTreeMap, BTreeSet};

use agent::core::Handoff;
use neonvm_controller::core::Moment;
use protocol::journal::Record;
use protocol::time::{Span, Timestamp, WallTime};
use protocol::units::Resources;
use scheduler::core::elect::LeaseState;

use crate::agent::AgentTask;
use crate::check::Checks;
use crate::controller::{ControllerPart, Task};
use crate::event::{Call, Caller, Event, Reader};
use crate::fault_schedule::FaultSchedule;
use crate::faults::{self, Delivery, Link, Rates, Tally};
use crate::journal::{Journal, Note, Part};
use crate::link::Connection;
use crate::machine::Machine;
use crate::options::{Options, Sabotage};
use crate::permit::Flight;
use crate::queue::Queue;
use crate::rng::{Rng, Stream};
use crate::scheduler::SchedulerPart;
use crate::store::Store;
use crate::watch::StreamState;

/// When the world begins: time 0 means "never" to some parts.
pub(crate) const BEGIN: Timestamp = Timestamp(1_000_000);
const EPOCH_US: i64 = 1_767_225_600_000_000;
/// The compute unit of the whole world.
pub(crate) const UNIT: Resources = Resources::new(250, 1 << 30);
/// What a guest does with its memory and CPUs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Load {
    /// Load average, thousandths.
    pub milli: u32,
    /// Memory in use, MiB.
    pub mib: u64,
}

/// How a guest misbehaves, each until some time.
#[derive(Debug, Clone, Copy, Default)]
pub struct GuestFaults {
    /// Its page shows this part of the truth, percent; 0 is the truth.
    pub lies_percent: u64,
    /// It lies until then.
    pub lies_until: Timestamp,
    /// It keeps its CPUs.
    pub clings_until: Timestamp,
    /// It gives no memory back.
    pub blocks_until: Timestamp,
    /// It gives memory back slowly.
    pub slow_until: Timestamp,
    /// Its page cannot be had.
    pub mute_until: Timestamp,
    /// No monitor can be reached.
    pub absent_until: Timestamp,
    /// Its monitor hangs.
    pub frozen_until: Timestamp,
    /// Its monitor cannot read memory use.
    pub unreadable_until: Timestamp,
    /// The API server resizes no pod of it.
    pub refuses_until: Timestamp,
}

/// A virtual machine and all that is there for it.
pub struct Vm {
    /// Name of the VM object: `vm-` and the VM's number in four digits.
    pub name: String,
    /// What it does.
    pub load: Load,
    /// How it misbehaves.
    pub guest_faults: GuestFaults,
    /// The agent's task.
    pub agent_task: Option<AgentTask>,
    /// The controller's task.
    pub task: Option<Task>,
    /// QEMU of its pod; `None` before the node starts one, and after the node has stopped it.
    pub machine: Option<Machine>,
    /// Connections between its agent and its monitor.
    pub connections: BTreeMap<u64, Connection>,
    /// The node its pod is bound to.
    pub node: Option<usize>,
    /// The uid of that pod.
    pub bound: String,
    /// Bounds, in units.
    pub bounds: (u32, u32),
}

/// See the module.
pub struct World {
    /// What was asked for.
    pub options: Options,
    /// Virtual time, which moves only from one event to the next.
    pub now: Timestamp,
    /// Events handled so far, without wake-ups that were no longer due.
    pub steps: u64,
    /// Objects of the API server, and changes not yet passed to the watches.
    pub store: Store,
    /// VMs by number. None is added or removed during a run.
    pub vms: Vec<Vm>,
    /// Total of each node.
    pub nodes: Vec<Resources>,
    /// Agents that are up, by node.
    pub agents: Vec<bool>,
    /// By node and VM: what the last task of the agent's process that is up left, with the VM's
    /// uid.
    pub(crate) left: BTreeMap<(usize, usize), (String, Handoff)>,
    /// The scheduler's replicas.
    pub schedulers: Vec<SchedulerPart>,
    /// The Lease they hold in turn.
    pub(crate) lease: Option<LeaseState>,
    /// The controller's process; its task for a VM is in [`Vm::task`].
    pub controller: ControllerPart,
    /// Permit requests under way, as the agents see them.
    pub flights: BTreeMap<u64, Flight>,
    /// API calls under way, as the callers see them.
    pub calls: BTreeMap<u64, (Caller, Timestamp)>,
    /// Patches of agents that may yet arrive.
    pub patches: BTreeMap<u64, (usize, Resources)>,
    /// The watch streams.
    pub streams: BTreeMap<Reader, StreamState>,
    /// Phase of the run: faults or quiescence.
    pub fault_schedule: FaultSchedule,
    /// Chances of faults now: those of the run's level in a fault phase, 0 otherwise.
    pub rates: Rates,
    /// Chance of faults and delays.
    pub rng: Rng,
    /// Chance of loads.
    pub load_rng: Rng,
    /// Chance of policies' answers.
    pub(crate) policy_rng: Rng,
    /// What was done to the world.
    pub tally: Tally,
    /// Hash of all notes, and the newest of them for the report of a violation.
    pub journal: Journal,
    /// The decision journals of the agents, where they are kept.
    pub(crate) recording: Option<Vec<Record>>,
    /// The truth, and what must hold of it.
    pub checks: Checks,
    queue: Queue<Event>,
    serial: u64,
    instant_steps: u64,
}

impl World {
    /// A world before its first step.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let seed = options.seed;
        let mut world = Self {
            now: BEGIN,
            steps: 0,
            store: Store::default(),
            vms: Vec::new(),
            nodes: Vec::new(),
            agents: Vec::new(),
            left: BTreeMap::new(),
            schedulers: Vec::new(),
            lease: None,
            controller: ControllerPart::default(),
            flights: BTreeMap::new(),
            calls: BTreeMap::new(),
            patches: BTreeMap::new(),
            streams: BTreeMap::new(),
            fault_schedule: FaultSchedule::default(),
            rates: faults::rates(crate::options::Level::None),
            rng: Rng::new(seed, Stream::Fault),
            load_rng: Rng::new(seed, Stream::Load),
            policy_rng: Rng::new(seed, Stream::Policy),
            tally: Tally::default(),
            journal: Journal::default(),
            recording: None,
            checks: Checks::default(),
            queue: Queue::default(),
            serial: 0,
            instant_steps: 0,
            options,
        };
        world.build(&mut Rng::new(seed, Stream::World));
        world
    }
    // ---- small tools of all parts ----

    /// Puts an event in.
    pub(crate) fn put(&mut self, at: Timestamp, event: Event) {
        self.queue.put(at, event);
    }

    /// Puts an event in for later.
    pub(crate) fn after(&mut self, span: Span, event: Event) {
        self.queue.put(self.now + span, event);
    }

    /// Events in the queue, wake-ups that are no longer due included.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// A number never given before.
    pub(crate) fn number(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.journal.note(self.steps, self.now, note);
    }

    /// What becomes of a message.
    pub(crate) fn delivery(&mut self, link: Link) -> Delivery {
        faults::delivery(&mut self.rng, &self.rates, &mut self.tally, link)
    }

    /// Calendar time now.
    #[must_use]
    pub fn wall(&self) -> WallTime {
        WallTime(EPOCH_US + i64::try_from(self.now.0).unwrap_or(i64::MAX))
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment {
            now: self.now,
            wall: self.wall(),
        }
    }

    /// The VM of that name.
    pub(crate) fn vm_named(&self, name: &str) -> Option<usize> {
        let number = name.strip_prefix("vm-")?.get(..4)?.parse::<usize>().ok()?;
        (number < self.vms.len()).then_some(number)
    }

    /// Whether this cheat is on.
    pub(crate) fn cheats(&self, how: Sabotage) -> bool {
        self.options.sabotage == Some(how)
    }

    /// Whether a part is up.
    pub(crate) fn is_up(&self, part: Part) -> bool {
        match part {
            Part::Agent(node) => self.agents[node],
            Part::Scheduler(replica) => self.schedulers[replica].core.is_some(),
            Part::Controller => self.controller.up,
            Part::Runner(vm) => self.vms[vm]
                .machine
                .as_ref()
                .is_some_and(|machine| machine.runner.is_some()),
            Part::Monitor(vm) => self.vms[vm]
                .machine
                .as_ref()
                .is_some_and(|machine| machine.monitor.is_some()),
        }
    }

    /// Sends a call to the API server.
    pub(crate) fn call(&mut self, call: Call) {
        self.send_call(call);
    }

    /// VMs of a node.
    pub(crate) fn vms_on(&self, node: usize) -> BTreeSet<usize> {
        (0..self.vms.len())
            .filter(|vm| self.vms[*vm].node == Some(node))
            .collect()
    }
}
