//! The world: one clock, one queue, all parts, and the truth about every VM.
//!
//! ```text
//!   queue ─► step: one event ─► the part it is for ─► what the part asks for ─► links (delay, loss, …) ─► queue
//!                                                     └─► checks after every step
//! ```

use std::collections::{BTreeMap, BTreeSet};

use agent::core::Handoff;
use neonvm_controller::core::Moment;
use protocol::journal::Record;
use protocol::time::{Span, Timestamp, WallTime};
use protocol::units::Resources;
use scheduler::core::elect::LeaseState;

use crate::agent::AgentTask;
use crate::check::{Checks, Violation};
use crate::controller::{ControllerPart, Task};
use crate::event::{Call, Caller, Event, Reader, Sleeper};
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
/// Steps at one instant from which a part is taken to spin.
const SPIN: u64 = 5_000;

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

    /// Handles the next event and checks everything that must hold.
    ///
    /// # Errors
    /// What does not hold.
    pub fn step(&mut self) -> Result<(), Violation> {
        let (at, event) = self.queue.take().expect("the fault schedule never ends");
        self.instant_steps = if at > self.now {
            0
        } else {
            self.instant_steps + 1
        };
        self.now = self.now.max(at);
        if let Event::Wake(sleeper) = event
            && !self.is_due(sleeper, at)
        {
            return Ok(());
        }
        self.steps += 1;
        let (name, vm) = event.mark();
        self.journal
            .note(self.steps, self.now, Note::Step(name, vm));
        self.handle(event);
        self.tell_changes();
        if self.instant_steps > SPIN {
            self.checks.fail(
                "n05_level_triggered_without_spinning",
                None,
                format!("{SPIN} steps at one instant: {name}"),
            );
        }
        self.check()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Wake(sleeper) => self.wake(sleeper),
            Event::Seen(reader, epoch, change) => self.seen(reader, epoch, change),
            Event::Relist(reader, epoch) => self.relist(reader, epoch),
            Event::Listed(reader, epoch, version, objects) => {
                self.listed(reader, epoch, version, &objects);
            }
            Event::CallArrives(number, call) => self.call_arrives(number, *call),
            Event::CallAnswers(number, answer) => self.call_answers(number, answer),
            Event::StalledCall(call) => self.stalled_call(*call),
            Event::LeaseArrives(of, id, call) => self.lease_arrives(of, id, call),
            Event::LeaseAnswers(of, id, answer) => self.lease_answers(of, id, answer),
            Event::LeaseSeen(of, state) => self.lease_seen(of, state),
            Event::PermitArrives(number, request) => self.permit_arrives(number, *request),
            Event::PermitAnswers(number, result) => self.permit_answers(number, result),
            Event::PermitBreaks(number) => self.permit_breaks(number),
            Event::Dial { vm, agent_task } => self.dial(vm, agent_task),
            Event::GuestLinked { vm, connection } => self.guest_linked(vm, connection),
            Event::AgentLinked { vm, connection } => self.agent_linked(vm, connection),
            Event::ToMonitor {
                vm,
                connection,
                text,
            } => self.tell_monitor(vm, connection, text),
            Event::ToAgent {
                vm,
                connection,
                frame,
            } => self.tell_agent(vm, connection, &frame),
            Event::GuestUnlinked { vm, connection } => self.guest_unlinked(vm, connection),
            Event::AgentUnlinked { vm, connection } => self.agent_unlinked(vm, connection),
            Event::CallOverdue { vm, connection, id } => self.call_overdue(vm, connection, id),
            Event::Scrape { vm, agent_task } => self.scrape(vm, agent_task),
            Event::Scraped {
                vm,
                agent_task,
                page,
            } => self.scraped(vm, agent_task, page),
            Event::Policy {
                vm,
                agent_task,
                what,
            } => self.policy_event(vm, agent_task, what),
            Event::Reply { vm, runner, event } => self.runner_told(vm, runner, event),
            Event::CallNotSent {
                vm,
                agent_task,
                id,
                up,
            } => self.call_not_sent(vm, agent_task, id, up),
            Event::CpusSettle { vm, machine } => self.cpus_settle(vm, machine),
            Event::MemoryMoves { vm, machine } => self.memory_moves(vm, machine),
            Event::News { vm, epoch } => self.news(vm, epoch),
            Event::OrderArrives {
                origin,
                pod,
                command,
            } => self.order_arrives(origin, &pod, command),
            Event::OrderAnswers { origin, answer } => self.order_answers(origin, answer),
            Event::Chore { vm, pod, chore } => self.chore(vm, &pod, chore),
            Event::Load(vm) => self.load_changes(vm),
            Event::InjectFault => self.inject_fault(),
            Event::Start(part) => self.start(part),
            Event::Quiesce => self.quiesce(),
            Event::CheckConverged => self.check_converged(),
        }
    }

    fn wake(&mut self, sleeper: Sleeper) {
        match sleeper {
            Sleeper::AgentTask(vm, _) => self.agent_task_tick(vm),
            Sleeper::Scheduler(replica, _) => self.drive_scheduler(replica),
            Sleeper::Election(replica, _) => self.drive_election(replica),
            Sleeper::Controller(vm, _) => self.drive_task(vm),
            Sleeper::Runner(vm, _) => self.drive_runner(vm),
            Sleeper::Monitor(vm, _) => self.drive_monitor(vm),
        }
    }

    /// Whether a wake-up is the one its sleeper waits for; the others were superseded.
    fn is_due(&mut self, sleeper: Sleeper, at: Timestamp) -> bool {
        match self.alarm(sleeper) {
            Some(alarm) if *alarm == Some(at) => {
                *alarm = None;
                true
            }
            _ => false,
        }
    }

    fn alarm(&mut self, sleeper: Sleeper) -> Option<&mut Option<Timestamp>> {
        match sleeper {
            Sleeper::AgentTask(vm, id) => self.vms[vm]
                .agent_task
                .as_mut()
                .filter(|agent_task| agent_task.id == id)
                .map(|agent_task| &mut agent_task.alarm),
            Sleeper::Scheduler(replica, epoch) => {
                let part = &mut self.schedulers[replica];
                (part.epoch == epoch).then_some(&mut part.alarm)
            }
            Sleeper::Election(replica, epoch) => {
                let part = &mut self.schedulers[replica];
                let election = part.election.as_mut().filter(|_| part.epoch == epoch);
                election.map(|election| &mut election.alarm)
            }
            Sleeper::Controller(vm, epoch) => {
                let is_same = self.controller.epoch == epoch;
                self.vms[vm]
                    .task
                    .as_mut()
                    .filter(|_| is_same)
                    .map(|task| &mut task.alarm)
            }
            Sleeper::Runner(vm, id) => {
                let runner = self.vms[vm]
                    .machine
                    .as_mut()
                    .and_then(|machine| machine.runner.as_mut());
                runner
                    .filter(|runner| runner.id == id)
                    .map(|runner| &mut runner.alarm)
            }
            Sleeper::Monitor(vm, id) => {
                let monitor = self.vms[vm]
                    .machine
                    .as_mut()
                    .and_then(|machine| machine.monitor.as_mut());
                monitor
                    .filter(|monitor| monitor.id == id)
                    .map(|monitor| &mut monitor.alarm)
            }
        }
    }

    /// Wakes a part at `deadline`; an alarm that rings before it stands.
    pub(crate) fn set_alarm(&mut self, sleeper: Sleeper, deadline: Option<Timestamp>) {
        let now = self.now;
        let Some(at) = deadline.map(|at| at.max(now)) else {
            return;
        };
        let Some(alarm) = self.alarm(sleeper) else {
            return;
        };
        if alarm.is_none_or(|set| set > at || set < now) {
            *alarm = Some(at);
            self.put(at, Event::Wake(sleeper));
        }
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
