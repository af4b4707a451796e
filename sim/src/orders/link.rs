//! The link between the controller and a runner: what is told over it, and what is heard.
//!
//! As in the controller's shell, one connection follows the runner's state and another carries what
//! it is told, one at a time (`neonvm-shim/controller/src/shell/{link,held,worker}.rs`).

use neonvm_controller::core::{ActionResponse, Event as CoreEvent, Kind as Doing, Moment, Refusal};
use protocol::runner::RunnerState;
use protocol::time::Span;
use serde_json::json;

use super::{CommandOrigin, ORDER_PATIENCE, RunnerCommand};
use crate::event::{Call, Caller, Event, Operation};
use crate::faults::{Delivery, Link};
use crate::options::Sabotage;
use crate::store::Kind;
use crate::world::World;

/// Pause before a runner that does not answer is asked again.
const ASK_AGAIN: Span = Span::from_millis(250);

impl World {
    /// Holds a link to the runner the core wants to hear, and to no other.
    pub(crate) fn follow_runner(&mut self, vm: usize) {
        let Some(task) = self.vms[vm].task.as_mut() else {
            return;
        };
        let target = task.core.link_target().map(str::to_owned);
        if target != task.link {
            task.link = target;
            task.heard = None;
            self.ask_runner(vm, Span::from_millis(1));
        }
    }

    fn ask_runner(&mut self, vm: usize, pause: Span) {
        let epoch = self.controller.epoch;
        let Some(task) = self.vms[vm].task.as_mut() else {
            return;
        };
        if task.link.is_some() && !std::mem::replace(&mut task.asking, true) {
            self.after(pause, Event::News { vm, epoch });
        }
    }

    /// A runner has news: the question that waits for it is answered.
    pub(crate) fn runner_has_news(&mut self, vm: usize) {
        let delay = self.delivery(Link::Runner).first().unwrap_or(ASK_AGAIN);
        self.ask_runner(vm, delay);
    }

    pub(crate) fn news(&mut self, vm: usize, epoch: u64) {
        if epoch != self.controller.epoch {
            return;
        }
        let Some(task) = self.vms[vm].task.as_mut() else {
            return;
        };
        task.asking = false;
        let Some(pod) = task.link.clone() else { return };
        let machine = self.vms[vm].machine.as_ref();
        let state = machine.and_then(|machine| machine.shown_to(&pod)).cloned();
        let Some(task) = self.vms[vm].task.as_mut() else {
            return;
        };
        match state {
            Some(state) if task.heard == Some(state.generation) => {}
            Some(state) => {
                task.heard = Some(state.generation);
                let state = Box::new(state);
                self.tell_task(vm, CoreEvent::Runner { pod, state });
            }
            None => {
                task.heard = None;
                self.tell_task(
                    vm,
                    CoreEvent::RunnerSilent {
                        pod,
                        error: "connection refused".into(),
                    },
                );
                self.ask_runner(vm, ASK_AGAIN);
            }
        }
    }

    pub(crate) fn tell_runner(
        &mut self,
        vm: usize,
        pod: String,
        command: RunnerCommand,
        began: Moment,
    ) {
        let (epoch, number) = (self.controller.epoch, self.number());
        self.note(command.note(vm));
        if let Some(task) = self.vms[vm].task.as_mut() {
            task.ordering = Some(number);
        }
        let origin = CommandOrigin {
            vm,
            epoch,
            number,
            kind: command.kind(),
            began,
        };
        self.after(
            ORDER_PATIENCE,
            Event::OrderAnswers {
                origin,
                answer: None,
            },
        );
        // The order lies in a connection until it is read, also if its sender has given it up or
        // has crashed.
        let arrives = |world: &mut Self, delay| {
            let (pod, command) = (pod.clone(), command.clone());
            world.after(
                delay,
                Event::OrderArrives {
                    origin,
                    pod,
                    command,
                },
            );
        };
        match self.delivery(Link::Runner) {
            Delivery::Lost => {}
            Delivery::After(delay) => arrives(self, delay),
            Delivery::Twice(delay, again) => {
                arrives(self, delay);
                arrives(self, again);
            }
        }
    }

    pub(crate) fn order_arrives(
        &mut self,
        origin: CommandOrigin,
        pod: &str,
        command: RunnerCommand,
    ) {
        let vm = origin.vm;
        if origin.epoch == self.controller.epoch {
            self.cheat_with_an_order(vm, pod, &command, origin.began);
        }
        let is_there = self.vms[vm]
            .machine
            .as_ref()
            .is_some_and(|machine| machine.shown_to(pod).is_some());
        if !is_there {
            return;
        }
        match command {
            RunnerCommand::Size(order, over) => {
                if let Err(overtaken) = self.runner_ordered(vm, order, over) {
                    self.tally.count("order overtaken");
                    return self.order_is_answered(origin, Err(overtaken.to_string()));
                }
            }
            RunnerCommand::Ahead(wish) => self.runner_plugs_ahead(vm, wish),
        }
        let machine = self.vms[vm].machine.as_ref();
        if let Some(state) = machine.map(|machine| Box::new(machine.state.clone())) {
            self.order_is_answered(origin, Ok(state));
        }
    }

    fn order_is_answered(
        &mut self,
        origin: CommandOrigin,
        answer: Result<Box<RunnerState>, String>,
    ) {
        if let Some(delay) = self.delivery(Link::Runner).first() {
            let answer = Some(answer);
            self.after(delay, Event::OrderAnswers { origin, answer });
        }
    }

    fn cheat_with_an_order(
        &mut self,
        vm: usize,
        pod: &str,
        command: &RunnerCommand,
        began: Moment,
    ) {
        if self.cheats(Sabotage::DeleteRunning)
            && let Some(uid) = self
                .store
                .get(Kind::Pod, pod)
                .map(|object| object.meta("uid").to_owned())
        {
            let caller = Caller::Controller {
                vm,
                epoch: self.controller.epoch,
                kind: Doing::DeletePod,
                began,
            };
            self.call(Call {
                caller,
                operation: Operation::DeletePod(pod.to_owned(), uid),
                target: None,
            });
        }
        if self.cheats(Sabotage::RequestLess) && matches!(command, RunnerCommand::Size(..)) {
            let requests = json!({"cpu": "1m", "memory": "1"});
            let path = "/spec/containers/0/resources/requests";
            let operations = json!([{"op": "replace", "path": path, "value": requests}]);
            let _written = self.store.patch(Kind::Pod, pod, &operations);
        }
    }

    /// An answer, or that there is none in time. Whichever comes first counts.
    pub(crate) fn order_answers(
        &mut self,
        origin: CommandOrigin,
        answer: Option<Result<Box<RunnerState>, String>>,
    ) {
        let CommandOrigin {
            vm, kind, began, ..
        } = origin;
        if origin.epoch != self.controller.epoch {
            return;
        }
        let task = self.vms[vm].task.as_mut();
        let Some(task) = task.filter(|task| task.ordering == Some(origin.number)) else {
            return;
        };
        task.ordering = None;
        let answer = answer.unwrap_or_else(|| Err("no answer within 5 s".into()));
        let result = answer
            .map(ActionResponse::Runner)
            .map_err(|message| Refusal::Failed {
                message,
                permanent: false,
            });
        self.tell_task(
            vm,
            CoreEvent::Done {
                kind,
                began,
                result,
            },
        );
    }
}
