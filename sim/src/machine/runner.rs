//! The runner of a machine: the shipped sizer, and what QEMU does for it.

use neonvm_runner::core::sizer::{Action, Event as SizerEvent, QmpFailure};
use protocol::core::Core as _;
use protocol::overtaken::{self, Overtaken};
use protocol::runner::{CpusAhead, QuotaState, RunnerPhase, RunnerState, SizeOrder};
use protocol::time::Span;

use super::RunnerProcess;
use crate::drive::Turn;
use crate::event::{Event, Sleeper};
use crate::journal::Note;
use crate::options::Sabotage;
use crate::world::World;

/// Actions a sizer may start at one instant, as in its shell.
const ACTIONS_AT_ONCE: usize = 64;

impl World {
    /// A runner starts and finds the machine, new or old.
    pub(crate) fn start_runner(&mut self, vm: usize) {
        let (now, id) = (self.now, self.number());
        let Some(machine) = self.vms[vm]
            .machine
            .as_mut()
            .filter(|machine| machine.runner.is_none())
        else {
            return;
        };
        let sizer = machine.sizer(!machine.is_up, now);
        machine.quota_bound.taken_over(machine.is_up);
        machine.runner = Some(RunnerProcess {
            id,
            sizer,
            alarm: None,
        });
        self.after(
            Span::from_millis(3),
            Event::Reply {
                vm,
                runner: id,
                event: SizerEvent::QmpUp,
            },
        );
        self.guest_reports(vm, Span::from_millis(8));
        self.drive_runner(vm);
    }

    pub(crate) fn crash_runner(&mut self, vm: usize) {
        if let Some(machine) = self.vms[vm].machine.as_mut() {
            machine.runner = None;
        }
        self.runner_has_news(vm);
    }

    pub(crate) fn runner_told(&mut self, vm: usize, id: u64, event: SizerEvent) {
        let now = self.now;
        let runner = self.vms[vm]
            .machine
            .as_mut()
            .and_then(|machine| machine.runner.as_mut());
        let Some(runner) = runner.filter(|runner| runner.id == id) else {
            return;
        };
        let is_up = matches!(event, SizerEvent::Guest(_));
        runner.sizer.handle(now, event);
        if is_up && let Some(machine) = self.vms[vm].machine.as_mut() {
            machine.quota_bound.boots = false;
        }
        self.drive_runner(vm);
    }

    /// An order is held and written down before it is answered, unless it was overtaken.
    pub(crate) fn runner_ordered(
        &mut self,
        vm: usize,
        order: SizeOrder,
        over: Option<u64>,
    ) -> Result<(), Overtaken> {
        let now = self.now;
        let Some(machine) = self.vms[vm].machine.as_mut() else {
            return Ok(());
        };
        let is_held = machine.order.as_ref() == Some(&order);
        machine.orders = overtaken::count(machine.orders, over, is_held)?;
        if !is_held {
            machine.quota_bound.ordered(order.cpu, now);
        }
        machine.order = Some(order.clone());
        if let Some(runner) = machine.runner.as_mut() {
            runner.sizer.handle(now, SizerEvent::Order(order));
        }
        self.drive_runner(vm);
        Ok(())
    }

    /// A wish is held by the process alone, and answered.
    pub(crate) fn runner_plugs_ahead(&mut self, vm: usize, wish: CpusAhead) {
        let (now, hurries) = (self.now, self.cheats(Sabotage::HurryAhead));
        let Some(machine) = self.vms[vm].machine.as_mut() else {
            return;
        };
        if let Some(runner) = machine.runner.as_mut() {
            self.tally.count("plugged ahead");
            runner.sizer.handle(now, SizerEvent::Ahead(wish));
        }
        if hurries {
            machine.state.quota = QuotaState::Enforced { milli: wish.cpu.0 };
            self.checks.touch(vm);
        }
        self.drive_runner(vm);
    }

    pub(crate) fn drive_runner(&mut self, vm: usize) {
        let turn = Turn::new("runner", Some(vm), self.now, ACTIONS_AT_ONCE);
        let act = |world: &mut Self, action| {
            let Some(runner) = world.runner(vm).map(|runner| runner.id) else {
                return;
            };
            if let Some(event) = world.obey(vm, action) {
                let delay = world.rng.span(Span(300), Span::from_millis(2));
                world.after(delay, Event::Reply { vm, runner, event });
            }
        };
        let rest = self.drive(
            &turn,
            |world| world.runner(vm).map(|runner| &mut runner.sizer),
            act,
        );
        let (Some(rest), Some(id)) = (rest, self.runner(vm).map(|runner| runner.id)) else {
            return;
        };
        self.set_alarm(Sleeper::Runner(vm, id), rest.deadline);
        self.publish_state(vm);
    }

