//! A stalled API server: it carries a call out long after the caller gave up on it.
//!
//! Most calls rest on the state they were decided on, so a late one changes nothing or is still
//! counted. A patch of an agent is refused once a later patch of the VM has taken effect
//! (`late_patches_are_refused`). A request to make a pod, which its controller has repeated since,
//! makes another one once the first has gone (`PodNames`). Three calls remain:
//!
//! | call | counted for | guard |
//! |---|---|---|
//! | the last patch of an agent that has ended, until its successor patches the VM | 12 s after the first contact of the successor | `LEGACY_LASTS`, the agent's own time limit |
//! | a write or a binding of a scheduler that has ended | 2 s | `--takeover-wait-ms` |
//! | a pod's change to lower requests, of a controller that gave it up or ended | 10 s | its time limit |
//!
//! Of these only a bound is promised. A node is overcommitted by no more than the first two added,
//! and no longer than until the VM's guest has reached a smaller size (docs/scheduler.md). A pod
//! requests less than its guest has until its controller sees that.

use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use crate::check::Overrun;
use crate::event::{ApiResponse, Call, Caller, Event, Incarnation, Operation};
use crate::journal::Note;
use crate::world::World;

/// How late a stalled call is carried out.
const LATENESS: (Span, Span) = (Span::from_secs(13), Span::from_secs(90));

impl World {
    /// The server takes the call in and does not answer in time.
    pub(crate) fn stall(&mut self, number: u64, deadline: Timestamp, call: Call) {
        self.tally.count("api stalled");
        self.checks.is_repeated(&call.operation);
        let at = self.now + self.rng.span(LATENESS.0, LATENESS.1);
        self.fault_schedule.stalled_until = self.fault_schedule.stalled_until.max(at);
        self.put(deadline, Event::CallAnswers(number, ApiResponse::Nothing));
        self.put(at, Event::StalledCall(Box::new(call)));
    }

    /// A stalled call is carried out. Nobody waits for the answer.
    pub(crate) fn stalled_call(&mut self, mut call: Call) {
        let vm = call.about().and_then(|name| self.vm_named(name));
        let Some(vm) = vm.filter(|_| !self.fault_schedule.api_is_away(self.now)) else {
            return;
        };
        let is_promised = match &mut call.caller {
            Caller::AgentTask { agent_task, .. } => {
                // Whatever task sent it has given it up.
                *agent_task = u64::MAX;
                false
            }
            Caller::Write { of, .. } | Caller::Bind { of, .. } => self.still_leads(*of),
            Caller::Controller { epoch, .. } => {
                // Its controller has given it up, whether it lives or not.
                *epoch = u64::MAX;
                true
            }
            Caller::Read { .. } => true,
        };
        let is_bind = matches!(call.operation, Operation::Bind(..));
        let base = self.granted(vm);
        let answer = self.execute(&call);
        self.tell_changes();
        if !matches!(answer, ApiResponse::Object(_)) {
            return;
        }
        self.tally.count("stalled call carried out");
        self.note(Note::Fault("stalled call carried out", vm));
        let (size, base) = if is_bind {
            (self.granted(vm), Resources::default())
        } else {
            (self.granted(vm), base)
        };
        if !is_promised && size.has_field_above(base) {
            self.tally.count("overrun by a stalled call");
            let old = self.checks.truth[vm].overrun;
            let overrun = old.map_or(Overrun { base, size }, |old| Overrun {
                base: base.field_min(old.base),
                size: size.field_max(old.size),
            });
            self.checks.truth[vm].overrun = Some(overrun);
        }
    }

    fn still_leads(&self, of: Incarnation) -> bool {
        let core = self.schedulers[of.replica].core.as_ref();
        self.lives(of) && core.is_some_and(|core| core.may_act(self.now))
    }
}

impl Call {
    fn about(&self) -> Option<&str> {
        match &self.operation {
            Operation::PatchVm(name, _)
            | Operation::PatchPod(name, _)
            | Operation::SyncPod(name, _)
            | Operation::ResizePod(name, _)
            | Operation::MergeVm(name, _)
            | Operation::Get(_, name)
            | Operation::Bind(name, ..)
            | Operation::DeletePod(name, _) => Some(name),
            Operation::CreatePod(pod) => pod["metadata"]["name"].as_str(),
        }
    }
}
