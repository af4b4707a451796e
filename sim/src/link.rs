//! Connections between an agent's task and the monitor in the guest: frames in order or not at all.

use std::collections::BTreeMap;

use agent::core::{DownscaleResponse, Event as CoreEvent, Failure, RequestId, UpscaleRequest};
use protocol::monitor::{
    AGENT_FIRST_ID, AgentBody, AgentFrame, Allocation, MonitorBody, MonitorFrame,
};
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use crate::event::Event;
use crate::faults::Link;
use crate::journal::Note;
use crate::options::Sabotage;
use crate::rng::MILLION;
use crate::world::World;

/// An answer that takes longer is none (`monitor.responseTimeoutSeconds`).
pub(crate) const RESPONSE_PATIENCE: Span = Span::from_secs(5);
/// A connection that takes longer is none (`monitor.connectionTimeoutSeconds`).
pub(crate) const CONNECT_PATIENCE: Span = Span::from_secs(4);
/// Between two attempts to connect (`monitor.connectionRetryMinWaitSeconds`).
pub(crate) const DIAL_PERIOD: Span = Span::from_secs(5);
/// Wishes closer together than this are one (`agent/src/shell/monitor.rs`).
const WISH_GAP: Span = Span::from_millis(100);

/// A connection, as both ends see it.
#[derive(Debug, Default)]
pub struct Connection {
    agent_task: u64,
    next_id: u64,
    waiting: BTreeMap<u64, (RequestId, bool)>,
    to_guest: Timestamp,
    tell_agent: Timestamp,
    wished_at: Option<Timestamp>,
    is_broken: bool,
}

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

    // ---- calls of the agent ----

    pub(crate) fn call_monitor(&mut self, vm: usize, id: RequestId, size: Resources, up: bool) {
        let Some((agent_task, connection)) = self.vms[vm]
            .agent_task
            .as_ref()
            .map(|agent_task| (agent_task.id, agent_task.connection))
        else {
            return;
        };
        let held = connection.and_then(|number| {
            self.vms[vm]
                .connections
                .get_mut(&number)
                .map(|held| (number, held))
        });
        let Some((connection, held)) = held else {
            return self.after(
                Span(0),
                Event::CallNotSent {
                    vm,
                    agent_task,
                    id,
                    up,
                },
            );
        };
        let number = held.next_id;
        held.next_id += 2;
        held.waiting.insert(number, (id, up));
        let allocation = Allocation {
            cpu: size.cpu.as_cores(),
            mem: size.mem.0,
        };
        let body = if up {
            AgentBody::UpscaleNotification {
                granted: allocation,
            }
        } else {
            AgentBody::DownscaleRequest { target: allocation }
        };
        let text = AgentFrame { body, id: number }.encode();
        self.after(
            RESPONSE_PATIENCE,
            Event::CallOverdue {
                vm,
                connection,
                id: number,
            },
        );
        match self.frame_time(vm, connection, true) {
            Some(at) => self.put(
                at,
                Event::ToMonitor {
                    vm,
                    connection,
                    text,
                },
            ),
            None => self.break_connection(vm, connection),
        }
    }

    pub(crate) fn call_not_sent(&mut self, vm: usize, agent_task: u64, id: RequestId, up: bool) {
        if self.agent_task(vm, agent_task).is_some() {
            self.tell_agent_task(vm, done(id, up, Err(Failure::NotApplied)));
        }
    }

    /// When a frame sent now arrives: never before those sent earlier. A lost one ends the
    /// connection.
    pub(crate) fn frame_time(
        &mut self,
        vm: usize,
        connection: u64,
        to_guest: bool,
    ) -> Option<Timestamp> {
        let delay = self.delivery(Link::Monitor).first()?;
        let now = self.now;
        let held = self.vms[vm].connections.get_mut(&connection)?;
        let last = if to_guest {
            &mut held.to_guest
        } else {
            &mut held.tell_agent
        };
        *last = (now + delay).max(*last);
        Some(*last)
    }

    pub(crate) fn call_overdue(&mut self, vm: usize, connection: u64, id: u64) {
        let Some(held) = self.vms[vm].connections.get_mut(&connection) else {
            return;
        };
        if let Some((request, up)) = held.waiting.remove(&id) {
            self.tell_agent_task(vm, done(request, up, Err(Failure::Unknown)));
        }
    }

    pub(crate) fn tell_agent(&mut self, vm: usize, connection: u64, frame: &MonitorFrame) {
        let now = self.now;
        let is_current = self.vms[vm]
            .agent_task
            .as_ref()
            .is_some_and(|agent_task| agent_task.connection == Some(connection));
        let Some(held) = self.vms[vm]
            .connections
            .get_mut(&connection)
            .filter(|_| is_current)
        else {
            return;
        };
        // Through the codec and back, as on the wire.
        let Ok(frame) = MonitorFrame::decode(&frame.encode()) else {
            return;
        };
        if frame.body == MonitorBody::UpscaleRequest {
            if held
                .wished_at
                .is_none_or(|last| now.since(last) >= WISH_GAP)
            {
                held.wished_at = Some(now);
                self.note(Note::MonitorWants { vm });
                self.tell_agent_task(
                    vm,
                    CoreEvent::MonitorUpscaleRequested(UpscaleRequest::default()),
                );
            }
            return;
        }
        let Some((request, up)) = held.waiting.remove(&frame.id) else {
            return;
        };
        let event = match frame.body {
            MonitorBody::DownscaleResult { ok, .. } if !up => {
                self.note(Note::MonitorSays { vm, allowed: ok });
                let answer = if ok {
                    DownscaleResponse::Allowed
                } else {
                    DownscaleResponse::DENIED
                };
                CoreEvent::MonitorDownscaleDone(request, Ok(answer))
            }
            MonitorBody::UpscaleConfirmation if up => {
                CoreEvent::MonitorUpscaleDone(request, Ok(()))
            }
            _ => done(request, up, Err(Failure::Unknown)),
        };
        self.tell_agent_task(vm, event);
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

    // ---- the monitor ----

    pub(crate) fn tell_monitor(&mut self, vm: usize, connection: u64, text: String) {
        let machine = self.vms[vm].machine.as_mut();
        if let Some(monitor) = machine.and_then(|machine| machine.monitor.as_mut()) {
            monitor.inbox.push_back((connection, text));
            self.drive_monitor(vm);
        }
    }
}

fn done(id: RequestId, up: bool, failed: Result<(), Failure>) -> CoreEvent {
    if up {
        CoreEvent::MonitorUpscaleDone(id, failed)
    } else {
        CoreEvent::MonitorDownscaleDone(id, failed.map(|()| DownscaleResponse::DENIED))
    }
}
