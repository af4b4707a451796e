//! Faults that a seed once showed, each as an explicit list of events. A list does not drift when
//! the world changes, as a seed does (docs/faults-found.md).
//!
//! Each test fails when the mend that it names is taken out of the ledger or the permits.

use protocol::units::Resources;

use super::objects::{Requests, Shape};
use super::{LARGEST, UNIT, VmObject, World};

/// The only VM of a schedule.
const VM: &str = "vm1";

/// One event of a schedule. Sizes are in compute units.
#[derive(Debug, Clone, Copy)]
enum Happening {
    /// The agent asks for this size.
    AgentAsks(u32),
    /// The agent lowers the object to this size, then asks for it.
    AgentLowers(u32),
    /// The request, the scheduler's writes and the answer arrive. An agent that was permitted
    /// another size than it uses sends its patch.
    PermitGoesThrough,
    /// The agent's patch lands.
    PatchLands,
    /// A new agent takes the VM over. What the former one sent is still on its way.
    AgentIsReplaced,
    /// The patch of the former agent lands.
    StrayPatchLands,
    /// The controller reads the VM, raises what the pod says, and orders the size.
    ControllerOrders,
    /// The guest reaches the size that was ordered.
    GuestResizes,
    /// The controller writes the status.
    StatusIsWritten,
    /// The watch of pods delivers all that it holds.
    PodWatchCatchesUp,
    /// The watch of VMs delivers all that it holds.
    VmWatchCatchesUp,
    /// A new scheduler lists.
    SchedulerRestarts,
    /// The VM is deleted. Its guest runs on.
    VmIsDeleted,
    /// Time passes, in seconds.
    Seconds(u64),
}

use Happening::{
    AgentAsks, AgentIsReplaced, AgentLowers, ControllerOrders, GuestResizes, PatchLands,
    PermitGoesThrough, PodWatchCatchesUp, SchedulerRestarts, Seconds, StatusIsWritten,
    StrayPatchLands, VmIsDeleted, VmWatchCatchesUp,
};

fn units(count: u32) -> Resources {
    UNIT.saturating_mul(count)
}

impl World {
    /// A world with one bound VM of one unit, whose status and permit say so.
    fn with_one_vm(requests: Requests) -> Self {
        let shape = Shape {
            overcommit_milli: 1000,
            largest: LARGEST,
            requests,
        };
        let mut world = Self::new(1);
        world.create_vm(VmObject::new(VM.to_owned(), 1, shape));
        for _ in 0..3 {
            world.happens(PodWatchCatchesUp);
            world.happens(VmWatchCatchesUp);
            world.calls_go_through();
        }
        let start = [AgentAsks(1), PermitGoesThrough, StatusIsWritten];
        world.all_happen(&start);
        world.all_happen(&[PodWatchCatchesUp, VmWatchCatchesUp]);
        world
    }

    /// Takes each event in turn and checks everything after it.
    fn all_happen(&mut self, schedule: &[Happening]) {
        for happening in schedule {
            self.log(|| format!("{happening:?}"));
            self.happens(*happening);
            self.act();
            self.check();
        }
    }

    fn happens(&mut self, happening: Happening) {
        match happening {
            AgentAsks(size) => self.agent_requests(VM, units(size)),
            AgentLowers(size) => {
                self.set_size(VM, units(size));
                self.agent_requests(VM, units(size));
            }
            PermitGoesThrough => self.calls_go_through(),
            PatchLands => self.patch_ends(0, 1),
            AgentIsReplaced => self.agent_is_replaced(VM.to_owned()),
            StrayPatchLands => self.stray_arrives(0, 1),
            ControllerOrders => (0..3).for_each(|step| self.controller_step(0, step)),
            GuestResizes => self.guest_moves(0, 0),
            StatusIsWritten => (3..5).for_each(|step| self.controller_step(0, step)),
            PodWatchCatchesUp => self.watch_catches_up(0),
            VmWatchCatchesUp => self.watch_catches_up(1),
            SchedulerRestarts => self.restart(0),
            VmIsDeleted => self.remove_vm(VM),
            Seconds(count) => self.now += count * 1_000_000,
        }
    }

    fn watch_catches_up(&mut self, stream: u8) {
        while !self.streams[usize::from(stream)].is_empty() {
            self.deliver_event(stream);
        }
    }

    fn in_use(&self) -> Resources {
        self.vms[VM].in_use
    }

