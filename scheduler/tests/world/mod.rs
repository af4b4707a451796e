//! A whole cluster as a value: the API's objects, watches that lag, calls that are lost or land late, a controller, agents
//! that keep their rules, and the scheduler's core, which may be restarted at any moment.
//!
//! What is true is kept here, apart from what the core believes; after every step the two are compared.

mod agent;
mod guest;
mod objects;

use std::collections::{BTreeMap, VecDeque};

use protocol::permit::{AgentRequest, NamespacedName};
use protocol::time::Timestamp;
use protocol::units::Resources;
use scheduler::config::Config;
use scheduler::core::Core;
use scheduler::core::amount::{Both, shares};
use scheduler::core::event::{Action, Answer, BindOutcome, CallOutcome, Event, TicketId, VmWrite};

pub(crate) use agent::{Agent, StrayPatch};
pub(crate) use guest::Guest;
pub(crate) use objects::{PodObject, VmObject};

/// One compute unit: 250m / 1Gi.
pub(crate) const UNIT: Resources = Resources::new(250, 1 << 30);
/// Objects of each kind at the most.
const CROWD: usize = 10;
/// Happenings kept for a failure's message.
const LOG: usize = 120;

/// A call under way at the API.
#[derive(Debug, Clone)]
enum Call {
    Write(VmWrite),
    Read(u64, NamespacedName),
    Bind {
        id: u64,
        pod: String,
        uid: String,
        node: String,
    },
}

/// One random step. The numbers choose among what is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// What happens.
    pub(crate) kind: u8,
    /// To which.
    pub(crate) which: u8,
    /// How.
    pub(crate) how: u8,
}

