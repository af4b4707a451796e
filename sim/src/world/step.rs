//! Takes the next event and gives it to the part that it is for.

use protocol::time::Timestamp;

use super::World;
use crate::check::Violation;
use crate::event::{Event, Sleeper};
use crate::journal::Note;

/// Steps at one instant from which a part is taken to spin.
const SPIN: u64 = 5_000;

impl World {
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
}
