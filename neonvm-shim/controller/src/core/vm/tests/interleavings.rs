//! Does the pod request what its guest has, in whatever order calls, responses and reports arrive?
//!
//! * A call to the API server without a response was carried out, or never will be.
//! * An order to a runner may arrive long after the controller gave it up.
//! * A killed controller leaves nothing on its way: what it sent arrives first, or never.
//! * A runner that adopts its QEMU shows no memory before its first look.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use protocol::annotations::VmUsage;
use protocol::core::Core as _;
use protocol::runner::{RunnerPhase, RunnerState};
use protocol::time::Span;
use protocol::units::{Bytes, Resources};

use super::resizing::{requested, requesting, set_size};
use super::world::World;
use crate::core::backoff::REPORTED_FROM;
use crate::core::metadata::rest_on_others;
use crate::core::observe::{ordered, size_of};
use crate::core::phases::REQUESTS_INTERVAL;
use crate::core::vm::ActionResponse;
use crate::core::{Action, Kind, Refusal};

/// Most calls, or seconds, until a world without losses is at rest.
const ROUNDS: u32 = 40;

#[derive(Debug, Clone)]
enum Turn {
    Resize {
        quarters: u32,
        slots: i32,
    },
    /// Begins calls and responds to them until only calls of the kind `keeps` are under way.
    Work {
        keeps: Option<Kind>,
    },
    Begin,
    Arrive {
        call: Index,
    },
    Respond {
        call: Index,
    },
    Lose {
        call: Index,
        arrives: bool,
    },
    ArriveLate {
        order: Index,
    },
    Report,
    MoveMemory,
    FinishResize,
    AdoptQemu,
    LookAtQemu,
    RestartController {
        arrives: bool,
    },
    Pass {
        ms: u64,
    },
}

fn turn() -> impl Strategy<Value = Turn> {
    let size = (select(vec![1, 4, 8]), select(vec![1, 2, 4]));
    let kept = vec![None, Some(Kind::SetSize), Some(Kind::ResizePod)];
    let call = any::<Index>;
    let fate = (call(), any::<bool>());
    prop_oneof![
        4 => size.prop_map(|(quarters, slots)| Turn::Resize { quarters, slots }),
        12 => select(kept).prop_map(|keeps| Turn::Work { keeps }),
        4 => Just(Turn::Begin),
        4 => call().prop_map(|call| Turn::Arrive { call }),
        4 => call().prop_map(|call| Turn::Respond { call }),
        2 => fate.prop_map(|(call, arrives)| Turn::Lose { call, arrives }),
        2 => call().prop_map(|order| Turn::ArriveLate { order }),
        3 => Just(Turn::Report),
        3 => Just(Turn::MoveMemory),
        4 => Just(Turn::FinishResize),
        1 => Just(Turn::AdoptQemu),
        1 => Just(Turn::LookAtQemu),
        1 => any::<bool>().prop_map(|arrives| Turn::RestartController { arrives }),
        5 => select(vec![300, 1_000, 4_000]).prop_map(|ms| Turn::Pass { ms }),
    ]
}

/// A call of the controller under way. `response` is set once the call has been carried out.
struct Call {
    action: Action,
    response: Option<Result<ActionResponse, Refusal>>,
}

struct Interleaving {
    world: World,
    pod: String,
    calls: Vec<Call>,
    /// Orders that the controller gave up and that have not arrived.
    late: Vec<Action>,
    /// Plugged and requested memory of a QEMU that its runner has not looked at.
    unseen: Option<(Bytes, Bytes)>,
    revision: i64,
    /// Changes of the pod's requests lost in a row. From [`REPORTED_FROM`] they hold no guest up.
    lost_changes: u32,
}

