//! A whole cluster as a value: the API's objects, watches that lag, calls that are lost or land
//! late, a controller, agents that keep their rules, and the scheduler's core, which may be
//! restarted at any moment.
//!
//! What is true is kept here, apart from what the core believes; after every step the two are
//! compared.

mod agent;
mod api;
mod guest;
mod migration;
mod objects;
mod schedules;
mod truth;

use std::collections::{BTreeMap, VecDeque};

use protocol::core::Core as _;
use protocol::permit::AgentRequest;
use protocol::time::Timestamp;
use protocol::units::Resources;
use scheduler::config::Config;
use scheduler::core::Core;
use scheduler::core::amount::Both;
use scheduler::core::event::{Action, Event, PermitResponse, RequestId};

pub(crate) use agent::{Agent, StrayPatch};
use api::Call;
pub(crate) use guest::Guest;
pub(crate) use objects::{PodObject, VmObject};
use objects::{Report, Requests, Shape};

/// One compute unit: 250m / 1Gi.
pub(crate) const UNIT: Resources = Resources::new(250, 1 << 30);
/// The largest size of most VMs.
const LARGEST: Resources = Resources::new(16_000, 64 << 30);
/// Happenings kept for a failure's message.
const LOG: usize = 120;

/// One random step. The numbers choose among what is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) kind: u8,
    pub(crate) which: u8,
    pub(crate) how: u8,
}

/// See the module's description.
pub(crate) struct World {
    /// Pods at the most. Of few, each goes through more.
    crowd: usize,
    core: Core,
    now: u64,
    version: u64,
    nodes: BTreeMap<String, Both<u64>>,
    vms: BTreeMap<String, VmObject>,
    pods: BTreeMap<String, PodObject>,
    agents: BTreeMap<String, Agent>,
    /// By the name of their pod.
    guests: BTreeMap<String, Guest>,
    /// Target pods of migrations, by the name of their VM.
    targets: BTreeMap<String, String>,
    strays: Vec<StrayPatch>,
    /// A stray patch that landed is counted until then. The watch of VMs tells of it before.
    tell_vms_by: Option<Timestamp>,
    /// Requests whose agent is gone, with their VM.
    late_requests: Vec<(String, AgentRequest)>,
    streams: [VecDeque<Event>; 2],
    calls: Vec<Call>,
    outcomes: Vec<Event>,
    /// Calls given up by their caller that may land yet.
    ghosts: Vec<Call>,
    /// Requests on their way: the VM, its agent's attempt, the request.
    requests: Vec<(String, u64, AgentRequest)>,
    tickets: BTreeMap<RequestId, (String, u64, AgentRequest)>,
    answers: Vec<(String, u64, AgentRequest, PermitResponse)>,
    last_ticket: RequestId,
    last_attempt: u64,
    serial: u64,
    /// The last things that happened, shown when something does not hold.
    log: VecDeque<String>,
    /// How often what happened, so that a test can tell that it tested something.
    pub(crate) tally: BTreeMap<&'static str, u64>,
}

