//! An agent as the scheduler may rely on it: it asks before it grows, lowers before it tells, and
//! takes a permit only from the answer it is waiting for.
//!
//! One that ends leaves behind what it sent. Its patch may land as long as the scheduler counts on
//! it (`LEGACY_LASTS` in `scheduler/src/core/permits.rs`); its request may arrive while its
//! successor has no patch of its own under way.

use protocol::core::Core as _;
use protocol::permit::{AgentRequest, NamespacedName};
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use scheduler::core::event::Event;

use super::{UNIT, World, nth};

/// A patch of an agent that is gone lands within this time of its successor's first contact, or
/// never.
const PATCH_LASTS: Span = Span::from_secs(12);

/// The attempt of a request whose answer nobody waits for.
pub(super) const NOBODY: u64 = u64::MAX;

/// A patch on its way whose agent is gone.
#[derive(Debug)]
pub(crate) struct StrayPatch {
    pub(crate) vm: String,
    pub(crate) size: Resources,
    /// When the scheduler first heard of the next agent.
    contact: Option<Timestamp>,
}

impl StrayPatch {
    pub(crate) fn may_land(&self, now: Timestamp) -> bool {
        self.contact.is_none_or(|at| now < at + PATCH_LASTS)
    }

    /// Until when it is counted, if that is known.
    fn counted_until(&self) -> Option<Timestamp> {
        self.contact.map(|at| at + PATCH_LASTS)
    }

    /// Whether the next agent has made itself known.
    pub(crate) fn is_succeeded(&self) -> bool {
        self.contact.is_some()
    }
}

/// An agent's part for one VM.
pub(crate) struct Agent {
    /// What it may use; unknown to a new agent.
    pub(crate) permit: Option<Resources>,
    pod: String,
    attempt: u64,
    waiting: bool,
    /// The size of its patch that is on its way.
    pub(crate) patch: Option<Resources>,
}

impl Agent {
    pub(crate) fn new(pod: String) -> Self {
        Self {
            permit: None,
            pod,
            attempt: 0,
            waiting: false,
            patch: None,
        }
    }

    /// Whether it still waits for the answer to that attempt.
    pub(crate) fn waits_for(&self, attempt: u64) -> bool {
        self.waiting && self.attempt == attempt
    }

    /// It asks for that pod from now on.
    pub(super) fn moves_to(&mut self, pod: String) {
        self.pod = pod;
    }

    fn is_idle(&self) -> bool {
        !self.waiting && self.patch.is_none()
    }
}

impl World {
    /// An agent that waits for nothing asks for more, less or the same.
    pub(super) fn agent_asks(&mut self, which: u8, how: u8) {
        let Some(name) = nth(&self.agents, which) else {
            return;
        };
        let Some(agent) = self.agents.get_mut(&name).filter(|agent| agent.is_idle()) else {
            return;
        };
        let vm = self.vms.get_mut(&name).expect("an agent has a VM");
        let part = |units: u8, of: Resources| {
            UNIT.saturating_mul(u32::from(units))
                .field_max(UNIT)
                .field_min(of)
        };
        let wish = match (agent.permit, how % 8) {
            (None, _) | (_, 0 | 1) => vm.in_use,
            (_, 2 | 3) => {
                // One field or both go down; the object first, then the scheduler is told.
                let low = part(how / 8 % 4, vm.in_use);
                let low = if how % 8 == 2 {
                    low
                } else {
                    Resources {
                        cpu: low.cpu,
                        ..vm.in_use
                    }
                };
                self.set_size(&name, low);
                low
            }
            (_, 4) => Resources {
                mem: UNIT.saturating_mul(u32::from(how / 8 % 16)).mem,
                ..vm.in_use
            }
            .field_max(vm.in_use),
            // One that is no whole number of units.
            (_, 5) => Resources::new(vm.in_use.cpu.0 + 390, vm.in_use.mem.0 + (777 << 20)),
            _ => UNIT
                .saturating_mul(u32::from(how / 8 % 16))
                .field_max(vm.in_use),
        };
        self.agent_requests(&name, wish);
    }

    /// An agent sends a permit request for `wish`.
    pub(super) fn agent_requests(&mut self, name: &str, wish: Resources) {
        let Some(agent) = self.agents.get_mut(name) else {
            return;
        };
        let request = AgentRequest {
            proto_version: 7,
            pod: NamespacedName {
                namespace: "d".into(),
                name: agent.pod.clone(),
            },
            compute_unit: UNIT,
            resources: wish,
            last_permit: agent.permit,
            metrics: None,
        };
        // What it says it does not need it does not take back without asking, whether or not it
        // hears an answer.
        agent.permit = agent.permit.map(|permit| permit.field_min(wish));
        self.last_attempt += 1;
        agent.attempt = self.last_attempt;
        agent.waiting = true;
        self.requests
            .push((name.to_owned(), agent.attempt, request));
    }

    /// An answer arrives, or is lost.
    pub(super) fn deliver_answer(&mut self, which: u8, how: u8) {
        if self.answers.is_empty() {
            return;
        }
        let (name, attempt, _, answer) =
            self.answers.remove(usize::from(which) % self.answers.len());
        let Some(agent) = self
            .agents
            .get_mut(&name)
            .filter(|agent| agent.waits_for(attempt))
        else {
            return;
        };
        if how.is_multiple_of(4) {
            agent.waiting = false;
            self.note("answer lost");
            return;
        }
        agent.waiting = false;
        let Ok(response) = answer.result else { return };
        agent.permit = Some(response.permit);
        let vm = self.vms.get_mut(&name).expect("an agent has a VM");
        if std::mem::take(&mut vm.stray) {
            // Nobody asked for what is in use beyond the permit.
            let size = vm.in_use.field_min(response.permit);
            return self.set_size(&name, size);
        }
        assert!(
            !vm.in_use.has_field_above(response.permit),
            "a permit below what is in use"
        );
        if how.is_multiple_of(2) && vm.in_use != response.permit {
            agent.patch = Some(response.permit);
        }
    }