/// A change of metadata that rests on an older state is refused. The client reads the pod then.
fn carry_out(world: &mut World, action: &Action) -> Result<ActionResponse, Refusal> {
    if let Action::PatchPodMetadata { name, ops } | Action::PatchPodCounted { name, ops } = action {
        let pod = world.pod(name);
        if rest_on_others(ops, &pod.metadata) {
            return Ok(ActionResponse::Pod(Box::new(pod)));
        }
    }
    world.carry_out(action)
}

impl Interleaving {
    fn new() -> Self {
        let (world, pod) = requesting();
        Self {
            world,
            pod,
            calls: Vec::new(),
            late: Vec::new(),
            unseen: None,
            revision: 0,
            lost_changes: 0,
        }
    }

    fn take(&mut self, turn: &Turn) {
        let (calls, late) = (self.calls.len(), self.late.len());
        match *turn {
            Turn::Resize { quarters, slots } => self.resize(quarters * 250, slots),
            Turn::Work { keeps } => self.work(keeps),
            Turn::Begin => self.begin(),
            Turn::Arrive { call } if calls > 0 => self.arrive(call.index(calls)),
            Turn::Respond { call } if calls > 0 => self.respond(call.index(calls)),
            Turn::Lose { call, arrives } if calls > 0 => self.lose(call.index(calls), arrives),
            Turn::ArriveLate { order } if late > 0 => {
                let order = self.late.remove(order.index(late));
                // The response goes to nobody.
                let _response = self.world.carry_out(&order);
            }
            Turn::Report => self.world.show_runner(),
            Turn::MoveMemory => self.move_memory(),
            Turn::FinishResize if self.unseen.is_none() => self.finish_resize(),
            Turn::AdoptQemu => self.adopt_qemu(),
            Turn::LookAtQemu => self.look_at_qemu(),
            Turn::RestartController { arrives } => self.restart_controller(arrives),
            Turn::Pass { ms } => self.world.pass(Span::from_millis(ms)),
            _ => {}
        }
    }

    fn resize(&mut self, milli: u32, slots: i32) {
        self.revision += 1;
        let revision = self.revision;
        self.world
            .edit(|vm| set_size(vm, milli, slots, revision, 1));
    }

    fn begin(&mut self) {
        while let Some(action) = self.world.core.poll_action(self.world.at) {
            let response = None;
            self.calls.push(Call { action, response });
        }
    }

    fn work(&mut self, keeps: Option<Kind>) {
        for _ in 0..ROUNDS {
            self.begin();
            let mut calls = self.calls.iter();
            let Some(call) = calls.position(|call| Some(call.action.kind()) != keeps) else {
                return;
            };
            self.respond(call);
        }
    }

    fn arrive(&mut self, call: usize) {
        let call = &mut self.calls[call];
        if call.response.is_none() {
            call.response = Some(carry_out(&mut self.world, &call.action));
        }
    }

    fn respond(&mut self, call: usize) {
        self.arrive(call);
        let Call { action, response } = self.calls.remove(call);
        if action.kind() == Kind::ResizePod {
            self.lost_changes = 0;
        }
        let response = response.expect("it has arrived");
        let at = self.world.at;
        self.world.is_done(action.kind(), at, response);
    }

    fn lose(&mut self, call: usize, arrives: bool) {
        let kind = self.calls[call].action.kind();
        if kind == Kind::ResizePod {
            if self.lost_changes + 1 == REPORTED_FROM {
                return self.respond(call);
            }
            self.lost_changes += 1;
        }
        if arrives {
            self.arrive(call);
        }
        let Call { action, response } = self.calls.remove(call);
        if kind == Kind::SetSize && response.is_none() {
            self.late.push(action);
        }
        let lost = Err(Refusal::Failed {
            message: "no response".into(),
            permanent: false,
        });
        self.world.is_done(kind, self.world.at, lost);
    }

    fn runner(&mut self) -> &mut RunnerState {
        let runner = self.world.runners.get_mut(&self.pod);
        runner.expect("the runner is there")
    }