    /// What the scheduler counts for the VM's pod.
    fn counted(&self) -> Resources {
        let mut pods = self.core.ledger().pods();
        let pod = pods.next().expect("the VM has a pod");
        self.core.ledger().counted(&pod.view)
    }
}

/// Fault 2: the guest grew and the VM shrank again, while status and pods were late.
///
/// Requirement: N06
#[test]
fn guest_that_grew_under_a_late_status_stays_counted() {
    let mut world = World::with_one_vm(Requests::Nothing);
    world.all_happen(&[
        AgentAsks(4),
        PermitGoesThrough,
        PatchLands,
        ControllerOrders,
        VmWatchCatchesUp,
        GuestResizes,
        AgentLowers(1),
        PermitGoesThrough,
        VmWatchCatchesUp,
    ]);
    assert_eq!(world.counted(), units(4), "the guest still has it");
    world.all_happen(&[
        ControllerOrders,
        GuestResizes,
        StatusIsWritten,
        VmWatchCatchesUp,
    ]);
    assert_eq!(world.counted(), units(1), "the status caught up");
}

/// Fault 6: the patch of an agent that was replaced lands after its successor's first contact.
///
/// Requirement: N16
#[test]
fn patch_of_a_replaced_agent_stays_counted_for_twelve_seconds() {
    let replaced = [
        AgentAsks(4),
        PermitGoesThrough,
        AgentIsReplaced,
        AgentAsks(1),
        PermitGoesThrough,
        VmWatchCatchesUp,
    ];
    let mut world = World::with_one_vm(Requests::Nothing);
    world.all_happen(&replaced);
    assert_eq!(world.counted(), units(4), "the patch may land");
    world.all_happen(&[Seconds(11), StrayPatchLands]);
    assert_eq!(world.in_use(), units(4));
    let mut quiet = World::with_one_vm(Requests::Nothing);
    quiet.all_happen(&replaced);
    quiet.all_happen(&[Seconds(13)]);
    assert_eq!(quiet.counted(), units(1), "it never will");
}

/// A guest that grows to four units for a size that its VM has given up, and a new scheduler.
const GIVEN_UP_BEFORE_A_RESTART: [Happening; 8] = [
    AgentAsks(4),
    PermitGoesThrough,
    PatchLands,
    ControllerOrders,
    AgentLowers(1),
    PermitGoesThrough,
    SchedulerRestarts,
    GuestResizes,
];

/// Fault 19: only the pod's requests say what its guest was ordered to have.
///
/// Requirement: N16
#[test]
fn new_scheduler_counts_what_a_pod_requests() {
    let mut world = World::with_one_vm(Requests::Guest);
    world.all_happen(&GIVEN_UP_BEFORE_A_RESTART);
    assert_eq!(world.counted(), units(4));
}

/// Fault 26: only the pod's annotation says what its guest was ordered to have.
///
/// Requirement: N16
#[test]
fn new_scheduler_counts_what_a_pod_says_is_in_use() {
    let mut world = World::with_one_vm(Requests::Nothing);
    world.all_happen(&GIVEN_UP_BEFORE_A_RESTART);
    assert_eq!(world.counted(), units(4));
}

/// The guest of a deleted VM keeps what it was counted at.
///
/// Requirement: N06
#[test]
fn guest_of_a_deleted_vm_stays_counted() {
    let mut world = World::with_one_vm(Requests::Nothing);
    world.all_happen(&[
        AgentAsks(4),
        PermitGoesThrough,
        PatchLands,
        ControllerOrders,
        GuestResizes,
        VmWatchCatchesUp,
        VmIsDeleted,
        VmWatchCatchesUp,
    ]);
    assert_eq!(world.counted(), units(4));
}

/// Fault 24: the late request of a replaced agent asks for less than its successor uses.
///
/// Requirement: N06
#[test]
fn late_request_lowers_nothing_that_is_in_use() {
    let mut world = World::with_one_vm(Requests::Nothing);
    world.all_happen(&[AgentAsks(1), AgentIsReplaced]);
    let (vm, late) = world.late_requests.pop().expect("it was on its way");
    world.all_happen(&[
        AgentAsks(1),
        PermitGoesThrough,
        AgentAsks(4),
        PermitGoesThrough,
        PatchLands,
    ]);
    world.late_request_arrives(vm, late);
    world.all_happen(&[PermitGoesThrough, VmWatchCatchesUp]);
    let approved = world.vms[VM].approved_resources();
    assert_eq!(approved, Some(units(4)), "its successor uses that much");
}
