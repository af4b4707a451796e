//! The migrations of one VM: events in, actions out, at most one action per peer under way. Source:
//! docs/compatibility/neonvm.md §2.9.
//!
//! ```text
//! watches ─┐                             ┌─► Kubernetes API (migration, VM's status, pods)
//! source  ─┼─► MigrationCore ─► plan() ──┼─► runner of the source: hold, send, recall, quit
//! target  ─┘   (newest state)            └─► runner of the target: receive, begin
//! ```
//!
//! *One running guest.* The sending QEMU stops its guest when all of it is sent, and does not
//! resume it by itself. The receiving QEMU starts stopped. One write of the VM's status, on the
//! version it rests on, decides who has the guest: either the target becomes its pod, or its phase
//! becomes Running with the source. `begin` is sent only after the first, `recall` only after the
//! second. So no guest runs twice, after any crash or repetition and with two controllers at once.
//! A guest runs nowhere only if its own runner is lost. `tests::*_leaves_one_guest`
//!
//! Cold start: everything is read from objects and runners. Nothing of the core's state needs to
//! survive.
//!
//! One core takes all migrations of a VM in turn, so that two never claim the same VM.

mod action;
mod begin;
mod done;
mod dump;
mod ends;
mod event;
mod kind;
mod objects;
mod observe;
mod pending;
mod plan;
mod poll;
pub(super) mod reason;
mod running;
mod state;
mod view;

pub use action::Action;
pub use dump::Dump;
pub use event::{ActionResponse, Event};
pub use kind::{Kind, Peer};
pub use plan::{Plan, plan};
pub use poll::{LOOK_AGAIN, READ_AGAIN};
pub use reason::{Reason, Wait};
pub use state::MigrationCore;
pub use view::{FAILED, KnownRunner, PENDING, PlanInput, RUNNING, SUCCEEDED, VmView};

#[cfg(test)]
mod tests;
