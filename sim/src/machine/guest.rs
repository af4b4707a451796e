//! What a guest reports, and its CPUs.

use neonvm_runner::core::sizer::Event as SizerEvent;
use protocol::time::Span;

use crate::event::Event;
use crate::options::Sabotage;
use crate::world::World;

impl World {
    pub(crate) fn guest_reports(&mut self, vm: usize, delay: Span) {
        let now = self.now;
        let Some(machine) = self.vms[vm]
            .machine
            .as_mut()
            .filter(|machine| machine.is_up)
        else {
            return;
        };
        let state = machine.report(now);
        if let Some(runner) = machine.runner.as_ref() {
            let event = Event::Reply {
                vm,
                runner: runner.id,
                event: SizerEvent::Guest(state),
            };
            self.after(delay, event);
        }
    }

    pub(super) fn hint(&mut self, vm: usize, event: SizerEvent) {
        let runner = self.vms[vm]
            .machine
            .as_ref()
            .and_then(|machine| machine.runner.as_ref());
        if let Some(runner) = runner {
            let id = runner.id;
            self.after(
                Span(500),
                Event::Reply {
                    vm,
                    runner: id,
                    event,
                },
            );
        }
    }

    pub(crate) fn cpus_settle(&mut self, vm: usize, id: u64) {
        let clings = self.vms[vm].guest_faults.clings_until > self.now;
        let keeps = self.cheats(Sabotage::KeepAhead);
        let Some(machine) = self.vms[vm]
            .machine
            .as_mut()
            .filter(|machine| machine.id == id && machine.is_up)
        else {
            return;
        };
        let mut news = Vec::new();
        if !clings {
            for index in std::mem::take(&mut machine.leaving) {
                machine.plugged[index] = keeps;
                news.push(SizerEvent::CpuGone(machine.slot(index, 0).new_id()));
            }
        } else if !machine.leaving.is_empty() {
            news.push(SizerEvent::CpuHint);
        }
        let plugged = machine.plugged_cpus();
        machine.online = machine.told.map_or(plugged, |told| {
            if clings {
                machine.online
            } else {
                told.min(plugged)
            }
        });
        if machine.online >= plugged {
            machine.told = None;
        }
        for event in news {
            self.hint(vm, event);
        }
        self.checks.touch(vm);
        self.guest_reports(vm, Span::from_millis(4));
    }
}