    fn runner(&mut self, vm: usize) -> Option<&mut RunnerProcess> {
        self.vms[vm].machine.as_mut()?.runner.as_mut()
    }

    /// QEMU and guest do what they are told, or QEMU fails.
    fn obey(&mut self, vm: usize, action: Action) -> Option<SizerEvent> {
        let broken = self.rng.chance(self.rates.broken);
        self.vms[vm].machine.as_ref()?;
        if broken {
            self.tally.count("qmp error");
            if let Some(failure) = failure_of(&action) {
                return Some(failure);
            }
        }
        self.carry_out_action(vm, action)
    }

    fn carry_out_action(&mut self, vm: usize, action: Action) -> Option<SizerEvent> {
        let machine = self.vms[vm].machine.as_mut()?;
        let id = machine.id;
        let settle = Event::CpusSettle { vm, machine: id };
        match action {
            Action::QueryCpus => Some(SizerEvent::Cpus(Ok(machine.slots()))),
            Action::QueryMemory => Some(SizerEvent::Memory(Ok(machine.device()))),
            Action::Plug { slots, budget } => {
                machine.plug(&slots, budget);
                let delay = self.rng.millis(5, 60);
                self.after(delay, settle);
                Some(SizerEvent::CpuCommand(Ok(())))
            }
            Action::Unplug { ids } => {
                machine.leaving = machine.places(&ids);
                let delay = self.rng.millis(20, 300);
                self.after(delay, settle);
                Some(SizerEvent::CpuCommand(Ok(())))
            }
            Action::Request(bytes) => {
                machine.requested = bytes.0;
                let (plugged, requested) = (machine.size, machine.requested);
                self.note(Note::Memory {
                    vm,
                    plugged,
                    requested,
                });
                self.memory_shall_move(vm);
                Some(SizerEvent::Requested(Ok(())))
            }
            Action::SetGuestCpus(count) => {
                machine.told = Some(count);
                let delay = self.rng.millis(5, 60);
                self.after(delay, settle);
                Some(SizerEvent::GuestCpusSet)
            }
            Action::SetQuota(milli) => {
                machine.state.quota = QuotaState::Enforced { milli: milli.0 };
                if self.options.requests {
                    self.note(Note::Quota { vm, cpu: milli });
                }
                self.checks.touch(vm);
                None
            }
        }
    }

    /// Shows what the runner knows, as its supervisor does: a new generation for every difference.
    fn publish_state(&mut self, vm: usize) {
        let now = self.now;
        let Some(machine) = self.vms[vm].machine.as_mut() else {
            return;
        };
        let Some(runner) = machine.runner.as_ref() else {
            return;
        };
        let old = &machine.state;
        let phase = match (&machine.ended, machine.is_up) {
            (Some(_), _) => RunnerPhase::Exited,
            (None, true) if runner.sizer.has_looked() => RunnerPhase::Running,
            (None, _) => RunnerPhase::Booting,
        };
        let (cpus, memory) = (runner.sizer.cpus(), runner.sizer.memory());
        let resize = runner.sizer.report(now, |_| 0);
        let same = old.phase == phase
            && old.cpus == cpus
            && old.memory == memory
            && old.resize == resize
            && old.orders == Some(machine.orders)
            && old.quota == machine.quota_shown
            && old.exit == machine.ended;
        if same {
            return;
        }
        let next = RunnerState {
            generation: old.generation + 1,
            phase,
            cpus,
            memory,
            resize,
            orders: Some(machine.orders),
            exit: machine.ended.clone(),
            ..old.clone()
        };
        machine.quota_shown = next.quota.clone();
        machine.state = next;
        self.runner_has_news(vm);
    }
}

/// What the sizer hears if the command of an action fails. `None`: QEMU gets no command for it.
fn failure_of(action: &Action) -> Option<SizerEvent> {
    let failure = |command: &str| QmpFailure {
        command: command.into(),
        message: "an error of QEMU".into(),
    };
    Some(match action {
        Action::QueryCpus => SizerEvent::Cpus(Err(failure("query-hotpluggable-cpus"))),
        Action::QueryMemory => SizerEvent::Memory(Err(failure("query-memory-devices"))),
        Action::Plug { .. } => SizerEvent::CpuCommand(Err(failure("device_add"))),
        Action::Unplug { .. } => SizerEvent::CpuCommand(Err(failure("device_del"))),
        Action::Request(_) => SizerEvent::Requested(Err(failure("qom-set"))),
        Action::SetGuestCpus(_) | Action::SetQuota(_) => return None,
    })
}
