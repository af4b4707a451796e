//! Migration of a guest from one QEMU to another: the decisions of the two runners. Their orders
//! and reports are in [`protocol::migration`].
//!
//! * *Same shape.* The target is built from a [`Manifest`] of the source at rest: its command line
//!   at the start, its machine type by version, and the CPUs plugged since. The stream carries the
//!   memory of virtio-mem.
//! * *One running guest.* The target starts stopped, and only `begin` activates its disk. The
//!   source stays stopped once all was sent, unless it is recalled.
//! * *Level-triggered.* Both sides query QEMU and act on the answer, so a runner that restarts in
//!   the middle continues.

mod incoming;
mod manifest;
mod outgoing;
mod pacer;
mod view;

pub use incoming::{Incoming, IncomingAction, IncomingEvent};
pub use manifest::{Arrival, Disk, DriveThere, Manifest, PluggedCpu, Unfit, version};
pub use outgoing::{Leaving, Outgoing, OutgoingAction, OutgoingEvent};
pub use view::View;

#[cfg(test)]
mod tests;
