//! Connections begin, break and end.

use agent::core::{Event as CoreEvent, Failure};
use protocol::monitor::AGENT_FIRST_ID;
use protocol::time::Span;

use super::calls::done;
use super::{CONNECT_PATIENCE, Connection, DIAL_PERIOD};
use crate::event::Event;
use crate::faults::Link;
use crate::journal::Note;
use crate::options::Sabotage;
use crate::rng::MILLION;
use crate::world::World;

impl World {
    pub(crate) fn dial(&mut self, vm: usize, agent_task: u64) {
        let now = self.now;
        let Some(task) = self
            .agent_task(vm, agent_task)
            .filter(|task| task.connection.is_none())
        else {
            return;
        };
        task.dialled_at = now;
        let connection = self.number();
        let fresh = Connection {
            agent_task,
            next_id: AGENT_FIRST_ID,
            ..Connection::default()
        };
        self.vms[vm].connections.insert(connection, fresh);
        let absent = self.vms[vm].guest_faults.absent_until > now || !self.has_monitor(vm);
        match self.delivery(Link::Monitor).first().filter(|_| !absent) {
            Some(delay) if delay < CONNECT_PATIENCE => {
                self.after(delay, Event::GuestLinked { vm, connection });
            }
            Some(_) => self.after(CONNECT_PATIENCE, Event::AgentUnlinked { vm, connection }),
            None => self.after(
                Span::from_millis(2),
                Event::AgentUnlinked { vm, connection },
            ),
        }
    }

    fn has_monitor(&self, vm: usize) -> bool {
        self.vms[vm]
            .machine
            .as_ref()
            .is_some_and(|machine| machine.monitor.is_some())
    }

    pub(crate) fn guest_linked(&mut self, vm: usize, connection: u64) {
        let now = self.now;
        if !self.vms[vm].connections.contains_key(&connection) {
            return;
        }
        let Some(machine) = self.vms[vm].machine.as_mut() else {
            return self.after(
                Span::from_millis(2),
                Event::AgentUnlinked { vm, connection },
            );
        };
        let memory = machine.memory();
        let Some(monitor) = machine.monitor.as_mut() else {
            return self.after(
                Span::from_millis(2),
                Event::AgentUnlinked { vm, connection },
            );
        };
        monitor.core.agent_ready(now, connection, memory);
        monitor.connection = Some(connection);
        self.monitor_counts(vm);
        self.checks.reconnected(vm, memory);
        let delay = self
            .delivery(Link::Monitor)
            .first()
            .unwrap_or(Span::from_millis(1));
        if let Some(held) = self.vms[vm].connections.get_mut(&connection) {
            held.tell_agent = now + delay;
        }
        self.after(delay, Event::AgentLinked { vm, connection });
        self.drive_monitor(vm);
    }

    pub(crate) fn agent_linked(&mut self, vm: usize, connection: u64) {
        let Some(held) = self.vms[vm]
            .connections
            .get(&connection)
            .filter(|held| !held.is_broken)
        else {
            return;
        };
        let agent_task = held.agent_task;
        let Some(task) = self.agent_task(vm, agent_task) else {
            return;
        };
        task.connection = Some(connection);
        self.note(Note::MonitorUp { vm, connection });
        self.tell_agent_task(vm, CoreEvent::MonitorActive);
    }

    /// The agent's end goes; the monitor hears of it.
    pub(crate) fn hang_up(&mut self, vm: usize, connection: u64) {
        self.vms[vm].connections.remove(&connection);
        let delay = self.rng.millis(1, 20);
        self.after(delay, Event::GuestUnlinked { vm, connection });
    }

    /// A connection breaks; each end notices in its own time.
    pub(crate) fn break_connection(&mut self, vm: usize, connection: u64) {
        let Some(held) = self.vms[vm].connections.get_mut(&connection) else {
            return;
        };
        if std::mem::replace(&mut held.is_broken, true) {
            return;
        }
        let (guest, agent) = (self.rng.millis(1, 800), self.rng.millis(1, 800));
        self.after(guest, Event::GuestUnlinked { vm, connection });
        self.after(agent, Event::AgentUnlinked { vm, connection });
    }

    pub(crate) fn guest_unlinked(&mut self, vm: usize, connection: u64) {
        let now = self.now;
        let machine = self.vms[vm].machine.as_mut();
        if let Some(monitor) = machine.and_then(|machine| machine.monitor.as_mut()) {
            monitor.core.agent_gone(now, connection);
            if monitor.connection == Some(connection) {
                monitor.connection = None;
            }
            self.drive_monitor(vm);
        }
    }

    pub(crate) fn agent_unlinked(&mut self, vm: usize, connection: u64) {
        let Some(held) = self.vms[vm].connections.remove(&connection) else {
            return;
        };
        let agent_task = held.agent_task;
        let Some(task) = self.agent_task(vm, agent_task) else {
            return;
        };
        task.connection = None;
        let regular = task.dialled_at + DIAL_PERIOD;
        let is_slow = self.cheats(Sabotage::SlowDial);
        let slow = is_slow.then_some(self.now + Span::from_secs(120));
        self.note(Note::MonitorDown { vm, connection });
        // The ends of calls under way reach the task before the end of the connection, or are
        // dropped after it.
        if self.rng.chance(MILLION / 2) {
            for (request, up) in held.waiting.into_values() {
                self.tell_agent_task(vm, done(request, up, Err(Failure::Unknown)));
            }
        }
        self.tell_agent_task(vm, CoreEvent::MonitorReset);
        let next = slow.unwrap_or(regular).max(self.now);
        self.put(next, Event::Dial { vm, agent_task });
    }
}
