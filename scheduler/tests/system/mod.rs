//! Two replicas of the shipped core, one Lease, agents and an API server, as a system of small
//! steps that a model checker can take in every order.
//!
//! What is real: [`Core`] whole, with its ledger, permits and Lease rules. What is played: the API
//! server (a history of states per VM, conditional writes), agents that lower before they tell and
//! raise after they are told, and time, which passes in ticks of a second. Sizes are counted in
//! units.

mod brain;
mod effects;
mod figures;
mod state;
mod steps;
mod terms;
mod twin;
mod views;

use std::sync::Arc;

use protocol::core::Core as _;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use scheduler::core::event::{Action as Order, Event};
use scheduler::core::lease::LeaseRule;
use scheduler::core::{Core, Settings, Timing};

use brain::Brain;
pub(crate) use state::{Bounds, Cheat, Object, State, Step, Vm};
use state::{Call, Replica};
pub(crate) use twin::fingerprint;
pub(crate) use views::Views;
use views::vm_of;

/// One compute unit.
pub(crate) const UNIT: Resources = Resources::new(250, 1 << 30);
/// Ticks after a renewal from which another replica may take the Lease.
const LEASE_LASTS: u64 = 3;
/// Ticks by which the API server may be late with a call its caller has given up.
const STRAY: u64 = 1;
/// The tick at which a run begins.
const BEGIN: u64 = 10;

/// Bounds, and what is made once.
#[derive(Debug, Clone)]
pub(crate) struct System {
    pub(crate) bounds: Bounds,
    views: Views,
}

const fn time(tick: u64) -> Timestamp {
    Timestamp(tick * 1_000_000)
}

fn host(replica: usize) -> String {
    format!("host-{replica}")
}

fn units(text: &str) -> u32 {
    let size: Resources = serde_json::from_str(text).expect("the core writes resources");
    size.cpu.0 / UNIT.cpu.0
}

