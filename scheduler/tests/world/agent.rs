//! An agent as the scheduler may rely on it: it asks before it grows, lowers before it tells, and takes a permit only
//! from the answer it is waiting for.

use protocol::permit::{AgentRequest, NamespacedName};
use protocol::units::Resources;

use super::{UNIT, World, nth};

/// An agent's part for one VM.
pub(crate) struct Agent {
    /// What it may use; unknown to a new agent.
    pub(crate) permit: Option<Resources>,
    pod: String,
    attempt: u64,
    waiting: bool,
}

impl Agent {
    pub(crate) fn new(pod: String) -> Self {
        Self {
            permit: None,
            pod,
            attempt: 0,
            waiting: false,
        }
    }

    /// Whether it still waits for the answer to that attempt.
    pub(crate) fn waits_for(&self, attempt: u64) -> bool {
        self.waiting && self.attempt == attempt
    }
}

impl World {
    /// An agent that waits for nothing asks for more, less or the same.
    pub(super) fn agent_asks(&mut self, which: u8, how: u8) {
        let Some(name) = nth(&self.agents, which) else {
            return;
        };
        let Some(agent) = self.agents.get_mut(&name).filter(|agent| !agent.waiting) else {
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
                if low != vm.in_use {
                    vm.in_use = low;
                    self.vm_changed(&name);
                }
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
        let Some(agent) = self.agents.get_mut(&name) else {
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
        // What it says it does not need it does not take back without asking, whether or not it hears an answer.
        agent.permit = agent.permit.map(|permit| permit.field_min(wish));
        agent.attempt += 1;
        agent.waiting = true;
        self.requests.push((name, agent.attempt, request));
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
        assert!(
            !vm.in_use.has_field_above(response.permit),
            "a permit below what is in use"
        );
        if how.is_multiple_of(2) && vm.in_use != response.permit {
            vm.in_use = response.permit;
            self.vm_changed(&name);
        }
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
        let Some(name) = nth(&self.agents, which) else {
            return;
        };
        self.requests.retain(|(vm, _, _)| *vm != name);
        if let Some(agent) = self.agents.get_mut(&name) {
            agent.permit = None;
            agent.waiting = false;
            agent.attempt += 1;
            self.note("agent restart");
        }
    }
}