    /// Half of what is missing; the rest of the resize is still to come.
    fn move_memory(&mut self) {
        if self.unseen.is_some() {
            return;
        }
        let state = self.runner();
        if let Some(report) = state.resize.as_ref().filter(|report| !report.done) {
            let target = report.order.memory.0 - state.memory.base.0;
            state.memory.requested = Bytes(target);
            state.memory.plugged = Bytes(u64::midpoint(state.memory.plugged.0, target));
            state.generation += 1;
        }
    }

    /// The guest has what its runner was told. The controller does not hear of it.
    fn finish_resize(&mut self) {
        let state = self.runner();
        let Some(report) = state.resize.as_mut() else {
            return;
        };
        report.done = true;
        let size = ordered(&report.order);
        state.cpus.limit = size.cpu;
        state.cpus.plugged = size.cpu.rounded_up_cores();
        state.cpus.guest_online = Some(state.cpus.plugged);
        state.memory.plugged = Bytes(size.mem.0 - state.memory.base.0);
        state.memory.requested = state.memory.plugged;
        state.generation += 1;
    }

    fn adopt_qemu(&mut self) {
        if self.unseen.is_some() {
            return;
        }
        let state = self.runner();
        let memory = (state.memory.plugged, state.memory.requested);
        state.phase = RunnerPhase::Booting;
        (state.memory.plugged, state.memory.requested) = (Bytes(0), Bytes(0));
        state.generation += 1;
        self.unseen = Some(memory);
    }

    fn look_at_qemu(&mut self) {
        if let Some(memory) = self.unseen.take() {
            let state = self.runner();
            state.phase = RunnerPhase::Running;
            (state.memory.plugged, state.memory.requested) = memory;
            state.generation += 1;
        }
    }

    fn restart_controller(&mut self, arrives: bool) {
        for call in 0..self.calls.len() {
            if arrives {
                self.arrive(call);
            }
        }
        self.calls.clear();
        self.late.clear();
        self.lost_changes = 0;
        self.world.restart_controller();
    }

    fn guest_has(&self) -> Resources {
        let mut state = self.world.runners[&self.pod].clone();
        if let Some(memory) = self.unseen {
            (state.memory.plugged, state.memory.requested) = memory;
            state.phase = RunnerPhase::Running;
        }
        size_of(&state)
    }

    fn pod_requests(&self) -> Resources {
        let requests = requested(&self.world, &self.pod);
        let requests: VmUsage = serde_json::from_value(requests).expect("cpu and memory");
        requests.size().expect("a size")
    }

    /// Nothing is lost or late any more, until guest and pod have what is wanted.
    fn come_to_rest(&mut self) {
        self.late.clear();
        self.look_at_qemu();
        let wanted = self.world.vm().spec.guest.in_use();
        for _ in 0..ROUNDS {
            self.work(None);
            self.finish_resize();
            self.world.show();
            if (self.guest_has(), self.pod_requests()) == (wanted, wanted) {
                break;
            }
            self.world.pass(REQUESTS_INTERVAL);
        }
    }
}

proptest! {
    /// The controller lowers what a pod requests only after the runner has responded to the lower
    /// order, and raises it before it orders a growth.
    ///
    /// Requirement: N41
    #[test]
    fn pod_requests_what_its_guest_has_whatever_is_lost_or_late(
        turns in proptest::collection::vec(turn(), 0..160),
    ) {
        let mut run = Interleaving::new();
        for turn in &turns {
            run.take(turn);
            let (has, requests) = (run.guest_has(), run.pod_requests());
            let is_covered = !has.has_field_above(requests);
            prop_assert!(is_covered, "after {turn:?}: it has {has}, its pod requests {requests}");
        }
        run.come_to_rest();
        let wanted = run.world.vm().spec.guest.in_use();
        prop_assert_eq!(run.guest_has(), wanted);
        prop_assert_eq!(run.pod_requests(), wanted, "the pod follows its guest down");
    }
}