impl World {
    pub(crate) fn new(crowd: usize) -> Self {
        let mut world = Self {
            crowd,
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
            targets: BTreeMap::new(),
            strays: Vec::new(),
            tell_vms_by: None,
            late_requests: Vec::new(),
            streams: [VecDeque::new(), VecDeque::new()],
            calls: Vec::new(),
            outcomes: Vec::new(),
            ghosts: Vec::new(),
            requests: Vec::new(),
            tickets: BTreeMap::new(),
            answers: Vec::new(),
            last_ticket: 0,
            last_attempt: 0,
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
        match step.kind % 43 {
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
            19 => self.create(which, how),
            20 if how.is_multiple_of(5) => self.delete(which),
            21 if how.is_multiple_of(8) => self.restart(how / 8),
            22 if how.is_multiple_of(4) => self.agent_restarts(which),
            23..=25 => self.controller_works(which, how),
            26..=27 => self.guest_moves(which, how),
            28 => self.patch_ends(which, how),
            29 if how.is_multiple_of(4) => self.patching_agent_restarts(),
            30..=31 => self.stray_arrives(which, how),
            32 if how.is_multiple_of(16) => self.delete_vm(which),
            33 => self.agent_gives_up(which, how),
            34..=36 => self.calls_go_through(),
            37 => self.patch_ends(which, 1),
            38..=39 => self.controller_works(which, how),
            40..=42 => self.migrates(which, how),
            _ => {}
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
            self.stray_arrives(0, 0);
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

    fn create(&mut self, which: u8, how: u8) {
        if self.pods.len() >= self.crowd {
            return;
        }
        self.serial += 1;
        if how.is_multiple_of(5) {
            let pod = PodObject::plain(self.serial, u32::from(how % 4 + 1) * 300);
            let name = pod.name.clone();
            self.pods.insert(name.clone(), pod);
            self.pod_changed(&name);
            return;
        }
        let shape = Shape {
            overcommit_milli: [1000, 1000, 1500, 2300][usize::from(how % 4)],
            largest: [LARGEST, LARGEST, UNIT.saturating_mul(3)][usize::from(how / 4 % 3)],
            requests: match which % 8 {
                0..=3 => Requests::Guest,
                4..=6 => Requests::Nothing,
                _ => Requests::Fixed(UNIT.saturating_mul(3)),
            },
        };
        let name = self.name_of_one_gone().filter(|_| which >= 128);
        let name = name.unwrap_or_else(|| format!("vm{}", self.serial));
        self.create_vm(VmObject::new(name, self.serial, shape));
    }

    /// The name of a VM that is gone and whose guest runs on.
    fn name_of_one_gone(&self) -> Option<String> {
        let mut owners = self.pods.values().filter_map(|pod| pod.owner.as_ref());
        let (name, _) = owners.find(|(name, _)| !self.vms.contains_key(name))?;
        Some(name.clone())
    }

    fn create_vm(&mut self, mut vm: VmObject) {
        if self.pods.values().any(|pod| pod.is_of(&vm.name)) {
            self.note("namesake");
        }
        let pod = PodObject::of(&vm);
        // The controller writes the pod's name before it makes the pod.
        vm.report = Some(Report {
            pod: pod.name.clone(),
            ..Report::default()
        });
        let (vm_name, pod_name) = (vm.name.clone(), pod.name.clone());
        self.guests.insert(pod_name.clone(), Guest::new(vm.in_use));
        self.agents
            .insert(vm_name.clone(), Agent::new(pod_name.clone()));
        self.vms.insert(vm_name.clone(), vm);
        self.pods.insert(pod_name.clone(), pod);
        self.vm_changed(&vm_name);
        self.pod_changed(&pod_name);
    }

    /// The deletion of a pod is asked, or ends. Its guest runs on in between.
    fn delete(&mut self, which: u8) {
        let Some(name) = nth(&self.pods, which) else {
            return;
        };
        if self.is_migrating(&self.pods[&name]) {
            return;
        }
        if let Some(pod) = self.pods.get_mut(&name).filter(|pod| !pod.deleting) {
            pod.deleting = true;
            self.pod_changed(&name);
            return self.note("deletion asked");
        }
        let Some(pod) = self.pods.remove(&name) else {
            return;
        };
        self.guests.remove(&name);
        if let Some(vm) = self.vm_of(&pod).map(|vm| vm.name.clone()) {
            self.remove_vm(&vm);
        }
        self.streams[0].push_back(Event::PodDeleted(pod.uid));
        self.note("deleted");
    }

    /// A VM is deleted; the guest in its pod runs on for a while.
    fn delete_vm(&mut self, which: u8) {
        if let Some(name) = nth(&self.vms, which) {
            self.remove_vm(&name);
            self.note("deleted before its pod");
        }
    }

    /// What its agents sent may arrive late all the same, but for patches: those are of the VM.
    fn remove_vm(&mut self, name: &str) {
        let Some(vm) = self.vms.remove(name) else {
            return;
        };
        self.agents.remove(name);
        self.targets.remove(name);
        self.strays.retain(|stray| stray.vm != name);
        self.requests_outlive_their_agent(name);
        self.streams[1].push_back(Event::VmDeleted(vm.key(), vm.uid));
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
        let is_repeated = how.is_multiple_of(8);
        if stale || !is_repeated {
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
            .handle(self.time(), Event::PermitRequest(self.last_ticket, request));
    }

    /// Requests, calls and answers that are under way arrive in good order; watches lag on.
    fn calls_go_through(&mut self) {
        while !self.requests.is_empty() {
            self.deliver_request(0, 1);
        }
        for _ in 0..8 {
            self.act();
            while !self.calls.is_empty() {
                self.api_acts(0);
            }
            while !self.outcomes.is_empty() {
                self.deliver_outcome(0);
            }
        }
        self.act();
        while !self.answers.is_empty() {
            self.deliver_answer(0, 2);
        }
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
                Action::RespondPermit(answer) => self.answered(answer),
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
                Action::WarnOnPod { .. } | Action::WarnOnNode { .. } => {}
                Action::CreateMigration { .. }
                | Action::DeleteMigration { .. }
                | Action::MigrationTriggered { .. } => {
                    unreachable!("migrations are not told of here")
                }
                Action::List => unreachable!("there is no Lease in this world"),
                Action::RespondExtender { .. } | Action::ReadPod { .. } => {
                    unreachable!("there is no kube-scheduler in this world")
                }
            }
        }
    }

    fn answered(&mut self, answer: PermitResponse) {
        let asked = self
            .tickets
            .remove(&answer.request_id)
            .expect("each request is answered once");
        let (vm, attempt, request) = asked;
        match &answer.result {
            Err(_) => self.note("refused"),
            Ok(response) => {
                self.note("permit");
                let permit = response.permit;
                self.check_permit(&request, permit);
                if attempt != agent::NOBODY {
                    self.check_nothing_is_taken(&request, permit);
                }
                // I2: what is said is written, whatever the core believes.
                let pod = self.pods.get(&request.pod.name);
                if let Some(object) = pod.and_then(|pod| self.vm_of(pod)) {
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

    /// The process is killed and another takes over after whatever it had sent has ended one way or
    /// the other. It does not know of agents that ended before it began: with two ends within
    /// [`agent`]'s time no patch is late.
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
        let next = self.now + u64::from(how) * 20_000;
        if self.tell_vms_by.take_if(|by| by.0 <= next).is_some() {
            while !self.streams[1].is_empty() {
                self.deliver_event(1);
            }
        }
        self.now = next;
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
