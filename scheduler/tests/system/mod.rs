//! Two replicas of the shipped core, one Lease, agents and an API server, as a system of small
//! steps that a model checker can take in every order.
//!
//! What is real: [`Core`] whole, with its ledger, permits and Lease rules. What is played: the API
//! server (a history of states per VM, conditional writes), agents that lower before they tell and
//! raise after they are told, and time, which passes in ticks of a second. Sizes are counted in
//! units.

mod brain;
mod state;
mod twin;
mod views;

use std::sync::Arc;

use protocol::permit::{AgentRequest, PROTO_VERSION};
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use scheduler::core::event::{
    Action as Order, CallOutcome, Event, ObjectKind, PermitResponse, VmWrite, WatchProgress,
};
use scheduler::core::lease::{LeaseRule, LeaseSeen, Standing};
use scheduler::core::standby::VersionMarks;
use scheduler::core::{Core, Settings, Timing};

use brain::Brain;
pub(crate) use state::{Bounds, Cheat, Object, State, Step, Vm};
use state::{Call, Replica};
pub(crate) use twin::fingerprint;
pub(crate) use views::Views;
use views::{node_name, vm_of};

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

    pub(crate) fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        // Before anything fails, time changes nothing but the time.
        let is_upset = state.faults > 0 || state.hand_overs > 0;
        if is_upset && state.now < BEGIN + self.bounds.ticks {
            steps.push(Step::Tick);
        }
        if state.hand_overs < self.bounds.hand_overs && self.can_hand_over(state) {
            steps.push(Step::HandOver);
        }
        for (index, replica) in state.replicas.iter().enumerate() {
            self.steps_of_replica(state, index, replica, steps);
        }
        for (index, vm) in state.vms.iter().enumerate() {
            let wish = self.wish(vm);
            let may = vm.permit.unwrap_or(vm.now().used);
            if vm.waits_for.is_none() && wish != vm.now().used {
                if wish < vm.now().used || may > vm.now().used {
                    steps.push(Step::Patch(index));
                }
                if wish > may && vm.wish + 1 < self.bounds.wishes.len() {
                    steps.push(Step::GiveUp(index));
                }
            }
        }
        for (index, call) in state.calls.iter().enumerate() {
            steps.push(Step::Land(index));
            if call.heard && state.losses < self.bounds.losses {
                steps.push(Step::LandUnheard(index));
                steps.push(Step::Abandon(index));
            }
        }
    }

    fn steps_of_replica(
        &self,
        state: &State,
        index: usize,
        replica: &Replica,
        steps: &mut Vec<Step>,
    ) {
        let faulty = state.faults < self.bounds.faults;
        let Some(brain) = &replica.brain else {
            if self.bounds.restarts {
                steps.push(Step::Start(index));
            }
            return;
        };
        if faulty {
            steps.push(Step::Crash(index));
            if !replica.cut && state.holder == index {
                steps.push(Step::Cut(index));
            }
        }
        if !replica.cut && state.now >= state.renewed + LEASE_LASTS && state.holder != index {
            steps.push(Step::Take(index));
        }
        if replica.lists {
            steps.push(Step::List(index));
        }
        let is_told = brain.core.may_permit(time(state.now)) || self.caches_on_standby();
        let next = |vm: usize| {
            let unseen = state.vms[vm].history.get(replica.seen[vm])?;
            // A watch tells nothing before its list.
            Some(unseen.version).filter(|_| is_told && (replica.seen[vm] > 0))
        };
        let first = (0..state.vms.len()).filter_map(next).min();
        for vm in 0..state.vms.len() {
            if next(vm).is_some_and(|version| !self.caches_on_standby() || Some(version) == first) {
                steps.push(Step::Observe(index, vm));
            }
        }
        if !brain.core.may_permit(time(state.now)) {
            return;
        }
        for (vm, machine) in state.vms.iter().enumerate() {
            let wish = self.wish(machine);
            let used = machine.now().used;
            // What went down is told; what is to go up is asked for.
            let asks = wish > machine.permit.unwrap_or(used)
                || (wish == used && machine.permit.is_some_and(|permit| permit > used));
            if machine.waits_for.is_none() && asks {
                steps.push(Step::Ask(vm, index));
            }
        }
    }

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

    /// A replica is no more; its calls go on.
    fn end(state: &mut State, replica: usize) {
        state.replicas[replica].brain = None;
        state.replicas[replica].lists = false;
        state.replicas[replica].seen.fill(0);
        for call in state.calls.iter_mut().filter(|c| c.replica == replica) {
            call.heard = false;
        }
        for vm in &mut state.vms {
            vm.waits_for = vm.waits_for.filter(|other| *other != replica);
        }
    }

    /// Whether the leader can say that nothing it began is under way, and somebody else is there.
    fn can_hand_over(&self, state: &State) -> bool {
        let [from, to] = [state.holder, 1 - state.holder].map(|replica| &state.replicas[replica]);
        let is_drained = from
            .brain
            .as_ref()
            .is_some_and(|brain| brain.core.is_drained());
        is_drained && self.leads(state, state.holder) && to.brain.is_some() && !to.cut
    }

    fn hand_over(&self, state: &mut State) {
        let from = state.holder;
        let core = state.replicas[from].brain.as_ref().map(|brain| &brain.core);
        let marks = core.and_then(|core| core.version_marks());
        let marks = match self.bounds.cheat {
            Some(Cheat::NoMarks) => Some(VersionMarks::default()),
            _ => marks,
        };
        Self::end(state, from);
        state.hand_overs += 1;
        state.lists_after_all = false;
        state.holder = 1 - from;
        state.renewed = state.now;
        let seen = LeaseSeen {
            holder: host(state.holder),
            renewed: time(state.now),
            settled: time(state.now),
            handover: marks.map(|marks| marks.to_string()),
        };
        self.tell(state, state.holder, Event::Lease(seen));
    }

    fn tick(&self, state: &mut State) {
        state.now += 1;
        // Whoever still waits for a call gives up on it before it can no more take effect.
        for index in 0..state.calls.len() {
            if state.calls[index].heard && state.calls[index].until < state.now + STRAY {
                self.abandon(state, index);
            }
        }
        let now = state.now;
        state.calls.retain(|call| call.until >= now);
        let holder = &state.replicas[state.holder];
        if holder.brain.is_some() && !holder.cut {
            state.renewed = state.now;
        }
        self.renew(state);
    }

    /// Every replica reads the Lease, but one that is cut off sees only what it last saw.
    fn renew(&self, state: &mut State) {
        let (holder, renewed) = (host(state.holder), time(state.renewed));
        for replica in 0..2 {
            if state.replicas[replica].cut {
                self.drive(state, replica);
            } else {
                let seen = LeaseSeen {
                    holder: format!("{holder}_scheduler"),
                    renewed,
                    settled: time(state.now) + self.settle(),
                    handover: None,
                };
                self.tell(state, replica, Event::Lease(seen));
            }
        }
    }

    fn list(&self, state: &mut State, replica: usize) {
        state.replicas[replica].lists = false;
        let vms = state.vms.iter().enumerate();
        let views =
            vms.map(|(vm, machine)| self.views.vm(vm, machine.now().version, machine.now()));
        let views = views.collect();
        state.lists_after_all |= replica == state.holder;
        state.replicas[replica].seen = state.vms.iter().map(|vm| vm.history.len()).collect();
        for event in [
            Event::NodesListed(self.views.nodes.clone()),
            Event::PodsListed(self.views.pods.clone()),
            Event::VmsListed(views),
        ] {
            self.tell(state, replica, event);
        }
        let newest = state.vms.iter().map(|vm| vm.now().version).max();
        self.reached(state, replica, newest.unwrap_or(0));
    }

    /// A watch of VMs has told all up to a version.
    fn reached(&self, state: &mut State, replica: usize, version: u64) {
        if self.caches_on_standby() {
            let (told, newest) = (version, version);
            let reach = Some(WatchProgress {
                observed: told,
                newest,
            });
            let event = Event::WatchProgress(ObjectKind::VirtualMachines, reach);
            self.tell(state, replica, event);
        }
    }

    /// Writes a VM's object.
    fn put(&self, state: &mut State, vm: usize, object: Object) {
        let all = state.vms.iter().map(|vm| vm.now().version).max();
        let last = state.vms[vm].now().version;
        let last = if self.caches_on_standby() {
            all.unwrap_or(last)
        } else {
            last
        };
        let version = last + 1;
        state.vms[vm].history.push(Object { version, ..object });
    }

    // ---- agents ----

    fn ask(&self, state: &mut State, vm: usize, replica: usize) {
        let wish = self.wish(&state.vms[vm]);
        let machine = &mut state.vms[vm];
        machine.waits_for = Some(replica);
        let request = AgentRequest {
            proto_version: PROTO_VERSION,
            pod: self.views.pods[vm].key.clone(),
            compute_unit: UNIT,
            resources: UNIT.saturating_mul(wish),
            last_permit: machine.permit.map(|permit| UNIT.saturating_mul(permit)),
            metrics: None,
        };
        // What it tells that it went down to is all it may use from now on.
        machine.permit = machine
            .permit
            .map(|permit| permit.min(wish).max(machine.now().used));
        let ticket = vm as u64 + 1;
        self.tell(state, replica, Event::PermitRequest(ticket, request));
    }

    fn patch(&self, state: &mut State, vm: usize) {
        let wish = self.wish(&state.vms[vm]);
        let now = state.vms[vm].now();
        let used = wish.min(state.vms[vm].permit.unwrap_or(1).max(now.used));
        self.put(state, vm, Object { used, ..now });
        let machine = &mut state.vms[vm];
        if used == wish && machine.permit == Some(used) {
            machine.wish += 1;
        }
    }

    fn answered(&self, state: &mut State, replica: usize, answer: &PermitResponse) {
        let Some(vm) = usize::try_from(answer.request_id - 1).ok().filter(|vm| {
            state
                .vms
                .get(*vm)
                .is_some_and(|vm| vm.waits_for == Some(replica))
        }) else {
            return;
        };
        let wish = self.wish(&state.vms[vm]);
        let machine = &mut state.vms[vm];
        machine.waits_for = None;
        let Ok(response) = &answer.result else { return };
        let permit = response.permit.cpu.0 / UNIT.cpu.0;
        if permit > machine.now().approved.unwrap_or(0) {
            state.said_too_early = true;
        }
        machine.permit = Some(permit);
        if machine.now().used == wish && permit == wish {
            machine.wish += 1;
        }
    }

    // ---- calls ----

    fn land(&self, state: &mut State, index: usize, answered: bool) {
        let call = state.calls.remove(index);
        let outcome = match &call.write {
            Err((_, vm)) => CallOutcome::Done(Box::new(self.view(state, *vm))),
            Ok(write) => {
                let vm = vm_of(&write.vm.name);
                let now = state.vms[vm].now();
                if write.base == now.version {
                    let object = Object {
                        approved: Some(units(&write.approved)),
                        requested: units(&write.requested),
                        ..now
                    };
                    self.put(state, vm, object);
                    CallOutcome::Done(Box::new(self.view(state, vm)))
                } else {
                    CallOutcome::Conflict
                }
            }
        };
        if call.heard {
            let unclear = CallOutcome::Unclear("the answer is lost".into());
            self.outcome(state, &call, if answered { outcome } else { unclear });
        }
    }

    fn abandon(&self, state: &mut State, index: usize) {
        state.calls[index].heard = false;
        let call = state.calls[index].clone();
        self.outcome(state, &call, CallOutcome::Unclear("no answer".into()));
    }

    fn outcome(&self, state: &mut State, call: &Call, mut outcome: CallOutcome) {
        if self.bounds.cheat == Some(Cheat::ForgetUnclear)
            && matches!(outcome, CallOutcome::Unclear(_))
        {
            outcome = CallOutcome::Refused("it is said".into());
        }
        let event = match &call.write {
            Ok(write) => Event::WriteDone(write.id, outcome),
            Err((id, _)) => Event::ReadDone(*id, outcome),
        };
        self.tell(state, call.replica, event);
    }

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

    /// What is given on a node and what the node has, in units.
    pub(crate) fn given_on(&self, state: &State, node: usize) -> (u32, u32) {
        let vms = (0..self.bounds.vms).filter(|vm| vm % self.bounds.nodes == node);
        let given = vms.map(|vm| state.vms[vm].given()).sum();
        (given, self.views.units[node])
    }

    /// What a leading replica counts on a node, in units, if it answers permits.
    pub(crate) fn counted_by(&self, state: &State, replica: usize, node: usize) -> Option<u32> {
        let core = &state.replicas[replica].brain.as_ref()?.core;
        let load = core
            .may_permit(time(state.now))
            .then(|| core.ledger().load(&node_name(node)));
        u32::try_from(load?.reserved.cpu / u128::from(UNIT.cpu.0)).ok()
    }

    /// Whether a replica waits for the write of a grant.
    pub(crate) fn grants(&self, state: &State, replica: usize) -> bool {
        let brain = state.replicas[replica].brain.as_ref();
        let up = |vm: usize, hold: Resources| {
            hold.has_field_above(UNIT.saturating_mul(state.vms[vm].given()))
        };
        brain.is_some_and(|brain| {
            let mut vms = brain.core.ledger().vms();
            vms.any(|vm| {
                vm.holds
                    .iter()
                    .any(|hold| up(vm_of(&vm.view.key.name), hold.target))
            })
        })
    }

    /// Whether a call may take effect that nobody waits for.
    pub(crate) fn has_stray(&self, state: &State) -> bool {
        let lands = |write: &VmWrite| state.vms[vm_of(&write.vm.name)].now().version == write.base;
        state
            .calls
            .iter()
            .any(|call| !call.heard && call.write.as_ref().is_ok_and(lands))
    }

    /// Whether a replica leads by what it knows.
    pub(crate) fn leads(&self, state: &State, replica: usize) -> bool {
        let brain = state.replicas[replica].brain.as_ref();
        brain.is_some_and(|brain| {
            matches!(
                brain.core.standing(time(state.now)),
                Some(Standing::Leading { .. })
            )
        })
    }
}
