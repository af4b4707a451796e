//! What a state of the model is made of.

use std::hash::{Hash, Hasher};

use scheduler::core::event::{CallId, VmWrite};

use super::brain::{Brain, Nameless};
use super::views::vm_of;

/// What is left out of the rules, so that the model can be seen to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cheat {
    /// Each replica acts as if it were alone.
    NoLease,
    /// A new leader lists at once.
    NoSettle,
    /// A write whose fate is not known is taken as refused.
    ForgetUnclear,
    /// Whoever is handed the lead goes by what it knows, however late its watch is.
    NoMarks,
}

/// How far the model goes.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    /// Virtual machines; VM `n` runs on node `n % nodes`.
    pub(crate) vms: usize,
    /// Nodes, each with room for its VMs' first unit each and one more.
    pub(crate) nodes: usize,
    /// What each agent wants, one after the other, in units; each begins with 1.
    pub(crate) wishes: &'static [u32],
    pub(crate) ticks: u64,
    /// Crashes, and Leases that cannot be renewed any more.
    pub(crate) faults: u8,
    /// Calls whose answer is lost.
    pub(crate) losses: u8,
    /// Times the leader hands over in good order. If there are any, versions are counted over all
    /// objects, watches tell in their order, and replicas watch while another leads.
    pub(crate) hand_overs: u8,
    /// Whether a replica that crashed starts again.
    pub(crate) restarts: bool,
    /// What is left out.
    pub(crate) cheat: Option<Cheat>,
}

/// One state of a VM's object, in units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Object {
    pub(super) version: u64,
    /// What is approved, if anything is.
    pub(crate) approved: Option<u32>,
    /// What was asked last.
    pub(crate) requested: u32,
    /// What it uses.
    pub(crate) used: u32,
}

/// A VM and its agent.
#[derive(Debug, Clone, PartialEq, Hash)]
pub(crate) struct Vm {
    /// Where it runs.
    pub(super) node: usize,
    /// The states of its object that somebody may yet be told of, and the newest.
    pub(crate) history: Vec<Object>,
    /// What its agent may use.
    pub(crate) permit: Option<u32>,
    /// Wishes it is done with.
    pub(crate) wish: usize,
    /// The replica its request waits at.
    pub(crate) waits_for: Option<usize>,
}

impl Vm {
    /// The newest state.
    pub(crate) fn now(&self) -> Object {
        *self.history.last().expect("there is a first state")
    }

    /// The most that is given to it.
    pub(crate) fn given(&self) -> u32 {
        let Object { approved, used, .. } = self.now();
        approved.unwrap_or(0).max(used)
    }
}

/// One of the two schedulers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Replica {
    /// Its core, while it is up.
    pub(crate) brain: Option<Brain>,
    /// How many states of each VM its watch has shown.
    pub(super) seen: Vec<usize>,
    /// It was told to list and has not.
    pub(super) lists: bool,
    /// Its host cannot renew the Lease any more.
    pub(super) cut: bool,
}

/// A call at the API server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(super) replica: usize,
    pub(super) write: Result<VmWrite, (CallId, usize)>,
    /// The last tick at which it can take effect.
    pub(super) until: u64,
    /// Somebody waits for its outcome.
    pub(super) heard: bool,
}

impl Call {
    /// Its place among the calls of a state.
    fn order(&self) -> impl Ord + use<> {
        let (vm, write) = match &self.write {
            Ok(write) => {
                let texts = (write.approved.clone(), write.requested.clone());
                (vm_of(&write.vm.name), Some((write.base, texts.0, texts.1)))
            }
            Err((_, vm)) => (*vm, None),
        };
        (self.replica, vm, self.until, write, self.heard)
    }
}

impl Call {
    /// The VM it is about.
    pub(super) fn vm(&self) -> usize {
        match &self.write {
            Ok(write) => vm_of(&write.vm.name),
            Err((_, vm)) => *vm,
        }
    }

    /// What tells it apart from the other calls of its VM. A replica waits for one call per VM, so
    /// that its number need not.
    fn digest(&self, hasher: &mut Nameless) {
        let write = self.write.as_ref().ok();
        (self.replica, write, self.until, self.heard).hash(hasher);
    }
}