/// See the module's description.
pub(crate) struct World {
    core: Core,
    now: u64,
    version: u64,
    nodes: BTreeMap<String, Both<u64>>,
    vms: BTreeMap<String, VmObject>,
    pods: BTreeMap<String, PodObject>,
    agents: BTreeMap<String, Agent>,
    /// By the name of their pod.
    guests: BTreeMap<String, Guest>,
    strays: Vec<StrayPatch>,
    /// Requests whose agent is gone, with their VM.
    late_requests: Vec<(String, AgentRequest)>,
    streams: [VecDeque<Event>; 2],
    calls: Vec<Call>,
    outcomes: Vec<Event>,
    /// Calls given up by their caller that may land yet.
    ghosts: Vec<Call>,
    /// Requests on their way: the VM, its agent's attempt, the request.
    requests: Vec<(String, u64, AgentRequest)>,
    tickets: BTreeMap<TicketId, (String, u64, AgentRequest)>,
    answers: Vec<(String, u64, AgentRequest, Answer)>,
    last_ticket: TicketId,
    serial: u64,
    /// The last things that happened, shown when something does not hold.
    log: VecDeque<String>,
    /// How often what happened, so that a test can tell that it tested something.
    pub(crate) tally: BTreeMap<&'static str, u64>,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut world = Self {
            core: new_core(),
            now: 10_000_000,
            version: 100,
            nodes: BTreeMap::from([
                ("n0".to_owned(), Both::new(4_000, 16 << 30)),
                // A node whose room is no whole number of units.
                ("n1".to_owned(), Both::new(3_100, (9 << 30) + (300 << 20))),
            ]),
            vms: BTreeMap::new(),
            pods: BTreeMap::new(),
            agents: BTreeMap::new(),
            guests: BTreeMap::new(),
            strays: Vec::new(),
            late_requests: Vec::new(),
            streams: [VecDeque::new(), VecDeque::new()],
            calls: Vec::new(),
            outcomes: Vec::new(),
            ghosts: Vec::new(),
            requests: Vec::new(),
            tickets: BTreeMap::new(),
            answers: Vec::new(),
            last_ticket: 0,
            serial: 0,
            log: VecDeque::new(),
            tally: BTreeMap::new(),
        };
        world.list_all();
        world
    }

    fn time(&self) -> Timestamp {
        Timestamp(self.now)
    }

    fn log(&mut self, what: impl FnOnce() -> String) {
        if self.log.len() == LOG {
            self.log.pop_front();
        }
        self.log.push_back(what());
    }

    fn note(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// Takes a step, lets the core act, and checks everything.
    pub(crate) fn step(&mut self, step: Step) {
        let Step { which, how, .. } = step;
        match step.kind % 34 {
            0..=3 => self.agent_asks(which, how),
            4..=6 => self.deliver_request(which, how),
            7..=9 => self.api_acts(which),
            10..=11 => self.deliver_outcome(which),
            12..=13 => self.deliver_answer(which, how),
            14..=15 => self.deliver_event(which),
            16 => self.controller_syncs(which),
            17 => self.pass_time(how),
            18 => match how % 4 {
                0 => self.break_watch(which),
                1 => self.call_times_out(which),
                2 => self.ghost_lands(which),
                _ => self.touch_vm(which),
            },
            19 => self.create(how),
            20 if how.is_multiple_of(9) => self.delete(which),
            21 if how.is_multiple_of(16) => self.restart(how / 16),
            22 if how.is_multiple_of(4) => self.agent_restarts(which),
            23..=25 => self.controller_works(which, how),
            26..=27 => self.guest_moves(which, how),
            28 => self.patch_ends(which, how),
            29 => self.patching_agent_restarts(),
            30..=31 => self.stray_arrives(which),
            32 if how.is_multiple_of(24) => self.delete_vm(which),
            _ => self.agent_gives_up(which, how),
        }
        self.act();
        self.check();
    }

    /// Lets everything that is under way come to an end, without new wishes.
    pub(crate) fn drain(&mut self) {
        for round in 0..40 {
            self.pass_time(200);
            self.act();
            while !self.calls.is_empty() {
                self.api_acts(0);
            }
            while !self.outcomes.is_empty() {
                self.deliver_outcome(0);
                self.act();
            }
            for stream in [0, 1] {
                while !self.streams[stream].is_empty() {
                    self.deliver_event(u8::try_from(stream).expect("small"));
                }
            }
            let index = |at: usize| u8::try_from(at).expect("small");
            (0..self.pods.len()).for_each(|pod| self.controller_syncs(index(pod)));
            for guest in 0..self.guests.len() {
                (0..6).for_each(|step| self.controller_step(index(guest), step));
                self.guest_moves(index(guest), 0);
            }
            (0..self.agents.len()).for_each(|agent| self.patch_ends(index(agent), 1));
            self.stray_arrives(0);
            while !self.answers.is_empty() {
                self.deliver_answer(0, 1);
            }
            if round > 20 {
                (0..self.agents.len()).for_each(|agent| self.agent_asks(index(agent), 0));
            }
            while !self.requests.is_empty() {
                self.deliver_request(0, 1);
            }
            self.act();
            self.check();
        }
    }

    // ---- the API ----

    fn bump(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn vm_changed(&mut self, name: &str) {
        let version = self.bump();
        if let Some(vm) = self.vms.get_mut(name) {
            vm.version = version;
            let event = Event::VmApplied(vm.view());
            self.streams[1].push_back(event);
        }
    }

    fn pod_changed(&mut self, name: &str) {
        if let Some(pod) = self.pods.get(name) {
            self.streams[0].push_back(Event::PodApplied(pod.view()));
        }
    }

    fn api_acts(&mut self, which: u8) {
        if self.calls.is_empty() {
            return;
        }
        let call = self.calls.remove(usize::from(which) % self.calls.len());
        let outcome = self.execute(&call);
        self.log(|| format!("API: {outcome:?}"));
        self.outcomes.push(outcome);
    }

    fn call_times_out(&mut self, which: u8) {
        if self.calls.is_empty() {
            return;
        }
        let call = self.calls.remove(usize::from(which) % self.calls.len());
        let unclear = "time-out".to_owned();
        self.log(|| format!("API: time-out of {call:?}"));
        self.outcomes.push(match &call {
            Call::Write(write) => Event::WriteDone(write.id, CallOutcome::Unclear(unclear)),
            Call::Read(id, _) => Event::ReadDone(*id, CallOutcome::Unclear(unclear)),
            Call::Bind { id, .. } => Event::BindDone(*id, BindOutcome::Unclear(unclear)),
        });
        self.note("call timed out");
        self.ghosts.push(call);
    }

    fn ghost_lands(&mut self, which: u8) {
        if self.ghosts.is_empty() {
            return;
        }
        let call = self.ghosts.remove(usize::from(which) % self.ghosts.len());
        let outcome = self.execute(&call);
        self.log(|| format!("API: ghost lands: {outcome:?}"));
        self.note("ghost landed");
    }

    fn execute(&mut self, call: &Call) -> Event {
        match call {
            Call::Write(write) => Event::WriteDone(write.id, self.execute_write(write)),
            Call::Read(id, vm) => {
                let found = self.vms.get(&vm.name);
                let outcome = found.map_or(CallOutcome::NotFound, |vm| {
                    CallOutcome::Done(Box::new(vm.view()))
                });
                Event::ReadDone(*id, outcome)
            }
            Call::Bind { id, pod, uid, node } => {
                let found = self.pods.get_mut(pod).filter(|pod| pod.uid == *uid);
                let outcome = match found {
                    None => BindOutcome::Refused("not found".into()),
                    Some(pod) if pod.node.is_some() => BindOutcome::Conflict,
                    Some(pod) => {
                        pod.node = Some(node.clone());
                        BindOutcome::Bound
                    }
                };
                self.pod_changed(pod);
                Event::BindDone(*id, outcome)
            }
        }
    }

    fn execute_write(&mut self, write: &VmWrite) -> CallOutcome {
        let Some(vm) = self.vms.get_mut(&write.vm.name) else {
            return CallOutcome::NotFound;
        };
        if vm.version != write.base {
            self.note("write met a newer version");
            return CallOutcome::Conflict;
        }
        assert_eq!(
            vm.approved, write.approved_before,
            "the patch tests what is there"
        );
        vm.unit = Some(write.unit.clone());
        vm.requested = Some(write.requested.clone());
        vm.approved = Some(write.approved.clone());
        self.vm_changed(&write.vm.name);
        self.note("write");
        CallOutcome::Done(Box::new(self.vms[&write.vm.name].view()))
    }

    fn touch_vm(&mut self, which: u8) {
        if let Some(name) = nth(&self.vms, which) {
            self.vm_changed(&name);
        }
    }

    fn controller_syncs(&mut self, which: u8) {
        let Some(name) = nth(&self.pods, which) else {
            return;
        };
        let vm = self.pods[&name]
            .vm
            .as_ref()
            .and_then(|vm| self.vms.get(vm))
            .cloned();
        if let (Some(vm), Some(pod)) = (vm, self.pods.get_mut(&name)) {
            pod.sync(&vm);
            self.pod_changed(&name);
        }
    }

    fn create(&mut self, how: u8) {
        if self.pods.len() >= CROWD {
            return;
        }
        self.serial += 1;
        let serial = self.serial;
        let overcommit_milli = [1000, 1000, 1500, 2300][usize::from(how % 4)];
        if how.is_multiple_of(5) {
            let pod = PodObject::plain(serial, u32::from(how % 4 + 1) * 300);
            let name = pod.name.clone();
            self.pods.insert(name.clone(), pod);
            self.pod_changed(&name);
            return;
        }
        let vm = VmObject::new(serial, overcommit_milli);
        let pod = PodObject::of(&vm, serial);
        self.guests.insert(pod.name.clone(), Guest::new(vm.in_use));
        let (vm_name, pod_name) = (vm.name.clone(), pod.name.clone());
        self.agents
            .insert(vm_name.clone(), Agent::new(pod_name.clone()));
        self.vms.insert(vm_name.clone(), vm);
        self.pods.insert(pod_name.clone(), pod);
        self.vm_changed(&vm_name);
        self.pod_changed(&pod_name);
    }

    fn delete(&mut self, which: u8) {
        let Some(name) = nth(&self.pods, which) else {
            return;
        };
        let Some(pod) = self.pods.remove(&name) else {
            return;
        };
        self.guests.remove(&name);
        self.streams[0].push_back(Event::PodDeleted(pod.uid));
        if let Some(vm) = pod.vm {
            self.remove_vm(&vm);
        }
        self.note("deleted");
    }

    /// A VM is deleted; the guest in its pod runs on for a while.
    fn delete_vm(&mut self, which: u8) {
        if let Some(name) = nth(&self.vms, which) {
            self.remove_vm(&name);
            self.note("deleted before its pod");
        }
    }

    fn remove_vm(&mut self, name: &str) {
        if let Some(vm) = self.vms.remove(name) {
            self.agents.remove(name);
            self.streams[1].push_back(Event::VmDeleted(vm.key(), vm.uid));
        }
    }

    // ---- watches ----

    fn deliver_event(&mut self, which: u8) {
        if let Some(event) = self.streams[usize::from(which % 2)].pop_front() {
            self.log(|| format!("watch: {event:?}"));
            self.core.handle(self.time(), event);
        }
    }

    fn break_watch(&mut self, which: u8) {
        let stream = usize::from(which % 2);
        self.streams[stream].clear();
        let event = if stream == 0 {
            Event::PodsListed(self.pods.values().map(PodObject::view).collect())
        } else {
            Event::VmsListed(self.vms.values().map(VmObject::view).collect())
        };
        self.core.handle(self.time(), event);
        self.note("relist");
    }

    fn list_all(&mut self) {
        let nodes = self
            .nodes
            .iter()
            .map(|(name, total)| objects::node(name, *total))
            .collect();
        self.core.handle(self.time(), Event::NodesListed(nodes));
        self.break_watch(0);
        self.break_watch(1);
    }

    // ---- the scheduler ----

    fn deliver_request(&mut self, which: u8, how: u8) {
        if self.requests.is_empty() {
            return;
        }
        let at = usize::from(which) % self.requests.len();
        let (vm, attempt, request) = self.requests[at].clone();
        // A connection that was given up is noticed before its request is looked at.
        let stale = !self
            .agents
            .get(&vm)
            .is_some_and(|agent| agent.waits_for(attempt));
        // Now and then a request arrives twice.
        if stale || !how.is_multiple_of(8) {
            self.requests.remove(at);
        }
        if stale {
            return;
        }
        self.last_ticket += 1;
        self.log(|| {
            format!(
                "request of {vm}: {} over {:?}",
                request.resources, request.last_permit
            )
        });
        if request.last_permit.is_none() {
            self.first_contact(&vm);
        }
        self.tickets
            .insert(self.last_ticket, (vm, attempt, request.clone()));
        self.core
            .handle(self.time(), Event::Permit(self.last_ticket, request));
    }

    fn deliver_outcome(&mut self, which: u8) {
        if self.outcomes.is_empty() {
            return;
        }
        let outcome = self
            .outcomes
            .remove(usize::from(which) % self.outcomes.len());
        self.log(|| format!("outcome: {outcome:?}"));
        self.core.handle(self.time(), outcome);
    }

    fn act(&mut self) {
        while let Some(action) = self.core.poll_action(self.time()) {
            self.log(|| format!("action: {action:?}"));
            match action {
                Action::Answer(answer) => self.answered(answer),
                Action::WriteVm(write) => self.calls.push(Call::Write(write)),
                Action::ReadVm { id, vm } => self.calls.push(Call::Read(id, vm)),
                Action::Bind { id, pod, uid, node } => {
                    self.calls.push(Call::Bind {
                        id,
                        pod: pod.name,
                        uid,
                        node,
                    });
                }
                Action::Unschedulable { .. } => self.note("unschedulable"),
                Action::RoomAppeared { .. } => {
                    unreachable!("there is no kube-scheduler in this world")
                }
                Action::ScaleUpDenied { .. } => self.note("denied"),
                Action::Remark { .. } | Action::NodeNote { .. } => {}
                Action::CreateMigration { .. }
                | Action::DeleteMigration { .. }
                | Action::MigrationTriggered { .. } => {
                    unreachable!("migrations are not told of here")
                }
                Action::List => unreachable!("there is no Lease in this world"),
                Action::Tell { .. } | Action::ReadPod { .. } => {
                    unreachable!("there is no kube-scheduler in this world")
                }
            }
        }
    }

    fn answered(&mut self, answer: Answer) {
        let asked = self
            .tickets
            .remove(&answer.ticket)
            .expect("each request is answered once");
        let (vm, attempt, request) = asked;
        match &answer.result {
            Err(_) => self.note("refused"),
            Ok(response) => {
                self.note("permit");
                let permit = response.permit;
                self.check_permit(&request, permit);
                // I2: what is said is written, whatever the core believes.
                if let Some(object) = self.vms.get(&vm) {
                    let written = object
                        .approved_resources()
                        .expect("a permit without any approval");
                    assert!(
                        !permit.has_field_above(written),
                        "said {permit}, written {written}"
                    );
                }
            }
        }
        self.answers.push((vm, attempt, request, answer));
    }

    /// N13: per resource, a decrease is permitted exactly and an increase between what was held and what is asked.
    fn check_permit(&mut self, request: &AgentRequest, permit: Resources) {
        assert!(
            !permit.has_field_above(request.resources),
            "more than was asked"
        );
        let old = request.last_permit.unwrap_or_default();
        let floor = old.field_min(request.resources);
        assert!(
            !permit.has_field_below(floor),
            "{permit} takes away from {old} of {request:?}"
        );
        if permit != request.resources && permit != floor {
            self.note("partial");
            if permit.exact_multiple_of(UNIT).is_none() {
                self.note("no multiple");
            }
        }
    }

    /// The process is killed and another takes over after whatever it had sent has ended one way or the other. It does not
    /// know of agents that ended before it began: with two ends within [`agent`]'s time no patch is late.
    fn restart(&mut self, how: u8) {
        self.calls.append(&mut self.ghosts);
        for (at, call) in std::mem::take(&mut self.calls).into_iter().enumerate() {
            if (usize::from(how) >> (at % 4)) & 1 == 1 {
                self.execute(&call);
            }
        }
        self.outcomes.clear();
        self.tickets.clear();
        self.strays.retain(|stray| !stray.is_succeeded());
        self.core = new_core();
        self.list_all();
        self.log(|| "restart".into());
        self.note("restart");
    }

    fn pass_time(&mut self, how: u8) {
        self.now += u64::from(how) * 20_000;
    }

    // ---- what must hold ----

    fn check(&self) {
        let verdict = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.check_all()));
        if let Err(panic) = verdict {
            eprintln!("what led to it:");
            self.log.iter().for_each(|line| eprintln!("  {line}"));
            std::panic::resume_unwind(panic);
        }
    }

    fn check_all(&self) {
        assert_eq!(self.core.ledger().audit(), Ok(()));
        for (node, total) in &self.nodes {
            let here = self
                .pods
                .values()
                .filter(|pod| pod.node.as_ref() == Some(node));
            let mut used = Both::<u128>::default();
            for pod in here {
                let share = shares(self.truth(pod).into(), Both::same(pod.overcommit_milli));
                used = used.zip(share).map(|_, (a, b)| a + b);
            }
            let held = self.core.ledger().load(node).reserved;
            let both = used.zip(held).zip(*total);
            both.map(|resource, ((used, held), total)| {
                assert!(
                    used <= u128::from(total),
                    "{node}: {resource:?} overcommitted: {used} of {total}"
                );
                assert!(
                    used <= held,
                    "{node}: {resource:?} in use {used}, but only {held} held"
                );
            });
        }
        for (name, agent) in &self.agents {
            let vm = &self.vms[name];
            if let Some(permit) = agent.permit {
                assert!(
                    vm.stray || !vm.in_use.has_field_above(permit),
                    "{name} uses more than it may"
                );
                let approved = vm
                    .approved_resources()
                    .expect("a permit without any approval");
                assert!(
                    !permit.has_field_above(approved),
                    "{name} was permitted more than is written"
                );
            }
        }
    }

    /// What a pod may really be using now or at any moment without asking.
    fn truth(&self, pod: &PodObject) -> Resources {
        let Some(name) = &pod.vm else {
            return pod.requests;
        };
        let guest = self.guests[&pod.name].most();
        let Some(vm) = self.vms.get(name) else {
            return guest;
        };
        let agent = self.agents.get(name).and_then(|agent| agent.permit);
        let now = self.time();
        let strays = self.strays.iter();
        strays
            .filter(|stray| stray.vm == *name && stray.may_land(now))
            .map(|stray| stray.size)
            .chain([guest, agent.unwrap_or_default()])
            .fold(vm.in_use, Resources::field_max)
    }
}

fn new_core() -> Core {
    Core::new(Config::default().settings(true, true))
}

fn nth<V>(map: &BTreeMap<String, V>, which: u8) -> Option<String> {
    if map.is_empty() {
        return None;
    }
    map.keys().nth(usize::from(which) % map.len()).cloned()
}
