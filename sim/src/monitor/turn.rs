//! Drives the monitor of a guest.

use protocol::monitor::MonitorFrame;

use super::LinkAction;
use crate::drive::Turn;
use crate::event::{Event as WorldEvent, Sleeper};
use crate::machine::MonitorProcess;
use crate::world::World;

/// Actions of a monitor at one instant.
const ACTIONS_AT_ONCE: usize = 256;

impl World {
    pub(crate) fn drive_monitor(&mut self, vm: usize) {
        let (now, guest_faults) = (self.now, self.vms[vm].guest_faults);
        let used = self
            .used_as_shown(vm)
            .filter(|_| guest_faults.unreadable_until <= now);
        let Some(monitor) = self.monitor(vm) else {
            return;
        };
        let id = monitor.id;
        if guest_faults.frozen_until > now {
            return self.set_alarm(Sleeper::Monitor(vm, id), Some(guest_faults.frozen_until));
        }
        while let Some(monitor) = self.monitor(vm)
            && let Some((connection, text)) = monitor.inbox.pop_front()
        {
            monitor.core.received(now, connection, text);
            self.monitor_counts(vm);
        }
        let turn = Turn::new("monitor", Some(vm), now, ACTIONS_AT_ONCE);
        let act = |world: &mut Self, action| {
            let monitor = world.monitor(vm);
            match monitor.and_then(|monitor| monitor.core.carry_out(now, action, used)) {
                Some(LinkAction::Send(connection, frame)) => {
                    world.monitor_sends(vm, connection, frame)
                }
                Some(LinkAction::Close(connection)) => world.break_connection(vm, connection),
                None => {}
            }
        };
        let rest = self.drive(
            &turn,
            |world| world.monitor(vm).map(|monitor| &mut monitor.core.core),
            act,
        );
        if let Some(rest) = rest {
            self.set_alarm(Sleeper::Monitor(vm, id), rest.deadline);
        }
    }

    fn monitor_sends(&mut self, vm: usize, connection: u64, frame: MonitorFrame) {
        // It looks at memory once more before it agrees to a shrink, so what it counts on changes
        // here too.
        self.monitor_counts(vm);
        match self.frame_time(vm, connection, false) {
            Some(at) => {
                let event = WorldEvent::ToAgent {
                    vm,
                    connection,
                    frame,
                };
                self.put(at, event);
            }
            None => self.break_connection(vm, connection),
        }
    }

    fn monitor(&mut self, vm: usize) -> Option<&mut MonitorProcess> {
        self.vms[vm].machine.as_mut()?.monitor.as_mut()
    }
}