/// The whole system.
///
/// Its hash is the same for states that differ in nothing but which VM of a node is which: of
/// those, one is looked at. VMs of a node have the same size, the same wishes and the same room,
/// neither agents nor API server nor [`Core`](scheduler::core::Core) go by their names, and no rule
/// names one, so from such states the same is reached but for the names (`tests/model.rs`,
/// `what_happens_to_vms_does_not_go_by_their_names`).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct State {
    pub(crate) now: u64,
    pub(crate) vms: Vec<Vm>,
    pub(crate) replicas: [Replica; 2],
    pub(super) calls: Vec<Call>,
    pub(super) holder: usize,
    pub(super) renewed: u64,
    pub(super) faults: u8,
    pub(super) losses: u8,
    pub(super) hand_overs: u8,
    /// The replica that was handed the lead has listed since.
    pub(crate) lists_after_all: bool,
    /// A permit was answered that was not written.
    pub(crate) said_too_early: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A second passes.
    Tick,
    /// A replica dies; its calls go on.
    Crash(usize),
    /// A replica's host cannot renew the Lease any more; the replica does not know.
    Cut(usize),
    /// A replica starts.
    Start(usize),
    /// A replica's host takes the Lease that ran out.
    Take(usize),
    /// The leader ends in good order, and the other replica takes the Lease.
    HandOver,
    /// A replica lists.
    List(usize),
    /// A replica's watch shows the next state of a VM.
    Observe(usize, usize),
    /// A VM's agent asks a replica.
    Ask(usize, usize),
    /// A VM's agent patches the size it may use or has to go down to.
    Patch(usize),
    /// A VM's agent leaves a wish.
    GiveUp(usize),
    /// A call takes effect and is answered.
    Land(usize),
    /// A call takes effect and its answer is lost.
    LandUnheard(usize),
    /// A caller gives up a call, which may take effect yet.
    Abandon(usize),
}

impl State {
    /// What concerns a VM, whatever its name.
    fn digest_of(&self, vm: usize) -> u64 {
        let mut hasher = Nameless::new(vm);
        self.vms[vm].hash(&mut hasher);
        for replica in &self.replicas {
            let brain = replica.brain.as_ref().map(|brain| brain.of(vm));
            (replica.seen[vm], brain).hash(&mut hasher);
        }
        let calls = self.calls.iter().filter(|call| call.vm() == vm);
        calls.for_each(|call| call.digest(&mut hasher));
        hasher.finish()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self {
            now,
            vms,
            replicas,
            calls: _,
            holder,
            renewed,
            faults,
            losses,
            hand_overs,
            lists_after_all,
            said_too_early,
        } = self;
        (now, holder, renewed, faults, losses, hand_overs).hash(hasher);
        (lists_after_all, said_too_early).hash(hasher);
        for replica in replicas {
            let brain = replica.brain.as_ref().map(Brain::shared);
            (brain, replica.lists, replica.cut).hash(hasher);
        }
        let mut parts: Vec<u64> = (0..vms.len()).map(|vm| self.digest_of(vm)).collect();
        parts.sort_unstable();
        parts.hash(hasher);
    }
}

impl State {
    /// Leaves out what nothing can come of any more, and puts the rest into one order, so that
    /// states that differ in that alone are one state.
    pub(super) fn tidy(&mut self) {
        let Self {
            vms,
            replicas,
            calls,
            ..
        } = self;
        calls.retain(|call| match &call.write {
            _ if call.heard => true,
            // It is conditional on a version that is over, or changes nothing.
            Ok(write) => write.base == vms[vm_of(&write.vm.name)].now().version,
            Err(_) => false,
        });
        calls.sort_by_key(Call::order);
        for (vm, machine) in vms.iter_mut().enumerate() {
            // What every watch has shown is told to nobody again; who was shown nothing begins with
            // a list.
            let shown = replicas.iter().map(|replica| replica.seen[vm]);
            let shown = shown.filter(|seen| *seen > 0).min();
            let over = shown.unwrap_or(machine.history.len()) - 1;
            machine.history.drain(..over);
            for replica in replicas.iter_mut() {
                replica.seen[vm] = replica.seen[vm].saturating_sub(over);
            }
        }
    }
}