impl System {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let views = Views::new(bounds.vms, bounds.nodes);
        Self { bounds, views }
    }

    /// Pause of a new leader before its lists.
    fn settle(&self) -> Span {
        match self.bounds.cheat {
            Some(Cheat::NoSettle) => Span(0),
            _ => Span::from_secs(1),
        }
    }

    /// Whether replicas watch while another leads.
    const fn caches_on_standby(&self) -> bool {
        self.bounds.hand_overs > 0
    }

    fn core(&self, replica: usize) -> Core {
        // No time-out falls into a run: silence is a step of its own. Without an end, so that when
        // something began tells no two states apart.
        let long = Span(u64::MAX);
        let timing = Timing {
            request_budget: long,
            call_budget: long,
        };
        let rule = LeaseRule {
            deadline: Span::from_secs(3),
            margin: Span::from_secs(1),
            settle: self.settle(),
            ..LeaseRule::of_host(host(replica))
        };
        let settings = scheduler::config::Config::default().settings(false, true);
        Core::new(Settings {
            timing,
            lease: (self.bounds.cheat != Some(Cheat::NoLease)).then_some(rule),
            caches_on_standby: self.caches_on_standby(),
            ..settings
        })
    }

    /// One replica leads, the other follows; every agent has what it uses.
    pub(crate) fn first(&self) -> State {
        let names: Vec<usize> = (0..self.bounds.vms).collect();
        self.first_with(&names)
    }

    /// The same where VM `n` is called `names[n]`.
    pub(crate) fn first_with(&self, names: &[usize]) -> State {
        let number = |vm: usize| names.iter().position(|name| *name == vm).unwrap_or(vm);
        let replica = |of| Replica {
            brain: Some(Brain::new(self.core(of), self.bounds.vms)),
            seen: vec![0; self.bounds.vms],
            lists: self.bounds.cheat == Some(Cheat::NoLease),
            cut: false,
        };
        let vm = |vm: usize| Vm {
            node: vm % self.bounds.nodes,
            history: vec![Object {
                version: if self.caches_on_standby() {
                    number(vm) as u64 + 1
                } else {
                    1
                },
                approved: Some(1),
                requested: 1,
                used: 1,
            }],
            permit: Some(1),
            wish: 0,
            waits_for: None,
        };
        let mut state = State {
            now: BEGIN - 1,
            vms: (0..self.bounds.vms).map(vm).collect(),
            replicas: [replica(0), replica(1)],
            calls: Vec::new(),
            holder: 0,
            renewed: BEGIN - 1,
            faults: 0,
            losses: 0,
            hand_overs: 0,
            lists_after_all: false,
            said_too_early: false,
        };
        self.renew(&mut state);
        self.tick(&mut state);
        for replica in 0..2 {
            if state.replicas[replica].lists {
                self.list(&mut state, replica);
            }
        }
        state
    }

    // ---- what can happen ----

    /// What an agent wants now: after its last wish, what it has.
    fn wish(&self, vm: &Vm) -> u32 {
        let wish = self.bounds.wishes.get(vm.wish).copied();
        wish.unwrap_or(vm.now().used)
    }

    /// The state after a step; nothing if it changes nothing.
    pub(crate) fn after(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Tick => self.tick(&mut state),
            Step::Crash(replica) => {
                state.faults += 1;
                Self::end(&mut state, replica);
            }
            Step::HandOver => self.hand_over(&mut state),
            Step::Cut(replica) => {
                state.faults += 1;
                state.replicas[replica].cut = true;
            }
            Step::Start(replica) => {
                state.replicas[replica].brain =
                    Some(Brain::new(self.core(replica), self.bounds.vms));
                state.replicas[replica].lists = self.bounds.cheat == Some(Cheat::NoLease);
                self.drive(&mut state, replica);
            }
            Step::Take(replica) => {
                state.holder = replica;
                state.renewed = state.now;
                self.renew(&mut state);
            }
            Step::List(replica) => self.list(&mut state, replica),
            Step::Observe(replica, vm) => {
                let at = state.replicas[replica].seen[vm];
                state.replicas[replica].seen[vm] += 1;
                let object = state.vms[vm].history[at];
                let view = self.views.vm(vm, object.version, object);
                self.tell(&mut state, replica, Event::VmApplied(view));
                self.reached(&mut state, replica, object.version);
            }
            Step::Ask(vm, replica) => self.ask(&mut state, vm, replica),
            Step::Patch(vm) => self.patch(&mut state, vm),
            Step::GiveUp(vm) => state.vms[vm].wish += 1,
            Step::Land(call) => self.land(&mut state, call, true),
            Step::LandUnheard(call) => {
                state.losses += 1;
                self.land(&mut state, call, false);
            }
            Step::Abandon(call) => {
                state.losses += 1;
                self.abandon(&mut state, call);
            }
        }
        state.tidy();
        (state != *before).then_some(state)
    }

    // ---- time and leadership ----

    // ---- agents ----

    // ---- calls ----

    fn view(&self, state: &State, vm: usize) -> scheduler::core::view::VmView {
        let machine = &state.vms[vm];
        self.views.vm(vm, machine.now().version, machine.now())
    }

    // ---- cores ----

    fn tell(&self, state: &mut State, replica: usize, event: Event) {
        let now = time(state.now);
        if let Some(brain) = &mut state.replicas[replica].brain {
            Arc::make_mut(&mut brain.core).handle(now, event);
        }
        self.drive(state, replica);
    }

    fn drive(&self, state: &mut State, replica: usize) {
        let now = time(state.now);
        loop {
            let Some(brain) = &mut state.replicas[replica].brain else {
                return;
            };
            let core = Arc::make_mut(&mut brain.core);
            let Some(order) = core.poll_action(now) else {
                core.take_touched();
                brain.settle();
                return self.skip_known(state, replica);
            };
            let bound = core.call_bound(now).unwrap_or(Span::from_secs(1));
            let until = state.now + (bound.0 / 1_000_000).min(1) + STRAY;
            match order {
                Order::RespondPermit(answer) => self.answered(state, replica, &answer),
                Order::WriteVm(write) => state.calls.push(Call {
                    replica,
                    write: Ok(write),
                    until,
                    heard: true,
                }),
                Order::ReadVm { id, vm } => state.calls.push(Call {
                    replica,
                    write: Err((id, vm_of(&vm.name))),
                    until,
                    heard: true,
                }),
                Order::List => {
                    state.replicas[replica].lists = true;
                    state.replicas[replica].seen.fill(0);
                }
                Order::Bind { .. }
                | Order::Unschedulable { .. }
                | Order::ScaleUpDenied { .. }
                | Order::RespondExtender { .. }
                | Order::RoomAppeared { .. }
                | Order::ReadPod { .. }
                | Order::WarnOnPod { .. }
                | Order::WarnOnNode { .. } => {}
                Order::CreateMigration { .. }
                | Order::DeleteMigration { .. }
                | Order::MigrationTriggered { .. } => {
                    unreachable!("migrations are not told of here")
                }
            }
        }
    }

    /// A watch that shows what the core knows already changes nothing: those steps are left out.
    fn skip_known(&self, state: &mut State, replica: usize) {
        let State { vms, replicas, .. } = state;
        let replica = &mut replicas[replica];
        let Some(brain) = replica.brain.as_ref().filter(|brain| brain.core.is_ready()) else {
            // What it is told while another leads, it keeps.
            if !self.caches_on_standby() {
                replica.seen.fill(0);
            }
            return;
        };
        for entry in brain.core.ledger().vms() {
            let vm = vm_of(&entry.view.key.name);
            let known = |object: &&Object| object.version <= entry.view.version;
            let known = vms[vm].history.iter().take_while(known).count();
            replica.seen[vm] = replica.seen[vm].max(known);
        }
    }

    // ---- what is looked at ----
}