    pub(super) fn set_size(&mut self, name: &str, size: Resources) {
        let vm = self.vms.get_mut(name).expect("an agent has a VM");
        if vm.in_use != size {
            vm.in_use = size;
            vm.revision += 1;
            self.vm_changed(name);
        }
    }

    /// An agent's patch lands, or is refused.
    pub(super) fn patch_ends(&mut self, which: u8, how: u8) {
        let agents = self.agents.iter_mut();
        let mut patching: Vec<_> = agents.filter(|(_, it)| it.patch.is_some()).collect();
        if patching.is_empty() {
            return;
        }
        let at = usize::from(which) % patching.len();
        let (name, agent) = patching.swap_remove(at);
        let (name, size) = (name.clone(), agent.patch.take());
        if let Some(size) = size.filter(|_| !how.is_multiple_of(8)) {
            self.set_size(&name, size);
        }
    }

    /// What an agent that is gone left on its way arrives.
    pub(super) fn stray_arrives(&mut self, which: u8, how: u8) {
        let now = self.time();
        self.strays.retain(|stray| stray.may_land(now));
        if !self.strays.is_empty() {
            let stray = self.strays.remove(usize::from(which) % self.strays.len());
            let permit = self.agents.get(&stray.vm).and_then(|agent| agent.permit);
            if let Some(vm) = self.vms.get_mut(&stray.vm) {
                let until = stray.counted_until();
                self.tell_vms_by = self.tell_vms_by.into_iter().chain(until).min();
                vm.stray = permit.is_none_or(|permit| stray.size.has_field_above(permit));
                self.set_size(&stray.vm, stray.size);
                self.log(|| format!("patch of an agent that is gone: {stray:?}"));
                self.note("patch of an agent that is gone");
            }
        }
        // A request may come so late that the next agent has done much.
        if self.late_requests.is_empty() || !how.is_multiple_of(4) {
            return;
        }
        let at = usize::from(which) % self.late_requests.len();
        let (vm, request) = self.late_requests.remove(at);
        let pod = self.pods.get(&request.pod.name);
        let owner = pod.map(|pod| self.vm_of(pod));
        let may_arrive = match owner {
            None => true,
            Some(None) => {
                self.note("request of a VM that is gone");
                true
            }
            // A successor that was permitted more than it uses has a patch to make.
            Some(Some(owner)) => self.agents.get(&vm).is_some_and(|agent| {
                let permit = agent.permit.unwrap_or_default();
                agent.is_idle() && !permit.has_field_above(owner.in_use)
            }),
        };
        if may_arrive {
            self.log(|| format!("request of an agent that is gone: {request:?}"));
            self.note("request of an agent that is gone");
            self.late_request_arrives(vm, request);
        }
    }

    pub(super) fn late_request_arrives(&mut self, vm: String, request: AgentRequest) {
        self.last_ticket += 1;
        let ticket = (vm, NOBODY, request.clone());
        self.tickets.insert(self.last_ticket, ticket);
        let event = Event::PermitRequest(self.last_ticket, request);
        self.core.handle(self.time(), event);
    }

    /// The scheduler hears of an agent for the first time.
    pub(super) fn first_contact(&mut self, vm: &str) {
        let now = self.time();
        let strays = self.strays.iter_mut().filter(|stray| stray.vm == vm);
        strays.for_each(|stray| {
            stray.contact.get_or_insert(now);
        });
    }

    /// An agent hangs up on a request; if it has not arrived yet it never will.
    pub(super) fn agent_gives_up(&mut self, which: u8, how: u8) {
        let Some(name) = nth(&self.agents, which) else {
            return;
        };
        if !how.is_multiple_of(3) {
            return;
        }
        self.requests.retain(|(vm, _, _)| *vm != name);
        if let Some(agent) = self.agents.get_mut(&name) {
            agent.waiting = false;
        }
    }

    /// A new agent takes a VM over and knows nothing.
    pub(super) fn agent_restarts(&mut self, which: u8) {
        if let Some(name) = nth(&self.agents, which) {
            self.agent_is_replaced(name);
        }
    }

    /// The same of one whose patch is on its way.
    pub(super) fn patching_agent_restarts(&mut self) {
        let mut agents = self.agents.iter();
        if let Some((name, _)) = agents.find(|(_, agent)| agent.patch.is_some()) {
            self.agent_is_replaced(name.clone());
        }
    }

    pub(super) fn requests_outlive_their_agent(&mut self, name: &str) {
        let sent = self.requests.extract_if(.., |(vm, _, _)| vm == name);
        self.late_requests
            .extend(sent.map(|(vm, _, request)| (vm, request)));
    }

    pub(super) fn agent_is_replaced(&mut self, name: String) {
        self.requests_outlive_their_agent(&name);
        let agent = self.agents.get_mut(&name).expect("it was looked up");
        agent.permit = None;
        agent.waiting = false;
        if let Some(size) = agent.patch.take() {
            self.strays.push(StrayPatch {
                vm: name,
                size,
                contact: None,
            });
        }
        self.note("agent restart");
    }
}
