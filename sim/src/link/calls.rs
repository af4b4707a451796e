//! Calls of an agent's task to the monitor, and the frames of both.

use agent::core::{DownscaleResponse, Event as CoreEvent, Failure, RequestId, UpscaleRequest};
use protocol::monitor::{AgentBody, AgentFrame, Allocation, MonitorBody, MonitorFrame};
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use super::RESPONSE_PATIENCE;
use crate::event::Event;
use crate::faults::Link;
use crate::journal::Note;
use crate::world::World;

/// Wishes closer together than this are one (`agent/src/shell/monitor.rs`).
const WISH_GAP: Span = Span::from_millis(100);

impl World {
    pub(crate) fn call_monitor(&mut self, vm: usize, id: RequestId, size: Resources, up: bool) {
        let Some((agent_task, connection)) = self.vms[vm]
            .agent_task
            .as_ref()
            .map(|agent_task| (agent_task.id, agent_task.connection))
        else {
            return;
        };
        let connections = &mut self.vms[vm].connections;
        let held = connection.and_then(|number| Some((number, connections.get_mut(&number)?)));
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
        let body = body_of(size, up);
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
        if let MonitorBody::DownscaleResult { ok, .. } = &frame.body
            && !up
        {
            self.note(Note::MonitorSays { vm, allowed: *ok });
        }
        let event = event_of(&frame.body, request, up);
        self.tell_agent_task(vm, event);
    }

    pub(crate) fn tell_monitor(&mut self, vm: usize, connection: u64, text: String) {
        let machine = self.vms[vm].machine.as_mut();
        if let Some(monitor) = machine.and_then(|machine| machine.monitor.as_mut()) {
            monitor.inbox.push_back((connection, text));
            self.drive_monitor(vm);
        }
    }
}

/// The event of a response to a call of the agent.
fn event_of(body: &MonitorBody, request: RequestId, up: bool) -> CoreEvent {
    match body {
        MonitorBody::DownscaleResult { ok, .. } if !up => {
            let answer = if *ok {
                DownscaleResponse::Allowed
            } else {
                DownscaleResponse::DENIED
            };
            CoreEvent::MonitorDownscaleDone(request, Ok(answer))
        }
        MonitorBody::UpscaleConfirmation if up => CoreEvent::MonitorUpscaleDone(request, Ok(())),
        _ => done(request, up, Err(Failure::Unknown)),
    }
}

fn body_of(size: Resources, up: bool) -> AgentBody {
    let allocation = Allocation {
        cpu: size.cpu.as_cores(),
        mem: size.mem.0,
    };
    if up {
        AgentBody::UpscaleNotification {
            granted: allocation,
        }
    } else {
        AgentBody::DownscaleRequest { target: allocation }
    }
}

pub(super) fn done(id: RequestId, up: bool, failed: Result<(), Failure>) -> CoreEvent {
    if up {
        CoreEvent::MonitorUpscaleDone(id, failed)
    } else {
        CoreEvent::MonitorDownscaleDone(id, failed.map(|()| DownscaleResponse::DENIED))
    }
}
